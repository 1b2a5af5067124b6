"""A stack: a weighted mean of other predictors, with the weights that would have been best on the newest nights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

import numpy as np
import pyarrow as pa
from scipy.optimize import nnls

from leap.predictors import Examples, Floats, Predictor
from leap.predictors.point import PointPredictor, newest_apart

BLEND_NIGHTS = 30  # the weights are those that were best on so many newest nights, by members that did not see them
PULL = 30.0  # towards equal weights, in units of so many examples that are off by their usual error


class Stack(PointPredictor):
    """Members' answers blended in logs by non-negative weights that add to one, for known and for new configurations apart."""

    name = "stack"

    def __init__(self, interval: float, members: Sequence[Callable[[], Predictor]]) -> None:
        super().__init__(interval)
        self._makers = list(members)
        self._members: list[Predictor] = []
        self._weights = np.empty((2, 0))

    def fit(self, examples: Examples) -> Self:
        """Fit the members without the newest nights, whose errors give weights and interval, then on all."""
        self._weights = np.full((2, len(self._makers)), 1 / len(self._makers))
        self._half_widths = {}
        parts = newest_apart(examples, BLEND_NIGHTS)
        if parts:
            older, asked = parts
            self.learn(older)
            answers = self._answers(asked.features)
            seen = _seen(asked.features)
            whole = np.isfinite(answers).all(axis=1) & np.isfinite(asked.target)
            for place in (0, 1):
                rows = whole & (seen == bool(place))
                self._weights[place] = blend(answers[rows], asked.target[rows])
            self.take_interval_from(asked)
        self.learn(examples)
        return self

    def learn(self, examples: Examples) -> None:
        """Fit the members; the weights stay."""
        self._members = [_taught(make(), examples) for make in self._makers]

    def answer(self, features: pa.Table) -> Floats:
        """Give the blend of the members that answer."""
        answers = self._answers(features)
        weight = np.where(np.isfinite(answers), self._weights[_seen(features).astype(int)], 0.0)
        total = weight.sum(axis=1)
        # Where no member with a weight answers, those without one do.
        weight = np.where((total > 0)[:, None], weight, np.isfinite(answers))
        total = weight.sum(axis=1)
        blended = (weight * np.nan_to_num(answers)).sum(axis=1) / np.where(total > 0, total, 1.0)
        return np.where(total > 0, blended, np.nan)

    def _answers(self, features: pa.Table) -> Floats:
        return np.column_stack([_answer(member, features) for member in self._members])


def _taught(member: Predictor, examples: Examples) -> Predictor:
    """Fit a member for its p50 alone: its interval would cost a second fit."""
    if isinstance(member, PointPredictor):
        member.learn(examples)
        return member
    return member.fit(examples)


def _answer(member: Predictor, features: pa.Table) -> Floats:
    return member.answer(features) if isinstance(member, PointPredictor) else member.predict(features).p50


def blend(answers: Floats, target: Floats) -> Floats:
    """Give the weights (members,) of `answers` (n, members) that come nearest to `target` (n,); equal where there is nothing."""
    members = answers.shape[1]
    equal = np.full(members, 1 / members)
    if not len(target):
        return equal
    # Large misses are no more telling than misses: errors count up to 30%.
    error = np.clip(answers - target[:, None], -0.3, 0.3)
    usual = max(float(np.sqrt(np.mean(error**2))), 1e-6)
    pull = np.sqrt(PULL) * usual * np.eye(members)
    # Weights that add to one: a heavy equation; nearest to equal weights: the pull.
    design = np.vstack([error, 1e3 * usual * np.ones((1, members)), pull])
    wanted = np.concatenate([np.zeros(len(target)), [1e3 * usual], pull @ equal])
    found, _ = nnls(design, wanted)
    return np.asarray(found / found.sum()) if found.sum() > 0 else equal


def _seen(features: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.asarray(np.nan_to_num(features["exact_log_count"].to_numpy()) > 0)
