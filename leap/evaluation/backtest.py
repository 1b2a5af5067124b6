"""Rolling-origin evaluation: one retrain per night at its cut, scored on the attempts submitted that night.

What lives here: which examples a night may learn from, which it is scored on, and the loop over nights. What does not: reading
datasets and drawing plots (`pipelines`), the score itself (`metrics.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from leap.contracts import CANDIDATE_SCHEMA, SUBMISSION_SCHEMA, Outcome
from leap.evaluation.compare import Difference, SliceScore, paired_difference, slice_scores, within
from leap.evaluation.metrics import Scorecard, score
from leap.features import Nights, State, assemble
from leap.params import Params
from leap.predictors import Examples, Floats, Prediction, Predictor
from leap.predictors.gbdt import GbdtPredictor
from leap.predictors.lookup import LookupTable

Rows = npt.NDArray[np.bool_]
NightProgress = Callable[[np.datetime64, int, int], None]


# The newest nights that have runs are kept for the final score of a model.
FINAL_NIGHTS = 30


class NothingToScoreError(ValueError):
    """No night in the window asked for has an attempt to score or anything to learn from."""


# What a training matrix says of each row beside its features.
MATRIX_COLUMNS = (
    "attempt_id",
    "job",
    "night",
    "visible_from",
    "visible_to",
    "is_newest",
    "has_succeeded",
    "log_throughput_per_device",
)


def training_matrix(examples: pa.Table, state: State) -> pa.Table:
    """Assemble the features of `marts.fct_training_examples`: one row per attempt and label version, `MATRIX_COLUMNS` first.

    Features are those of the row's own night. `job` is the job's name, else the attempt's; `is_newest` marks the newest label
    version of each attempt.
    """
    features = assemble(
        examples.select(SUBMISSION_SCHEMA.names), examples.select(CANDIDATE_SCHEMA.names), state, days(examples["night"])
    )
    succeeded = pc.equal(examples["outcome"], Outcome.SUCCEEDED.value)
    row = {name: examples[name] for name in MATRIX_COLUMNS if name in examples.column_names}
    row |= {"job": pc.coalesce(examples["job_id"], examples["attempt_id"]), "has_succeeded": succeeded}
    return pa.table({name: row[name] for name in MATRIX_COLUMNS} | {name: features[name] for name in features.column_names})


@dataclass(frozen=True)
class History:
    """A training matrix ready to be cut at any night; arrays of shape (n,).

    A label version may be learned from at the cut of night N where ``visible_from <= N < visible_to``. The denominator of a
    night is its `is_scored` rows and its `unlabelled` attempts (night and job of those whose record was quarantined).
    """

    features: pa.Table
    target: Floats
    attempt_id: pa.ChunkedArray
    job: npt.NDArray[np.str_]
    night: Nights
    visible_from: Nights
    visible_to: Nights
    has_succeeded: Rows
    is_scored: Rows
    unlabelled_night: Nights
    unlabelled_job: npt.NDArray[np.str_]

    @classmethod
    def from_matrix(cls, matrix: pa.Table, quarantine: pa.Table | None = None) -> History:
        """Index what `training_matrix` gave; `quarantine` has the columns of `REJECT_SCHEMA`."""
        visible_to = days(matrix["visible_to"])
        has_succeeded = np.asarray(matrix["has_succeeded"].to_numpy(), dtype=bool)
        unlabelled_night, unlabelled_job = _unlabelled(quarantine, matrix["attempt_id"])
        return cls(
            features=matrix.drop_columns(list(MATRIX_COLUMNS)),
            target=matrix["log_throughput_per_device"].to_numpy(),
            attempt_id=matrix["attempt_id"],
            job=_names(matrix["job"]),
            night=days(matrix["night"]),
            visible_from=days(matrix["visible_from"]),
            visible_to=np.where(np.isnat(visible_to), np.datetime64("9999-12-31"), visible_to),
            has_succeeded=has_succeeded,
            is_scored=has_succeeded & np.asarray(matrix["is_newest"].to_numpy(), dtype=bool),
            unlabelled_night=unlabelled_night,
            unlabelled_job=unlabelled_job,
        )

    def known_at(self, cut: np.datetime64, window_days: int) -> Rows:
        """Mark what may be learned from at `cut`: label versions known then, of nights within the window before it."""
        known = (self.visible_from <= cut) & (cut < self.visible_to)
        return known & (self.night < cut) & (self.night >= cut - np.timedelta64(window_days, "D"))

    def examples(self, rows: Rows, cut: np.datetime64) -> Examples:
        """Give the rows as examples, aged at `cut`."""
        age = (cut - self.night[rows]).astype("timedelta64[D]").astype(np.float64)
        return Examples(self.features.filter(pa.array(rows)), self.target[rows], age)

    def scored_nights(self) -> Nights:
        """Give the nights that have an attempt of the denominator, ascending."""
        return np.unique(np.concatenate([self.night[self.is_scored], self.unlabelled_night]))

    def unlabelled_jobs(self, nights: Nights) -> npt.NDArray[np.str_]:
        """Give the job of each attempt of `nights` whose label was quarantined."""
        return self.unlabelled_job[np.isin(self.unlabelled_night, nights)]


@dataclass(frozen=True)
class BacktestResult:
    """The scorecards of each predictor over all nights and of each night.

    `over_lookup` is the paired difference of each other predictor to the lookup table within 10%, over the whole denominator;
    `slices` leave out the attempts whose label is in quarantine, of which little is known.
    """

    nights: Nights
    scorecards: dict[str, Scorecard]
    by_night: dict[str, list[Scorecard]]
    over_lookup: dict[str, Difference]
    slices: list[SliceScore]


def fit_with_intervals(predictor: Predictor, history: History, cut: np.datetime64, params: Params) -> Predictor:
    """Fit `predictor` on what was known at `cut`; LEAP's own takes its intervals from the newest nights before it.

    Those are errors of twins that did not see them.
    """
    known = history.examples(history.known_at(cut, params.model.training_window_days), cut)
    predictor.fit(known)
    if isinstance(predictor, GbdtPredictor):
        predictor.calibrate(known, params.validation.calibration_nights)
    return predictor


def window(history: History, among: Rows, nights: int, min_attempts: int) -> Rows:
    """Mark the newest `nights` of `among`; more where they hold fewer than `min_attempts` rows, half of all nights at most."""
    of_night, counts = np.unique(history.night[among], return_counts=True)
    if not len(of_night):
        return np.zeros(len(history.night), dtype=bool)
    total = np.cumsum(counts[::-1])
    needed = max(nights, int(np.searchsorted(total, min_attempts)) + 1)
    # Something must be left to learn from.
    start = of_night[-min(needed, max(1, len(of_night) // 2))]
    return np.asarray(among & (history.night >= start))


def default_predictors(params: Params) -> list[Callable[[], Predictor]]:
    """Give the makers of LEAP's model and of the lookup table it replaces."""
    return [
        lambda: GbdtPredictor(params.model, params.features.state_levels, params.validation.interval, params.seed),
        lambda: LookupTable(params.validation.interval),
    ]


