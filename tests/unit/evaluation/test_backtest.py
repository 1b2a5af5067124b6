"""A backtest night learns only from what its cut knew, and is scored on every attempt of that night."""

from __future__ import annotations

import datetime as dt
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pytest

from leap.contracts import CANDIDATE_SCHEMA, REJECT_SCHEMA, SUBMISSION_SCHEMA, UTC_TIMESTAMP
from leap.evaluation.backtest import Share, backtest
from leap.evaluation.history import History, NothingToScoreError, end_before_final, training_matrix, window
from leap.evaluation.retrain import default_predictors, fit_with_intervals
from leap.features import State
from leap.params import Params, load_params
from leap.predictors import Examples, Prediction

EXAMPLE_SCHEMA = pa.schema(
    [
        pa.field("attempt_id", pa.string()),
        pa.field("is_newest", pa.bool_()),
        pa.field("night", pa.date32()),
        pa.field("visible_from", pa.date32()),
        pa.field("visible_to", pa.date32()),
        pa.field("outcome", pa.string()),
        pa.field("log_throughput_per_device", pa.float64()),
        pa.field("started_at", UTC_TIMESTAMP),
        pa.field("ended_at", UTC_TIMESTAMP),
        *SUBMISSION_SCHEMA,
        *[field.with_nullable(True) for field in CANDIDATE_SCHEMA],
    ]
)


@pytest.fixture
def params(repository, levels) -> Params:
    whole = load_params(repository / "params.yaml")
    return whole.model_copy(update={"features": whole.features.model_copy(update={"state_levels": levels})})


def day(number: int) -> dt.date:
    return dt.date(2024, 1, 1) + dt.timedelta(days=number)


def example(attempt: str, night: int, label: float, **change) -> dict:
    return {
        "attempt_id": attempt,
        "is_newest": True,
        "night": day(night),
        "visible_from": day(night + 1),
        "visible_to": None,
        "outcome": "succeeded",
        "log_throughput_per_device": label,
        "started_at": dt.datetime.combine(day(night), dt.time(10), dt.UTC),
        "ended_at": dt.datetime.combine(day(night), dt.time(11), dt.UTC),
        "job_id": attempt,
        "model_type": "bert",
        "hardware_type": "H100",
        "num_devices": 8.0,
        "pool": "default",
        "vendor": "NVIDIA",
        "family": "Hopper",
    } | change


def history_of(rows: list[dict], state: State, quarantine: pa.Table | None = None) -> History:
    return History.from_matrix(training_matrix(pa.Table.from_pylist(rows, schema=EXAMPLE_SCHEMA), state), quarantine)


@pytest.fixture
def state(state_table, levels) -> State:
    return State.from_table(
        state_table(
            [("model_hardware", ("bert", "H100"), "2024-01-02", 1.0), ("exact", ("bert", "H100", "8"), "2024-01-02", 1.0)]
        ),
        levels,
    )


class Recorder:
    """Answers with the mean of the labels that it was given, and keeps them."""

    name = "recorder"
    seen: ClassVar[list[list[float]]] = []

    def fit(self, examples: Examples) -> Recorder:
        self.mean = float(np.mean(examples.target))
        Recorder.seen.append(sorted(examples.target.tolist()))
        return self

    def predict(self, features: pa.Table) -> Prediction:
        answer = np.full(features.num_rows, self.mean)
        return Prediction(answer, answer, answer, np.full(features.num_rows, "learned"))


def test_a_night_learns_the_label_that_its_cut_knew(state, params):
    # given: attempt a of night 1 logged 1.0, corrected to 5.0 in a version known from night 4 on
    rows = [
        example("a", 1, 1.0, is_newest=False, visible_to=day(4)),
        example("a", 1, 5.0, visible_from=day(4)),
        example("b", 3, 2.0),
        example("c", 4, 3.0),
    ]
    Recorder.seen = []
    # when
    result = backtest(history_of(rows, state), params, nights=2, end=None, makers=[Recorder])
    # then: night 3 trained on 1.0; night 4 on the correction and on b
    assert Recorder.seen == [[1.0], [2.0, 5.0]]
    assert [str(night) for night in result.nights] == ["2024-01-04", "2024-01-05"]


def test_the_denominator_holds_what_was_quarantined_and_leaves_out_what_did_not_succeed(state, params):
    rows = [example("a", 1, 1.0), example("b", 2, 1.0), example("f", 2, 1.0, outcome="failed")]
    started = dt.datetime(2024, 1, 3, 5, tzinfo=dt.UTC)
    bad = {
        "source": "mlperf",
        "slice": "s",
        "file": "f",
        "line": 1,
        "attempt_id": "q",
        "job_id": "job-q",
        "started_at": started,
        "ended_at": started + dt.timedelta(hours=1),
        "outcome": "succeeded",
        "reason": "label-disagrees",
        "detail": "",
    }
    unfinished = bad | {"attempt_id": "u", "ended_at": None}
    mended = bad | {"attempt_id": "b"}
    quarantine = pa.Table.from_pylist([bad, unfinished, mended], schema=REJECT_SCHEMA)
    # when
    result = backtest(history_of(rows, state, quarantine), params, nights=1, end=np.datetime64("2024-01-03"), makers=[Recorder])
    # then: b and the quarantined one
    card = result.scorecards["recorder"]
    assert card.n == 2
    assert card.answered == pytest.approx(0.5)
    assert card.within_10 == pytest.approx(0.5)


