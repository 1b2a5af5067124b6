"""Dirt for a clean log: which records are spoiled, come late, twice or corrected, and in which day's file each line stands.

What lives here: the plan, drawn from a seed, and the lines of a day's file by that plan. What does not: single faults
(`faults.py`), files and the truth about them (`write_dirty.py`).

A *content* is what one record says; a *line* is one place where it stands. A duplicate is a second line of the same content; a
corrected record is two contents of one attempt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from leap.contracts import ATTEMPT_SCHEMA, UTC_TIMESTAMP
from leap.simulator.faults import FAULTS, Fault, Kind, Rows, facts_of
from leap.simulator.models import Floats, Ints
from leap.sources.jsonl import render

Texts = npt.NDArray[np.object_]

CLEAN = ""  # no kind of dirt, no reason against a record
TOO_SHORT = "too-short"  # the reason against attempts that a clean fleet logs too

# Shares of all attempts; one of each at least, as far as there are records for it.
_FAULT_SHARE = 0.0006  # of each fault
_LATE_SHARE, _CORRECTED_SHARE = 0.01, 0.005
_DUPLICATE_SHARE = 0.004  # of each way to come twice
_MOST_DAYS_LATE, _MOST_DAYS_TO_CORRECT = 9, 3
_FIRST_GUESS = 0.7  # of the throughput, before the correction
_IN_THE_SAME_FILE = "in the same file"
_DAY_US = 86_400_000_000


class Lines(NamedTuple):
    """Lines of one file; each column has one value per line."""

    text: list[bytes]
    content: Ints
    kind: Texts  # `Kind`, or CLEAN: what is dirty about the line
    what: Texts  # the fault in words, or CLEAN
    reason: Texts  # why the content is not trusted, CLEAN where it is

    def first(self, count: int) -> Lines:
        """Give the first `count` lines."""
        columns: list[Any] = [column[:count] for column in self]
        return Lines(*columns)


class _Plan(NamedTuple):
    """Where contents stand: one value of each array per line, in the order of days and of lines in a day."""

    content: Ints
    day: Ints  # 0 = the first
    kind: Texts
    what: Texts
    is_rewritten: Rows  # the same content in another spelling


@dataclass(frozen=True)
class DirtyLog:
    """The log of a clean fleet, ``attempts`` (`ATTEMPT_SCHEMA`) of so many ``days``, and what dirt does to it.

    The contents 0 to ``len(attempts) - 1`` are of the rows of `attempts`; further ones are first versions of corrected records.
    """

    attempts: pa.Table
    days: int
    num_contents: int
    _row: Ints  # of each content in `attempts`
    _changed_at: Ints  # of each content in `_changed`; -1 = it says what `attempts` says
    _changed: pa.Table
    _changed_lines: Texts
    _fault: Ints  # of each content, index into FAULTS; -1 = none
    _is_short: Rows  # of each content
    _plan: _Plan

    def of_day(self, day: int) -> Lines:
        """Give the lines of the file that is written on a day, 0 = the first."""
        lines = slice(*np.searchsorted(self._plan.day, [day, day + 1]))
        content, _, kind, what, is_rewritten = _select(self._plan, lines)
        at = self._changed_at[content]
        text = np.empty(len(content), object)
        text[at >= 0] = self._changed_lines[at[at >= 0]]
        for rows, spell in ((at < 0) & ~is_rewritten, _as_it_is), ((at < 0) & is_rewritten, _rewrite):
            text[rows] = spell(render(self.attempts.take(pa.array(content[rows])))).cast(pa.binary()).to_pylist()
        fault = self._fault[content]
        return Lines(
            text=text.tolist(),
            content=content,
            kind=np.where(kind == CLEAN, _FAULT_KINDS[fault], kind),
            what=np.where(kind == CLEAN, _FAULT_WHATS[fault], what),
            reason=np.where(self._is_short[content], TOO_SHORT, _FAULT_REASONS[fault]),
        )

    def records(self, content: Ints) -> pa.Table:
        """Give what contents say that no line spoils, in their order: `ATTEMPT_SCHEMA`."""
        at = self._changed_at[content]
        clean, changed = np.flatnonzero(at < 0), np.flatnonzero(at >= 0)
        rows = pa.concat_tables(
            [self.attempts.take(pa.array(content[clean])), self._changed.take(pa.array(at[changed]))]
        ).combine_chunks()
        return rows.take(pa.array(np.argsort(np.concatenate([clean, changed]))))

    def attempt_ids(self, content: Ints) -> pa.ChunkedArray:
        """Give the attempts that contents are of, also where a content does not say it."""
        return self.attempts["attempt_id"].take(pa.array(self._row[content]))


def soil(attempts: pa.Table, days: int, rng: np.random.Generator, min_steady_seconds: float) -> DirtyLog:
    """Plan dirt for a clean log: `attempts` (`ATTEMPT_SCHEMA`) of so many UTC days, in the order in which they became known.

    Each fault befalls its share of the records, each record at most once; a record that was measured for less than
    `min_steady_seconds` is left as it is, because it is not trusted anyway. The same `rng` gives the same plan.
    """
    known = np.asarray(attempts["known_at"].cast(pa.int64()).to_numpy(), np.int64) // _DAY_US
    day = known - (known[0] if len(known) else 0)
    is_short = np.asarray(attempts["steady_seconds"].to_numpy(), np.float64) < min_steady_seconds
    draw = _Draw(rng, ~is_short)
    befallen = [draw.take(fault.befalls(facts), _FAULT_SHARE) for facts in [facts_of(attempts)] for fault in FAULTS]
    corrected = draw.take(day < days - 1, _CORRECTED_SHARE)
    late = draw.take(day < days - 1, _LATE_SHARE)
    again, elsewhere, rewritten = (draw.take(can_be, _DUPLICATE_SHARE) for can_be in (day >= 0, day < days - 1, day < days - 1))

    corrected_on = _later(rng, day[corrected], days, _MOST_DAYS_TO_CORRECT)
    first_versions = np.arange(len(day), len(day) + len(corrected))
    spoiled = [_spoil(attempts, rows, fault) for rows, fault in zip(befallen, FAULTS, strict=True)]
    first = _first_version(attempts.take(pa.array(corrected)))
    then = _known_later(attempts.take(pa.array(corrected)), corrected_on - day[corrected])
    changed = [*spoiled, *((rows, render(rows)) for rows in (first, then))]
    changed_contents = np.concatenate([*befallen, first_versions, corrected])

    num_contents = len(day) + len(corrected)
    changed_at, of_fault = np.full(num_contents, -1), np.full(num_contents, -1)
    changed_at[changed_contents] = np.arange(len(changed_contents))
    for number, rows in enumerate(befallen):
        of_fault[rows] = number

    own_day = day.copy()
    own_day[late] = _later(rng, day[late], days, _MOST_DAYS_LATE)
    own_day[corrected] = corrected_on
    own_kind, own_what = np.full(len(day), CLEAN, object), np.full(len(day), CLEAN, object)
    own_kind[late], own_what[late] = str(Kind.LATE), "in the file of a later day"
    own_kind[corrected], own_what[corrected] = str(Kind.CORRECTED), "the correction"
    parts: list[tuple[Ints, Ints, Texts | str, Texts | str, bool]] = [
        (np.arange(len(day)), own_day, own_kind, own_what, False),
        (first_versions, day[corrected], str(Kind.CORRECTED), "the first version", False),
        (again, day[again], str(Kind.DUPLICATE), _IN_THE_SAME_FILE, False),
        (elsewhere, _later(rng, day[elsewhere], days, _MOST_DAYS_LATE), str(Kind.DUPLICATE), "in a later file", False),
        (rewritten, _later(rng, day[rewritten], days, _MOST_DAYS_LATE), str(Kind.DUPLICATE), "in another spelling", True),
    ]
    return DirtyLog(
        attempts=attempts,
        days=days,
        num_contents=num_contents,
        _row=np.concatenate([np.arange(len(day)), corrected]),
        _changed_at=changed_at,
        _changed=pa.concat_tables([rows for rows, _ in changed]).combine_chunks(),
        _changed_lines=np.array([line for _, lines in changed for line in lines.cast(pa.binary()).to_pylist()], object),
        _fault=of_fault,
        _is_short=np.concatenate([is_short, is_short[corrected]]),
        _plan=_order(rng, _join(parts)),
    )


# With the index -1, the last: no fault.
_FAULT_KINDS, _FAULT_WHATS, _FAULT_REASONS = (
    np.array([*(str(getattr(fault, name)) for fault in FAULTS), CLEAN], object) for name in ("kind", "what", "reason")
)


class _Draw:
    """Draws rows for one thing after another, each row once."""

    def __init__(self, rng: np.random.Generator, is_free: Rows) -> None:
        self._rng = rng
        self._is_free = is_free

    def take(self, fits: Rows, share: float) -> Ints:
        """Take a share of all rows, out of those that fit and are free; sorted."""
        free = np.flatnonzero(self._is_free & fits)
        count = min(len(free), max(1, round(share * len(self._is_free))))
        rows = np.sort(self._rng.choice(free, count, replace=False)).astype(np.int64)
        self._is_free[rows] = False
        return rows


def _later(rng: np.random.Generator, day: Ints, days: int, most: int) -> Ints:
    """Draw a later day for each, at most so many days on, within the log's."""
    return day + rng.integers(1, np.minimum(most, days - 1 - day), endpoint=True)


