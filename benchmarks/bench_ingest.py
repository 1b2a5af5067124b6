"""What a day of arrivals costs early and late in a fleet's life: `leap.store.ingest` on day 10 and on day 180.

There is no bare engine here: LEAP is held against itself. A day is 50,000 simulated attempts as JSON lines, read, admitted and
loaded in one transaction; the history before it stands in the real tables, copied in bulk from a day that was loaded, with names,
times and content hashes of its own. Each load is timed in a process of its own, that also tells its peak memory. The median of
some days in a row decides. The ratio is the figure to follow: the times are this machine's.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from datetime import UTC, date, datetime
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from leap.hardware.catalog import read_catalog
from leap.hardware.names import read_aliases
from leap.params import load_params
from leap.simulator.fleet import FleetConfig, simulate
from leap.sources.jsonl import render
from leap.store.ingest import ingest
from leap.store.warehouse import connect

REPOSITORY = Path(__file__).resolve().parent.parent
SEEDS = REPOSITORY / "dbt_project" / "seeds"
START = date(2026, 3, 1)
RECEIVED_AT = datetime(2026, 4, 1, tzinfo=UTC)
EARLY, LATE = 10, 180
ROUNDS = 3

# A past day: the first day's rows under other names, so many days earlier.
_PAST_DAYS = """
INSERT INTO raw.job_attempts BY NAME
SELECT * EXCLUDE (day) REPLACE (
    attempt_id || '-' || day AS attempt_id,
    submitted_at - to_days(day) AS submitted_at, started_at - to_days(day) AS started_at,
    ended_at - to_days(day) AS ended_at, known_at - to_days(day) AS known_at,
    received_at - to_days(day) AS received_at,
    slice || '-' || day AS slice, file || '-' || day AS file, load_id || '-' || day AS load_id,
    md5(content_hash || '-' || day) AS content_hash
)
FROM raw.job_attempts CROSS JOIN (SELECT unnest(range($first, $last))::INTEGER AS day) WHERE load_id = 'first'
"""
_PAST_LOADS = """
INSERT INTO raw.loads BY NAME
SELECT source, slice || '-' || day AS slice, load_id || '-' || day AS load_id, received_at - to_days(day) AS received_at,
    kept AS records_read, kept, 0 AS quarantined, 0 AS duplicates
FROM raw.loads CROSS JOIN (SELECT unnest(range($first, $last))::INTEGER AS day) WHERE load_id = 'first'
"""


def write_days(folder: Path, days: int, attempts_per_day: int) -> list[Path]:
    """Write so many files of as many attempts each, in the order in which a simulated fleet came to know of them.

    A fleet's own days are not of one size, and what grew with them would look like a cost of history.
    """
    config = FleetConfig(
        hardware=read_catalog(SEEDS / "hardware_types.csv").table,
        aliases=read_aliases(SEEDS / "hardware_aliases.csv"),
        start=START,
        days=days + 1,
        attempts_per_day=1.2 * attempts_per_day,
    )
    attempts = simulate(config).attempts
    folder.mkdir()
    paths = [folder / f"attempts-{number}.jsonl" for number in range(days)]
    for number, path in enumerate(paths):
        lines = render(attempts.slice(number * attempts_per_day, attempts_per_day)).to_pylist()
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
    return paths


def add_history(warehouse: Path, first: int, last: int) -> None:
    """Copy the day that was loaded, as the days from `first` before it up to but without `last`."""
    with connect(warehouse) as con:
        for day in range(first, last, 10):
            days = {"first": day, "last": min(day + 10, last)}
            con.execute(_PAST_DAYS, days)
            con.execute(_PAST_LOADS, days)
        con.execute("CHECKPOINT")


def load_day(warehouse: Path, path: Path, load_id: str) -> dict[str, Any]:
    """Load one file and tell seconds, peak memory of this process in bytes, and records kept. Opening and closing count."""
    params = load_params(REPOSITORY / "params.yaml").ingest
    start = perf_counter()
    with connect(warehouse) as con:
        counts = ingest(con, "jsonl", [path], seeds=SEEDS, params=params, received_at=RECEIVED_AT, load_id=load_id)
    seconds = perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": seconds, "peak_bytes": peak, "kept": sum(count.kept for count in counts)}


def load_apart(warehouse: Path, path: Path, load_id: str) -> dict[str, Any]:
    """Do `load_day` in a process of its own."""
    command = [sys.executable, __file__, "--load", str(warehouse), str(path), load_id]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    loaded: dict[str, Any] = json.loads(said.stdout)
    return loaded


def measure(folder: Path, attempts_per_day: int, late: int) -> dict[str, Any]:
    """Load days early and late in the life of one warehouse."""
    warehouse = folder / "warehouse.duckdb"
    first, *days = write_days(folder / "logs", 1 + 2 * ROUNDS, attempts_per_day)
    load_apart(warehouse, first, "first")
    add_history(warehouse, 1, EARLY - 1)
    at_early = [load_apart(warehouse, path, path.stem) for path in days[::2]]
    add_history(warehouse, EARLY - 1, late - 1 - ROUNDS)
    at_late = [load_apart(warehouse, path, path.stem) for path in days[1::2]]
    seconds = {"early": median(each["seconds"] for each in at_early), "late": median(each["seconds"] for each in at_late)}
    return {
        "attempts_per_day": attempts_per_day,
        "early_day": EARLY,
        "late_day": late,
        "early_seconds": seconds["early"],
        "late_seconds": seconds["late"],
        "ratio": seconds["late"] / seconds["early"],
        "peak_bytes": max(each["peak_bytes"] for each in at_late),
        "early": at_early,
        "late": at_late,
        "warehouse_bytes": warehouse.stat().st_size,
    }


def main() -> None:
    """Run and print seconds, their ratio and the peak memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attempts-per-day", type=int, default=50_000)
    parser.add_argument("--late", type=int, default=LATE, metavar="DAY")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--load", nargs=3, metavar=("WAREHOUSE", "FILE", "ID"), help="load one file and print what it took")
    arguments = parser.parse_args()
    if arguments.load:
        print(json.dumps(load_day(Path(arguments.load[0]), Path(arguments.load[1]), arguments.load[2])))
        return
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), arguments.attempts_per_day, arguments.late)
    if arguments.json:
        print(json.dumps(found, indent=2))
        return
    print(f"a day of {found['attempts_per_day']:,} attempts as JSON lines, read, admitted and loaded; median of {ROUNDS} days")
    print(f"  day {EARLY:<4}                  {found['early_seconds']:7.2f} s     1.0")
    print(f"  day {found['late_day']:<4}                  {found['late_seconds']:7.2f} s   {found['ratio']:5.2f}")
    print(f"  peak memory at the end    {found['peak_bytes'] / 2**30:7.2f} GiB")


if __name__ == "__main__":
    main()
