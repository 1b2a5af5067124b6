"""What reading the canonical attempt log costs beside a bare DuckDB read, in the same run: JSON lines, CSV, Parquet.

The bare side is one statement: DuckDB's own reader with the same explicit types, a line number and a hash of each row, into a
table of a new file. LEAP's side is its reader, with all that it checks: UTF-8, times with an offset and a year that exists,
finite numbers, settings that are JSON and written in one way, the place of every record. The first ratio is of LEAP's reader
alone, as it hands attempts to admission; the second also puts them into such a table with such a hash, so that both sides end
with the same. Rounds alternate, the medians decide. `--ingest` also runs a whole ingest: admission, content hashes, duplicates.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from time import perf_counter

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from simulated import REPOSITORY, START, params

from leap.contracts import ATTEMPT_SCHEMA
from leap.hardware.catalog import read_catalog
from leap.simulator.fleet import FleetConfig, simulate
from leap.sources import ReadBatch, csv, jsonl, no_progress, parquet
from leap.sources.readers import READERS
from leap.store.ingest import ingest
from leap.store.warehouse import connect

PER_DAY = 50_000
DAYS = 5
NESTED = ("config", "eligible_hardware")


def main() -> None:
    """Run the rounds and print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", default=["jsonl", "parquet", "csv"], choices=["jsonl", "parquet", "csv"])
    parser.add_argument("--ingest", action="store_true", help="also run a whole ingest of each kind, once")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        attempts = make_attempts(options.rows)
        figures = {kind: measure(kind, attempts, Path(folder), options.rounds, options.ingest) for kind in options.kinds}
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    print(f"read {options.rows:,} attempts into a table, median of {options.rounds} rounds; speed as a share of the bare read's")
    for kind, figure in figures.items():
        bare = figure["bare_seconds"]
        print(f"  {kind:8} bare read into a table     {bare:6.2f} s  1.00")
        print(f"  {kind:8} leap's reader              {figure['reader_seconds']:6.2f} s  {bare / figure['reader_seconds']:.2f}")
        print(f"  {kind:8} leap's reader into a table {figure['table_seconds']:6.2f} s  {bare / figure['table_seconds']:.2f}")
        if "ingest_seconds" in figure:
            print(
                f"  {kind:8} leap ingest, all of it     {figure['ingest_seconds']:6.2f} s  {bare / figure['ingest_seconds']:.2f}"
            )


