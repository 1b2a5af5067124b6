"""Nearest neighbours: the run that is most like the one asked about, its throughput carried over to the hardware asked about.

A neighbour is near if names agree (each disagreement costs), sizes are near, in logs, and it is young. Carried over is throughput
relative to what the hardware promises: the geometric mean of peak rate and memory bandwidth.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from leap.features import CANDIDATE_FEATURES
from leap.predictors import Examples, Floats
from leap.predictors.gbdt import condensed
from leap.predictors.point import PointPredictor

# How far a disagreement in a name puts two runs apart; a size that is twice the other's puts them 0.7 apart.
NAMES = {"model_type": 4.0, "hardware_type": 2.0, "family": 1.0, "team": 1.0, "framework": 0.5}
SIZES = (*CANDIDATE_FEATURES, "log_global_batch_size", "framework_release")
PROMISES = ("log_peak_tflops", "log_memory_bandwidth_gbps")
# Chosen on past nights, as the number of neighbours; docs/experiments.md has what was tried.
AGE_SCALE_DAYS = 100.0
NEIGHBOURS = 1


class NearestNeighbours(PointPredictor):
    """The mean of the nearest examples, weighted by nearness."""

    name = "neighbours"

    def __init__(self, interval: float, half_life_days: float, neighbours: int = NEIGHBOURS) -> None:
        super().__init__(interval)
        self._half_life_days = half_life_days
        self._neighbours = neighbours

    def learn(self, examples: Examples) -> None:
        """Keep the distinct examples."""
        examples = examples.take(np.isfinite(examples.target))
        self._vocabulary = {name: np.unique(_texts(examples.features, name)) for name in NAMES}
        codes, sizes = self._codes(examples.features), _numbers(examples.features, SIZES)
        known = np.isfinite(sizes)
        self._centre = np.where(known, sizes, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
        promise = _numbers(examples.features, PROMISES)
        known = np.isfinite(promise)
        self._promised = np.where(known, promise, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
        carried = examples.target - self._promise(examples.features)
        rows, carried, weight = condensed(np.column_stack([codes, sizes]), carried, examples.age_days, self._half_life_days)
        self._known_codes, self._known_sizes = codes[rows], self._filled(sizes[rows])
        self._carried, self._weight, self._age = carried, weight, examples.age_days[rows]

    def answer(self, features: pa.Table) -> Floats:
        """Carry over the nearest examples; no answer where nothing was learned, or neither model type nor hardware is known."""
        count = min(self._neighbours, len(self._carried))
        if not count:
            return np.full(features.num_rows, np.nan)
        codes, sizes = self._codes(features), self._filled(_numbers(features, SIZES))
        squared = (sizes**2).sum(axis=1)[:, None] + (self._known_sizes**2).sum(axis=1) - 2 * sizes @ self._known_sizes.T
        distance = np.sqrt(np.maximum(squared, 0.0)) + self._age / AGE_SCALE_DAYS
        for place, cost in enumerate(NAMES.values()):
            distance += cost * (codes[:, place][:, None] != self._known_codes[:, place])
        near = np.argpartition(distance, count - 1, axis=1)[:, :count]
        nearness = np.take_along_axis(distance, near, axis=1)
        weight = np.exp(nearness.min(axis=1, keepdims=True) - nearness) * self._weight[near]
        answer = (weight * self._carried[near]).sum(axis=1) / weight.sum(axis=1) + self._promise(features)
        names = list(NAMES)
        known = (codes[:, names.index("model_type")] >= 0) | (codes[:, names.index("hardware_type")] >= 0)
        return np.where(known | np.isfinite(_numbers(features, PROMISES)).all(axis=1), answer, np.nan)

    def _promise(self, features: pa.Table) -> Floats:
        values = _numbers(features, PROMISES)
        return np.asarray(np.where(np.isfinite(values), values, self._promised).mean(axis=1))

    def _codes(self, features: pa.Table) -> npt.NDArray[np.int64]:
        columns = []
        for name, known in self._vocabulary.items():
            values = _texts(features, name)
            place = np.searchsorted(known, values).clip(max=max(len(known) - 1, 0))
            columns.append(np.where(known[place] == values, place, -1) if len(known) else np.full(len(values), -1))
        return np.column_stack(columns)

    def _filled(self, sizes: Floats) -> Floats:
        return np.where(np.isfinite(sizes), sizes, self._centre)


def _numbers(features: pa.Table, names: tuple[str, ...]) -> Floats:
    return np.column_stack([features[name].to_numpy() for name in names])


def _texts(features: pa.Table, name: str) -> npt.NDArray[np.str_]:
    return np.asarray(features[name].to_numpy(zero_copy_only=False), dtype=object).astype(np.str_)
