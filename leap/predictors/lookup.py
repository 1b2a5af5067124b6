"""The lookup table that LEAP replaces: the median by model type, hardware type and device count, else by the first two.

It learns nothing beyond the history that `leap.features` looked up, so `fit` only notes how far its medians were off. It is the
baseline that every score of LEAP is read against.
"""

from __future__ import annotations

from typing import Self

import numpy as np
import pyarrow as pa

from leap.contracts import Tier
from leap.predictors import Examples, Floats, Prediction


class LookupTable:
    """Answers with the median whole-job throughput of the same model type, hardware type and device count.

    Where that triple has no history it answers with the median per device of the same model type and hardware type.
    """

    name = "lookup"

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._low = self._high = 0.0

    def fit(self, examples: Examples) -> Self:
        """Take the spread of its own past errors as its interval."""
        error = examples.target - self.median(examples.features)
        error = error[np.isfinite(error)]
        if len(error):
            tail = (1 - self._interval) / 2
            self._low, self._high = (float(value) for value in np.quantile(error, [tail, 1 - tail]))
        return self

    def predict(self, features: pa.Table) -> Prediction:
        """Answer each row from history; NaN and tier `none` where there is none."""
        median = self.median(features)
        tier = np.where(np.isfinite(median), Tier.LEARNED.value, Tier.NONE.value)
        return Prediction(median + min(self._low, 0.0), median, median + max(self._high, 0.0), tier)

    @staticmethod
    def median(features: pa.Table) -> Floats:
        """Give what the table holds for each row, shape (n,); NaN = nothing."""
        exact = features["exact_median"].to_numpy()
        return np.asarray(np.where(np.isfinite(exact), exact, features["model_hardware_median"].to_numpy()))
