"""How good predictions are: scorecards with sample sizes and intervals.

What lives here: arithmetic on labels and predictions. What does not: where they come from (`backtest.py`) and what follows from
a score (`leap.promotion`).

A miss is counted, never dropped: no answer is wrong, and so is an attempt whose label was quarantined.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from leap.predictors import Floats, Prediction

BOOTSTRAP_REPLICATES = 1000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class TierScore:
    """The score of the answers of one tier."""

    n: int
    within_10: float
    within_20: float
    coverage: float


@dataclass(frozen=True)
class Scorecard:
    """The score of one predictor on n attempts of some jobs; shares are 0 to 1, NaN = nothing to tell.

    `within_10` counts |predicted / label - 1| <= 0.10 over all n; `interval_within_10` is its 95% interval by bootstrap over
    jobs. `median_ape` is the median absolute percentage error of the answers; `coverage` the share of answers whose label lies
    between p10 and p90, `median_width` the median of ln(p90 / p10).
    """

    predictor: str
    n: int
    jobs: int
    answered: float
    within_10: float
    within_20: float
    interval_within_10: tuple[float, float]
    median_ape: float
    coverage: float
    median_width: float
    tiers: dict[str, TierScore]

    def to_json(self) -> dict[str, Any]:
        """Give the scorecard as JSON values; NaN becomes null."""
        return {key: _json(value) for key, value in asdict(self).items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Scorecard:
        """Read what `to_json` gave."""
        known = {key: _number(value) for key, value in values.items() if key not in ("interval_within_10", "tiers")}
        low, high = (_number(value) for value in values["interval_within_10"])
        tiers = {
            tier: TierScore(**{key: _number(value) for key, value in parts.items()}) for tier, parts in values["tiers"].items()
        }
        return cls(**known, interval_within_10=(low, high), tiers=tiers)


def score(
    predictor: str,
    log_label: Floats,
    prediction: Prediction,
    job_id: npt.NDArray[np.str_],
    *,
    seed: int,
    unlabelled_jobs: npt.NDArray[np.str_] | None = None,
) -> Scorecard:
    """Score n predictions against n labels (natural log of samples/s per device).

    `unlabelled_jobs` names the job of each further attempt of the denominator whose label was quarantined: each counts as one
    unanswered, wrong attempt.
    """
    extra = np.empty(0, dtype=np.str_) if unlabelled_jobs is None else unlabelled_jobs
    count = len(log_label) + len(extra)
    error = np.abs(np.expm1(prediction.p50 - log_label))
    answered = np.isfinite(prediction.p50)
    inside = answered & (prediction.p10 <= log_label) & (log_label <= prediction.p90)
    # The last bit of a logarithm must not decide whether a prediction that is off by 10% exactly is a hit.
    hit_10, hit_20 = (answered & (np.nan_to_num(error, nan=np.inf) <= limit + 1e-9) for limit in (0.10, 0.20))
    jobs = np.concatenate([job_id.astype(np.str_), extra.astype(np.str_)])
    hits = np.concatenate([hit_10, np.zeros(len(extra), dtype=bool)])
    return Scorecard(
        predictor=predictor,
        n=count,
        jobs=len(np.unique(jobs)),
        answered=_share(answered, count),
        within_10=_share(hit_10, count),
        within_20=_share(hit_20, count),
        interval_within_10=bootstrap_by_job(hits, jobs, seed=seed),
        median_ape=float(np.median(error[answered])) if answered.any() else float("nan"),
        coverage=_share(inside, int(answered.sum())),
        median_width=float(np.median((prediction.p90 - prediction.p10)[answered])) if answered.any() else float("nan"),
        tiers={
            str(tier): TierScore(
                n=int(rows.sum()),
                within_10=_share(hit_10[rows], int(rows.sum())),
                within_20=_share(hit_20[rows], int(rows.sum())),
                coverage=_share(inside[rows], int(rows.sum())),
            )
            for tier in np.unique(prediction.tier)
            for rows in [prediction.tier == tier]
        },
    )


def bootstrap_by_job(hits: npt.NDArray[np.bool_], jobs: npt.NDArray[np.str_], *, seed: int) -> tuple[float, float]:
    """Give the 95% interval of the share of hits, resampling jobs with all their attempts: attempts of one job are alike."""
    if not len(hits):
        return float("nan"), float("nan")
    _, job = np.unique(jobs, return_inverse=True)
    count = int(job.max()) + 1
    size = np.bincount(job, minlength=count).astype(np.float64)
    hit = np.bincount(job, weights=hits.astype(np.float64), minlength=count)
    drawn = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=BOOTSTRAP_REPLICATES)
    shares = (drawn @ hit) / (drawn @ size)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(shares, [tail, 1 - tail])
    return float(low), float(high)


def _share(hits: npt.NDArray[np.bool_], count: int) -> float:
    return float(hits.sum()) / count if count else float("nan")


def _number(value: Any) -> Any:
    return float("nan") if value is None else value


def _json(value: Any) -> Any:
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _json(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json(part) for part in value]
    return value
