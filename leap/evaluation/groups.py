"""How well predictions choose among hardware types: order, first place, and what a wrong choice costs.

What lives here: comparison groups and the figures over them. What does not: predictions, prices (the caller hands them in).

Attempts that did the same work (model type, rules, device count, global batch) on different hardware types are a comparison
group: there it is known which type was faster. Each type stands with the median of its labels and of its predictions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from leap.predictors import Floats

Codes = npt.NDArray[np.int64]
Names = npt.NDArray[np.str_]

# Two types nearer to each other than this, in log units, have no order worth predicting.
TIED = 0.05
LEAST_RANKED = 3  # a rank correlation of two types is 1 or -1


@dataclass(frozen=True)
class Cells:
    """The hardware types of all comparison groups, one after the other; arrays of shape (cells,)."""

    group: Codes
    hardware_type: Names
    label: Floats  # median, natural log of samples/s per device
    member: Codes  # the cell of each attempt, shape (attempts,), -1 = in no group


@dataclass(frozen=True)
class GroupScore:
    """How one predictor chooses within `groups` comparison groups; shares 0 to 1, NaN = nothing to tell.

    `pairwise`: the share of `pairs` of types, not tied, that are put in the right order. `top_1`: the share of groups whose
    fastest type (or one tied with it) is predicted to be fastest. `rank_correlation`: Spearman's, the mean over groups of three
    types or more. `regret`: by how much the type that is predicted to be cheapest per sample costs more than the cheapest, the
    mean over the `priced` groups. A type without an answer is on no right side, and not chosen.
    """

    groups: int
    pairs: int
    pairwise: float
    top_1: float
    rank_correlation: float
    regret: float
    priced: int

    def to_json(self) -> dict[str, Any]:
        """Give the score as JSON values; NaN becomes null."""
        return {name: None if value != value else value for name, value in asdict(self).items()}


def cells_of(keys: Mapping[str, Names], hardware_type: Names, label: Floats) -> Cells:
    """Group n attempts by `keys` (each of shape (n,)) and hardware type; groups of one type are left out."""
    parts = [np.unique(values, return_inverse=True)[1].ravel() for values in (*keys.values(), hardware_type)]
    whole, first, member = np.unique(np.column_stack(parts), axis=0, return_index=True, return_inverse=True)
    member = member.ravel()
    _, group, sizes = np.unique(whole[:, :-1], axis=0, return_inverse=True, return_counts=True)
    group = group.ravel()
    kept = sizes[group] > 1
    place = np.where(kept, np.cumsum(kept) - 1, -1)
    medians = _medians(member, label, len(whole))
    return Cells(group[kept], hardware_type[first][kept], medians[kept], place[member])


def score_groups(cells: Cells, predicted: Floats, usd_per_device_hour: Mapping[str, float]) -> GroupScore:
    """Score predictions of n attempts (natural log of samples/s per device, NaN = no answer) within the groups of `cells`.

    `usd_per_device_hour` prices hardware types; a group with a type that has no price has no regret.
    """
    inside = cells.member >= 0
    guess = _medians(cells.member[inside], predicted[inside], len(cells.label))
    price = np.array([usd_per_device_hour.get(name, np.nan) for name in cells.hardware_type.tolist()], dtype=np.float64)
    pairs = right = top = 0
    correlations: list[float] = []
    regrets: list[float] = []
    for group in np.unique(cells.group):
        rows = np.flatnonzero(cells.group == group)
        truth, answer = cells.label[rows], guess[rows]
        upper = np.triu_indices(len(rows), 1)
        apart, order = (np.subtract.outer(values, values)[upper] for values in (truth, answer))
        counted = np.abs(apart) > TIED
        pairs += int(counted.sum())
        right += int((counted & (np.sign(apart) == np.sign(order))).sum())
        known = np.isfinite(answer)
        if known.any():
            best = int(np.argmax(np.where(known, answer, -np.inf)))
            top += int(truth[best] >= truth.max() - TIED)
        if known.all() and len(rows) >= LEAST_RANKED:
            correlations.append(_spearman(truth, answer))
        if np.isfinite(price[rows]).all():
            cost = np.log(price[rows]) - truth
            chosen = np.log(price[rows]) - np.where(known, answer, -np.inf)
            paid = cost[int(np.argmin(chosen))] if known.any() else float(cost.mean())
            regrets.append(float(np.expm1(paid - cost.min())))
    count = len(np.unique(cells.group))
    return GroupScore(
        groups=count,
        pairs=pairs,
        pairwise=right / pairs if pairs else float("nan"),
        top_1=top / count if count else float("nan"),
        rank_correlation=float(np.mean(correlations)) if correlations else float("nan"),
        regret=float(np.mean(regrets)) if regrets else float("nan"),
        priced=len(regrets),
    )


def _spearman(a: Floats, b: Floats) -> float:
    from scipy.stats import rankdata

    ranks = [rankdata(values) for values in (a, b)]
    if any(np.ptp(values) == 0 for values in ranks):
        return 0.0
    return float(np.corrcoef(*ranks)[0, 1])


def _medians(member: Codes, values: Floats, count: int) -> Floats:
    """Give the median of each cell's values; NaN where one is NaN."""
    order = np.lexsort((values, member))
    sizes = np.bincount(member, minlength=count)
    start = np.cumsum(sizes) - sizes
    ordered = values[order]
    low, high = ordered[start + (sizes - 1) // 2], ordered[start + sizes // 2]
    # Unknown values are sorted last; a cell with one is unknown whole.
    last = ordered[start + sizes - 1]
    return np.asarray(np.where(np.isfinite(last), (low + high) / 2, np.nan))
