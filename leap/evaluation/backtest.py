"""Rolling-origin evaluation: one retrain per night at its cut, scored on the attempts submitted that night.

What lives here: what is scored and compared of the answers. What does not: which examples there are (`history.py`), retraining
(`retrain.py`), the arithmetic of a score (`metrics.py`, `compare.py`), reading datasets and drawing plots.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from leap.evaluation.compare import Difference, SliceScore, paired_difference, slice_scores, within
from leap.evaluation.groups import GroupScore, cells_of, score_groups
from leap.evaluation.history import History, choose_nights, names_of
from leap.evaluation.metrics import Scorecard, score
from leap.evaluation.retrain import Memory, NightProgress, answers_by_night, concatenated, default_predictors
from leap.features import Nights
from leap.params import Params
from leap.predictors import Floats, Prediction, Predictor
from leap.predictors.gbdt import GbdtPredictor
from leap.predictors.lookup import LookupTable

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Share:
    """The shares of n attempts that are predicted within 10% and 20%."""

    n: int
    within_10: float
    within_20: float


@dataclass(frozen=True)
class BacktestResult:
    """The scorecards of each predictor over all nights and of each night.

    `mean_ape` is the mean absolute percentage error of the answers; `choices` tell how well each predictor chooses among hardware
    types; `counted_once` how it does where a run that stands in the log under several names counts once; `same_day` what history
    of the same day would give. `over[a][b]` is the paired difference of predictor a to b within 10%, over the whole denominator:
    of each to the lookup table, and of LEAP's to each. `slices` leave out the attempts whose label is in quarantine, of which
    little is known.
    """

    nights: Nights
    scorecards: dict[str, Scorecard]
    by_night: dict[str, list[Scorecard]]
    over: dict[str, dict[str, Difference]]
    slices: list[SliceScore]
    mean_ape: dict[str, float]
    choices: dict[str, GroupScore]
    counted_once: dict[str, Share]
    same_day: Share

    @property
    def over_lookup(self) -> dict[str, Difference]:
        """The paired difference of each other predictor to the lookup table."""
        return {name: than[LookupTable.name] for name, than in self.over.items() if LookupTable.name in than}


def backtest(
    history: History,
    params: Params,
    *,
    nights: int | None,
    end: np.datetime64 | None,
    skip_first: int = 0,
    makers: Sequence[Callable[[], Predictor]] | None = None,
    progress: NightProgress = lambda _night, _done, _total: None,
    memory: Memory | None = None,
    usd_per_device_hour: Mapping[str, float] | None = None,
) -> BacktestResult:
    """Retrain each predictor at the cut of each of the last `nights` nights that have runs, up to and with `end`, and score it.

    `nights` None takes all of them but the `skip_first` first. See `answers_by_night` for `memory` and `scored` for the
    prices.

    Raises NothingToScoreError where no such night exists.
    """
    makers = default_predictors(params) if makers is None else makers
    chosen = choose_nights(history, nights, end, skip_first)
    answers = answers_by_night(history, params, chosen, makers, progress=progress, memory=memory)
    return scored(history, chosen, answers, params.seed, usd_per_device_hour or {})


def scored(
    history: History,
    nights: Nights,
    predictions: Mapping[str, Sequence[Prediction]],
    seed: int,
    usd_per_device_hour: Mapping[str, float],
) -> BacktestResult:
    """Score what `answers_by_night` gave for the same nights.

    `usd_per_device_hour` prices hardware types, for what a wrong choice costs; a type without a price takes part in no choice of
    the cheapest.
    """
    rows_by_night = [np.flatnonzero(history.is_scored & (history.night == night)) for night in nights]
    all_rows = np.concatenate(rows_by_night)
    whole = {name: concatenated(answers) for name, answers in predictions.items()}
    unlabelled = history.unlabelled_jobs(nights)
    over, slices = _compare(history, all_rows, whole, unlabelled, seed)
    target = history.target[all_rows]
    features = history.features.take(pa.array(all_rows))
    keys = {name: names_of(features[name]) for name in ("model_type",)}
    keys |= {name: features[name].to_numpy().astype(np.str_) for name in ("num_devices", "log_global_batch_size")}
    cells = cells_of(keys, names_of(features["hardware_type"]), target)
    once = _first_of_each_run(history, all_rows)
    return BacktestResult(
        nights=nights,
        scorecards={
            name: score(name, history.target[all_rows], whole[name], history.job[all_rows], seed=seed, unlabelled_jobs=unlabelled)
            for name in predictions
        },
        by_night={
            name: [
                score(
                    name,
                    history.target[rows],
                    answer,
                    history.job[rows],
                    seed=seed,
                    unlabelled_jobs=history.unlabelled_jobs(nights[position : position + 1]),
                )
                for position, (rows, answer) in enumerate(zip(rows_by_night, answers, strict=True))
            ]
            for name, answers in predictions.items()
        },
        over=over,
        slices=slices,
        mean_ape={name: _mean_ape(target, answer.p50) for name, answer in whole.items()},
        choices={name: score_groups(cells, answer.p50, usd_per_device_hour) for name, answer in whole.items()},
        counted_once={name: _share(target[once], answer.p50[once]) for name, answer in whole.items()},
        same_day=_share(target, _same_day(history, all_rows, features)),
    )


def _share(target: Floats, predicted: Floats) -> Share:
    ten, twenty = (float(within(target, predicted, limit).mean()) if len(target) else float("nan") for limit in (0.10, 0.20))
    return Share(len(target), ten, twenty)


def _mean_ape(target: Floats, predicted: Floats) -> float:
    answered = np.isfinite(predicted)
    return float(np.abs(np.expm1(predicted - target))[answered].mean()) if answered.any() else float("nan")


def _first_of_each_run(history: History, rows: Positions) -> Positions:
    """Give the places, within `rows`, of one attempt of each run: equal start, end and label are one run under several names."""
    runs = np.column_stack([history.started_at[rows].view(np.int64), history.ended_at[rows].view(np.int64)])
    labels = history.target[rows].view(np.int64)[:, None]
    return np.asarray(np.sort(np.unique(np.hstack([runs, labels]), axis=0, return_index=True)[1]))


def _same_day(history: History, rows: Positions, features: pa.Table) -> Floats:
    """Answer each of `rows` with its job's last throughput on the same hardware that ended before its start, also on its day.

    Else with the lookup table's. What the nightly cut may not know, this does: it shows how easy repeats are.
    """
    hardware, devices = names_of(history.features["hardware_type"]), history.features["num_devices"].to_numpy().astype(np.str_)
    keys = np.column_stack([np.unique(part, return_inverse=True)[1].ravel() for part in (history.job, hardware, devices)])
    group = np.unique(keys, axis=0, return_inverse=True)[1].ravel()
    known = np.flatnonzero(history.is_scored)
    order = known[np.lexsort((history.ended_at[known], group[known]))]
    # Group and second in one sortable integer: seconds since 1970 have ten digits.
    ended = group[order] * 10**11 + history.ended_at[order].astype("datetime64[s]").astype(np.int64)
    started = group[rows] * 10**11 + history.started_at[rows].astype("datetime64[s]").astype(np.int64)
    place = np.searchsorted(ended, started, side="right") - 1
    before = np.where(place >= 0, order[np.maximum(place, 0)], -1)
    own = (before >= 0) & (group[before] == group[rows]) & (before != rows)
    table = LookupTable.median(features)
    return np.where(own, history.target[before], table)


def _compare(
    history: History, rows: Positions, answers: Mapping[str, Prediction], unlabelled: npt.NDArray[np.str_], seed: int
) -> tuple[dict[str, dict[str, Difference]], list[SliceScore]]:
    """Compare each predictor with the lookup table and LEAP's with each, over all; and with the lookup table by slice."""
    target, job = history.target[rows], history.job[rows]
    features = history.features.take(pa.array(rows))
    exact = np.nan_to_num(features["exact_log_count"].to_numpy()) > 0
    axes = {"exact history": np.where(exact, "yes", "no")}
    axes |= {name: names_of(pc.fill_null(features[name], "unknown")) for name in ("hardware_type", "model_type", "team")}
    lookup = answers.get(LookupTable.name)
    jobs = np.concatenate([job, unlabelled])
    hits = {
        name: np.concatenate([within(target, answer.p50, 0.10), np.zeros(len(unlabelled), dtype=bool)])
        for name, answer in answers.items()
    }
    slices = []
    for name, answer in answers.items():
        by_tier = axes | {"tier": answer.tier}
        slices += slice_scores(name, target, answer.p50, None if lookup is None else lookup.p50, job, by_tier, seed=seed)
    pairs = [(name, LookupTable.name) for name in answers] + [(GbdtPredictor.name, name) for name in answers]
    over: dict[str, dict[str, Difference]] = {}
    for name, against in pairs:
        if name != against and name in hits and against in hits:
            over.setdefault(name, {})[against] = paired_difference(hits[name], hits[against], jobs, seed=seed)
    return over, slices
