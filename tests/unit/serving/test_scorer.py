"""A bundle read back ranks a job that nobody has seen, and answers JSON as it answers tables."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest

from leap.contracts import JobSubmission
from leap.features import State, assemble
from leap.gaussian_process import POINT_SCHEMA
from leap.params import ModelParams, RankingParams
from leap.predictors import Examples
from leap.predictors.gbdt import GbdtPredictor
from leap.serving.reader import Answer, Freshness
from leap.serving.scorer import OFFER_COLUMNS, BundleFacts, Scorer, SubmissionError, write_bundle
from pipelines.commands.rank import _answer_of

CUT = np.datetime64("2024-02-01")


def no_points() -> pa.Table:
    """A process that knows nothing, so that the model stands on history alone."""
    return POINT_SCHEMA.append(pa.field("process_weight", pa.float64())).empty_table()


@pytest.fixture
def scorer(tmp_path, state_table, levels) -> Scorer:
    """A model of one model type on two hardware types; a third type is offered that it never saw, a fourth has no price."""
    state = state_table(
        [("model_hardware", ("bert", name), "2024-01-02", value) for name, value in (("H100", 3.0), ("A100", 2.0))]
        + [("model_family", ("bert", family), "2024-01-02", value) for family, value in (("Hopper", 3.0), ("Ampere", 2.0))]
        + [("model", ("bert",), "2024-01-02", 2.5)],
        log_peak=float(np.log(600)),
    )
    rng = np.random.default_rng(0)
    hardware = rng.choice(["H100", "A100"], 200)
    features = assemble(
        pa.table({"model_type": ["bert"] * 200, "global_batch_size": rng.choice([32.0, 64.0], 200)}),
        pa.table(
            {
                "hardware_type": hardware,
                "num_devices": [8.0] * 200,
                "peak_bf16_tflops": np.where(hardware == "H100", 989.0, 312.0),
            }
        ),
        State.from_table(state, levels),
        np.full(200, CUT),
    )
    params = ModelParams(
        training_window_days=10,
        half_life_days=10,
        num_boost_round=20,
        learning_rate=0.1,
        num_leaves=7,
        min_data_in_leaf=5,
        feature_fraction=1,
        bagging_fraction=1,
        lambda_l2=0,
        new_configuration_share=0.5,
        num_threads=1,
    )
    target = np.where(hardware == "H100", 3.1, 2.1) + rng.normal(0, 0.01, 200)
    predictor = GbdtPredictor(params, levels, 0.8, 1).fit(Examples(features, target, np.zeros(200)))
    offers = pa.Table.from_pylist(
        [
            dict.fromkeys(OFFER_COLUMNS)
            | {"pool": "default", "hardware_type": name, "vendor": vendor, "family": family, "peak_bf16_tflops": peak}
            | {"usd_per_device_hour": price, "price_version": "p1", "price_note": ""}
            for name, vendor, family, peak, price in (
                ("A100", "NVIDIA", "Ampere", 312.0, 1.0),
                ("H100", "NVIDIA", "Hopper", 989.0, 2.0),
                ("MI300X", "AMD", "CDNA3", 1307.0, 2.5),
                ("Gaudi3", "Intel", "Gaudi", 1677.0, None),
            )
        ]
    )
    facts = BundleFacts(
        "7", CUT, RankingParams(active_days=1, hardware_seen_days=1, near_best_share=0.05, price_list="list"), dict(levels)
    )
    write_bundle(tmp_path, predictor, state, no_points(), offers, facts)
    return Scorer.load(tmp_path)


def test_an_unseen_job_is_ranked_on_every_priced_type_with_its_tier(scorer):
    rows = scorer.rank(JobSubmission(model_type="bert", num_devices=8, global_batch_size=64)).to_pylist()
    by_type = {row["hardware_type"]: row for row in rows}
    # H100: exp(3.1) per device for 2 dollars an hour; a type never seen is not called learned (LightGBM#1936)
    assert by_type["H100"]["throughput"] == pytest.approx(8 * np.exp(3.1), rel=0.02)
    assert by_type["H100"]["throughput_per_usd"] == pytest.approx(np.exp(3.1) / 2 * 3600, rel=0.02)
    assert by_type["H100"]["rank"] < by_type["A100"]["rank"]
    assert by_type["H100"]["tier"] == "learned"
    assert by_type["MI300X"]["tier"] == "analytic"
    assert by_type["Gaudi3"]["rank"] is None
    assert by_type["Gaudi3"]["reason"] == "no price"
    assert {row["model_version"] for row in rows} == {"7"}


def test_the_list_of_eligible_hardware_is_kept(scorer):
    rows = scorer.rank(JobSubmission(model_type="bert", num_devices=8, eligible_hardware=("A100",))).to_pylist()
    assert [row["hardware_type"] for row in rows if row["rank"]] == ["A100"]
    assert {row["reason"] for row in rows if not row["rank"]} == {"not in the job's eligible list"}


@pytest.mark.parametrize(("field", "value"), [("num_devices", 10**12), ("global_batch_size", 1e300)])
def test_a_number_beyond_all_jobs_is_a_sentence(scorer, field, value):
    submission = JobSubmission.model_validate({"model_type": "bert", "num_devices": 8} | {field: value})
    with pytest.raises(SubmissionError, match=rf"{field} is .*; it must be at most"):
        scorer.rank(submission)


def test_without_hardware_that_it_may_run_on_a_job_gets_no_other(scorer):
    # given a job that may run on hardware which is not offered, and one of which nothing is known
    known = JobSubmission(model_type="bert", num_devices=8, eligible_hardware=("b200",))
    unknown = JobSubmission(model_type="never-heard-of", num_devices=8, eligible_hardware=("A100",))
    common = pa.table({"rank": [1, 2], "hardware_type": ["H100", "A100"], "tier": ["learned", "learned"]})
    all_jobs = Answer(common, None, Freshness.FRESH, None, "*")
    # then the first gets no rank and is told why, the second of all jobs' rows those that it may run on
    none = _answer_of(known, scorer.rank(known), all_jobs)
    assert {row["rank"] for row in none.rows.to_pylist()} == {None}
    assert none.warning.startswith("no hardware that this job may run on is offered at a price; offered: A100, Gaudi3")
    some = _answer_of(unknown, scorer.rank(unknown), all_jobs)
    assert some.rows["hardware_type"].to_pylist() == ["A100"]
    assert some.key_used == "*"


def test_a_job_of_which_nothing_is_known_gets_no_rank(scorer):
    rows = scorer.rank(JobSubmission(model_type="never-heard-of", num_devices=8)).to_pylist()
    assert {row["rank"] for row in rows} == {None}
    assert {row["tier"] for row in rows} == {"none"}


def test_scoring_from_json_equals_scoring_from_tables(scorer):
    # given: JSON loses integer against double and the dictionary types (mlflow#12910)
    submissions = pa.table({"model_type": pa.array(["bert"] * 2).dictionary_encode(), "global_batch_size": [64, 32]})
    candidates = pa.table(
        {"hardware_type": pa.array(["H100", "A100"]).dictionary_encode(), "num_devices": [8, 8], "pool": ["default"] * 2}
    )
    told = json.loads(
        json.dumps([{**left, **right} for left, right in zip(submissions.to_pylist(), candidates.to_pylist(), strict=True)])
    )
    from_json = pa.Table.from_pylist(told)
    # when
    one = scorer.predict(submissions, candidates)
    two = scorer.predict(from_json, from_json)
    # then
    assert one.equals(two)
    assert one["tier"].to_pylist() == ["learned", "learned"]


def test_the_order_of_rows_and_unknown_types_do_not_mix_descriptions_up(scorer):
    submissions = pa.table({"model_type": ["bert"] * 3})
    candidates = pa.table({"hardware_type": ["H100", "unheard", "A100"], "num_devices": [8.0] * 3, "pool": ["default"] * 3})
    features = scorer.features(submissions, candidates)
    np.testing.assert_array_equal(np.exp(features["log_peak_tflops"].to_numpy()).round(3), [989.0, np.nan, 312.0])
    assert features["vendor"].to_pylist() == ["NVIDIA", None, "NVIDIA"]