def _spoil(attempts: pa.Table, rows: Ints, fault: Fault) -> tuple[pa.Table, pa.ChunkedArray]:
    records = fault.change(attempts.take(pa.array(rows)))
    return records, fault.spoil(render(records))


def _first_version(rows: pa.Table) -> pa.Table:
    """Give what was first logged of records that are corrected later: a rough figure, without steps to hold it against."""
    guess = {"throughput": pc.multiply(rows["throughput"], _FIRST_GUESS)}
    for name in ("step_seconds", "start_step", "end_step"):
        guess[name] = pa.chunked_array([pa.nulls(rows.num_rows, pa.float64())])
    return pa.table([guess.get(name, rows[name]) for name in ATTEMPT_SCHEMA.names], schema=ATTEMPT_SCHEMA)


def _known_later(rows: pa.Table, days: Ints) -> pa.Table:
    at = ATTEMPT_SCHEMA.get_field_index("known_at")
    known = pc.add(rows["known_at"].cast(pa.int64()), pa.array(days * _DAY_US)).cast(UTC_TIMESTAMP)
    return rows.set_column(at, ATTEMPT_SCHEMA.field(at), known)


def _join(parts: list[tuple[Ints, Ints, Texts | str, Texts | str, bool]]) -> _Plan:
    counts = [len(part[0]) for part in parts]
    return _Plan(
        content=np.concatenate([part[0] for part in parts]),
        day=np.concatenate([part[1] for part in parts]),
        kind=np.concatenate([np.full(count, part[2], object) for count, part in zip(counts, parts, strict=True)]),
        what=np.concatenate([np.full(count, part[3], object) for count, part in zip(counts, parts, strict=True)]),
        is_rewritten=np.repeat([part[4] for part in parts], counts),
    )


