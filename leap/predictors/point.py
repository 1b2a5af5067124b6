"""What the alternatives share: a model that gives one number, with the interval that its own past errors ask for.

What lives here: fitting twice (once without the newest nights, for honest errors) and the interval by tier. What does not: any
model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from leap.contracts import TIERS, Tier
from leap.predictors import Examples, Floats, Prediction
from leap.predictors.gbdt import UNKNOWN_HALF_WIDTH, base, calibrate_half_widths

INTERVAL_NIGHTS = 15  # errors on the newest so many nights, made by a twin that did not see them, give the interval


class PointPredictor(ABC):
    """A model of the natural log of samples/s per device that is asked for one number a row; NaN = no answer."""

    name: str

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._half_widths: dict[str, tuple[float, float]] = {}

    @abstractmethod
    def learn(self, examples: Examples) -> None:
        """Learn from n examples, in place of what was learned before."""

    @abstractmethod
    def answer(self, features: pa.Table) -> Floats:
        """Answer n rows, shape (n,), from what was learned."""

    def fit(self, examples: Examples) -> Self:
        """Learn from the examples, after a first time without the newest nights, whose errors give the interval."""
        self._half_widths = {}
        parts = newest_apart(examples, INTERVAL_NIGHTS)
        if parts:
            older, newest = parts
            self.learn(older)
            self.take_interval_from(newest)
        self.learn(examples)
        return self

    def take_interval_from(self, asked: Examples) -> None:
        """Take the interval of each tier from the errors on examples that were not learned from."""
        order = np.argsort(asked.age_days, kind="stable")
        error = (asked.target - self.answer(asked.features))[order]
        self._half_widths = calibrate_half_widths(error, _tiers(asked.features)[order], self._interval)

    def predict(self, features: pa.Table) -> Prediction:
        """Predict n rows; NaN and tier `none` where the model has no answer."""
        p50 = self.answer(features)
        tier = _tiers(features)
        known = np.isfinite(p50) & (tier != Tier.NONE.value)
        p50 = np.where(known, p50, np.nan)
        tier = np.where(known, tier, Tier.NONE.value)
        widths = [self._half_widths.get(name, (UNKNOWN_HALF_WIDTH, UNKNOWN_HALF_WIDTH)) for name in TIERS]
        low, high = (np.select([tier == name for name in TIERS], [width[side] for width in widths], np.nan) for side in (0, 1))
        return Prediction(p50 - low, p50, p50 + high, tier)


def newest_apart(examples: Examples, nights: int) -> tuple[Examples, Examples] | None:
    """Split off the newest `nights` (half of all at most): the older examples, and the newest.

    None where the older ones have nothing to correct: in the first nights of a fleet.
    """
    ages = np.unique(examples.age_days)
    oldest = min(nights, len(ages) // 2)
    if not oldest:
        return None
    newest = examples.age_days < ages[oldest]
    older = examples.take(~newest)
    return (older, examples.take(newest)) if _can_be_learned(older).any() else None


def learnable(examples: Examples) -> Examples:
    """Keep the examples that have a base to correct and a target; ValueError where there is none."""
    examples = examples.take(_can_be_learned(examples))
    if not len(examples.target):
        raise ValueError("no example has any history before its own night; two nights with attempts at least are needed")
    return examples


def _can_be_learned(examples: Examples) -> npt.NDArray[np.bool_]:
    return np.isfinite(base(examples.features)) & np.isfinite(examples.target)


def _tiers(features: pa.Table) -> npt.NDArray[np.str_]:
    return np.asarray(features["tier"].to_numpy(zero_copy_only=False), dtype=np.str_)
