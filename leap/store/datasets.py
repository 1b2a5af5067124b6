"""Immutable datasets: what a night knew, as Parquet that people, reports and backtests read while the warehouse is busy.

What lives here: writing a dataset whole or not at all, finding and reading it, pruning. What does not: which tables it has, and
the SQL that gives and hashes them.

    datasets/latest.json             {"dataset_id"}, replaced atomically
    datasets/<night>-<12 hex>/       never changed once it has that name
        manifest.json  <table>.parquet ...
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import date
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, ValidationError

from leap.store.files import exclusive, finished, remove_folder, remove_unfinished, staged_folder, write_atomic

DATASET_LAYOUT_VERSION = 1

STATEMENTS = "statements"  # the SQL that made derived tables, so that they can be made again from other rows
_LATEST = "latest.json"
_LOCK = "export.lock"
_MANIFEST = "manifest.json"
_TABLE_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_DATASET_ID = re.compile(r"\d{4}-\d\d-\d\d-[0-9a-f]{12}")


class DatasetError(RuntimeError):
    """A dataset cannot be written or read; the message names it, the reason and what to do."""


class DatasetMissing(DatasetError):
    """The dataset asked for is not there."""


class TableEntry(BaseModel):
    """What a table of a dataset holds."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    rows: int
    bytes: int
    columns: dict[str, str]


class DatasetManifest(BaseModel):
    """What a dataset holds, and the digest of its content that the caller gave."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    layout_version: int = DATASET_LAYOUT_VERSION
    dataset_id: str
    night: date
    digest: str
    tables: dict[str, TableEntry]


class Dataset:
    """A dataset opened by `open_dataset`."""

    def __init__(self, folder: Path, manifest: DatasetManifest) -> None:
        self.folder = folder
        self.manifest = manifest

    @property
    def id(self) -> str:
        """The dataset's id: night and content."""
        return self.manifest.dataset_id

    def path(self, name: str) -> Path:
        """Give the Parquet file of a table. Raises DatasetMissing if the dataset has no such table."""
        if name not in self.manifest.tables:
            known = ", ".join(sorted(self.manifest.tables))
            raise DatasetMissing(f"dataset {self.id} has no table {name!r}, it has {known}; run `leap nightly` to export anew")
        return self.folder / f"{name}.parquet"

    def table(self, name: str, columns: Sequence[str] | None = None, filters: Any = None) -> pa.Table:
        """Read a table, or some of its columns and rows (`filters` as `pyarrow.parquet.read_table` takes them)."""
        path = self.path(name)
        absent = sorted(set(columns or ()) - set(self.manifest.tables[name].columns))
        if absent:
            raise DatasetError(f"table {name!r} of dataset {self.id} has no column {', '.join(absent)}")
        wanted = None if columns is None else list(columns)
        try:
            return pq.read_table(path, columns=wanted, filters=filters, partitioning=None, page_checksum_verification=True)
        except FileNotFoundError:
            raise DatasetMissing(f"{path} is not there: the dataset was pruned; open the latest, or run `leap nightly`") from None
        except OSError as error:
            raise DatasetError(f"{path} is damaged: {error}; remove {self.folder} and run `leap nightly`") from error

    def state_statement(self) -> str:
        """Give the statement that built `state_history` from `training_examples`. Raises DatasetMissing."""
        return str(self.table(STATEMENTS)["statement"][0].as_py())


