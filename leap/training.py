"""A night's training: the challenger, and its score beside the lookup table's and the champion's on the same newest window.

What lives here: what is fitted on what, and what it is scored on. What does not: tracking and registry (`leap.store.registry`),
the decision (`leap.promotion`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from leap.evaluation.history import History, Rows, window
from leap.evaluation.metrics import Scorecard, score
from leap.evaluation.retrain import default_predictors, fit_with_intervals
from leap.params import Params
from leap.predictors import Prediction, Predictor
from leap.predictors.gbdt import GbdtPredictor

CHAMPION = "champion"


class NothingToLearnError(ValueError):
    """Not enough was known at the cut to train a model and to score it."""


@dataclass(frozen=True)
class Champion:
    """The model that is live: what it predicts, and the cut that it was trained at."""

    predictor: GbdtPredictor
    cut: np.datetime64


@dataclass(frozen=True)
class TrainingResult:
    """The challenger, fitted on all that was known at the cut, and the scores of its twin fitted before the window.

    `scorecards` holds `leap` (the challenger), `lookup` and, where it has not trained on the window, `champion`: all on the same
    attempts. `predictions` has one row per predictor and attempt of the window.
    """

    challenger: GbdtPredictor
    scorecards: dict[str, Scorecard]
    predictions: pa.Table
    window_start: np.datetime64
    trained_on: int


def train(history: History, params: Params, cut: np.datetime64, champion: Champion | None) -> TrainingResult:
    """Train the challenger at `cut` and score it, the lookup table and the champion on the newest window before it.

    The scores are of a twin that was fitted at the start of the window, intervals included, so that no attempt is scored by a
    model that learned from it. Raises NothingToLearnError where fewer than two nights have anything to learn from.
    """
    known = history.known_at(cut, params.model.training_window_days)
    usable = known & np.isfinite(history.features["prior"].to_numpy())
    if len(np.unique(history.night[usable])) < 2:
        nights = np.unique(history.night[history.visible_from <= cut])
        span = f"attempts known then are of {len(nights)} nights" + (f", {nights[0]} to {nights[-1]}" if len(nights) else "")
        raise NothingToLearnError(
            f"nothing to train on at the cut of {cut}: {span}; it takes two nights with history before them. "
            "Give more logs, or a later night with --as-of"
        )
    scored, comparable = _scoring_window(history, known & history.has_succeeded, params, champion)
    start = history.night[scored].min()
    predictors = [fit_with_intervals(make(), history, start, params) for make in default_predictors(params)]
    answers = _predict(predictors, history, scored)
    if champion is not None and comparable:
        answers[CHAMPION] = champion.predictor.predict(history.features.filter(pa.array(scored)))
    challenger = fit_with_intervals(default_predictors(params)[0](), history, cut, params)
    assert isinstance(challenger, GbdtPredictor)
    nights = np.unique(history.night[scored])
    return TrainingResult(
        challenger=challenger,
        scorecards={
            name: score(
                name,
                history.target[scored],
                answer,
                history.job[scored],
                seed=params.seed,
                unlabelled_jobs=history.unlabelled_jobs(nights),
            )
            for name, answer in answers.items()
        },
        predictions=pa.concat_tables([_rows(name, answer, history, scored) for name, answer in answers.items()]),
        window_start=start,
        trained_on=int(usable.sum()),
    )


def _scoring_window(history: History, among: Rows, params: Params, champion: Champion | None) -> tuple[Rows, bool]:
    """Choose what is scored on, and say whether the champion has not trained on any of it.

    Where the champion has trained on some of the window's nights and enough attempts came since, the window starts at its cut.
    """
    usual = window(history, among, params.validation.window_nights, params.validation.min_attempts)
    if not usual.any():
        raise NothingToLearnError("no attempt that succeeded is known at the cut: nothing to score a challenger on")
    if champion is None or champion.cut <= history.night[usual].min():
        return usual, champion is not None
    since = np.asarray(among & (history.night >= champion.cut))
    if since.sum() >= params.validation.min_attempts:
        return since, True
    return usual, False


def _predict(predictors: list[Predictor], history: History, rows: Rows) -> dict[str, Prediction]:
    features = history.features.filter(pa.array(rows))
    return {predictor.name: predictor.predict(features) for predictor in predictors}


def _rows(name: str, answer: Prediction, history: History, rows: Rows) -> pa.Table:
    count = int(rows.sum())
    return pa.table(
        {
            "predictor": pa.array([name] * count, pa.string()),
            "attempt_id": history.attempt_id.filter(pa.array(rows)),
            "attempt_night": pa.array(history.night[rows]),
            "job": pa.array(history.job[rows].tolist(), pa.string()),
            "hardware_type": history.features["hardware_type"].filter(pa.array(rows)),
            "tier": pa.array(answer.tier.tolist(), pa.string()),
            "log_throughput_per_device": history.target[rows],
            "log_p10": answer.p10,
            "log_p50": answer.p50,
            "log_p90": answer.p90,
        }
    )