def make_attempts(rows: int) -> pa.Table:
    """Make attempts of a simulated fleet, its days repeated under other names until there are `rows`."""
    fleet = FleetConfig(
        hardware=read_catalog(REPOSITORY / "dbt_project" / "seeds" / "hardware_types.csv").table,
        hardware_types=("A100-80GB-SXM4", "H100-80GB-SXM5", "H200-SXM", "L40S", "MI300X", "A30"),
        start=START,
        days=DAYS,
        attempts_per_day=PER_DAY,
        num_model_types=100,
        num_jobs=2000,
        num_teams=20,
    )
    once = simulate(fleet).attempts.select(ATTEMPT_SCHEMA.names)
    at = once.schema.get_field_index("attempt_id")
    copies = -(-rows // once.num_rows)
    named = [pc.binary_join_element_wise(once["attempt_id"], str(copy), "-") for copy in range(copies)]
    return pa.concat_tables(once.set_column(at, "attempt_id", names) for names in named).slice(0, rows)


def measure(kind: str, attempts: pa.Table, folder: Path, rounds: int, with_ingest: bool) -> dict[str, float]:
    """Write the attempts as files of a kind and read them in turns."""
    logs = folder / kind
    logs.mkdir()
    files = list(write(kind, attempts, logs))
    seconds: dict[str, list[float]] = {"bare_seconds": [], "reader_seconds": [], "table_seconds": []}
    for _ in range(rounds):
        seconds["bare_seconds"].append(timed(lambda: bare_read(kind, files, folder / "bare.duckdb"), attempts.num_rows))
        seconds["reader_seconds"].append(
            timed(lambda: sum(batch.attempts.num_rows for batch in leap_read(kind, files)), attempts.num_rows)
        )
        seconds["table_seconds"].append(timed(lambda: leap_table(kind, files, folder / "leap.duckdb"), attempts.num_rows))
    figures = {name: median(times) for name, times in seconds.items()}
    if with_ingest:
        figures["ingest_seconds"] = timed(lambda: whole_ingest(kind, files, folder / f"{kind}.duckdb"), attempts.num_rows)
    for file in files:
        file.unlink()
    return figures


def write(kind: str, attempts: pa.Table, folder: Path) -> Iterator[Path]:
    """Write files of some 250,000 attempts."""
    size = DAYS * PER_DAY
    for start in range(0, attempts.num_rows, size):
        path, part = folder / f"part-{start:09}.{kind}", attempts.slice(start, size)
        if kind == "jsonl":
            path.write_text("\n".join(jsonl.render(part).to_pylist()) + "\n", encoding="utf-8")
        else:
            path.write_bytes({"csv": csv.render, "parquet": parquet.render}[kind](part))
        yield path


def timed(work: Callable[[], int], expected: int) -> float:
    """Time one call, which must give so many rows."""
    start = perf_counter()
    found = work()
    if found != expected:
        raise AssertionError(f"{found} rows of {expected}")
    return perf_counter() - start


def bare_read(kind: str, files: Sequence[Path], database: Path) -> int:
    """Read with DuckDB alone into a table of a new file."""
    paths = ", ".join(f"'{file}'" for file in files)
    columns = "{" + ", ".join(f"'{field.name}': '{_type_of(field)}'" for field in ATTEMPT_SCHEMA) + "}"
    tables = {
        "jsonl": f"read_json([{paths}], columns = {columns}, format = 'newline_delimited')",
        "csv": f"read_csv([{paths}], columns = {columns}, header = true, auto_detect = false, delim = ',', quote = '\"')",
        "parquet": f"read_parquet([{paths}], file_row_number = true)",
    }
    line = "file_row_number" if kind == "parquet" else "row_number() over ()"
    chosen = ", ".join(f'CAST("{field.name}" AS {_type_of(field)}) AS "{field.name}"' for field in ATTEMPT_SCHEMA)
    return _fill(database, f"SELECT {chosen}, {line} AS line, {_hash()} AS content_hash FROM {tables[kind]}")


def leap_read(kind: str, files: Sequence[Path]) -> Iterator[ReadBatch]:
    """Read as a night does, up to admission."""
    return READERS[kind](files, params().ingest, no_progress)


def leap_table(kind: str, files: Sequence[Path], database: Path) -> int:
    """Read as a night does, and put what was read into a table with a hash of each row."""
    batches = leap_read(kind, files)
    first = next(batches).attempts
    stream = pa.RecordBatchReader.from_batches(first.schema, _record_batches(first, batches))
    return _fill(database, f"SELECT *, {_hash()} AS content_hash FROM stream", stream)


def _record_batches(first: pa.Table, others: Iterator[ReadBatch]) -> Iterator[pa.RecordBatch]:
    yield from first.to_batches()
    for batch in others:
        yield from batch.attempts.to_batches()


def _fill(database: Path, select: str, stream: pa.RecordBatchReader | None = None) -> int:
    database.unlink(missing_ok=True)
    with duckdb.connect(database) as connection:
        if stream is not None:
            connection.register("stream", stream)
        connection.execute(f"CREATE TABLE attempts AS {select}")
        (found,) = connection.execute("SELECT count(*) FROM attempts").fetchall()[0]
    database.unlink()
    return int(found)


def _hash() -> str:
    names = ", ".join(f'"{name}"' for name in ATTEMPT_SCHEMA.names)
    return f"md5(concat_ws('|', {names}))"


def _type_of(field: pa.Field) -> str:
    if field.name in NESTED:
        return "JSON"
    if pa.types.is_timestamp(field.type):
        return "TIMESTAMPTZ"
    return {"string": "VARCHAR", "int32": "INTEGER", "double": "DOUBLE", "bool": "BOOLEAN"}[str(field.type)]


def whole_ingest(kind: str, files: Sequence[Path], database: Path) -> int:
    """Ingest as `leap ingest` does."""
    now = datetime.combine(START + timedelta(days=DAYS + 1), datetime.min.time(), UTC)
    seeds = REPOSITORY / "dbt_project" / "seeds"
    with connect(database) as connection:
        counts = ingest(connection, kind, files, seeds=seeds, params=params().ingest, received_at=now, load_id="load")
    database.unlink()
    return sum(count.records_read for count in counts)


if __name__ == "__main__":
    main()
