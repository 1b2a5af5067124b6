"""`assemble` looks history up at the cut of each row's own night, and says how much a row rests on."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leap.features import State, assemble, feature_names


def nights(*days: str) -> np.ndarray:
    return np.array(days, dtype="datetime64[D]")


def test_a_row_sees_the_newest_evidence_of_its_own_night_and_none_of_later_ones(state_table, submissions, candidates, levels):
    # given: the same key with evidence that changed on two nights
    key = ("bert", "H100", "8")
    state = State.from_table(state_table([("exact", key, "2024-01-02", 1.0), ("exact", key, "2024-01-05", 2.0, 2)]), levels)
    rows = [{"model_type": "bert"}] * 4
    # when: the same submission arrives on four nights
    table = assemble(
        submissions(*rows),
        candidates(*[{"hardware_type": "H100"}] * 4),
        state,
        nights("2024-01-01", "2024-01-02", "2024-01-04", "2024-01-09"),
    )
    # then: nothing is known before the first cut, and each later night knows what its cut knew
    np.testing.assert_array_equal(table["exact_median"].to_numpy(), [np.nan, 1.0, 1.0, 2.0])
    np.testing.assert_allclose(table["exact_age_days"].to_numpy(), [np.nan, 0.5, 2.5, 4.5])
    np.testing.assert_allclose(table["exact_log_count"].to_numpy(), np.log1p([np.nan, 1, 1, 2]))


def test_withdrawn_evidence_is_no_evidence(state_table, submissions, candidates, levels):
    # given: a level whose only label was withdrawn on the second night
    key = ("bert", "H100")
    state = State.from_table(
        state_table([("model_hardware", key, "2024-01-02", 1.0), ("model_hardware", key, "2024-01-03", None, 0)]), levels
    )
    # when
    table = assemble(submissions({"model_type": "bert"}), candidates({"hardware_type": "H100"}), state, nights("2024-01-03"))
    # then
    assert np.isnan(table["model_hardware_median"].to_numpy()).all()
    assert table["tier"].to_pylist() == ["analytic"]


@pytest.mark.parametrize(
    ("level", "parts", "tier"),
    [
        ("job_hardware", ("j", "H100", "8"), "measured"),
        ("model_hardware", ("bert", "H100"), "learned"),
        ("model_family", ("bert", "Hopper"), "family"),
        ("model", ("bert",), "analytic"),
        ("hardware", ("H100",), "analytic"),
        # of a hardware type whose specifications are known
        ("model", ("other",), "analytic"),
    ],
)
def test_the_tier_follows_the_most_specific_evidence(state_table, submissions, candidates, levels, level, parts, tier):
    state = State.from_table(state_table([(level, parts, "2024-01-02", 1.0)]), levels)
    table = assemble(
        submissions({"model_type": "bert", "job_id": "j"}), candidates({"hardware_type": "H100"}), state, nights("2024-01-03")
    )
    assert table["tier"].to_pylist() == [tier]


def test_the_prior_of_another_hardware_type_is_scaled_by_peak_rate(state_table, submissions, candidates, levels):
    # given: the model type ran on a type with half the peak rate of the candidate, at ln throughput 3 per device
    state = State.from_table(
        state_table([("model_family", ("bert", "Hopper"), "2024-01-02", 3.0)], log_peak=float(np.log(400))), levels
    )
    # when
    table = assemble(
        submissions({"model_type": "bert"}),
        candidates({"hardware_type": "new", "peak_bf16_tflops": 800.0}),
        state,
        nights("2024-01-03"),
    )
    # then
    np.testing.assert_allclose(table["prior"].to_numpy(), [3.0 + np.log(2)])


def test_numbers_in_keys_are_written_as_whole_numbers_and_missing_parts_make_no_key(state_table, submissions, candidates, levels):
    # given
    state = State.from_table(state_table([("configuration", ("bert", "H100", "8", "64"), "2024-01-02", 1.0)]), levels)
    # when: batch 64 as a double, batch unknown
    table = assemble(
        submissions({"model_type": "bert", "global_batch_size": 64.0}, {"model_type": "bert"}),
        candidates({"hardware_type": "H100"}, {"hardware_type": "H100"}),
        state,
        nights("2024-01-03", "2024-01-03"),
    )
    # then
    np.testing.assert_array_equal(table["configuration_median"].to_numpy(), [1.0, np.nan])


def test_framework_versions_become_releases(state_table, submissions, candidates, levels):
    state = State.from_table(state_table([]), levels)
    versions = ["23.04-tf2", "2.1.0+cu12", "none", None]
    table = assemble(
        submissions(*[{"model_type": "m", "framework_version": version} for version in versions]),
        candidates(*[{"hardware_type": "H100"}] * 4),
        state,
        nights(*["2024-01-03"] * 4),
    )
    np.testing.assert_array_equal(table["framework_release"].to_numpy(), [23.04, 2.1, np.nan, np.nan])


def test_every_feature_that_a_model_may_ask_for_is_made(state_table, submissions, candidates, levels):
    state = State.from_table(state_table([]), levels)
    table = assemble(submissions({"model_type": "m"}), candidates({"hardware_type": "h"}), state, nights("2024-01-03"))
    numeric, categorical = feature_names(levels)
    assert set(numeric) | set(categorical) | {"num_devices", "tier"} == set(table.column_names)


@given(count=st.integers(min_value=1, max_value=40), seed=st.integers(0, 2**16))
def test_many_rows_at_once_are_what_each_row_alone_is(count, seed):
    # given: random evidence and random rows; more rows than the small-lookup limit take the other way of finding keys
    rng = np.random.default_rng(seed)
    levels = {"job_hardware": ("job_id",), "exact": ("model_type",), "model_hardware": ("model_type", "hardware_type")}
    levels |= {"model_family": ("family",), "model": ("model_type",), "hardware": ("hardware_type",)}
    models = [f"m{index}" for index in range(5)]
    state = State.from_table(
        pa.table(
            {
                "level": ["exact"] * 20,
                "key": pa.array(rng.choice(models, 20)),
                "night": pa.array(np.datetime64("2024-01-01") + rng.permutation(20)),
                "evidence_count": rng.integers(0, 3, 20),
                **{
                    name: rng.normal(size=20)
                    for name in (
                        "last_log_throughput",
                        "median_log_throughput",
                        "spread_log_throughput",
                        "mean_log_peak",
                        "mean_log_devices",
                        "mean_log_batch",
                    )
                },
                "last_ended_at": pa.array([0] * 20, pa.timestamp("us", tz="UTC")),
            }
        ),
        levels,
    )
    rows = pa.table({"model_type": pa.array(rng.choice([*models, "unseen"], count))})
    hardware = pa.table({"hardware_type": ["h"] * count, "family": ["f"] * count, "num_devices": [1.0] * count})
    when = np.datetime64("2024-01-01") + rng.integers(0, 25, count)
    repeats = 2048 // count + 1
    # when
    together = assemble(pa.concat_tables([rows] * repeats), pa.concat_tables([hardware] * repeats), state, np.tile(when, repeats))
    alone = [
        assemble(rows.slice(row, 1), hardware.slice(row, 1), state, when[row : row + 1])["exact_median"].to_numpy()[0]
        for row in range(count)
    ]
    # then
    np.testing.assert_array_equal(together["exact_median"].to_numpy()[:count], alone)
