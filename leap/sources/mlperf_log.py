"""One MLPerf Training result log as events: what was set before training, when it ran, what it counted, what it reported.

What lives here: finding and decoding `:::MLLOG` lines (the format of the `mlperf_logging` package) and the `:::MLL` lines of
round v0.6. What does not: what the counters mean for a benchmark (`mlperf_labels.py`), systems, files and archives
(`mlperf.py`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

MARKER: Final = b":::MLLOG"

# Both formats begin so; what follows tells them apart: ':::MLLOG {"key": ...}', ':::MLL 1558639121.123 run_start: {...}'.
_MARKER: Final = b":::MLL"
_OLD = re.compile(rb"\s+(\d+(?:\.\d+)?)\s+(\w+)\s*:\s*(\{.*)", re.DOTALL)

# Kept after run_start; every other event of a running job (one per step in some logs) is skipped before JSON is parsed.
COUNTERS: Final = frozenset(
    {
        "block_start",
        "block_stop",
        "epoch_start",
        "epoch_stop",
        "eval_accuracy",
        "eval_result",
        "global_batch_size",
        "run_start",
        "run_stop",
        "samples_per_epoch",
        "status",
        "trained_samples",
        "train_samples",
    }
)
_REPORTS: Final = frozenset({"throughput", "tracked_stats"})

# Arguments of the launch that some loggers write after run_start. They are taken up to the first block or epoch: they are set
# before the job runs, and nothing measured is among them.
LAUNCH_SETTINGS: Final = frozenset(
    {
        "d_batch_size",
        "global_batch_size",
        "gradient_accumulation_steps",
        "local_batch_size",
        "max_sequence_length",
        "opt_name",
        "sequence_length",
    }
)
_TRAINING_BEGAN: Final = frozenset({"block_start", "epoch_start", "eval_accuracy"})

_KEY = re.compile(rb'"key"\s*:\s*"([^"]*)"')
_DECODER = json.JSONDecoder()


class Event(NamedTuple):
    """One event; ``time_ms`` is milliseconds since 1970 UTC, None where the line has no usable one."""

    line: int
    time_ms: float | None
    value: object
    metadata: dict[str, object]


@dataclass(slots=True)
class RunLog:
    """What one result file says. Lists are in the order of the file; a rank's repeat may stand in them more than once."""

    events: int = 0
    bad_lines: int = 0
    first_bad_line: int = 0
    start: Event | None = None
    stop: Event | None = None
    settings: dict[str, object] = field(default_factory=dict)
    counters: dict[str, list[Event]] = field(default_factory=dict)
    reported: list[float] = field(default_factory=list)

    def numbers(self, key: str, name: str | None = None) -> list[float]:
        """Return the numbers that the counter `key` had up to run_stop: its value, or the entry `name` of its metadata."""
        end = self.stop.time_ms if self.stop is not None else None
        found = (
            as_number(event.value if name is None else event.metadata.get(name))
            for event in self.counters.get(key, ())
            if end is None or event.time_ms is None or event.time_ms <= end
        )
        return [number for number in found if number is not None]


def as_number(value: object) -> float | None:
    """Return `value` as a finite float, also where it is a number spelled as text; else None."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def as_text(value: object) -> str:
    """Return `value` as text that can be stored: JSON and file names may hold characters that are none."""
    return str(value).encode("utf-8", "replace").decode("utf-8")


def read_log(lines: Iterable[bytes]) -> RunLog:
    """Parse the raw lines of one result file. Never raises on content: what cannot be decoded is counted as a bad line."""
    log = RunLog()
    began = False
    for number, line in enumerate(lines, start=1):
        at = line.find(_MARKER)
        while at >= 0:
            following = line.find(_MARKER, at + len(_MARKER))
            piece = line[at + len(_MARKER) : following if following >= 0 else len(line)]
            at = following
            found = _split(piece)
            if found is None:
                _count_bad(log, number)
                continue
            if log.start is not None and not _is_wanted(found.key, piece, began):
                log.events += 1
                continue
            event = _decode(found, number)
            if event is None:
                _count_bad(log, number)
                continue
            log.events += 1
            began = began or found.key in _TRAINING_BEGAN
            _take(log, found.key, event, began)
    return log


class _Piece(NamedTuple):
    """What stands behind a marker; ``seconds`` is its time where the record has none of its own (round v0.6)."""

    key: str
    record: bytes
    seconds: float | None = None


def _split(piece: bytes) -> _Piece | None:
    if piece.startswith(b"OG"):
        match = _KEY.search(piece)
        return _Piece(match[1].decode("utf-8", "replace"), piece[2:]) if match is not None else None
    match = _OLD.match(piece)
    return _Piece(match[2].decode("utf-8", "replace"), match[3], float(match[1])) if match is not None else None


def _is_wanted(key: str, piece: bytes, began: bool) -> bool:
    if key in COUNTERS:
        return True
    if key in _REPORTS:
        return b"throughput" in piece
    return not began and key in LAUNCH_SETTINGS


def _count_bad(log: RunLog, number: int) -> None:
    log.bad_lines += 1
    log.first_bad_line = log.first_bad_line or number


def _decode(piece: _Piece, number: int) -> Event | None:
    try:
        record, _ = _DECODER.raw_decode(piece.record.decode("utf-8", "replace").lstrip())
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    metadata = record.get("metadata")
    time_ms = as_number(record.get("time_ms")) if piece.seconds is None else 1000 * piece.seconds
    return Event(
        line=number,
        time_ms=time_ms if time_ms is not None and time_ms > 0 else None,
        value=record.get("value"),
        metadata=metadata if isinstance(metadata, dict) else {},
    )


def _take(log: RunLog, key: str, event: Event, began: bool) -> None:
    if key == "run_start":
        log.start = _first_with_time(log.start, event)
    elif key == "run_stop":
        log.stop = _first_with_time(log.stop, event)
    elif key in _REPORTS:
        value = event.value.get("throughput") if isinstance(event.value, dict) else event.value
        number = as_number(value)
        if number is not None and number > 0:
            log.reported.append(number)
    else:
        if log.start is None or (key in LAUNCH_SETTINGS and not began):
            log.settings.setdefault(key, event.value)
        if key in COUNTERS:
            log.counters.setdefault(key, []).append(event)


def _first_with_time(known: Event | None, event: Event) -> Event:
    if known is None or (known.time_ms is None and event.time_ms is not None):
        return event
    return known
