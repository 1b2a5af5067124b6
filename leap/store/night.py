"""The working folder of a night, and its dataset: what one step leaves for the next, so that each can be run again by itself.

What lives here: file names and formats, and which tables make the night's dataset. What does not: what is computed (`leap`),
how datasets and snapshots are kept (`datasets.py`, `publisher.py`).
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from leap.store.datasets import STATEMENTS, Dataset, export, open_dataset
from leap.store.files import write_atomic
from leap.store.home import Home
from leap.store.state import compiled_state
from leap.store.warehouse import read, stream

# The tables of the night's dataset: where each comes from, and the order that makes it the same whenever it is rebuilt.
DATASET_TABLES = {
    "attempts": ("marts.fct_attempts", "attempt_id, segment_number, version"),
    "quarantine": ("raw.quarantine", "source, slice, file, line, reason, content_hash"),
    "training_examples": ("marts.fct_training_examples", "attempt_id, segment_number, version"),
    "state_history": ("marts.state_history", "level, key, night"),
    "state_current": ("marts.state_current", "level, key"),
    "ranking_candidates": ("marts.fct_ranking_candidates", "job_key, hardware_type, num_devices, pool"),
    "measurements": ("marts.fct_measurements", "content_hash"),
    "hardware_types": ("marts.dim_hardware_type", "hardware_type"),
}
_STATE = "state_history"
# When and in which load a record came says nothing of what it holds: two homes that read the same logs know the same.
_NOT_CONTENT = ("received_at", "load_id")


class NightStepMissing(FileNotFoundError):
    """A step needs what an earlier step of the same night leaves, and it is not there; the message names both."""


@dataclass(frozen=True)
class NightFolder:
    """`work/<night>/` in the home."""

    path: Path

    @classmethod
    def of(cls, home: Home, night: date) -> NightFolder:
        """Give the folder of `night`, made if absent."""
        path = home.work / night.isoformat()
        path.mkdir(parents=True, exist_ok=True)
        return cls(path)

    def write_table(self, name: str, table: pa.Table) -> None:
        """Leave a table as Parquet."""
        unfinished = self.path / f".tmp-{name}.parquet"
        pq.write_table(table, unfinished, compression="zstd")
        unfinished.replace(self.path / f"{name}.parquet")

    def read_table(self, name: str) -> pa.Table:
        """Read a table that an earlier step left. Raises NightStepMissing."""
        return pq.read_table(self._existing(f"{name}.parquet"))

    def write_facts(self, name: str, facts: dict[str, Any]) -> None:
        """Leave facts as JSON."""
        write_atomic(self.path / f"{name}.json", json.dumps(facts, indent=1, sort_keys=True).encode())

    def read_facts(self, name: str) -> dict[str, Any]:
        """Read facts that an earlier step left. Raises NightStepMissing."""
        facts: dict[str, Any] = json.loads(self._existing(f"{name}.json").read_text(encoding="utf-8"))
        return facts

    def empty(self, name: str) -> Path:
        """Give an empty folder of that name, whatever was in it."""
        folder = self.path / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder

    def _existing(self, name: str) -> Path:
        file = self.path / name
        if not file.is_file():
            raise NightStepMissing(
                f"{file}: no such file; run the step of the same night that makes it, or a whole night with `leap nightly`"
            )
        return file


def forget_older(home: Home, night: date) -> None:
    """Remove the working folders of earlier nights: what should outlive a night is kept elsewhere."""
    for folder in home.work.glob("????-??-??"):
        if folder.name < night.isoformat():
            shutil.rmtree(folder, ignore_errors=True)


def export_night(connection: duckdb.DuckDBPyConnection, home: Home, night: date) -> Dataset:
    """Export the marts and the quarantine as the night's dataset, under an id that comes from night and content.

    Tables pass through batch by batch: they may be larger than memory.
    """
    queries = {name: f"select * from {table} order by {order}" for name, (table, order) in DATASET_TABLES.items()}
    digest = hashlib.sha256()
    for name, (table, _) in DATASET_TABLES.items():
        digest.update(_content(connection, name, table).encode())
    tables: dict[str, pa.Table | pa.RecordBatchReader] = {name: stream(connection, query) for name, query in queries.items()}
    statement = compiled_state(home.work / "dbt")
    if statement is not None:
        tables[STATEMENTS] = pa.table({"name": [_STATE], "statement": [statement]})
        digest.update(statement.encode())
    dataset_id = export(home.datasets, tables, night, digest.hexdigest())
    NightFolder.of(home, night).write_facts("dataset", {"id": dataset_id})
    return open_dataset(home.datasets, dataset_id)


def export_results(connection: duckdb.DuckDBPyConnection, home: Home, night: date) -> str:
    """Export what the night's models predicted and how they scored, under an id that comes from night and content."""
    tables = {
        name: read(connection, f"select * from model.{name} where night = ? order by all", [night])
        for name in ("predictions", "scorecards", "verdicts")
    }
    digest = hashlib.sha256()
    for name, rows in tables.items():
        connection.register("rows_of_night", rows)
        try:
            digest.update(_content(connection, name, "rows_of_night").encode())
        finally:
            connection.unregister("rows_of_night")
    return export(home.results, tables, night, digest.hexdigest())


def open_night(home: Home, night: date) -> Dataset:
    """Open the dataset that `export_night` made for `night`. Raises NightStepMissing, DatasetMissing."""
    return open_dataset(home.datasets, NightFolder.of(home, night).read_facts("dataset")["id"])


def _content(connection: duckdb.DuckDBPyConnection, name: str, relation: str) -> str:
    """Say what the rows of a table hold, in whichever order they stand."""
    columns = connection.execute(f"describe {relation}").fetchall()
    kept = ", ".join(f'"{column[0]}"' for column in columns if column[0] not in _NOT_CONTENT)
    # A sum of hashes is the same for the same rows, and needs no more memory for more of them.
    sql = f"""
        select count(*) as rows, sum(md5_number_lower(content::varchar)) as total
        from (select {kept} from {relation}) as content
    """
    (counted,) = read(connection, sql).to_pylist()
    return f"{name}:{counted['rows']}:{counted['total']};"
