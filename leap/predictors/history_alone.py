"""Answers that learn nothing: the newest value of the most specific history, and the Gaussian process' mean as it is."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from leap.predictors import Examples, Floats
from leap.predictors.point import PointPredictor

# The value of each, in this order, until one is known: the job's own, the configuration's, then what the lookup table answers.
LAST_VALUES = ("job_hardware_last", "configuration_last", "exact_last", "model_hardware_median")


class LastValue(PointPredictor):
    """The job's own last throughput on this hardware, else that of the configuration, else of the lookup table's key."""

    name = "last_value"

    def learn(self, examples: Examples) -> None:
        """Learn nothing: history is in the features."""

    def answer(self, features: pa.Table) -> Floats:
        """Give the first of `LAST_VALUES` that is known."""
        found = np.full(features.num_rows, np.nan)
        for name in LAST_VALUES:
            if name in features.column_names:
                found = np.where(np.isfinite(found), found, features[name].to_numpy())
        return found


class ProcessAlone(PointPredictor):
    """The mean of the Gaussian process, without trees that correct it."""

    name = "process"

    def learn(self, examples: Examples) -> None:
        """Learn nothing: the process is in the features."""

    def answer(self, features: pa.Table) -> Floats:
        """Give the mean of the process."""
        return np.asarray(features["process_mean"].to_numpy(), dtype=np.float64)
