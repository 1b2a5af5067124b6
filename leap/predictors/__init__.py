"""Predictors of throughput behind one small protocol, so that a baseline and a challenger get the same data and the same score.

What lives here: the protocol and its two records. Each model has a module of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Examples:
    """What a predictor learns from: n attempts whose label was known at the cut.

    ``features`` is what `leap.features.assemble` gives (n rows); ``target`` is the natural log of samples/s per device, shape
    (n,); ``age_days`` is how old each example is at the cut, shape (n,).
    """

    features: pa.Table
    target: Floats
    age_days: Floats

    def take(self, rows: npt.NDArray[np.bool_]) -> Examples:
        """Keep the rows where `rows` (shape (n,)) is true."""
        return Examples(self.features.filter(pa.array(rows)), self.target[rows], self.age_days[rows])


@dataclass(frozen=True)
class Prediction:
    """The natural log of samples/s per device: p50 between p10 and p90, shape (n,), NaN = no answer; and the tier of each row."""

    p10: Floats
    p50: Floats
    p90: Floats
    tier: npt.NDArray[np.str_]


class Predictor(Protocol):
    """A model of throughput per device."""

    name: str

    def fit(self, examples: Examples) -> Self:
        """Learn from `examples` and return itself."""
        ...

    def predict(self, features: pa.Table) -> Prediction:
        """Predict n rows of assembled features."""
        ...
