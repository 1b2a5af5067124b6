"""The simulated log as files of JSON lines, one per UTC day, as a fleet's exporter would leave them.

What lives here: writing into a folder that is handed in. What does not: anything about the content.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from leap.simulator.fleet import FleetLog
from leap.sources.jsonl import render


def write_jsonl(log: FleetLog, out_dir: Path) -> list[Path]:
    """Write ``attempts-YYYY-MM-DD.jsonl`` for each UTC day on which attempts became known; give the paths, oldest first.

    The folder is made where it is missing; files of the same names are replaced.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    day = pc.cast(pc.floor_temporal(log.attempts["known_at"], unit="day"), pa.date32())
    return [_write_day(log.attempts.filter(pc.equal(day, on)), on.as_py().isoformat(), out_dir) for on in _days_of(day)]


def _days_of(day: pa.ChunkedArray) -> list[pa.Scalar]:
    days = pc.unique(day)
    return list(days.take(pc.sort_indices(days)))


def _write_day(attempts: pa.Table, day: str, out_dir: Path) -> Path:
    path = out_dir / f"attempts-{day}.jsonl"
    path.write_text("".join(f"{line}\n" for line in render(attempts).to_pylist()), encoding="utf-8", newline="\n")
    return path
