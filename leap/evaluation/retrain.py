"""Retraining at past cuts: each predictor, fitted on what a night knew, answers the attempts of that night.

What lives here: fitting with intervals, and the loop over nights. What does not: which examples there are (`history.py`), scores
(`backtest.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from leap.evaluation.history import History
from leap.features import Nights
from leap.params import Params
from leap.predictors import Prediction, Predictor
from leap.predictors.gbdt import GbdtPredictor
from leap.predictors.lookup import LookupTable

NightProgress = Callable[[np.datetime64, int, int], None]


class Memory(Protocol):
    """What predictors have answered in earlier runs of the same backtest."""

    def recall(self, predictor: str, night: np.datetime64, attempts: pa.ChunkedArray) -> Prediction | None:
        """Give what `predictor` answered for these attempts of `night`; None where it did not."""
        ...

    def keep(self, predictor: str, night: np.datetime64, attempts: pa.ChunkedArray, answer: Prediction) -> None:
        """Keep an answer."""
        ...


def fit_with_intervals(predictor: Predictor, history: History, cut: np.datetime64, params: Params) -> Predictor:
    """Fit `predictor` on what was known at `cut`; LEAP's own takes its intervals from the newest nights before it.

    Those are errors of twins that did not see them.
    """
    known = history.examples(history.known_at(cut, params.model.training_window_days), cut)
    predictor.fit(known)
    if isinstance(predictor, GbdtPredictor):
        predictor.calibrate(known, params.validation.calibration_nights)
    return predictor


def default_predictors(params: Params) -> list[Callable[[], Predictor]]:
    """Give the makers of LEAP's model and of the lookup table it replaces."""
    return [
        lambda: GbdtPredictor(params.model, params.features.state_levels, params.validation.interval, params.seed),
        lambda: LookupTable(params.validation.interval),
    ]


def answers_by_night(
    history: History,
    params: Params,
    nights: Nights,
    makers: Sequence[Callable[[], Predictor]],
    *,
    progress: NightProgress = lambda _night, _done, _total: None,
    memory: Memory | None = None,
) -> dict[str, list[Prediction]]:
    """Retrain each predictor at the cut of each night and let it predict the night's attempts; a list by predictor's name.

    What `memory` recalls is not computed again, and what is computed is kept there: a run that was interrupted goes on.
    """
    predictions: dict[str, list[Prediction]] = {}
    for done, night in enumerate(nights):
        progress(night, done, len(nights))
        rows = np.flatnonzero(history.is_scored & (history.night == night))
        attempts = history.attempt_id.take(pa.array(rows))
        features = None
        for make in makers:
            predictor = make()
            answer = memory.recall(predictor.name, night, attempts) if memory else None
            if answer is None:
                features = history.features.take(pa.array(rows)) if features is None else features
                answer = _answer(predictor, history, night, params, features)
                if memory:
                    memory.keep(predictor.name, night, attempts, answer)
            predictions.setdefault(predictor.name, []).append(answer)
    progress(nights[-1], len(nights), len(nights))
    return predictions


def concatenated(answers: Sequence[Prediction]) -> Prediction:
    """Give the predictions one after the other."""
    return Prediction(*(np.concatenate([getattr(answer, part) for answer in answers]) for part in ("p10", "p50", "p90", "tier")))


def _answer(predictor: Predictor, history: History, night: np.datetime64, params: Params, features: pa.Table) -> Prediction:
    known = history.known_at(night, params.model.training_window_days)
    if not np.isfinite(history.features["prior"].to_numpy()[known]).any():
        # Nothing to learn from yet: every attempt of the night is a miss.
        nothing = np.full(features.num_rows, np.nan)
        return Prediction(nothing, nothing, nothing, np.full(features.num_rows, "none"))
    return fit_with_intervals(predictor, history, night, params).predict(features)
