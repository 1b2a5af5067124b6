"""The history of a fleet as examples: which attempts a night may learn from, and which it is scored on.

What lives here: the training matrix, cutting it at a night, and choosing nights. What does not: training (`retrain.py`), scores.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from leap.contracts import CANDIDATE_SCHEMA, SUBMISSION_SCHEMA, Outcome
from leap.features import Nights, State, assemble
from leap.predictors import Examples, Floats

Rows = npt.NDArray[np.bool_]
Instants = npt.NDArray[np.datetime64]

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
    "started_at",
    "ended_at",
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
    started_at: Instants
    ended_at: Instants
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
            job=names_of(matrix["job"]),
            night=days(matrix["night"]),
            visible_from=days(matrix["visible_from"]),
            visible_to=np.where(np.isnat(visible_to), np.datetime64("9999-12-31"), visible_to),
            started_at=matrix["started_at"].to_numpy().astype("datetime64[us]"),
            ended_at=matrix["ended_at"].to_numpy().astype("datetime64[us]"),
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


def choose_nights(history: History, count: int | None, end: np.datetime64 | None, skip_first: int) -> Nights:
    """Give the last `count` nights with runs up to and with `end`; all but the `skip_first` first where `count` is None."""
    nights = history.scored_nights()[skip_first:]
    if end is not None:
        nights = nights[nights <= end]
    if not len(nights):
        span = history.scored_nights()
        known = f"attempts run from {span[0]} to {span[-1]}" if len(span) else "the dataset has no attempt that succeeded"
        raise NothingToScoreError(f"no night with runs up to {end}: {known}; choose another --end")
    return nights if count is None else nights[-count:]


def end_before_final(history: History) -> np.datetime64:
    """Give the last night that may be looked at while a model is made: the `FINAL_NIGHTS` newest are for the final score.

    Where there are few nights at all, half of them. Raises NothingToScoreError where there is none.
    """
    nights = history.scored_nights()
    if not len(nights):
        raise NothingToScoreError("the dataset has no attempt that succeeded; ingest logs and run `leap nightly` first")
    held_back = min(FINAL_NIGHTS, len(nights) // 2)
    return np.datetime64(nights[len(nights) - 1 - held_back], "D")


def days(column: pa.ChunkedArray) -> Nights:
    """Give a date column as `datetime64[D]`; null becomes NaT."""
    return np.asarray(column.to_numpy(), dtype="datetime64[D]")


def names_of(column: pa.ChunkedArray) -> npt.NDArray[np.str_]:
    """Give a text column as an array of names."""
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.str_)


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
    return night, names_of(pc.coalesce(rows["job_id_min"], rows["attempt_id"]))
