"""What loading attempts costs beside a bare insert: `leap.store.warehouse.load` against DuckDB's own, in the same run.

The bare side puts the same Arrow table into an empty DuckDB file with one statement. LEAP's side also makes and checks
content hashes, finds duplicates, fills `known_at`, counts by slice and reconciles. Rounds alternate between the two, each on a
new file; the median decides. The ratio is the figure to follow: the times are this machine's.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from time import perf_counter

import duckdb
import numpy as np
import pyarrow as pa

from leap.contracts import REJECT_SCHEMA
from leap.sources.admission import ADMITTED_SCHEMA, Admission
from leap.store import warehouse

ROWS = 50_000
ROUNDS = 5
RECEIVED_AT = datetime(2026, 1, 2, tzinfo=UTC)


def make_attempts(rows: int) -> pa.Table:
    """Make admitted attempts with the columns that logs carry; the same every time."""
    number = np.arange(rows)
    rng = np.random.default_rng(7)
    start = np.datetime64("2025-01-01T00:00:00", "us") + rng.integers(0, 365 * 86_400, rows).astype("timedelta64[s]")
    given = {
        "source": np.full(rows, "bench"),
        "slice": np.char.add("slice-", (number % 20).astype(str)),
        "file": np.char.add("log-", (number % 50).astype(str)),
        "line": number + 1,
        "attempt_id": np.char.add("attempt-", number.astype(str)),
        "segment_number": np.ones(rows),
        "job_id": np.char.add("job-", (number % 2000).astype(str)),
        "submitted_at": start,
        "started_at": start + np.timedelta64(60, "s"),
        "ended_at": start + np.timedelta64(3660, "s"),
        "outcome": np.full(rows, "succeeded"),
        "model_type": np.char.add("model-", (number % 200).astype(str)),
        "hardware_name": np.char.add("NVIDIA A100-SXM4-80GB ", (number % 30).astype(str)),
        "hardware_type": np.char.add("type-", (number % 30).astype(str)),
        "num_devices": 2 ** (number % 6),
        "global_batch_size": 2.0 ** (number % 10),
        "throughput": rng.lognormal(7, 1, rows),
        "throughput_unit": np.full(rows, "samples/s"),
        "throughput_scope": np.full(rows, "job"),
        "steady_seconds": np.full(rows, 3600.0),
    }
    columns = [
        pa.array(given[field.name]).cast(field.type) if field.name in given else pa.nulls(rows, field.type)
        for field in ADMITTED_SCHEMA
    ]
    return pa.table(columns, schema=ADMITTED_SCHEMA)


def seconds(work: Callable[[], object]) -> float:
    """Time one call."""
    start = perf_counter()
    work()
    return perf_counter() - start


def bare_insert(path: Path, attempts: pa.Table) -> None:
    """Put the table into a DuckDB file, nothing else."""
    with duckdb.connect(path) as con:
        con.register("attempts", attempts)
        con.execute("CREATE TABLE job_attempts AS SELECT * FROM attempts")


def leap_load(path: Path, attempts: pa.Table, load_id: str) -> None:
    """Load the table as a night does."""
    with warehouse.connect(path) as con:
        warehouse.load(con, [Admission(attempts, REJECT_SCHEMA.empty_table())], RECEIVED_AT, load_id)


def main() -> None:
    """Run the rounds and print medians and ratios."""
    attempts = make_attempts(ROWS)
    bare, fresh, again = [], [], []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            bare.append(seconds(lambda: bare_insert(Path(folder, "bare.duckdb"), attempts)))
            fresh.append(seconds(lambda: leap_load(Path(folder, "leap.duckdb"), attempts, "first")))
            again.append(seconds(lambda: leap_load(Path(folder, "leap.duckdb"), attempts, "second")))
    base = median(bare)
    print(f"load {ROWS:,} attempts into an empty DuckDB file, median of {ROUNDS} rounds")
    print(f"  bare insert               {base * 1e3:7.0f} ms    1.0")
    print(f"  leap, all new             {median(fresh) * 1e3:7.0f} ms  {median(fresh) / base:5.1f}")
    print(f"  leap, all seen before     {median(again) * 1e3:7.0f} ms  {median(again) / base:5.1f}")


if __name__ == "__main__":
    main()
