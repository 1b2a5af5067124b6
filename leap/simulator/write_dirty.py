"""A dirty log as files, and the truth about it in a folder apart.

What lives here: files of a day, files that were cut short and sent again, copies of files, and what a perfect ingestion makes of
them all, written while they are. What does not: which records are dirty (`dirt.py`).
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from leap.contracts import ATTEMPT_SCHEMA
from leap.simulator.dirt import CLEAN, TOO_SHORT, DirtyLog, Lines
from leap.simulator.faults import Kind, Rows

# One row per line that is dirty or repeats a content, and per file that was cut short; `line` is 0 for a file as a whole.
TRUTH_SCHEMA = pa.schema(
    [
        pa.field("arrived_on", pa.date32(), nullable=False),
        pa.field("file", pa.string(), nullable=False),
        pa.field("line", pa.int64(), nullable=False),
        pa.field("attempt_id", pa.string()),  # also where the line does not say it; null = of no single attempt
        pa.field("kind", pa.string(), nullable=False),  # `Kind`, or too-short: no dirt, but not trusted either
        pa.field("what", pa.string(), nullable=False),
        pa.field("outcome", pa.string(), nullable=False),  # kept, quarantined or duplicate, when files come in their order
        pa.field("reason", pa.string()),  # of the quarantine
    ]
)
KEPT, QUARANTINED, DUPLICATE = "kept", "quarantined", "duplicate"

_ONCE_IN_DAYS = 10  # so often each thing happens to a whole file
_CUT_SHARE = 0.6  # of a file that arrives
_MOST_RESENT_AFTER = 2  # days


class Truth(NamedTuple):
    """Counts of a dirty log: ``records_read = kept + quarantined + duplicates``, as a perfect ingestion finds them.

    ``kinds`` counts the rows of ``dirt.parquet`` by kind and outcome, ``quarantine`` quarantined records by reason; those that
    are too-short are no dirt: a clean fleet logs such attempts, too. ``files`` gives for each file, in the order of arrival, its
    name, its day and its records.
    """

    records_read: int
    kept: int
    quarantined: int
    duplicates: int
    kinds: dict[str, dict[str, int]]
    quarantine: dict[str, int]
    files: list[dict[str, str | int]]


class _Arrival(NamedTuple):
    """A file that arrives: its bytes and the records that a reader finds in it."""

    name: str
    data: bytes
    lines: Lines
    cut: tuple[int, str] | None = None  # where it was cut: line (0 = the file) and the reason that a reader gives


class _Mishap(NamedTuple):
    """What happens to the whole file of a day: its kind, and on which day what comes of it arrives."""

    what: str
    then: int


_COPIED, _CUT_GZIP, _CUT_PLAIN = "copied", "cut-gzip", "cut-plain"


def write_dirty(log: DirtyLog, start: date, out_dir: Path, truth_dir: Path, rng: np.random.Generator) -> Truth:
    """Write the files of a dirty log into `out_dir`, and the truth about them into `truth_dir`.

    A file's name begins with ``attempts-`` and the UTC day it arrives on; those of one day arrive in the order of their names.
    Per ten days one file arrives twice under another name, one as gzip that was cut short and one that ends within a line; these
    two arrive again, whole, within two days.

    The truth is ``truth.json`` (`Truth`), ``attempts.parquet`` (`ATTEMPT_SCHEMA`: what a perfect ingestion keeps, in the order
    of arrival) and ``dirt.parquet`` (`TRUTH_SCHEMA`). Folders are made where they are missing, files of the same names replaced.
    One day is in memory at a time.
    """
    for folder in (out_dir, truth_dir):
        folder.mkdir(parents=True, exist_ok=True)
    books = _Books(log)
    with (
        pq.ParquetWriter(truth_dir / "attempts.parquet", ATTEMPT_SCHEMA) as kept,
        pq.ParquetWriter(truth_dir / "dirt.parquet", TRUTH_SCHEMA) as dirt,
    ):
        for day, arrival in _arrivals(log, start, _draw_mishaps(rng, log.days)):
            (out_dir / arrival.name).write_bytes(arrival.data)
            is_first = books.enter(arrival, start + timedelta(days=day))
            trusted = is_first & (arrival.lines.reason == CLEAN)
            kept.write_table(log.records(arrival.lines.content[trusted]))
            dirty = _dirt_of(log, arrival, is_first, start + timedelta(days=day))
            books.enter_dirt(dirty)
            dirt.write_table(dirty)
    truth = books.close()
    (truth_dir / "truth.json").write_text(json.dumps(truth._asdict(), indent=2) + "\n", encoding="utf-8")
    return truth


def _draw_mishaps(rng: np.random.Generator, days: int) -> dict[int, _Mishap]:
    """Draw what happens to the files of which days; on the last day there is no day left for what follows."""
    times = max(1, days // _ONCE_IN_DAYS)
    what = ([_COPIED, _CUT_GZIP, _CUT_PLAIN] * times)[: max(days - 1, 0)]
    on = rng.choice(max(days - 1, 0), len(what), replace=False)
    after = rng.integers(1, _MOST_RESENT_AFTER, len(what), endpoint=True)
    return {int(day): _Mishap(each, min(int(day + more), days - 1)) for day, each, more in zip(on, what, after, strict=True)}


def _arrivals(log: DirtyLog, start: date, mishaps: dict[int, _Mishap]) -> Iterator[tuple[int, _Arrival]]:
    """Yield day by day the files that arrive, in the order of their names."""
    for day in range(log.days):
        named = f"attempts-{start + timedelta(days=day)}"
        for of_day, mishap in sorted(mishaps.items()):
            if mishap.then == day:
                lines = log.of_day(of_day)
                what = "copy" if mishap.what == _COPIED else "again"
                marked = _mark_copies(lines) if mishap.what == _COPIED else lines
                data = _whole(lines)
                is_gzip = mishap.what == _CUT_GZIP
                name = f"{named}-{what}-of-{start + timedelta(days=of_day)}.jsonl{'.gz' if is_gzip else ''}"
                yield day, _Arrival(name, gzip.compress(data, 6, mtime=0) if is_gzip else data, marked)
        lines = log.of_day(day)
        what = mishaps[day].what if day in mishaps else ""
        if what == _CUT_GZIP:
            yield day, _cut_gzip(f"{named}.jsonl.gz", lines)
        elif what == _CUT_PLAIN:
            yield day, _cut_plain(f"{named}.jsonl", lines)
        else:
            yield day, _Arrival(f"{named}.jsonl", _whole(lines), lines)


def _whole(lines: Lines) -> bytes:
    return b"".join(part for line in lines.text for part in (line, b"\n"))


def _mark_copies(lines: Lines) -> Lines:
    count = len(lines.text)
    return lines._replace(kind=np.full(count, str(Kind.DUPLICATE), object), what=np.full(count, "in a copy of the file", object))


def _cut_gzip(name: str, lines: Lines) -> _Arrival:
    packed = gzip.compress(_whole(lines), 6, mtime=0)
    data = packed[: int(len(packed) * _CUT_SHARE)]
    readable = zlib.decompressobj(wbits=31).decompress(data)
    return _Arrival(name, data, lines.first(readable.count(b"\n")), cut=(0, "unreadable-archive"))


def _cut_plain(name: str, lines: Lines) -> _Arrival:
    """Cut in the middle of a line that is good by itself, so that it is the cut that spoils it."""
    good = np.flatnonzero((lines.reason == CLEAN) & (np.arange(len(lines.text)) >= int(len(lines.text) * _CUT_SHARE)))
    if not len(good):
        return _Arrival(name, _whole(lines), lines)
    at = int(good[0])
    rest = lines.text[at][: len(lines.text[at]) // 2]
    return _Arrival(name, _whole(lines.first(at)) + rest, lines.first(at), cut=(at + 1, "not-json"))


def _dirt_of(log: DirtyLog, arrival: _Arrival, is_first: Rows, on: date) -> pa.Table:
    """Give the truth about the dirty lines of a file."""
    lines = arrival.lines
    rows = np.flatnonzero((lines.kind != CLEAN) | (lines.reason != CLEAN) | ~is_first)
    reason = np.where(is_first, lines.reason, CLEAN)[rows]
    outcome = np.where(~is_first[rows], DUPLICATE, np.where(reason == CLEAN, KEPT, QUARANTINED))
    # What repeats without being dirty itself stands in a file that was cut and came again.
    kind = np.where(lines.kind == CLEAN, np.where(lines.reason == TOO_SHORT, TOO_SHORT, str(Kind.TRUNCATED)), lines.kind)[rows]
    what = np.where((lines.what == CLEAN) & (lines.reason != TOO_SHORT), "arrived before", lines.what)[rows]
    columns = {
        "file": pa.repeat(arrival.name, len(rows)),
        "line": pa.array(rows + 1, pa.int64()),
        "attempt_id": log.attempt_ids(lines.content[rows]),
        "kind": pa.array(kind.tolist(), pa.string()),
        "what": pa.array(what.tolist(), pa.string()),
        "outcome": pa.array(outcome.tolist(), pa.string()),
        "reason": pa.array(reason.tolist(), pa.string(), mask=reason == CLEAN),
    }
    table = pa.table({"arrived_on": pa.repeat(pa.scalar(on), len(rows)), **columns}, schema=TRUTH_SCHEMA)
    if arrival.cut is None:
        return table
    line, why = arrival.cut
    row = {"file": arrival.name, "line": line, "kind": str(Kind.TRUNCATED), "what": "the cut", "outcome": QUARANTINED}
    return pa.concat_tables([table, pa.Table.from_pylist([{"arrived_on": on, **row, "reason": why}], TRUTH_SCHEMA)])


class _Books:
    """Counts what a perfect ingestion makes of the files that have arrived so far."""

    def __init__(self, log: DirtyLog) -> None:
        self._is_known = np.zeros(log.num_contents, np.bool_)
        self._kinds: Counter[tuple[str, str]] = Counter()
        self._reasons: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._files: list[dict[str, str | int]] = []

    def enter(self, arrival: _Arrival, on: date) -> Rows:
        """Count a file, and tell which of its lines bring a content for the first time."""
        content = arrival.lines.content
        is_first = np.zeros(len(content), np.bool_)
        is_first[np.unique(content, return_index=True)[1]] = True
        is_first &= ~self._is_known[content]
        self._is_known[content] = True
        reasons = arrival.lines.reason[is_first]
        cut = [] if arrival.cut is None else [arrival.cut[1]]
        self._reasons.update([*reasons[reasons != CLEAN].tolist(), *cut])
        self._counts["read"] += len(content) + len(cut)
        self._counts[KEPT] += int((reasons == CLEAN).sum())
        self._counts[DUPLICATE] += int((~is_first).sum())
        self._files.append({"name": arrival.name, "arrives_on": on.isoformat(), "records": len(content) + len(cut)})
        return is_first

    def enter_dirt(self, dirt: pa.Table) -> None:
        """Count dirty lines (`TRUTH_SCHEMA`)."""
        self._kinds.update(zip(dirt["kind"].to_pylist(), dirt["outcome"].to_pylist(), strict=True))

    def close(self) -> Truth:
        """Give the counts."""
        kinds: dict[str, dict[str, int]] = {}
        for (kind, outcome), count in sorted(self._kinds.items()):
            kinds.setdefault(kind, {})[outcome] = count
        return Truth(
            records_read=self._counts["read"],
            kept=self._counts[KEPT],
            quarantined=self._reasons.total(),
            duplicates=self._counts[DUPLICATE],
            kinds=kinds,
            quarantine=dict(sorted(self._reasons.items())),
            files=self._files,
        )