def backtest(
    history: History,
    params: Params,
    *,
    nights: int | None,
    end: np.datetime64 | None,
    skip_first: int = 0,
    makers: Sequence[Callable[[], Predictor]] | None = None,
    progress: NightProgress = lambda _night, _done, _total: None,
) -> BacktestResult:
    """Retrain each predictor at the cut of each of the last `nights` nights that have runs, up to and with `end`.

    `nights` None takes all of them but the `skip_first` first.

    Raises NothingToScoreError where no such night exists.
    """
    makers = default_predictors(params) if makers is None else makers
    chosen = _choose_nights(history, nights, end, skip_first)
    predictions: dict[str, list[Prediction]] = {}
    rows_by_night = [np.flatnonzero(history.is_scored & (history.night == night)) for night in chosen]
    for done, (night, rows) in enumerate(zip(chosen, rows_by_night, strict=True)):
        progress(night, done, len(chosen))
        features = history.features.take(pa.array(rows))
        for make in makers:
            predictor = make()
            answer = _answer(predictor, history, night, params, features)
            predictions.setdefault(predictor.name, []).append(answer)
    progress(chosen[-1], len(chosen), len(chosen))
    all_rows = np.concatenate(rows_by_night)
    whole = {name: _concatenate(answers) for name, answers in predictions.items()}
    over_lookup, slices = _compare(history, all_rows, whole, history.unlabelled_jobs(chosen), params.seed)
    return BacktestResult(
        nights=chosen,
        scorecards={
            name: score(
                name,
                history.target[all_rows],
                whole[name],
                history.job[all_rows],
                seed=params.seed,
                unlabelled_jobs=history.unlabelled_jobs(chosen),
            )
            for name in predictions
        },
        by_night={
            name: [
                score(
                    name,
                    history.target[rows],
                    answer,
                    history.job[rows],
                    seed=params.seed,
                    unlabelled_jobs=history.unlabelled_jobs(chosen[position : position + 1]),
                )
                for position, (rows, answer) in enumerate(zip(rows_by_night, answers, strict=True))
            ]
            for name, answers in predictions.items()
        },
        over_lookup=over_lookup,
        slices=slices,
    )


