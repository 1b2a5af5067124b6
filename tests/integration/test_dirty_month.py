"""A month of dirty logs against the truth about it: nothing lost, nothing twice, and in quarantine exactly the dirt put in.

The truth was written by the simulator, from what it did to each record; it asked none of the rules that are tried here.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import groupby
from pathlib import Path
from time import sleep
from typing import Any

import duckdb
import numpy as np
import pyarrow.parquet as pq
import pytest

from leap.contracts import ATTEMPT_SCHEMA
from leap.hardware.catalog import read_catalog
from leap.hardware.names import read_aliases
from leap.params import IngestParams
from leap.simulator.dirt import soil
from leap.simulator.faults import Kind
from leap.simulator.fleet import FleetConfig, simulate
from leap.simulator.write_dirty import Truth, write_dirty
from leap.sources.jsonl import render
from leap.store.ingest import ingest
from leap.store.warehouse import connect, reconciliation

SEEDS = Path(__file__).parents[2] / "dbt_project" / "seeds"
PARAMS = IngestParams(max_label_disagreement=0.05, min_steady_seconds=5)
START, DAYS = date(2026, 3, 1), 30
AFTER = datetime(2026, 4, 1, tzinfo=UTC)

# A pseudonym differs from home to home; whether it stands for one user is looked at apart.
CONTENT = ", ".join(f'"{name}"' for name in ATTEMPT_SCHEMA.names if name != "user")

# Reads files in one load and is killed once a share of their bytes was read: within the transaction.
KILLED = """
import os, signal, sys
from datetime import datetime
from pathlib import Path
from leap.params import IngestParams
from leap.store.ingest import ingest
from leap.store.warehouse import connect

def progress(_what, done, total):
    if done >= float(share) * total:
        os.kill(os.getpid(), signal.SIGKILL)

warehouse, seeds, share, load_id, received_at, *paths = sys.argv[1:]
with connect(Path(warehouse)) as connection:
    ingest(
        connection, "jsonl", [Path(path) for path in paths], seeds=Path(seeds),
        params=IngestParams(max_label_disagreement=0.05, min_steady_seconds=5),
        received_at=datetime.fromisoformat(received_at), load_id=load_id, progress=progress,
    )
