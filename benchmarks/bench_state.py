"""What history costs: `marts.state_history` and features read from it against hand-written SQL, an increment against the whole.

The hand-written side is one statement of running windows over the same table, with the same rows as output (checked, row by
row). It is right only where no label is ever corrected, so the history that both build has late records but no corrections.
LEAP's side also stands corrections, keeps what its next increment compares with, and holds the memory of one level at a time. The
night that the increment adds corrects labels of two nights before and has late records. Then the features of every attempt are
read from that history as Parquet: by `assemble` in batches, and by one statement of ASOF joins. Each side runs in a process of
its own, under the same limit of memory; times are of the work alone, without the start of Python or dbt.

By default 270,000 attempts; `--full` takes 9 million (50,000 a day, 180 nights), and leaves out what takes long: `--hand-written`
and `--check` put it back.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from datetime import date, timedelta
from pathlib import Path
from time import perf_counter
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from leap.contracts import CANDIDATE_SCHEMA, REJECT_SCHEMA, SUBMISSION_SCHEMA, UTC_TIMESTAMP
from leap.features import State, assemble, level_feature_names
from leap.params import load_params
from leap.store.datasets import export, open_dataset
from leap.store.examples import load_history
from leap.store.warehouse import read, stream
from leap.training import train

REPOSITORY = Path(__file__).resolve().parent.parent
PROJECT = REPOSITORY / "dbt_project"
START = date(2025, 1, 1)
LEVELS = {level: list(columns) for level, columns in load_params(REPOSITORY / "params.yaml").features.state_levels.items()}

# Attempts of jobs that run for 30 days each: 400 model types, the common ones often, 28 hardware types. One in 50 is late.
_EXAMPLES = """
CREATE TABLE all_examples AS
WITH jobs AS (
    SELECT
        i AS job, 'job-' || i AS job_id, 'team-' || hash(i, 1) % 40 AS team,
        'model-' || CAST(pow(hash(i, 2) % 1000000 / 1e6, 2) * 400 AS INTEGER) AS model_type,
        'framework-' || hash(i, 3) % 5 AS framework, hash(i, 4) % 28 AS usual_hardware,
        pow(2, hash(i, 5) % 8) AS usual_devices, 64.0 * pow(2, hash(i, 6) % 6) AS global_batch_size
    FROM range({jobs}) AS jobs(i)
),
attempts AS (
    SELECT
        i, jobs.*, i // {per_day} AS day, i % {per_day} AS place,
        CASE WHEN hash(i, 11) % 4 = 0 THEN (usual_hardware + hash(i, 12) % 3) % 28 ELSE usual_hardware END AS hardware,
        CASE WHEN hash(i, 13) % 5 = 0 THEN 2 * usual_devices ELSE usual_devices END AS num_devices
    FROM range({per_day} * {nights}) AS attempts(i)
    INNER JOIN jobs
        ON jobs.job = (i // {per_day} * {jobs} // {nights} + hash(i, 10) % (30 * greatest({jobs} // {nights}, 1))) % {jobs}
)
SELECT
    'attempt-' || i AS attempt_id, 1 AS segment_number, version, job_id, team, model_type, framework,
    'type-' || hardware AS hardware_type, 'family-' || hardware % 7 AS family, CAST(num_devices AS DOUBLE) AS num_devices,
    global_batch_size, 100.0 * (1 + hardware) AS peak_bf16_tflops, NULL::DOUBLE AS peak_fp32_tflops,
    ln(100 * (1 + hardware)) - 0.1 * ln(num_devices) + hash(i, version, 14) % 100000 / 1e5 * 0.4 AS log_throughput_per_device,
    TIMESTAMPTZ '{start} 00:00:00+00' + to_days(CAST(day AS INTEGER)) + to_seconds(CAST(place * 86400 // {per_day} AS INTEGER))
        AS ended_at,
    CASE WHEN version = 2 THEN DATE '{last}' ELSE ended_at::DATE + 1 + CASE WHEN hash(i, 15) % 50 = 0 THEN 3 ELSE 0 END END
        AS visible_from,
    CASE WHEN version = 1 AND is_corrected THEN DATE '{last}' END AS visible_to
FROM (
    SELECT *, day = {nights} - 3 AND hash(i, 15) % 50 != 0 AND hash(i, 16) % 100 = 0 AS is_corrected FROM attempts
) AS attempts, (VALUES (1), (2)) AS versions(version)
WHERE version = 1 OR is_corrected
"""

_KNOWN = """
CREATE OR REPLACE TABLE marts.fct_training_examples AS
SELECT * REPLACE (CASE WHEN visible_to <= DATE '{cut}' THEN visible_to END AS visible_to)
FROM all_examples
WHERE visible_from <= DATE '{cut}'
"""

_HAND_WRITTEN = """
CREATE OR REPLACE TABLE hand_written AS
WITH evidence AS (
    SELECT
        *,
        row_number() OVER (ORDER BY ended_at, attempt_id, segment_number, version) AS recency,
        CAST(round(log_throughput_per_device * 1e9) AS BIGINT) AS units,
        CAST(round(ln(coalesce(peak_bf16_tflops, peak_fp32_tflops)) * 1e9) AS BIGINT) AS peak_units,
        CAST(round(ln(num_devices) * 1e9) AS BIGINT) AS devices_units,
        CAST(round(ln(global_batch_size) * 1e9) AS BIGINT) AS batch_units
    FROM marts.fct_training_examples
),
levelled AS ({levelled}),
grown AS (
    SELECT
        level, key, visible_from AS night,
        count(*) OVER nights AS evidence_count,
        median(log_throughput_per_device) OVER nights AS median_log_throughput,
        sum(units) OVER nights AS sum_of_units,
        sum(CAST(units AS HUGEINT) * units) OVER nights AS sum_of_squared_units,
        sum(peak_units) OVER nights AS sum_of_peak_units,
        sum(devices_units) OVER nights AS sum_of_devices_units,
        sum(batch_units) OVER nights AS sum_of_batch_units,
        max(recency) OVER nights AS last_recency
    FROM levelled
    WHERE key IS NOT NULL
    WINDOW nights AS (PARTITION BY level, key ORDER BY visible_from RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
    QUALIFY visible_from IS DISTINCT FROM lead(visible_from) OVER (PARTITION BY level, key ORDER BY visible_from)
)
SELECT
    level, key, night, evidence_count, log_throughput_per_device AS last_log_throughput, median_log_throughput,
    sqrt(CAST(evidence_count * sum_of_squared_units - sum_of_units * sum_of_units AS DOUBLE)) / (evidence_count * 1e9)
        AS spread_log_throughput,
    CAST(sum_of_peak_units AS DOUBLE) / (evidence_count * 1e9) AS mean_log_peak,
    CAST(sum_of_devices_units AS DOUBLE) / (evidence_count * 1e9) AS mean_log_devices,
    CAST(sum_of_batch_units AS DOUBLE) / (evidence_count * 1e9) AS mean_log_batch,
    ended_at AS last_ended_at
FROM grown
LEFT JOIN evidence ON recency = last_recency
"""


_ROW = ("attempt_id", "version")
_EXAMPLES_OF_NIGHTS = "SELECT *, ended_at::DATE AS night FROM marts.fct_training_examples"
_BATCH_ROWS = 500_000


def key(columns: list[str]) -> str:
    """Write the key of a level."""
    whole = {"num_devices", "global_batch_size"}
    return " || chr(31) || ".join(
        f"CAST(CAST(floor({column} + 0.5) AS BIGINT) AS VARCHAR)" if column in whole else column for column in columns
    )


def hand_written_features() -> str:
    """Give the statement that reads the features of all levels for each attempt at its cut, right where nothing is withdrawn."""
    keys = ", ".join(f"{key(columns)} AS key_{level}" for level, columns in LEVELS.items())
    joins = "\n".join(
        f"ASOF LEFT JOIN (FROM marts.state_history WHERE level = '{level}') AS {level} "
        f"ON examples.key_{level} = {level}.key AND examples.night >= {level}.night"
        for level in LEVELS
    )
    columns = []
    for level in LEVELS:
        values = (
            f"ln(1 + {level}.evidence_count)", f"{level}.last_log_throughput", f"{level}.median_log_throughput",
            f"{level}.median_log_throughput + (log_peak - {level}.mean_log_peak)", f"{level}.spread_log_throughput",
            f"{level}.mean_log_devices", f"{level}.mean_log_batch",
            f"(epoch(examples.night::TIMESTAMPTZ) - floor(epoch({level}.last_ended_at))) / 86400",
        )  # fmt: skip
        columns += [f"{value} AS {name}" for value, name in zip(values, level_feature_names(level), strict=True)]
    return f"""
    WITH examples AS (
        SELECT *, {keys}, ln(coalesce(peak_bf16_tflops, peak_fp32_tflops)) AS log_peak FROM ({_EXAMPLES_OF_NIGHTS})
    )
    SELECT {", ".join(_ROW)}, {", ".join(columns)} FROM examples {joins}
    """


def assembled_features(path: Path, memory: str, out: Path) -> float:
    """Write the features of all levels by LEAP's own way, batch by batch; give seconds."""
    names = [name for level in LEVELS for name in level_feature_names(level)]
    with connect(path, memory) as connection:
        start = perf_counter()

        def level_of(level: str) -> pa.Table:
            return read(connection, "FROM marts.state_history WHERE level = ? ORDER BY key, night", [level])

        state = State.from_reader(level_of, LEVELS, is_held=True)
        for level in LEVELS:
            state.lookup(level, pa.array([None], pa.string()), np.array(["2025-01-01"], dtype="datetime64[D]"))
        writer = None
        for batch in connection.sql(_EXAMPLES_OF_NIGHTS).to_arrow_reader(_BATCH_ROWS):
            rows = pa.Table.from_batches([batch])
            asked, offered = (
                rows.select([name for name in schema.names if name in rows.column_names])
                for schema in (SUBMISSION_SCHEMA, CANDIDATE_SCHEMA)
            )
            nights = rows["night"].to_numpy().astype("datetime64[D]")
            features = assemble(asked, offered, state, nights)
            table = pa.table({name: rows[name] for name in _ROW} | {name: features[name] for name in names})
            writer = writer or pq.ParquetWriter(out, table.schema, compression="snappy")
            writer.write_table(table)
        assert writer is not None
        writer.close()
        return perf_counter() - start


def differing_features(folder: Path, memory: str) -> float:
    """Count the attempts whose features differ between the two files by more than rounding."""
    names = [name for level in LEVELS for name in level_feature_names(level)]
    differ = " OR ".join(
        f"(isfinite(ours.{name}) IS DISTINCT FROM (theirs.{name} IS NOT NULL)) OR abs(ours.{name} - theirs.{name}) > 1e-9"
        for name in names
    )
    sql = f"""
    SELECT count(*) FILTER (ours.attempt_id IS NULL OR theirs.attempt_id IS NULL OR {differ})
    FROM '{folder}/assembled.parquet' AS ours FULL JOIN '{folder}/hand_written.parquet' AS theirs USING (attempt_id, version)
    """
    with connect(Path(":memory:"), memory) as connection:
        return float(connection.execute(sql).fetchall()[0][0])


def hand_written() -> str:
    """Give the statement, for the levels of params.yaml."""
    selects = [
        f"SELECT '{level}' AS level, {key(columns)} AS key, visible_from, recency, log_throughput_per_device, "
        "units, peak_units, devices_units, batch_units FROM evidence"
        for level, columns in LEVELS.items()
    ]
    return _HAND_WRITTEN.format(levelled=" UNION ALL ".join(selects))


def connect(path: Path, memory: str = "6GB") -> duckdb.DuckDBPyConnection:
    """Open a warehouse as the benchmark uses it."""
    connection = duckdb.connect(path)
    for setting in ("timezone = 'UTC'", f"memory_limit = '{memory}'", "preserve_insertion_order = false"):
        connection.execute(f"SET {setting}")
    return connection


def execute(path: Path, memory: str, *statements: str) -> list[tuple[Any, ...]]:
    """Run statements and give the rows of the last."""
    with connect(path, memory) as connection:
        for statement in statements[:-1]:
            connection.execute(statement)
        return connection.execute(statements[-1]).fetchall()


def measured(command: list[str], environment: dict[str, str] | None = None) -> tuple[str, float]:
    """Run a process; give what it printed and its largest memory in GiB."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        printed = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(printed)
    return printed, usage.ru_maxrss / 2**20


def dbt_build(folder: Path, memory: str, *options: str) -> tuple[float, float]:
    """Build state_history as a night does; give seconds and GiB."""
    profile = (PROJECT / "profiles.yml").read_text(encoding="utf-8").replace("memory_limit: 3GB", f"memory_limit: {memory}")
    (folder / "profiles.yml").write_text(profile, encoding="utf-8")
    variables = {"cut": "2025-12-31", "state_levels": LEVELS, "active_days": 1, "hardware_seen_days": 1, "price_list": "list"}
    _, gigabytes = measured(
        [
            str(Path(sys.executable).parent / "dbt"), "--no-use-colors", "run", "--select", "state_history", *options,
            "--project-dir", str(PROJECT), "--vars", json.dumps(variables),
        ],
        os.environ
        | {
            "DBT_PROFILES_DIR": str(folder),
            "DBT_TARGET_PATH": str(folder / "target"),
            "DBT_LOG_PATH": str(folder / "logs"),
            "LEAP_WAREHOUSE": str(folder / "warehouse.duckdb"),
        },
    )  # fmt: skip
    (result,) = json.loads((folder / "target" / "run_results.json").read_text(encoding="utf-8"))["results"]
    return result["execution_time"], gigabytes


def compare(folder: Path, options: argparse.Namespace) -> dict[str, float]:
    """Run both sides and give the figures."""
    path, figures = folder / "warehouse.duckdb", dict[str, float]()
    last = START + timedelta(days=options.nights)
    shape = {"per_day": options.per_day, "nights": options.nights, "jobs": max(options.per_day * options.nights // 150, 1)}
    execute(path, options.memory, "CREATE SCHEMA marts", _EXAMPLES.format(**shape, start=START, last=last))
    (counted,) = execute(path, options.memory, _KNOWN.format(cut=last - timedelta(days=1)), "SELECT count(*) FROM all_examples")
    figures["examples"] = counted[0]
    figures["whole_s"], figures["whole_gib"] = dbt_build(folder, options.memory)
    if options.hand_written:
        printed, figures["hand_written_gib"] = measured(
            [sys.executable, __file__, "--bare", str(path), "--memory", options.memory]
        )
        figures["hand_written_s"] = float(printed)
        figures["ratio"] = figures["whole_s"] / figures["hand_written_s"]
        figures["rows_that_differ"] = differing(path, options.memory, "hand_written", "marts.state_history")
        execute(path, options.memory, "DROP TABLE hand_written")
    execute(path, options.memory, _KNOWN.format(cut=last))
    figures["increment_s"], figures["increment_gib"] = dbt_build(folder, options.memory)
    figures["increment_share"] = figures["increment_s"] / figures["whole_s"]
    (counted,) = execute(path, options.memory, "SELECT count(*) FROM marts.state_history")
    figures["rows"] = counted[0]
    compare_features(folder, options, figures)
    if options.check:
        execute(path, options.memory, "CREATE TABLE by_night AS FROM marts.state_history")
        figures["again_s"], _ = dbt_build(folder, options.memory, "--full-refresh")
        figures["rows_that_differ_when_rebuilt"] = differing(path, options.memory, "by_night", "marts.state_history")
    return figures


def compare_features(folder: Path, options: argparse.Namespace, figures: dict[str, float]) -> None:
    """Read the features of all attempts, each side in a process of its own, and add the figures."""
    path = folder / "warehouse.duckdb"
    for name in ("assembled", "hand_written")[: 2 if options.hand_written else 1]:
        printed, figures[f"{name}_features_gib"] = measured(
            [sys.executable, __file__, "--features", name, str(path), "--memory", options.memory]
        )
        figures[f"{name}_features_s"] = float(printed)
    if options.hand_written:
        figures["features_ratio"] = figures["assembled_features_s"] / figures["hand_written_features_s"]
        both = [figures[f"{name}_s"] for name in ("whole", "assembled_features", "hand_written", "hand_written_features")]
        figures["whole_and_features_ratio"] = (both[0] + both[1]) / (both[2] + both[3])
        figures["features_that_differ"] = differing_features(folder, options.memory)
    for name in ("assembled", "hand_written"):
        (folder / f"{name}.parquet").unlink(missing_ok=True)
    printed, figures["night_gib"] = measured([sys.executable, __file__, "--features", "train", str(path), "--memory", "3GB"])
    figures |= {f"night_{name}": value for name, value in json.loads(printed).items()}


def side_of_features(which: str, path: Path, memory: str) -> float:
    """Write one side's features beside the warehouse; give seconds."""
    out = path.with_name(f"{which}.parquet")
    if which == "assembled":
        return assembled_features(path, memory, out)
    with connect(path, memory) as connection:
        start = perf_counter()
        connection.execute(f"COPY ({hand_written_features()}) TO '{out}' (FORMAT parquet)")
        return perf_counter() - start


def night_training(path: Path, memory: str) -> dict[str, float]:
    """Export the examples and their history as a night's dataset, and train on it as a night does; give seconds and rows."""
    unknown = [
        f"NULL::{kind} AS {name}"
        for schema in (SUBMISSION_SCHEMA, CANDIDATE_SCHEMA)
        for name, kind in ((field.name, "DOUBLE" if pa.types.is_floating(field.type) else "VARCHAR") for field in schema)
    ]
    figures = dict[str, float]()
    with connect(path, memory) as connection:
        present = {row[0] for row in connection.execute("DESCRIBE marts.fct_training_examples").fetchall()}
        absent = ", ".join(one for one in unknown if one.rpartition(" ")[2] not in present)
        examples = (
            f"SELECT *, {absent}, visible_to IS NULL AS is_newest, 'succeeded' AS outcome, "
            f"ended_at - INTERVAL 1 HOUR AS started_at FROM ({_EXAMPLES_OF_NIGHTS}) ORDER BY attempt_id, version"
        )
        start = perf_counter()
        rejects = pa.schema([*REJECT_SCHEMA, pa.field("received_at", UTC_TIMESTAMP)]).empty_table()
        tables = {
            "training_examples": stream(connection, examples),
            "state_history": stream(connection, "FROM marts.state_history ORDER BY level, key, night"),
            "quarantine": rejects,
        }
        export(path.parent / "datasets", tables, START + timedelta(days=400), "benchmark")
        figures["export_s"] = perf_counter() - start
    params = load_params(REPOSITORY / "params.yaml")
    start = perf_counter()
    history = load_history(open_dataset(path.parent / "datasets"), params)
    figures["load_history_s"] = perf_counter() - start
    figures["examples_with_features"] = len(history.night)
    start = perf_counter()
    result = train(history, params, history.night.max() + np.timedelta64(1, "D"), None)
    figures["train_s"] = perf_counter() - start
    figures["scored_attempts"] = result.scorecards["leap"].n
    return figures


def differing(path: Path, memory: str, one: str, other: str) -> float:
    """Count the rows that one table has and the other does not."""
    (counted,) = execute(
        path, memory, f"SELECT (SELECT count(*) FROM (FROM {one} EXCEPT ALL FROM {other})) + "
        f"(SELECT count(*) FROM (FROM {other} EXCEPT ALL FROM {one}))"
    )  # fmt: skip
    return float(counted[0])


def main() -> None:
    """Run the comparison and print times, memory and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="9 million attempts")
    parser.add_argument("--per-day", type=int, default=3000)
    parser.add_argument("--nights", type=int, default=90)
    parser.add_argument("--memory", default="6GB", help="DuckDB's limit; a process takes some more")
    parser.add_argument("--hand-written", action=argparse.BooleanOptionalAction, default=None, help="also with --full")
    parser.add_argument("--check", action=argparse.BooleanOptionalAction, default=None, help="also with --full")
    parser.add_argument("--folder", type=Path, help="where the warehouse is made; much space for --full")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--bare", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--features", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.features:
        which, path = options.features[0], Path(options.features[1])
        print(
            json.dumps(night_training(path, options.memory))
            if which == "train"
            else side_of_features(which, path, options.memory)
        )
        return
    if options.bare:
        with connect(options.bare, options.memory) as connection:
            start = perf_counter()
            connection.execute(hand_written())
            print(perf_counter() - start)
        return
    if options.full:
        options.per_day, options.nights = 50_000, 180
    for name in ("hand_written", "check"):
        if getattr(options, name) is None:
            setattr(options, name, not options.full)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        figures = compare(Path(folder), options)
    if options.json:
        print(json.dumps(figures, indent=1))
        return
    shape = f"{int(figures['examples']):,} attempts, {options.nights} nights, {len(LEVELS)} levels"
    print(f"state of {shape}: {int(figures['rows']):,} rows")
    if options.hand_written:
        print(f"  hand-written statement  {figures['hand_written_s']:7.1f} s  {figures['hand_written_gib']:5.1f} GiB   1.00")
    ratio = f"{figures['ratio']:5.2f}" if options.hand_written else ""
    print(f"  leap, whole             {figures['whole_s']:7.1f} s  {figures['whole_gib']:5.1f} GiB  {ratio}")
    print(f"  leap, one more night    {figures['increment_s']:7.1f} s  {figures['increment_gib']:5.1f} GiB")
    print(f"  increment / whole       {figures['increment_share']:7.3f}")
    for name, said in (("assembled", "features by assemble"), ("hand_written", "features by hand")):
        if f"{name}_features_s" in figures:
            print(f"  {said:22s}  {figures[f'{name}_features_s']:7.1f} s  {figures[f'{name}_features_gib']:5.1f} GiB")
    if options.hand_written:
        print(f"  features, ratio         {figures['features_ratio']:7.2f}")
        print(f"  whole and features      {figures['whole_and_features_ratio']:7.2f}")
    learned = figures["night_load_history_s"] + figures["night_train_s"]
    print(f"  a night's training      {learned:7.1f} s  {figures['night_gib']:5.1f} GiB (with the export)")
    print(f"    on {int(figures['night_examples_with_features']):,} examples; the export took {figures['night_export_s']:.1f} s")
    for name in ("rows_that_differ", "features_that_differ", "rows_that_differ_when_rebuilt"):
        if name in figures:
            print(f"  {name.replace('_', ' ')}: {int(figures[name])}")


if __name__ == "__main__":
    main()