def _order(rng: np.random.Generator, plan: _Plan) -> _Plan:
    """Put lines in the order of their days; in a day, clean ones stand as they became known, the rest anywhere."""
    place: Floats = plan.content.astype(np.float64)
    is_moved = plan.kind != CLEAN
    per_day = np.bincount(plan.day[~is_moved], minlength=int(plan.day.max(initial=0)) + 1)
    begin = np.cumsum(per_day) - per_day
    # Lines that moved leave gaps in the numbers of contents, so places are counted among those that did not.
    place[~is_moved] = np.arange(int((~is_moved).sum()))
    place[is_moved] = begin[plan.day[is_moved]] + rng.random(int(is_moved.sum())) * per_day[plan.day[is_moved]]
    # Of a record that stands twice in a file, the second comes later.
    is_again = plan.what == _IN_THE_SAME_FILE
    own = np.full(int(plan.content.max(initial=-1)) + 1, np.nan)
    own[plan.content[~is_moved]] = place[~is_moved]
    end = (begin + per_day)[plan.day[is_again]]
    place[is_again] = own[plan.content[is_again]] + rng.random(int(is_again.sum())) * (end - own[plan.content[is_again]])
    order = np.lexsort((place, plan.day))
    return _select(plan, order)


def _select(plan: _Plan, lines: Ints | slice) -> _Plan:
    columns: list[Any] = [column[lines] for column in plan]
    return _Plan(*columns)


def _as_it_is(lines: pa.ChunkedArray) -> pa.ChunkedArray:
    return lines


def _rewrite(lines: pa.ChunkedArray) -> pa.ChunkedArray:
    """Write the same content in another spelling: a count as a decimal, UTC as an offset."""
    return pc.replace_substring(pc.replace_substring_regex(lines, r'"num_devices":(\d+)', r'"num_devices":\1.0'), 'Z"', '+00:00"')
