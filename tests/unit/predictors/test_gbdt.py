"""LEAP's predictor corrects history, knows what it has not seen, and is the same model after a round trip through text."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from leap.features import State, assemble
from leap.params import ModelParams
from leap.predictors import Examples
from leap.predictors.gbdt import Encoder, GbdtPredictor, calibrate_half_widths

PARAMS = ModelParams(
    training_window_days=100,
    half_life_days=100,
    num_boost_round=60,
    learning_rate=0.1,
    num_leaves=15,
    min_data_in_leaf=5,
    feature_fraction=1.0,
    bagging_fraction=1.0,
    lambda_l2=0.1,
    new_configuration_share=0.5,
    num_threads=1,
)


def predictor(levels) -> GbdtPredictor:
    return GbdtPredictor(PARAMS, levels, 0.8, 7)


@pytest.fixture
def examples(state_table, levels) -> Examples:
    """Attempts on two hardware types whose throughput is history plus an effect of the batch that history cannot know."""
    count = 600
    rng = np.random.default_rng(1)
    state = State.from_table(
        state_table(
            [("model_hardware", ("bert", "H100"), "2024-01-02", 3.0), ("model_hardware", ("bert", "A100"), "2024-01-02", 2.0)]
        ),
        levels,
    )
    hardware = rng.choice(["H100", "A100"], count)
    batch = rng.choice([16.0, 64.0, 256.0], count)
    features = assemble(
        pa.table({"model_type": ["bert"] * count, "global_batch_size": batch}),
        pa.table({"hardware_type": hardware, "num_devices": np.full(count, 8.0), "vendor": ["NVIDIA"] * count}),
        state,
        np.full(count, np.datetime64("2024-01-03")),
    )
    target = np.where(hardware == "H100", 3.0, 2.0) + 0.12 * np.log(batch / 64) + rng.normal(0, 0.01, count)
    return Examples(features, target, rng.integers(1, 40, count).astype(float))


def test_it_learns_what_history_alone_does_not_tell(examples, levels):
    model = predictor(levels).fit(examples)
    error = model.predict(examples.features).p50 - examples.target
    # history alone is off by 0.12 * ln 4 = 0.17 for two thirds of the attempts
    assert np.median(np.abs(error)) < 0.02


def test_a_few_runs_that_are_off_by_a_multiple_do_not_rule_the_correction(examples, levels):
    # given: one run in ten thrice as slow as the law, as where a disk was slow
    slow = np.arange(len(examples.target)) % 10 == 0
    disturbed = Examples(examples.features, examples.target - np.where(slow, np.log(3.0), 0.0), examples.age_days)
    error = predictor(levels).fit(disturbed).predict(examples.features).p50 - examples.target
    assert np.median(np.abs(error)) < 0.04


def test_the_same_data_gives_the_same_model(examples, levels):
    assert predictor(levels).fit(examples).fingerprint == predictor(levels).fit(examples).fingerprint


def test_column_order_does_not_change_a_prediction(examples, levels):
    # LightGBM itself takes columns by position without a word (LightGBM#4102)
    model = predictor(levels).fit(examples)
    shuffled = examples.features.select(sorted(examples.features.column_names))
    np.testing.assert_array_equal(model.predict(examples.features).p50, model.predict(shuffled).p50)


def test_a_category_that_training_never_saw_is_missing_and_not_another_ones_number(examples, levels):
    encoder = Encoder.fit(examples.features, levels)
    unseen = examples.features.slice(0, 1).set_column(
        examples.features.column_names.index("hardware_type"), "hardware_type", pa.array(["MI300X"])
    )
    assert np.isnan(encoder.transform(unseen)[0, encoder.names.index("hardware_type")])


def test_a_row_without_any_history_gets_no_answer(examples, state_table, levels):
    model = predictor(levels).fit(examples)
    nothing = assemble(
        pa.table({"model_type": ["new"]}),
        pa.table({"hardware_type": ["MI300X"], "num_devices": [8.0]}),
        State.from_table(state_table([]), levels),
        np.array(["2024-01-03"], "datetime64[D]"),
    )
    answer = model.predict(nothing)
    assert np.isnan(answer.p50).all()
    assert answer.tier.tolist() == ["none"]


def test_a_model_read_back_from_text_predicts_the_same(examples, levels, tmp_path):
    # given
    model = predictor(levels).fit(examples).calibrate(examples, 15)
    model.save(tmp_path)
    # when
    again = GbdtPredictor.load(tmp_path)
    # then
    for part in ("p10", "p50", "p90"):
        np.testing.assert_array_equal(
            getattr(model.predict(examples.features), part), getattr(again.predict(examples.features), part)
        )
    assert again.fingerprint == model.fingerprint


def test_a_booster_of_another_model_is_refused(examples, levels, tmp_path):
    predictor(levels).fit(examples).save(tmp_path)
    text = (tmp_path / "encoder.json").read_text().replace('"log_num_devices"', '"log_something_else"')
    (tmp_path / "encoder.json").write_text(text)
    with pytest.raises(ValueError, match="not of one model"):
        GbdtPredictor.load(tmp_path)


def test_intervals_hold_the_share_they_promise_and_a_tier_without_errors_is_wider_than_a_stronger_one():
    rng = np.random.default_rng(0)
    error = rng.normal(0, 0.1, 4000)
    tier = np.where(np.arange(4000) < 2000, "measured", "learned")
    widths = calibrate_half_widths(error, tier, 0.8)
    fresh = rng.normal(0, 0.1, 20_000)
    low, high = widths["measured"]
    assert np.mean((fresh >= -low) & (fresh <= high)) == pytest.approx(0.8, abs=0.02)
    assert widths["family"] == pytest.approx(tuple(1.5 * width for width in widths["learned"]))


def test_a_tier_without_errors_borrows_from_the_next_weaker_one_where_none_is_stronger():
    widths = calibrate_half_widths(np.full(100, 0.2), np.full(100, "learned"), 0.8)
    assert widths["measured"] == widths["learned"] == (0.0, pytest.approx(0.2))


def test_fitting_on_no_history_is_an_error_that_says_so(state_table, levels):
    features = assemble(
        pa.table({"model_type": ["m"]}),
        pa.table({"hardware_type": ["h"], "num_devices": [1.0]}),
        State.from_table(state_table([]), levels),
        np.array(["2024-01-03"], "datetime64[D]"),
    )
    with pytest.raises(ValueError, match="two nights"):
        predictor(levels).fit(Examples(features, np.array([1.0]), np.array([0.0])))


def test_where_a_configuration_was_never_seen_a_share_of_the_correction_is_taken(examples, levels):
    # given: the same rows, with a process that answers, once with exact history and once without
    def given(name: str, values: float) -> pa.Table:
        place = examples.features.column_names.index(name)
        return features.set_column(place, name, pa.array(np.full(features.num_rows, values)))

    features = examples.features
    features = given("process_mean", 2.5)
    features = given("process_sd", 0.1)
    model = predictor(levels).fit(Examples(features, examples.target, examples.age_days))
    # when
    level, whole = model.base_and_correction(given("exact_log_count", np.log(3)))
    _, part = model.base_and_correction(given("exact_log_count", np.nan))
    # then
    np.testing.assert_array_equal(level, np.full(features.num_rows, 2.5))
    np.testing.assert_allclose(part, 0.5 * whole)
    np.testing.assert_allclose(model.predict(given("exact_log_count", np.nan)).p50, 2.5 + part)


def test_repeats_of_one_job_are_one_example_that_weighs_as_the_root_of_their_number(examples, levels):
    rows = np.concatenate([np.zeros(9, dtype=int), np.arange(len(examples.target))])
    target = examples.target[rows]
    repeated = Examples(examples.features.take(pa.array(rows)), target, examples.age_days[rows])
    shuffled = np.random.default_rng(0).permutation(len(rows))
    again = Examples(repeated.features.take(pa.array(shuffled)), target[shuffled], repeated.age_days[shuffled])
    # the order of rows decides nothing but the order of sums
    one, two = (predictor(levels).fit(each).predict(examples.features).p50 for each in (repeated, again))
    np.testing.assert_allclose(one, two, atol=1e-6)


def test_intervals_come_from_errors_that_the_model_did_not_learn_from(examples, levels):
    # given: labels that no feature tells, so that a model is right only on what it has learned by heart
    rng = np.random.default_rng(5)
    noise = Examples(examples.features, examples.target + rng.normal(0, 0.5, len(examples.target)), examples.age_days)
    model = predictor(levels).fit(noise).calibrate(noise, 15)
    # then: fresh labels fall into the interval as often as promised
    answer = model.predict(examples.features)
    fresh = examples.target + rng.normal(0, 0.5, len(examples.target))
    assert np.mean((answer.p10 <= fresh) & (fresh <= answer.p90)) == pytest.approx(0.8, abs=0.08)
