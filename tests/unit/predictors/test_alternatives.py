"""Each alternative learns from the same examples, says what it does not know, and is found by its name."""

from __future__ import annotations

import sys

import numpy as np
import pyarrow as pa
import pytest

from leap.features import State, assemble
from leap.params import Params, load_params
from leap.predictors import Examples, Predictor
from leap.predictors.catalogue import NAMES, MissingExtraError, make
from leap.predictors.completion import complete
from leap.predictors.stack import blend

HARDWARE = {"A100": (312.0, 2000.0), "H100": (989.0, 3350.0), "L4": (121.0, 300.0)}
LEVELS = {"bert": 3.0, "resnet": 6.0}
LEARNERS = [name for name in NAMES if name not in ("lookup", "last_value", "process")]
CORRECTIONS = ("ridge", "forest", "xgboost")


@pytest.fixture
def params(repository, levels) -> Params:
    whole = load_params(repository / "params.yaml")
    return whole.model_copy(update={"features": whole.features.model_copy(update={"state_levels": levels})})


@pytest.fixture
def state(state_table, levels) -> State:
    """History knows both models on two of the three types."""
    known = [
        (level, parts, "2024-01-02", LEVELS[model] + np.log(HARDWARE[hardware][0] / 312.0))
        for model in LEVELS
        for hardware in ("A100", "H100")
        for level, parts in (("model_hardware", (model, hardware)), ("exact", (model, hardware, "8")))
    ]
    return State.from_table(state_table(known), levels)


def features_of(state: State, models: list[str], hardware: list[str], batch: np.ndarray) -> pa.Table:
    count = len(models)
    return assemble(
        pa.table({"model_type": models, "global_batch_size": batch, "team": ["a"] * count, "framework": ["pytorch"] * count}),
        pa.table(
            {
                "hardware_type": hardware,
                "num_devices": np.full(count, 8.0),
                "vendor": ["NVIDIA"] * count,
                "family": hardware,
                "peak_bf16_tflops": [HARDWARE[name][0] for name in hardware],
                "memory_bandwidth_gbps": [HARDWARE[name][1] for name in hardware],
            }
        ),
        state,
        np.full(count, np.datetime64("2024-01-03")),
    )


@pytest.fixture
def examples(state) -> Examples:
    """A law that history does not tell: the batch matters."""
    rng = np.random.default_rng(5)
    models = rng.choice(list(LEVELS), 500)
    hardware = rng.choice(["A100", "H100"], 500)
    batch = rng.choice([32.0, 64.0, 128.0], 500)
    peak = np.array([HARDWARE[name][0] for name in hardware])
    level = np.array([LEVELS[name] for name in models])
    target = level + np.log(peak / 312.0) + 0.1 * np.log(batch / 64) + rng.normal(0, 0.005, 500)
    features = features_of(state, models.tolist(), hardware.tolist(), batch)
    return Examples(features, target, rng.integers(1, 60, 500).astype(float))


def test_the_catalogue_makes_what_it_names_under_that_name(params):
    for name in NAMES:
        assert make(name, params).name == name
    with pytest.raises(ValueError, match="no predictor 'oracle'; there are leap, lookup"):
        make("oracle", params)


@pytest.mark.parametrize("name", LEARNERS)
def test_what_was_seen_is_predicted_within_the_law(name, params, examples):
    predictor: Predictor = make(name, params).fit(examples)
    answer = predictor.predict(examples.features)
    # the batch moves the law by 0.07 at most, which completion alone does not look at; the others must learn it
    assert np.median(np.abs(answer.p50 - examples.target)) < (0.08 if name == "completion" else 0.02)
    assert (answer.p10 <= answer.p50).all()
    assert (answer.p50 <= answer.p90).all()
    assert 0.5 < ((answer.p10 <= examples.target) & (examples.target <= answer.p90)).mean() <= 1.0


@pytest.mark.parametrize("name", CORRECTIONS)
def test_a_few_runs_that_are_off_by_a_multiple_do_not_rule_a_correction(name, params, examples):
    # given: one in ten runs thrice as slow as the law, as where a disk was slow
    slow = np.arange(len(examples.target)) % 10 == 0
    disturbed = Examples(examples.features, examples.target - np.where(slow, np.log(3.0), 0.0), examples.age_days)
    # when
    answer = make(name, params).fit(disturbed).predict(examples.features)
    # then
    assert np.median(np.abs(answer.p50 - examples.target)) < 0.04


@pytest.mark.parametrize("name", CORRECTIONS)
def test_an_example_without_any_history_teaches_a_correction_nothing(name, params, examples, state_table, levels):
    nothing = State.from_table(state_table([]), levels)
    without = features_of(nothing, ["bert"] * 50, ["A100"] * 50, np.full(50, 64.0))
    assert np.isnan(without["prior"].to_numpy()).all()
    more = Examples(
        pa.concat_tables([examples.features, without]),
        np.concatenate([examples.target, np.full(50, 9.0)]),
        np.concatenate([examples.age_days, np.full(50, 3.0)]),
    )
    with_them, alone = (make(name, params).fit(some).predict(examples.features) for some in (more, examples))
    np.testing.assert_array_equal(with_them.p50, alone.p50)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "process"])
