"""The leak report: how old the newest fact behind each feature is at its row's cut, worked out anew from the attempts.

What lives here: the question to the database and the comparison with the assembled features. What does not: running it
(`leap.store.warehouse`), and how features are made (`leap.features`) or history is built (dbt), neither of which is used: a fact
counts where both its times are before the cut, whatever `visible_from` says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from leap.features import (
    CANDIDATE_FEATURES,
    CATEGORICAL_FEATURES,
    PRIOR_LEVELS,
    SUBMISSION_FEATURES,
    Floats,
    Levels,
    feature_names,
    level_feature_names,
)

AS_SUBMITTED: Final = "submission"
CATALOGUE: Final = "candidate"
EVERYTHING: Final = "all history"
PRIOR: Final = "newest of the prior's levels"
SHOWN_ROWS = 20

_SECOND = 1 / 86_400
_SUBMITTED = (*SUBMISSION_FEATURES, "model_type", "task", "framework", "precision", "optimizer", "team")

Query = Callable[[str], pa.Table]


@dataclass(frozen=True)
class FeatureAge:
    """How old the newest fact behind a feature is at the cut, in days, over the rows that have one.

    `source` is a level of history, `submission` (known as the job is submitted) or `candidate` (the catalogue): the last two
    rest on no run, so they have no age. `min_known_days` is of the time at which the fact became known.
    """

    feature: str
    source: str
    rows: int
    min_days: float | None
    median_days: float | None
    min_known_days: float | None


@dataclass(frozen=True)
class Finding:
    """Rows whose features of one source rest on something else than what was known before their cuts.

    `attempts` names the first `SHOWN_ROWS` of the `rows`: attempt and night.
    """

    source: str
    what: str
    rows: int
    attempts: tuple[str, ...]


@dataclass(frozen=True)
class LeakReport:
    """What was checked, and what was found."""

    rows: int
    features: tuple[FeatureAge, ...]
    findings: tuple[Finding, ...]

    def to_json(self) -> dict[str, Any]:
        """Give the report as JSON values."""
        return asdict(self)


def newest_facts(key: Sequence[str]) -> str:
    """Write the question for one level of history: one row per example, in the order of `row`.

    The relations it reads are `examples` (`marts.fct_training_examples` with a number in `row`) and `attempts`
    (`marts.fct_attempts`). It gives `facts`, and the newest `ended_at` and `known_at` of those with the same key, that ended and
    became known before 00:00 UTC of the row's night and had no newer version known by then. An empty `key` takes every fact.
    """
    keys = [
        f"floor({column} + 0.5) as key_{place}" if column in ("num_devices", "global_batch_size") else f"{column} as key_{place}"
        for place, column in enumerate(key)
    ]
    names = [f"key_{place}" for place in range(len(key))]
    described = ", ".join(["", *keys])
    listed = "".join(f", {name}" for name in names)
    same = "".join(f" and facts.{name} = asked.{name}" for name in names)
    joined = "".join(f" and newest.{name} = examples_keyed.{name}" for name in names)
    return f"""
        with examples_keyed as (
            select row, attempt_id, segment_number, version, night, ended_at, cast(night as timestamptz) as cut{described}
            from examples
        ), facts as (
            select examples_keyed.ended_at, attempts.known_from, attempts.known_to{listed}
            from examples_keyed inner join attempts using (attempt_id, segment_number, version)
        ), asked as (
            select distinct night, cut{listed} from examples_keyed
        ), newest as (
            select
                asked.night{"".join(f", asked.{name}" for name in names)},
                count(*) as facts,
                max(facts.ended_at) as ended_at,
                max(facts.known_from) as known_at
            from asked inner join facts
                on facts.ended_at < asked.cut and facts.known_from < asked.cut
                and (facts.known_to is null or facts.known_to >= asked.cut){same}
            group by all
        )
        select examples_keyed.row, coalesce(newest.facts, 0) as facts, newest.ended_at, newest.known_at
        from examples_keyed left join newest on newest.night = examples_keyed.night{joined}
        order by examples_keyed.row
    """


def report(matrix: pa.Table, levels: Levels, query: Query) -> LeakReport:
    """Compare the assembled features of all examples (`training_matrix`) with facts that `query` works out anew.

    Found are: a feature's own age below zero; an age or a count of runs that differs from the one worked out; a history where
    there is none, or none where there is one.
    """
    cut = matrix["night"].to_numpy().astype("datetime64[s]")
    ages: dict[str, tuple[Floats, Floats]] = {}
    findings: list[Finding] = []
    for level, key in {**levels, EVERYTHING: ()}.items():
        facts = query(newest_facts(key))
        ended, known = (_days_before(cut, facts[name]) for name in ("ended_at", "known_at"))
        ages[level] = ended, known
        if level == EVERYTHING:
            continue
        for what, rows in _faults(matrix, level, ended, facts["facts"].to_numpy().astype(np.float64)).items():
            first = matrix.select(["attempt_id", "night"]).take(pa.array(rows[:SHOWN_ROWS])).to_pylist()
            named = tuple(f"{one['attempt_id']} ({one['night']})" for one in first)
            findings.append(Finding(level, what, len(rows), named))
    ended, known = (_newest([ages[level][part] for level, _ in PRIOR_LEVELS if level in ages]) for part in (0, 1))
    ages[PRIOR] = ended, known
    return LeakReport(
        rows=matrix.num_rows,
        features=tuple(_age(feature, source, ages) for feature, source in sources(levels).items()),
        findings=tuple(findings),
    )


def sources(levels: Levels) -> dict[str, str]:
    """Name for each feature of a model what it rests on; one that no source is known of rests on all history."""
    numeric, categorical = feature_names(levels)
    known = dict.fromkeys(_SUBMITTED, AS_SUBMITTED)
    known |= {name: CATALOGUE for name in (*CANDIDATE_FEATURES, *CATEGORICAL_FEATURES) if name not in known}
    known |= {name: level for level in levels for name in level_feature_names(level)}
    known |= dict.fromkeys(("prior", "prior_level", "tier"), PRIOR)
    return {name: known.get(name, EVERYTHING) for name in (*numeric, *categorical, "tier")}


def _faults(matrix: pa.Table, level: str, expected_age: Floats, expected_count: Floats) -> dict[str, Any]:
    """Give the rows of each kind of fault at one level."""
    age = matrix[f"{level}_age_days"].to_numpy()
    count = np.nan_to_num(np.expm1(matrix[f"{level}_log_count"].to_numpy()))
    # State keeps whole seconds; half a second of rounding is no finding.
    differs = np.isfinite(age) & np.isfinite(expected_age) & (np.abs(age - expected_age) > 1.5 * _SECOND)
    marked = {
        "its newest fact ended after the cut": age < 0,
        "its newest fact is newer than any known at the cut": differs & (age < expected_age),
        "a newer fact was known at the cut": differs & (age > expected_age),
        "it tells of runs where none was known": np.isfinite(age) & ~np.isfinite(expected_age),
        "it tells of no run where some were known": ~np.isfinite(age) & np.isfinite(expected_age),
        "it counts other runs than were known": np.abs(count - expected_count) > 1e-6 * np.maximum(expected_count, 1.0),
    }
    return {what: np.flatnonzero(rows) for what, rows in marked.items() if rows.any()}


def _age(feature: str, source: str, ages: Mapping[str, tuple[Floats, Floats]]) -> FeatureAge:
    if source not in ages:
        return FeatureAge(feature, source, 0, None, None, None)
    ended, known = ages[source]
    some = np.isfinite(ended)
    if not some.any():
        return FeatureAge(feature, source, 0, None, None, None)
    return FeatureAge(
        feature, source, int(some.sum()), float(ended[some].min()), float(np.median(ended[some])), float(known[some].min())
    )


def _newest(ages: Sequence[Floats]) -> Floats:
    stacked = np.where(np.isfinite(ages), ages, np.inf)
    youngest = stacked.min(axis=0)
    return np.where(np.isfinite(youngest), youngest, np.nan)


def _days_before(cut: Any, column: pa.ChunkedArray) -> Floats:
    """Give how many days before the cut each time is; null becomes NaN."""
    times = column.to_numpy().astype("datetime64[us]")
    span = (cut.astype("datetime64[us]") - times).astype("timedelta64[us]")
    return np.where(np.isnat(times), np.nan, span.astype(np.float64) / 86_400e6)