def test_permuting_every_label_known_after_the_cut_changes_no_prediction(state, params):
    # given
    rng = np.random.default_rng(3)
    rows = [
        example(f"a{number}", number % 12, float(rng.normal(1, 0.2)), global_batch_size=float(2 ** (number % 4)))
        for number in range(240)
    ]
    cut = np.datetime64(day(8), "D")
    before = history_of(rows, state)
    shuffled = [
        row | {"log_throughput_per_device": float(rng.normal(50, 9))} if row["visible_from"] > day(8) else row for row in rows
    ]
    after = history_of(shuffled, state)
    # when: both fitted at the cut and asked about the night
    asked = before.features.filter(pa.array(before.night == cut))
    for make in default_predictors(params):
        one = fit_with_intervals(make(), before, cut, params).predict(asked)
        two = fit_with_intervals(make(), after, cut, params).predict(asked)
        # then
        for part in ("p10", "p50", "p90"):
            np.testing.assert_array_equal(getattr(one, part), getattr(two, part))


def test_the_window_is_the_newest_nights_and_grows_until_it_holds_enough(state):
    rows = [example(f"a{number}", number, 1.0) for number in range(20)]
    history = history_of(rows, state)
    marked = window(history, np.ones(20, dtype=bool), 5, 30)
    # 5 nights asked for, 30 attempts wanted, half of the nights at most
    assert sorted(history.night[marked].astype(str))[0] == "2024-01-11"
    assert marked.sum() == 10


def test_a_night_with_nothing_to_learn_from_is_a_miss_and_no_crash(state_table, levels, params):
    nothing = State.from_table(state_table([]), levels)
    result = backtest(history_of([example("a", 1, 1.0)], nothing), params, nights=3, end=None)
    assert result.scorecards["leap"].n == 1
    assert result.scorecards["leap"].answered == 0.0
    assert result.scorecards["lookup"].within_10 == 0.0


def test_the_newest_nights_are_kept_for_the_final_score(state):
    many = history_of([example(f"a{number}", number, 1.0) for number in range(80)], state)
    assert end_before_final(many) == many.scored_nights()[49]
    few = history_of([example(f"a{number}", number, 1.0) for number in range(9)], state)
    assert end_before_final(few) == few.scored_nights()[4]


def test_all_nights_but_the_first_and_the_last_are_scored_beside_the_table(state, params):
    rows = [example(f"a{number}", number, 1.0) for number in range(8)]
    result = backtest(history_of(rows, state), params, nights=None, skip_first=2, end=np.datetime64(day(5), "D"))
    assert result.nights.tolist() == [day(number) for number in range(2, 6)]
    assert set(result.over_lookup) == {"leap"}
    assert {part.axis for part in result.slices} == {"exact history", "hardware_type", "model_type", "team", "tier"}
    assert sum(part.n for part in result.slices if (part.predictor, part.axis) == ("leap", "team")) == 4


def test_an_end_before_all_runs_is_an_error_that_names_the_span(state, params):
    with pytest.raises(NothingToScoreError, match="2024-01-02 to 2024-01-02"):
        backtest(history_of([example("a", 1, 1.0)], state), params, nights=1, end=np.datetime64("2020-01-01"))


def at(night: int, hour: int) -> dt.datetime:
    return dt.datetime.combine(day(night), dt.time(hour), dt.UTC)


def test_history_of_the_same_day_is_the_jobs_last_run_that_ended_before_the_start_else_the_table(state, params):
    # given: three runs of job j on one night, the second starting when the first has ended, the third before the second ends;
    # one of another job, and one of j on other hardware
    def run(attempt: str, start: int, end: int, label: float, **change) -> dict:
        return example(attempt, 3, label, job_id="j", started_at=at(3, start), ended_at=at(3, end), **change)

    rows = [
        example("before", 2, 1.0, job_id="other"),
        run("first", 1, 2, 7.0),
        run("second", 2, 4, 7.0),
        run("third", 3, 5, 7.0),
        run("elsewhere", 6, 7, 7.0, hardware_type="A100"),
        example("other", 3, 1.0, job_id="other", started_at=at(3, 8), ended_at=at(3, 9)),
    ]
    result = backtest(history_of(rows, state), params, nights=1, end=None, makers=[Recorder])
    # then: second and third are told 7.0 by the first, other is told 1.0 by its run of the night before; the first is told 1.0 by
    # the table, wrongly, and of A100 nobody tells anything
    assert result.same_day == Share(5, 0.6, 0.6)


def test_a_run_under_two_names_counts_once_in_the_figure_for_that(state, params):
    rows = [
        example("before", 2, 1.0),
        example("a", 3, 1.0),
        example("a-again", 3, 1.0, job_id="resubmitted"),
        example("b", 3, 9.0, started_at=at(3, 1)),
    ]
    result = backtest(history_of(rows, state), params, nights=1, end=None, makers=[Recorder])
    assert result.scorecards["recorder"].n == 3
    assert result.scorecards["recorder"].within_10 == pytest.approx(2 / 3)
    assert result.counted_once["recorder"] == Share(2, 0.5, 0.5)


def test_the_mean_error_is_of_the_answers(state, params):
    rows = [example("before", 2, 0.0), example("a", 3, 0.0), example("b", 3, float(np.log(0.5)))]
    result = backtest(history_of(rows, state), params, nights=1, end=None, makers=[Recorder])
    # predicted 1 for labels 1 and 0.5: off by 0 and by 100%
    assert result.mean_ape["recorder"] == pytest.approx(0.5)
