"""Predictors side by side on the same attempts: the paired difference, overall and slice by slice.

What lives here: the paired bootstrap by job and the slices. What does not: predictions (`backtest.py`), scores of one predictor
(`metrics.py`).

Attempts of one job are alike, so that jobs are drawn, each with all its attempts and with both predictors' hits: what is hard for
both does not blur which is better.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from leap.evaluation.metrics import CONFIDENCE
from leap.predictors import Floats

Hits = npt.NDArray[np.bool_]
Names = npt.NDArray[np.str_]

PAIRED_REPLICATES = 2000
# A slice smaller than this tells too little to say that it is worse.
LEAST_ATTEMPTS, LEAST_JOBS = 100, 20


@dataclass(frozen=True)
class Difference:
    """By how much the share of hits of one predictor is above another's on the same attempts, with its 95% interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class SliceScore:
    """How one predictor does on the n attempts of some jobs that have `value` on `axis`; `over_lookup` is paired."""

    predictor: str
    axis: str
    value: str
    n: int
    jobs: int
    within_10: float
    within_20: float
    over_lookup: Difference | None

    @property
    def is_worse(self) -> bool:
        """Whether the slice is large enough to tell, and worse than the lookup table beyond chance."""
        large = self.n >= LEAST_ATTEMPTS and self.jobs >= LEAST_JOBS
        return large and self.over_lookup is not None and self.over_lookup.high < 0


def paired_difference(ours: Hits, theirs: Hits, jobs: Names, *, seed: int) -> Difference:
    """Compare two predictors' hits on n attempts of `jobs`, all of shape (n,); NaN where there is none."""
    if not len(jobs):
        return Difference(float("nan"), float("nan"), float("nan"))
    _, job = np.unique(jobs, return_inverse=True)
    count = int(job.max()) + 1
    size = np.bincount(job, minlength=count).astype(np.float64)
    gain = np.bincount(job, weights=ours.astype(np.float64) - theirs.astype(np.float64), minlength=count)
    drawn = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=PAIRED_REPLICATES)
    shares = (drawn @ gain) / (drawn @ size)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(shares, [tail, 1 - tail])
    return Difference(float(gain.sum() / size.sum()), float(low), float(high))


def within(log_label: Floats, log_prediction: Floats, limit: float) -> Hits:
    """Mark the predictions within `limit` of their label; no answer is a miss. Both in natural logs, shape (n,)."""
    error = np.abs(np.expm1(log_prediction - log_label))
    # The last bit of a logarithm must not decide whether a prediction that is off by 10% exactly is a hit.
    return np.asarray(np.nan_to_num(error, nan=np.inf) <= limit + 1e-9)


def slice_scores(
    predictor: str,
    log_label: Floats,
    log_prediction: Floats,
    log_lookup: Floats | None,
    jobs: Names,
    axes: Mapping[str, Names],
    *,
    seed: int,
) -> list[SliceScore]:
    """Score a predictor on each value of each axis (names of shape (n,)), largest slice first."""
    hit_10, hit_20 = (within(log_label, log_prediction, limit) for limit in (0.10, 0.20))
    lookup = None if log_lookup is None else within(log_label, log_lookup, 0.10)
    found = []
    for axis, names in axes.items():
        values, sizes = np.unique(names, return_counts=True)
        for value in values[np.argsort(-sizes, kind="stable")]:
            rows = names == value
            found.append(
                SliceScore(
                    predictor=predictor,
                    axis=axis,
                    value=str(value),
                    n=int(rows.sum()),
                    jobs=len(np.unique(jobs[rows])),
                    within_10=float(hit_10[rows].mean()),
                    within_20=float(hit_20[rows].mean()),
                    over_lookup=None if lookup is None else paired_difference(hit_10[rows], lookup[rows], jobs[rows], seed=seed),
                )
            )
    return found