def export(datasets: Path, tables: Mapping[str, pa.Table | pa.RecordBatchReader], night: date, digest: str) -> str:
    """Write `tables` as an immutable dataset, make it the latest, and give its id `<night>-<12 hex>`.

    The hex digits come from `digest` (which the caller takes from the content), the names of the tables and their columns. A
    dataset of that id that is there is taken as it stands, and no reader is consumed.
    """
    wrong = [name for name in tables if not _TABLE_NAME.fullmatch(name)]
    if wrong or not tables:
        raise DatasetError(f"a dataset needs tables with names of letters, digits and underscores; got {wrong or 'no tables'}")
    dataset_id = f"{night.isoformat()}-{_content_digest(tables, digest)[:12]}"
    datasets.mkdir(parents=True, exist_ok=True)
    with exclusive(datasets / _LOCK):
        remove_unfinished(datasets)
        if not (datasets / dataset_id).is_dir():
            with staged_folder(datasets / dataset_id) as folder:
                entries = {name: _write(folder / f"{name}.parquet", table) for name, table in tables.items()}
                manifest = DatasetManifest(dataset_id=dataset_id, night=night, digest=digest, tables=entries)
                (folder / _MANIFEST).write_text(manifest.model_dump_json(indent=1), encoding="utf-8")
        write_atomic(datasets / _LATEST, json.dumps({"dataset_id": dataset_id}).encode())
    return dataset_id


def open_dataset(datasets: Path, dataset_id: str | None = None) -> Dataset:
    """Open a dataset by its id, or the latest. Raises DatasetMissing, DatasetError."""
    dataset_id = _latest(datasets) if dataset_id is None else dataset_id
    if dataset_id is None:
        raise DatasetMissing(f"there is no dataset in {datasets} yet; run `leap nightly`, or see that LEAP_HOME is right")
    folder = datasets / dataset_id
    path = folder / _MANIFEST
    if not _DATASET_ID.fullmatch(dataset_id) or not path.is_file():
        known = ", ".join(found.name for found in finished(datasets)) or "none"
        raise DatasetMissing(f"there is no dataset {dataset_id!r} in {datasets} (there are: {known}); run `leap nightly`")
    try:
        manifest = DatasetManifest.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise DatasetError(
            f"{path} is damaged ({error.error_count()} problems); remove {folder} and run `leap nightly`"
        ) from error
    if manifest.layout_version > DATASET_LAYOUT_VERSION:
        raise DatasetError(
            f"{path} was written by a newer LEAP: its layout is {manifest.layout_version}, this LEAP knows layouts up to "
            f"{DATASET_LAYOUT_VERSION}; use that LEAP"
        )
    return Dataset(folder, manifest)


def prune(datasets: Path, keep: int) -> list[str]:
    """Remove all but the `keep` datasets written last, never the latest; give the ids removed."""
    datasets.mkdir(parents=True, exist_ok=True)
    with exclusive(datasets / _LOCK):
        latest = _latest(datasets)
        others = [folder for folder in finished(datasets) if _DATASET_ID.fullmatch(folder.name) and folder.name != latest]
        others.sort(key=lambda folder: (_written_at(folder), folder.name), reverse=True)
        gone = others[max(keep - (latest is not None), 0) :]
        for folder in gone:
            remove_folder(folder)
    return sorted(folder.name for folder in gone)


def _latest(datasets: Path) -> str | None:
    path = datasets / _LATEST
    try:
        return str(json.loads(path.read_bytes())["dataset_id"])
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError):
        raise DatasetError(f"{path} is damaged; remove it and run `leap nightly`, or name a dataset by its id") from None


def _written_at(folder: Path) -> int:
    return (folder / _MANIFEST).stat().st_mtime_ns


def _content_digest(tables: Mapping[str, pa.Table | pa.RecordBatchReader], digest: str) -> str:
    schemas = {name: _columns(table.schema) for name, table in tables.items()}
    return sha256(json.dumps([DATASET_LAYOUT_VERSION, digest, schemas], sort_keys=True).encode()).hexdigest()


def _columns(schema: pa.Schema) -> dict[str, str]:
    return {field.name: str(field.type) for field in schema}


def _write(path: Path, table: pa.Table | pa.RecordBatchReader) -> TableEntry:
    """Write a table batch by batch, so that a reader larger than memory passes through."""
    reader = table.to_reader() if isinstance(table, pa.Table) else table
    rows = 0
    with pq.ParquetWriter(path, reader.schema, compression="zstd", write_page_checksum=True) as writer:
        for batch in reader:
            writer.write_batch(batch)
            rows += batch.num_rows
    return TableEntry(rows=rows, bytes=path.stat().st_size, columns=_columns(reader.schema))