"""


@dataclass(frozen=True)
class Month:
    """Files of a dirty log, and the truth about them."""

    logs: Path
    truth_dir: Path
    truth: Truth

    @property
    def arrivals(self) -> list[tuple[date, list[Path]]]:
        """The files of each day."""
        days = groupby(self.truth.files, key=lambda file: str(file["arrives_on"]))
        return [(date.fromisoformat(day), [self.logs / str(file["name"]) for file in files]) for day, files in days]

    @property
    def paths(self) -> list[Path]:
        """All files, in the order of arrival."""
        return [path for _, paths in self.arrivals for path in paths]


def make_month(root: Path, attempts_per_day: int) -> Month:
    config = FleetConfig(
        hardware=read_catalog(SEEDS / "hardware_types.csv").table,
        aliases=read_aliases(SEEDS / "hardware_aliases.csv"),
        start=START,
        days=DAYS,
        attempts_per_day=attempts_per_day,
        seed=7,
    )
    for_records, for_files = np.random.default_rng(7).spawn(2)
    log = soil(simulate(config).attempts, DAYS, for_records, PARAMS.min_steady_seconds)
    truth = write_dirty(log, START, root / "logs", root / "truth", for_files)
    return Month(root / "logs", root / "truth", truth)


def load(con: duckdb.DuckDBPyConnection, paths: Sequence[Path], load_id: str, received_at: datetime = AFTER) -> None:
    ingest(con, "jsonl", paths, seeds=SEEDS, params=PARAMS, received_at=received_at, load_id=load_id)


def load_by_day(warehouse: Path, month: Month, days: slice = slice(None)) -> None:
    """Load what arrived each day, at its end, as a landing folder would."""
    with connect(warehouse) as con:
        for day, paths in month.arrivals[days]:
            load(con, paths, day.isoformat(), end_of(day))


def end_of(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=1)


def fetch(con: duckdb.DuckDBPyConnection, sql: str) -> list[tuple[Any, ...]]:
    return con.execute(sql).fetchall()


def assert_table_is_the_truth(con: duckdb.DuckDBPyConnection, month: Month) -> None:
    """The attempts are those of the truth, each once, all columns but where from and when; nothing else is kept."""
    truth = f"SELECT {CONTENT} FROM '{month.truth_dir}/attempts.parquet'"
    kept = f"SELECT {CONTENT} FROM raw.job_attempts"
    assert fetch(con, f"SELECT count(*) FROM ({kept} EXCEPT ALL {truth})") == [(0,)]
    assert fetch(con, f"SELECT count(*) FROM ({truth} EXCEPT ALL {kept})") == [(0,)]
    assert fetch(con, "SELECT count(*) FROM raw.job_attempts") == [(month.truth.kept,)]
    # a pseudonym stands for one user, and a user has one
    users = f"""
        SELECT count(DISTINCT truth."user"), count(DISTINCT kept."user"), count(DISTINCT (truth."user", kept."user"))
        FROM raw.job_attempts AS kept JOIN '{month.truth_dir}/attempts.parquet' AS truth USING (attempt_id)
    """
    ((told, stored, pairs),) = fetch(con, users)
    assert told == stored == pairs > 1


def assert_quarantine_is_the_dirt(con: duckdb.DuckDBPyConnection, month: Month) -> None:
    """Quarantine holds as many records by reason as were spoiled in a way that has this reason."""
    assert dict(fetch(con, "SELECT reason, count(*) FROM raw.quarantine GROUP BY reason")) == month.truth.quarantine


def attempts_in(warehouse: Path) -> list[tuple[Any, ...]]:
    """Give what the table says of its attempts but where from and when, in an order of its own."""
    with connect(warehouse) as con:
        return fetch(con, "SELECT content_hash, hardware_type, label_rule FROM raw.job_attempts ORDER BY ALL")


def assert_month_is_reconciled(con: duckdb.DuckDBPyConnection, month: Month) -> None:
    """Day by day, each file and each line became what the truth says."""
    dirt = f"'{month.truth_dir}/dirt.parquet'"
    by_slice = {row["slice"]: row for row in reconciliation(con).to_pylist()}
    assert all(row["is_reconciled"] for row in by_slice.values())
    assert {name: row["records_read"] for name, row in by_slice.items()} == {
        file["name"]: file["records"] for file in month.truth.files
    }
    duplicates = dict(fetch(con, f"SELECT file, count(*) FROM {dirt} WHERE outcome = 'duplicate' GROUP BY file"))
    assert {name: row["duplicates"] for name, row in by_slice.items() if row["duplicates"]} == duplicates
    # line by line: what is in quarantine is what was spoiled, for the reason that goes with it
    wrong = fetch(
        con,
        f"""
        SELECT truth.kind, truth.what, truth.reason, found.reason, truth.file, truth.line, found.slice, found.line
        FROM (FROM raw.quarantine) AS found
        FULL JOIN (FROM {dirt} WHERE outcome = 'quarantined') AS truth ON truth.file = found.slice AND truth.line = found.line
        WHERE truth.reason IS DISTINCT FROM found.reason OR found.attempt_id != truth.attempt_id
        """,
    )
    assert wrong == []
    kinds = f"""
        SELECT truth.kind, count(*) FROM raw.quarantine AS found
        JOIN {dirt} AS truth ON truth.file = found.slice AND truth.line = found.line GROUP BY truth.kind
    """
    assert dict(fetch(con, kinds)) == {
        kind: outcomes["quarantined"] for kind, outcomes in month.truth.kinds.items() if "quarantined" in outcomes
    }
    totals = "SELECT sum(records_read), sum(kept), sum(quarantined), sum(duplicates) FROM raw.loads"
    assert fetch(con, totals) == [month.truth[:4]]


@pytest.fixture(scope="module")
def month(tmp_path_factory: pytest.TempPathFactory) -> Month:
    return make_month(tmp_path_factory.mktemp("month"), attempts_per_day=300)


@pytest.fixture(scope="module")
def clean_load(month: Month, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, ...]]:
    """What the attempts of the truth give in one load: a log without any dirt."""
    root = tmp_path_factory.mktemp("clean")
    lines = render(pq.read_table(month.truth_dir / "attempts.parquet")).to_pylist()
    (root / "clean.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with connect(root / "warehouse.duckdb") as con:
        load(con, [root / "clean.jsonl"], "clean")
        assert fetch(con, "SELECT kept, quarantined, duplicates FROM raw.loads") == [(len(lines), 0, 0)]
    return attempts_in(root / "warehouse.duckdb")


def test_the_month_holds_every_kind_of_dirt(month: Month) -> None:
    assert set(month.truth.kinds) == {*Kind, "too-short"}
    assert month.truth.records_read == month.truth.kept + month.truth.quarantined + month.truth.duplicates
    assert min(month.truth.kept, month.truth.quarantined, month.truth.duplicates) > 100


def test_day_by_day_everything_becomes_what_the_truth_says(month: Month, tmp_path: Path) -> None:
    # when each day's files are loaded at the end of their day
    load_by_day(tmp_path / "warehouse.duckdb", month)
    # then files, lines, table and quarantine agree with the truth
    with connect(tmp_path / "warehouse.duckdb") as con:
        assert_month_is_reconciled(con, month)
        assert_table_is_the_truth(con, month)
        assert_quarantine_is_the_dirt(con, month)


def test_one_load_in_any_order_twice_and_with_copies_gives_the_clean_load(
    month: Month, clean_load: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    # given all files in one load, in an order of chance
    warehouse, shuffled = tmp_path / "warehouse.duckdb", month.paths
    random.Random(3).shuffle(shuffled)
    with connect(warehouse) as con:
        load(con, shuffled, "first")
        assert fetch(con, "SELECT sum(records_read), sum(kept), sum(quarantined), sum(duplicates) FROM raw.loads") == [
            month.truth[:4]
        ]
        # when they are loaded once more in another order, with a file under another name
        renamed = tmp_path / "renamed.jsonl"
        shutil.copy(next(path for path in month.paths if path.suffix == ".jsonl"), renamed)
        load(con, [renamed, *reversed(shuffled)], "second")
        # then nothing of the second load was new, and the content is that of a log without dirt
        assert fetch(con, "SELECT sum(kept), sum(quarantined) FROM raw.loads WHERE load_id = 'second'") == [(0, 0)]
        assert all(reconciliation(con)["is_reconciled"].to_pylist())
        assert_table_is_the_truth(con, month)
        assert_quarantine_is_the_dirt(con, month)
    assert attempts_in(warehouse) == clean_load


@pytest.mark.parametrize("share", [pytest.param(0.3, marks=pytest.mark.slow), 1.0])
def test_a_load_that_was_killed_and_is_done_again_leaves_no_trace(
    share: float, month: Month, clean_load: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    # given some days, one load of all that was killed within, and a few more days
    warehouse = tmp_path / "warehouse.duckdb"
    load_by_day(warehouse, month, slice(3))
    arguments = [str(warehouse), str(SEEDS), str(share), "all", AFTER.isoformat(), *map(str, month.paths)]
    killed = subprocess.run([sys.executable, "-c", KILLED, *arguments], capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    with connect(warehouse) as con:
        assert fetch(con, "SELECT count(*) FROM raw.loads WHERE load_id = 'all'") == [(0,)]
        # when the load is done again
        load(con, month.paths, "all")
        # then all is as if it had never been killed
        assert all(reconciliation(con)["is_reconciled"].to_pylist())
        assert_table_is_the_truth(con, month)
        assert_quarantine_is_the_dirt(con, month)
    assert attempts_in(warehouse) == clean_load


@pytest.mark.slow  # some minutes: 1.9 million records
def test_a_month_of_50_000_attempts_a_day_becomes_what_the_truth_says(tmp_path: Path) -> None:
    # given a whole fleet's month, and a process that is killed from outside while it loads the tenth day
    month = make_month(tmp_path, attempts_per_day=50_000)
    warehouse = tmp_path / "warehouse.duckdb"
    load_by_day(warehouse, month, slice(9))
    day, paths = month.arrivals[9]
    arguments = [str(warehouse), str(SEEDS), "2", day.isoformat(), end_of(day).isoformat(), *map(str, paths)]
    with subprocess.Popen([sys.executable, "-c", KILLED, *arguments]) as process:
        sleep(4)
        os.kill(process.pid, signal.SIGKILL)
    # when that day is loaded again, and the days that follow
    load_by_day(warehouse, month, slice(9, None))
    # then all is as the truth says
    assert month.truth.kept > 1_400_000
    assert month.truth.quarantined > 30_000
    with connect(warehouse) as con:
        assert_month_is_reconciled(con, month)
        assert_table_is_the_truth(con, month)
        assert_quarantine_is_the_dirt(con, month)


def test_the_truth_file_holds_the_counts(month: Month) -> None:
    assert json.loads((month.truth_dir / "truth.json").read_text(encoding="utf-8")) == month.truth._asdict()
