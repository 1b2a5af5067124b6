"""Matrix completion over jobs and hardware types, as the Gavel scheduler estimates throughputs that it has not measured.

Rows are model types at a device count, columns hardware types, entries the median log throughput per device. The matrix is
factorised with a low rank by alternating least squares (Koren et al. 2009), with a mean per row and column; a pair that was
measured keeps its measurement (Narayanan et al. 2020, section 6).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from leap.features import KEY_SEPARATOR
from leap.predictors import Examples, Floats
from leap.predictors.point import PointPredictor

Codes = npt.NDArray[np.int64]
Names = npt.NDArray[np.str_]

# Rank and penalty were chosen among ranks 1, 2, 4 and penalties 0.1, 0.3, 1 on past nights; see docs/experiments.md.
RANK = 4
PENALTY = 0.1
SWEEPS = 15


class MatrixCompletion(PointPredictor):
    """Low-rank completion; a row that was never seen stands in for by the nearest device count of its model type."""

    name = "completion"

    def __init__(self, interval: float, seed: int, rank: int = RANK, penalty: float = PENALTY) -> None:
        super().__init__(interval)
        self._seed = seed
        self._rank = rank
        self._penalty = penalty
        self._rows: Names = np.empty(0, dtype=np.str_)
        self._row_model: Names = np.empty(0, dtype=np.str_)
        self._row_devices: Floats = np.empty(0)
        self._columns: Names = np.empty(0, dtype=np.str_)
        self._filled: Floats = np.empty((0, 0))

    def learn(self, examples: Examples) -> None:
        """Factorise the matrix of the examples' medians."""
        examples = examples.take(np.isfinite(examples.target))
        model, devices, hardware = _facts(examples.features)
        self._rows, first, row = np.unique(_row_keys(model, devices), return_index=True, return_inverse=True)
        self._row_model, self._row_devices = model[first], devices[first]
        self._columns, column = np.unique(hardware, return_inverse=True)
        cell = row.ravel() * max(len(self._columns), 1) + column.ravel()
        order = np.lexsort((examples.target, cell))
        cells, start, count = np.unique(cell[order], return_index=True, return_counts=True)
        values = examples.target[order]
        median = (values[start + (count - 1) // 2] + values[start + count // 2]) / 2
        measured = np.full((len(self._rows), len(self._columns)), np.nan)
        measured.flat[cells] = median
        self._filled = complete(measured, self._rank, self._penalty, self._seed)

    def answer(self, features: pa.Table) -> Floats:
        """Give the measured median of model type, hardware type and device count, else the completed one."""
        exact = features["exact_median"].to_numpy()
        model, devices, hardware = _facts(features)
        completed = np.full(features.num_rows, np.nan)
        if len(self._columns):
            column = np.searchsorted(self._columns, hardware).clip(max=len(self._columns) - 1)
            keys, inverse = np.unique(_row_keys(model, devices), return_inverse=True)
            nearest = np.array([self._nearest(key) for key in keys], dtype=np.int64)[inverse.ravel()]
            known = (self._columns[column] == hardware) & (nearest >= 0)
            completed = np.where(known, self._filled[nearest.clip(min=0), column], np.nan)
        return np.where(np.isfinite(exact), exact, completed)

    def _nearest(self, key: str) -> int:
        """Give the row of the model type whose device count is nearest, by ratio; -1 = the model type has none."""
        model, devices = key.split(KEY_SEPARATOR)
        rows = np.flatnonzero(self._row_model == model)
        if not len(rows):
            return -1
        return int(rows[np.argmin(np.abs(np.log(self._row_devices[rows] / float(devices))))])


def complete(measured: Floats, rank: int, penalty: float, seed: int) -> Floats:
    """Fill the unknown (NaN) entries of a matrix (rows, columns) by means per row and column and a product of low rank."""
    known = np.isfinite(measured)
    values = np.where(known, measured, 0.0)
    rows, columns = measured.shape
    if not known.any():
        return np.full(measured.shape, np.nan)
    mean = float(measured[known].mean())
    row_mean, column_mean = np.zeros(rows), np.zeros(columns)
    rng = np.random.default_rng(seed)
    left, right = rng.normal(0, 0.1, (rows, rank)), rng.normal(0, 0.1, (columns, rank))
    eye = penalty * np.eye(rank)
    for _ in range(SWEEPS):
        rest = np.where(known, values - mean - left @ right.T, 0.0)
        for _ in range(3):
            row_mean = (rest - known * column_mean).sum(axis=1) / (known.sum(axis=1) + 1e-3)
            column_mean = (rest - known * row_mean[:, None]).sum(axis=0) / (known.sum(axis=0) + penalty)
        rest = np.where(known, values - mean - row_mean[:, None] - column_mean, 0.0)
        left = np.linalg.solve(np.einsum("ij,jk,jl->ikl", known, right, right) + eye, (rest @ right)[..., None])[..., 0]
        right = np.linalg.solve(np.einsum("ij,ik,il->jkl", known, left, left) + eye, (rest.T @ left)[..., None])[..., 0]
    return np.asarray(mean + row_mean[:, None] + column_mean + left @ right.T)


def _facts(features: pa.Table) -> tuple[Names, Floats, Names]:
    model, hardware = (
        np.asarray(features[name].to_numpy(zero_copy_only=False), dtype=object).astype(np.str_)
        for name in ("model_type", "hardware_type")
    )
    return model, np.asarray(features["num_devices"].to_numpy(), dtype=np.float64), hardware


def _row_keys(model: Names, devices: Floats) -> Names:
    return np.char.add(np.char.add(model, KEY_SEPARATOR), devices.astype(np.str_))