def end_before_final(history: History) -> np.datetime64:
    """Give the last night that may be looked at while a model is made: the `FINAL_NIGHTS` newest are for the final score.

    Where there are few nights at all, half of them. Raises NothingToScoreError where there is none.
    """
    nights = history.scored_nights()
    if not len(nights):
        raise NothingToScoreError("the dataset has no attempt that succeeded; ingest logs and run `leap nightly` first")
    held_back = min(FINAL_NIGHTS, len(nights) // 2)
    return np.datetime64(nights[len(nights) - 1 - held_back], "D")


def _compare(
    history: History, rows: npt.NDArray[np.int64], answers: Mapping[str, Prediction], unlabelled: npt.NDArray[np.str_], seed: int
) -> tuple[dict[str, Difference], list[SliceScore]]:
    """Compare each predictor with the lookup table, over all and by slice."""
    target, job = history.target[rows], history.job[rows]
    features = history.features.take(pa.array(rows))
    exact = np.nan_to_num(features["exact_log_count"].to_numpy()) > 0
    axes = {"exact history": np.where(exact, "yes", "no")}
    axes |= {name: _names(pc.fill_null(features[name], "unknown")) for name in ("hardware_type", "model_type", "team")}
    lookup = answers.get(LookupTable.name)
    nothing = np.zeros(len(unlabelled), dtype=bool)
    jobs = np.concatenate([job, unlabelled])
    over_lookup, slices = {}, []
    for name, answer in answers.items():
        by_tier = axes | {"tier": answer.tier}
        slices += slice_scores(name, target, answer.p50, None if lookup is None else lookup.p50, job, by_tier, seed=seed)
        if lookup is not None and name != LookupTable.name:
            ours, theirs = (np.concatenate([within(target, each.p50, 0.10), nothing]) for each in (answer, lookup))
            over_lookup[name] = paired_difference(ours, theirs, jobs, seed=seed)
    return over_lookup, slices


def days(column: pa.ChunkedArray) -> Nights:
    """Give a date column as `datetime64[D]`; null becomes NaT."""
    return np.asarray(column.to_numpy(), dtype="datetime64[D]")


def _answer(predictor: Predictor, history: History, night: np.datetime64, params: Params, features: pa.Table) -> Prediction:
    known = history.known_at(night, params.model.training_window_days)
    if not np.isfinite(history.features["prior"].to_numpy()[known]).any():
        # Nothing to learn from yet: every attempt of the night is a miss.
        nothing = np.full(features.num_rows, np.nan)
        return Prediction(nothing, nothing, nothing, np.full(features.num_rows, "none"))
    return fit_with_intervals(predictor, history, night, params).predict(features)


def _choose_nights(history: History, count: int | None, end: np.datetime64 | None, skip_first: int) -> Nights:
    nights = history.scored_nights()[skip_first:]
    if end is not None:
        nights = nights[nights <= end]
    if not len(nights):
        span = history.scored_nights()
        known = f"attempts run from {span[0]} to {span[-1]}" if len(span) else "the dataset has no attempt that succeeded"
        raise NothingToScoreError(f"no night with runs up to {end}: {known}; choose another --end")
    return nights if count is None else nights[-count:]


def _concatenate(answers: Sequence[Prediction]) -> Prediction:
    return Prediction(*(np.concatenate([getattr(answer, part) for answer in answers]) for part in ("p10", "p50", "p90", "tier")))


def _unlabelled(quarantine: pa.Table | None, labelled: pa.ChunkedArray) -> tuple[Nights, npt.NDArray[np.str_]]:
    """Give night and job of the quarantined attempts of the denominator: succeeded, with start and end, not mended."""
    if quarantine is None or not quarantine.num_rows:
        return np.empty(0, dtype="datetime64[D]"), np.empty(0, dtype=np.str_)
    counts = pc.and_(pc.equal(quarantine["outcome"], Outcome.SUCCEEDED.value), pc.is_valid(quarantine["ended_at"]))
    counts = pc.and_(counts, pc.and_(pc.is_valid(quarantine["started_at"]), pc.is_valid(quarantine["attempt_id"])))
    rows = quarantine.filter(pc.fill_null(counts, False))
    rows = rows.filter(pc.invert(pc.is_in(rows["attempt_id"], value_set=pc.unique(labelled))))
    rows = rows.group_by("attempt_id").aggregate([("started_at", "min"), ("job_id", "min")])
    night = np.asarray(rows["started_at_min"].to_numpy().astype("datetime64[D]"))
    return night, _names(pc.coalesce(rows["job_id_min"], rows["attempt_id"]))


def _names(column: pa.ChunkedArray) -> npt.NDArray[np.str_]:
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.str_)