def test_the_first_nights_of_a_fleet_are_answered(name, params, state, state_table, levels):
    # given: on the first night there was no history to correct, on the second there was
    nothing = State.from_table(state_table([]), levels)
    asked = features_of(state, ["bert"] * 20, ["A100"] * 20, np.full(20, 64.0))
    first = features_of(nothing, ["bert"] * 20, ["A100"] * 20, np.full(20, 64.0))
    examples = Examples(pa.concat_tables([first, asked]), np.full(40, 3.0), np.repeat([2.0, 1.0], 20))
    # when
    answer = make(name, params).fit(examples).predict(asked)
    # then: an interval is wide where no error tells of it, but it is one
    np.testing.assert_allclose(answer.p50, 3.0, atol=0.05)
    assert (answer.p10 <= answer.p50).all()
    assert (answer.p50 <= answer.p90).all()


@pytest.mark.parametrize("name", NAMES)
def test_the_same_examples_give_the_same_answers_in_whatever_order_the_columns_stand(name, params, examples):
    features = examples.features
    turned = features.select(features.column_names[::-1])
    first = make(name, params).fit(examples).predict(features)
    second = make(name, params).fit(Examples(turned, examples.target, examples.age_days)).predict(turned)
    np.testing.assert_array_equal(first.p50, second.p50)
    np.testing.assert_array_equal(first.tier, second.tier)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_known_is_no_answer_and_no_crash(name, params, examples, state):
    unknown = assemble(
        pa.table({"model_type": ["never-seen"]}),
        pa.table({"hardware_type": ["nor-this"], "num_devices": [3.0]}),
        state,
        np.array(["2024-01-03"], dtype="datetime64[D]"),
    )
    answer = make(name, params).fit(examples).predict(unknown)
    assert np.isnan(answer.p50).all()
    assert answer.tier.tolist() == ["none"]


def test_what_the_process_says_of_a_row_of_which_nothing_is_known_is_no_answer(params, examples):
    # given: the process has a mean for everything; nothing was ever known of model type or hardware
    row = examples.features.slice(0, 1)
    for name, value in (("process_mean", pa.array([3.0])), ("tier", pa.array(["none"]))):
        row = row.set_column(row.column_names.index(name), name, value)
    for name in ("process", *CORRECTIONS, "leap"):
        answer = make(name, params).fit(examples).predict(row)
        assert np.isnan(answer.p50).all()
        assert answer.tier.tolist() == ["none"]


def test_neighbours_carry_over_what_hardware_promises(params, examples, state):
    # given: a type that no example ran on, of 121 TFLOP/s and 300 GB/s
    asked = features_of(state, ["bert"], ["L4"], np.array([64.0]))
    answer = make("neighbours", params).fit(examples).predict(asked)
    # then: bert on A100 is e^3 per device at 312 TFLOP/s and 2000 GB/s; ln of the ratio of geometric means is -1.42
    assert answer.p50[0] == pytest.approx(3.0 + 0.5 * np.log(121 / 312) + 0.5 * np.log(300 / 2000), abs=0.35)


def test_completion_fills_a_missing_pair_from_rows_and_columns():
    # given: the second type is e^1 times as fast as the first, one pair is missing
    rows = np.array([0.0, 2.0, 5.0, 7.0])
    measured = np.column_stack([rows, rows + 1.0])
    measured[3, 1] = np.nan
    filled = complete(measured, rank=1, penalty=0.1, seed=1)
    assert filled[3, 1] == pytest.approx(8.0, abs=0.15)


def test_completion_of_nothing_is_nothing():
    assert np.isnan(complete(np.full((2, 3), np.nan), 1, 0.1, 1)).all()


def test_a_blend_trusts_the_member_that_was_right():
    rng = np.random.default_rng(2)
    target = rng.normal(0, 1, 400)
    answers = np.column_stack([target + rng.normal(0, 0.01, 400), target + rng.normal(0, 0.2, 400)])
    weights = blend(answers, target)
    assert weights.sum() == pytest.approx(1.0)
    assert weights[0] > 0.9
    np.testing.assert_array_equal(blend(answers[:0], target[:0]), [0.5, 0.5])


def test_a_missing_library_is_named_with_what_to_do(params, monkeypatch):
    # None here is what makes Python's own import of the library fail
    monkeypatch.setitem(sys.modules, "xgboost", None)
    for name in ("xgboost", "stack"):
        with pytest.raises(MissingExtraError, match=rf"'{name}' needs xgboost.*pip install 'leap-fleet\[compare\]'"):
            make(name, params)
    assert make("ridge", params).name == "ridge"
