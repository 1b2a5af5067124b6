"""The process learns how runs are alike, knows at each cut what was known then, and is the same from a bundle."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from leap.contracts import CANDIDATE_SCHEMA, SUBMISSION_SCHEMA
from leap.gaussian_process import GaussianProcess

FIRST = date(2024, 1, 1)
PEAK = {"A100": 312.0, "H100": 989.0, "H800": 989.0, "MI300X": 1307.0}


def run(
    day: int, model: str, hardware: str, devices: float, value: float, *, known: int | None = None, withdrawn: int | None = None
) -> dict[str, Any]:
    return {
        "model_type": model,
        "hardware_type": hardware,
        "family": hardware,
        "vendor": "AMD" if hardware == "MI300X" else "NVIDIA",
        "framework": "pytorch",
        "team": "a",
        "num_devices": devices,
        "global_batch_size": 32 * devices,
        "peak_bf16_tflops": PEAK[hardware],
        "night": FIRST + timedelta(days=day),
        "visible_from": FIRST + timedelta(days=day + 1 if known is None else known),
        "visible_to": None if withdrawn is None else FIRST + timedelta(days=withdrawn),
        "log_throughput_per_device": value,
    }


def table(rows: list[dict[str, Any]]) -> pa.Table:
    day = pa.date32()
    kinds = {"night": day, "visible_from": day, "visible_to": day, "log_throughput_per_device": pa.float64()}
    schemas = {field.name: field.type for schema in (SUBMISSION_SCHEMA, CANDIDATE_SCHEMA) for field in schema}
    return pa.table(
        {name: pa.array([row.get(name) for row in rows], kind) for name, kind in (schemas | kinds).items()},
    )


def ask(process: GaussianProcess, rows: list[dict[str, Any]], day: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    asked = table(rows)
    nights = np.full(len(rows), np.datetime64(FIRST + timedelta(days=day), "D"))
    return process.predict(asked.select(SUBMISSION_SCHEMA.names), asked.select(CANDIDATE_SCHEMA.names), nights)


def fleet(days: int = 20) -> list[dict[str, Any]]:
    """Three model types whose throughput goes with the peak rate and falls with the number of devices."""
    rng = np.random.default_rng(3)
    level = {"bert": 5.0, "gpt": 1.0, "unet": 3.0}
    return [
        run(day, model, hardware, devices, level[model] + np.log(PEAK[hardware] / 312) - 0.05 * np.log(devices) + error)
        for day in range(days)
        for model, hardware, devices, error in zip(
            rng.choice(list(level), 3),
            rng.choice(["A100", "H100", "MI300X"], 3),
            2.0 ** rng.integers(0, 7, 3),
            rng.normal(0, 0.005, 3),
            strict=True,
        )
    ]


def test_hardware_new_to_all_is_told_by_what_is_like_it_and_a_device_count_by_the_others():
    process = GaussianProcess.from_examples(table(fleet()))
    mean, deviation = ask(process, [run(0, "bert", "H800", 8, 0.0), run(0, "bert", "H100", 24, 0.0)], 30)
    # the law of what has H100's peak rate: 5 + ln(989 / 312) - 0.05 ln 8 = 6.05; and - 0.05 ln 24: 5.99
    np.testing.assert_allclose(mean, [6.05, 5.99], atol=0.3)
    assert deviation[0] > deviation[1] > 0


def test_a_model_type_never_seen_is_as_uncertain_as_model_types_differ():
    process = GaussianProcess.from_examples(table(fleet()))
    _, deviation = ask(process, [run(0, "new", "H100", 8, 0.0), run(0, "bert", "H100", 8, 0.0)], 30)
    assert deviation[0] > 4 > 0.5 > deviation[1]


def test_a_cut_knows_nothing_of_what_became_known_at_or_after_it():
    # given: the labels known from day 10 on are another's
    rows = fleet()
    other = [
        row if row["visible_from"] <= FIRST + timedelta(days=10) else {**row, "log_throughput_per_device": 99.0} for row in rows
    ]
    # when, then
    asked = [run(0, "gpt", "H100", 8, 0.0), run(0, "unet", "MI300X", 4, 0.0)]
    true, false = (GaussianProcess.from_examples(table(each)) for each in (rows, other))
    for day in (1, 5, 10):
        np.testing.assert_array_equal(ask(true, asked, day), ask(false, asked, day))
    assert (ask(true, asked, 11)[0] != ask(false, asked, 11)[0]).all()
    assert np.isnan(ask(true, asked, 0)[0]).all()


@pytest.mark.parametrize("most", [4000, 24])
def test_many_nights_at_once_are_what_each_night_alone_is_also_from_a_bundle(most):
    # given: late labels, a withdrawn one, its correction
    rows = [
        *fleet(),
        run(3, "bert", "H100", 8, 5.0, known=9),
        run(2, "gpt", "A100", 8, 9.0, withdrawn=12),
        run(2, "gpt", "A100", 8, 1.0, known=12),
    ]
    process = GaussianProcess.from_examples(table(rows), max_points=most)
    asked = table(rows)
    nights = np.array([row["night"] for row in rows], dtype="datetime64[D]")
    submissions, candidates = asked.select(SUBMISSION_SCHEMA.names), asked.select(CANDIDATE_SCHEMA.names)
    # when
    together = process.predict(submissions, candidates, nights)
    # then
    for night in np.unique(nights):
        of_night = np.flatnonzero(nights == night)
        some = submissions.take(pa.array(of_night)), candidates.take(pa.array(of_night)), nights[of_night]
        known = [row for row in rows if row["visible_from"] <= night.astype(object)]
        fresh = [GaussianProcess.from_table(process.at(night))]
        # A night's own rebuild forgets no correction, and knows none of a later day.
        fresh += [GaussianProcess.from_examples(table(known), max_points=most)] if known else []
        for each in fresh:
            np.testing.assert_allclose(np.array(each.predict(*some)), np.array(together)[:, of_night], rtol=0, atol=2e-6)


def test_a_withdrawn_label_is_forgotten_from_its_night_on():
    rows = [run(1, "bert", "H100", 8, 5.0), run(2, "gpt", "A100", 8, 9.0, withdrawn=6), run(2, "gpt", "A100", 8, 1.0, known=6)]
    process = GaussianProcess.from_examples(table(rows))
    asked = [run(0, "gpt", "A100", 8, 0.0)]
    assert ask(process, asked, 5)[0][0] == pytest.approx(9.0, abs=0.1)
    assert ask(process, asked, 6)[0][0] == pytest.approx(1.0, abs=0.1)


def test_repeats_are_one_point_whatever_their_order_and_a_night_gives_no_more_than_its_share():
    rows = [run(1, "bert", "H100", 8, value) for value in (5.0, 5.2, 5.1)] + [
        run(1, "gpt", "A100", 2.0**k, 1.0) for k in range(9)
    ]
    night = np.datetime64(FIRST + timedelta(days=5), "D")
    one, two = (GaussianProcess.from_examples(table(each)).at(night) for each in (rows, rows[::-1]))
    assert one.equals(two)
    assert one.num_rows == 10
    assert sorted(one["weight"].to_pylist()) == [1.0] * 9 + [3.0]
    assert GaussianProcess.from_examples(table(rows), max_points_a_night=4).at(night).num_rows == 4


def test_what_is_unknown_of_hardware_and_job_still_gives_an_answer():
    process = GaussianProcess.from_examples(table(fleet()))
    mean, deviation = ask(process, [{"model_type": "bert", "num_devices": 8.0}], 30)
    assert np.isfinite(mean).all()
    assert deviation[0] > 0.3


def test_nothing_known_gives_nothing():
    process = GaussianProcess.from_examples(table([]))
    assert np.isnan(ask(process, [run(0, "bert", "H100", 8, 0.0)], 3)[0]).all()
    assert process.at(np.datetime64("2024-02-01")).num_rows == 0
