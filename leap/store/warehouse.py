"""The warehouse: one DuckDB file with one writer. Connecting, loading what was read, reading and replacing tables.

What lives here: every statement about the tables of the schema ``raw``, and what any other writer needs of DuckDB. What does
not: what becomes of raw records (the dbt project), and which of them are trusted (`leap.sources.admission`).
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from leap.contracts import (
    ATTEMPT_SCHEMA,
    MEASUREMENT_SCHEMA,
    PRICE_SCHEMA,
    PROVENANCE_SCHEMA,
    REJECT_SCHEMA,
    UTC_TIMESTAMP,
)
from leap.sources.admission import ADMITTED_SCHEMA, Admission
from leap.sources.measurements import ADMITTED_MEASUREMENT_SCHEMA
from leap.sources.pseudonym import leave_out_user, pseudonymise

_ARRIVAL = [
    pa.field("content_hash", pa.string(), nullable=False),
    pa.field("received_at", UTC_TIMESTAMP, nullable=False),
    pa.field("load_id", pa.string(), nullable=False),
]
RAW_SCHEMAS: Mapping[str, pa.Schema] = {
    "raw.job_attempts": pa.schema([*ADMITTED_SCHEMA, *_ARRIVAL]),
    "raw.measurements": pa.schema([*ADMITTED_MEASUREMENT_SCHEMA, *_ARRIVAL]),
    "raw.prices": pa.schema(
        [*PROVENANCE_SCHEMA, *PRICE_SCHEMA, pa.field("known_from", UTC_TIMESTAMP, nullable=False), *_ARRIVAL]
    ),
    "raw.quarantine": pa.schema([*REJECT_SCHEMA, *_ARRIVAL]),
    "raw.loads": pa.schema(
        [
            pa.field("load_id", pa.string(), nullable=False),
            pa.field("source", pa.string(), nullable=False),
            pa.field("slice", pa.string(), nullable=False),
            pa.field("received_at", UTC_TIMESTAMP, nullable=False),
            *[pa.field(name, pa.int64(), nullable=False) for name in ("records_read", "kept", "quarantined", "duplicates")],
        ]
    ),
    "raw.hardware_spellings": pa.schema(
        [
            pa.field("hardware_name", pa.string(), nullable=False),
            pa.field("hardware_type", pa.string(), nullable=False),
            pa.field("first_seen_at", UTC_TIMESTAMP, nullable=False),
        ]
    ),
}

# Readers may yield a batch per file; batches are staged together up to this many rows.
_STAGED_ROWS = 50_000
_STREAMED_ROWS = 200_000
_NAME = r"[a-z][a-z0-9_]{0,62}"


class WarehouseBusy(RuntimeError):
    """Another process has the warehouse open; the message names the file, the holder and what to do."""


class LoadError(RuntimeError):
    """A load does not add up; nothing of it was kept."""


@dataclass(frozen=True)
class SliceCount:
    """What became of the records of one slice in one load: ``records_read = kept + quarantined + duplicates``."""

    source: str
    slice: str
    records_read: int
    kept: int
    quarantined: int
    duplicates: int


@contextmanager
def connect(path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open the warehouse for reading and writing, in UTC, and close it again; the file is made where there is none.

    Raises WarehouseBusy where another process has it open.
    """
    try:
        # Nothing is fetched from the network: what LEAP needs is linked into DuckDB.
        con = duckdb.connect(path, config={"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"})
    except duckdb.IOException as error:
        if "lock" not in str(error):
            raise
        holder = re.search(r"held in (.+?\(PID \d+\))", str(error))
        raise WarehouseBusy(
            f"{path} is open in another process{f', {holder[1]}' if holder else ''}; the warehouse has one user at a time. "
            "Wait until the night that runs has ended, or end what holds the file, then try again; "
            "to look at data while a night runs, read the Parquet files under datasets/"
        ) from None
    try:
        con.execute("SET TimeZone = 'UTC'")
        yield con
    finally:
        con.close()


def create_raw_tables(con: duckdb.DuckDBPyConnection) -> None:
    """Create the schema ``raw`` and its tables where they are missing, and add columns that a newer LEAP has."""
    con.execute("CREATE SCHEMA IF NOT EXISTS raw")
    for table, schema in RAW_SCHEMAS.items():
        _create_table(con, table, schema)
        present = set(con.table(table).columns)
        absent = [field for field in schema if field.name not in present]
        for field in absent:
            con.execute(f"ALTER TABLE {table} ADD COLUMN {_definitions(con, pa.schema([field]))}")
        if absent and table == "raw.job_attempts":
            con.execute(_HASH_AGAIN)


def load(
    con: duckdb.DuckDBPyConnection,
    batches: Iterable[Admission],
    received_at: datetime,
    load_id: str,
    entity: Entity | None = None,
) -> list[SliceCount]:
    """Load the batches of one source in one transaction, and count by slice what became of them.

    `entity` is what they are of, `ATTEMPTS` by default.

    A record with the content of one that is there already, or that came before it in the same load, counts as a duplicate.
    Content is all of `ATTEMPT_SCHEMA` as received; of a reject it is source, attempt, reason and record, or file and line
    where there is no record; of a measurement all of `MEASUREMENT_SCHEMA` and its source. An attempt's ``known_at`` is filled
    with `received_at` where the source gave none.

    A spelling of hardware that now resolves to another type does so for the rows that are there, too.

    Rows of an earlier load with the same `load_id` are deleted first, so that a retry does not double them. An error in
    `batches` or here leaves the warehouse as it was.

    Raises LoadError where what was read is not what was kept, quarantined and found twice.
    """
    entity = entity or ATTEMPTS
    with _transaction(con):
        create_raw_tables(con)
        for table in (entity.table, "raw.quarantine", "raw.loads"):
            con.execute(f"DELETE FROM {table} WHERE load_id = ?", [load_id])
        rows_read = _stage(con, batches, entity)
        con.execute(entity.mark)
        con.execute(_MARK_REJECTS)
        arrival = {"received_at": received_at, "load_id": load_id}
        con.execute(entity.insert, arrival)
        con.execute(_INSERT_REJECTS, arrival)
        con.execute(_INSERT_COUNTS.format(table=entity.table), arrival)
        if "hardware_name" in entity.schema.names:
            con.execute(_MEND_TYPES.format(table=entity.table))
            con.execute(_FORGET_SPELLINGS)
            con.execute(_INSERT_SPELLINGS, {"received_at": received_at})
        counts = _counts(con, load_id)
        _check(counts, rows_read, load_id)
        for name in ("records", "rejects"):
            con.execute(f"DROP TABLE temp.{name}; DROP TABLE temp.marked_{name}")
    return counts


def readmit(
    con: duckdb.DuckDBPyConnection, kept: pa.Table, content_hashes: pa.ChunkedArray, received_at: datetime, load_id: str
) -> list[SliceCount]:
    """Move records from quarantine to the attempts, in one transaction, and count by slice what became of them.

    `kept` (`ADMITTED_SCHEMA`) is what was made of them, `content_hashes` names in the same order the rows of ``raw.quarantine``.
    The counts of this load are of no record read, as many quarantined below zero as left, and what they became: so over all
    loads ``read = kept + quarantined + duplicates`` holds as before.
    """
    with _transaction(con), _registered(con, rows=pa.table({"content_hash": content_hashes})):
        con.execute("CREATE OR REPLACE TEMP TABLE leaving AS FROM rows")
        _stage(con, [Admission(kept, REJECT_SCHEMA.empty_table())], ATTEMPTS)
        con.execute(ATTEMPTS.mark)
        arrival = {"received_at": received_at, "load_id": load_id}
        con.execute(ATTEMPTS.insert, arrival)
        con.execute(_INSERT_READMISSION, arrival)
        con.execute("DELETE FROM raw.quarantine WHERE content_hash IN (FROM temp.leaving)")
        con.execute(_INSERT_SPELLINGS, {"received_at": received_at})
        counts = _counts(con, load_id)
        _check(counts, 0, load_id)
        con.execute("DROP TABLE temp.leaving; DROP TABLE temp.marked_records; DROP TABLE temp.records; DROP TABLE temp.rejects")
    return counts


def pseudonym_key(con: duckdb.DuckDBPyConnection) -> bytes:
    """Give the key of this home's pseudonyms, made at random when it is first asked for.

    It is in the warehouse alone, which nobody but the night opens; no dataset and no log holds it.
    """
    con.execute("CREATE SCHEMA IF NOT EXISTS private; CREATE TABLE IF NOT EXISTS private.pseudonym_key (key BLOB NOT NULL)")
    if not _scalar(con, "SELECT count(*) FROM private.pseudonym_key", []):
        with _transaction(con):
            create_raw_tables(con)
            key = secrets.token_bytes(32)
            con.execute("INSERT INTO private.pseudonym_key VALUES (?)", [key])
            _pseudonymise_stored(con, key)
    return bytes(con.execute("SELECT key FROM private.pseudonym_key").fetchall()[0][0])


def _pseudonymise_stored(con: duckdb.DuckDBPyConnection, key: bytes) -> None:
    """Put pseudonyms in place of the names that a home holds from before it had a key."""
    names = read(con, 'SELECT DISTINCT "user" FROM raw.job_attempts WHERE "user" IS NOT NULL')
    if names.num_rows:
        con.register("pseudonyms", names.append_column("pseudonym", pseudonymise(names, key)["user"]))
        con.execute(
            'UPDATE raw.job_attempts SET "user" = pseudonym FROM pseudonyms WHERE job_attempts."user" = pseudonyms."user"'
        )
        con.unregister("pseudonyms")
    rejects = read(
        con, f"SELECT {', '.join(REJECT_SCHEMA.names)}, content_hash FROM raw.quarantine WHERE strpos(record, '\"user\"') > 0"
    )
    if rejects.num_rows:
        con.register("cleaned", leave_out_user(rejects))
        con.execute(
            "UPDATE raw.quarantine SET record = cleaned.record FROM cleaned WHERE quarantine.content_hash = cleaned.content_hash"
        )
        con.unregister("cleaned")


def reconciliation(con: duckdb.DuckDBPyConnection) -> pa.Table:
    """Count by source and slice what all loads report beside what the tables hold.

    Columns: source, slice, loads, records_read, kept, quarantined, duplicates, rows_kept, quarantine (rows in the tables),
    and is_reconciled: the counts add up, and the tables hold what the loads say.
    """
    create_raw_tables(con)
    return read(con, _RECONCILIATION)


def read(con: duckdb.DuckDBPyConnection, sql: str, params: Sequence[Any] | Mapping[str, Any] | None = None) -> pa.Table:
    """Run a query with bound parameters and return its rows; times are UTC."""
    result = con.sql(sql, params=params)
    if result is None:
        raise ValueError(f"not a query, it returns no rows: {sql}")
    table: pa.Table = result.to_arrow_table()
    return table


def stream(con: duckdb.DuckDBPyConnection, sql: str) -> pa.RecordBatchReader:
    """Give the rows of a query batch by batch, so that they may be more than memory holds; it runs once they are asked for."""
    schema = read(con, f"from ({sql}) limit 0").schema

    def batches() -> Iterator[pa.RecordBatch]:
        # A connection gives one stream at a time; a cursor is a connection of its own to the same database.
        with con.cursor() as cursor:
            cursor.execute("SET timezone = 'UTC'")
            yield from cursor.sql(sql).to_arrow_reader(_STREAMED_ROWS)

    return pa.RecordBatchReader.from_batches(schema, batches())


def replace(con: duckdb.DuckDBPyConnection, table: str, rows: pa.Table, where: Mapping[str, Any]) -> None:
    """Put `rows` in place of the rows of `table` whose columns have the values of `where`, in one transaction.

    `table` is ``schema.name``; it is created from the schema of `rows` where it is missing. An empty `where` replaces all rows.
    Raises ValueError where a name is no plain identifier, and where a row lies outside of `where`: a retry would double it.
    """
    _check_names(table, [*where, *rows.column_names])
    columns = ", ".join(f'"{column}"' for column in rows.column_names)
    matches = " AND ".join(f'"{column}" IS NOT DISTINCT FROM ?' for column in where) or "true"
    values = list(where.values())
    with _registered(con, rows=rows), _transaction(con):
        con.execute(f"CREATE SCHEMA IF NOT EXISTS {table.partition('.')[0]}")
        _create_table(con, table, rows.schema)
        outside = _scalar(con, f"SELECT count(*) FROM rows WHERE NOT ({matches})", values)
        if outside:
            raise ValueError(
                f"{table}: {outside} of {rows.num_rows} rows are outside of {dict(where)}; replace what they belong to"
            )
        con.execute(f"DELETE FROM {table} WHERE {matches}", values)
        con.execute(f"INSERT INTO {table} ({columns}) SELECT {columns} FROM rows")


@contextmanager
def _transaction(con: duckdb.DuckDBPyConnection) -> Iterator[None]:
    con.execute("BEGIN TRANSACTION")
    try:
        yield
    except BaseException:
        con.execute("ROLLBACK")
        raise
    con.execute("COMMIT")


@contextmanager
def _registered(con: duckdb.DuckDBPyConnection, rows: pa.Table) -> Iterator[None]:
    """Let statements name the table `rows`. Goes around a transaction: one that failed cannot take the name back."""
    con.register("rows", rows)
    try:
        yield
    finally:
        con.unregister("rows")


def _create_table(con: duckdb.DuckDBPyConnection, table: str, schema: pa.Schema) -> None:
    con.execute(f"CREATE TABLE IF NOT EXISTS {table} ({_definitions(con, schema)})")


def _definitions(con: duckdb.DuckDBPyConnection, schema: pa.Schema) -> str:
    columns = con.from_arrow(schema.empty_table())
    return ", ".join(
        f'"{name}" {kind}{"" if field.nullable else " NOT NULL"}'
        for name, kind, field in zip(columns.columns, columns.types, schema, strict=True)
    )


def _check_names(table: str, columns: Iterable[str]) -> None:
    if not re.fullmatch(rf"{_NAME}\.{_NAME}", table):
        raise ValueError(f"{table!r} is no name of a table; write schema.name in lower case letters, digits and underscores")
    for column in columns:
        if not re.fullmatch(_NAME, column):
            raise ValueError(f"{table}: {column!r} is no name of a column; use lower case letters, digits and underscores")


def _scalar(con: duckdb.DuckDBPyConnection, sql: str, params: Sequence[Any]) -> int:
    row = con.execute(sql, params).fetchone()
    assert row is not None
    return int(row[0])


def _stage(con: duckdb.DuckDBPyConnection, batches: Iterable[Admission], entity: Entity) -> int:
    """Put all batches into temporary tables and return how many records they held."""
    staged = {"records": entity.schema, "rejects": REJECT_SCHEMA}
    for name, schema in staged.items():
        con.execute(f"CREATE OR REPLACE TEMP TABLE {name} ({_definitions(con, schema)})")
    rows_read = 0
    for parts in _gather(batches):
        for (name, schema), tables in zip(staged.items(), parts, strict=True):
            rows = pa.concat_tables([table.select(schema.names) for table in tables], promote_options="default")
            con.from_arrow(rows.combine_chunks().cast(schema)).insert_into(f"temp.{name}")
            rows_read += rows.num_rows
    return rows_read


def _gather(batches: Iterable[Admission]) -> Iterator[tuple[list[pa.Table], list[pa.Table]]]:
    kept: list[pa.Table] = []
    rejects: list[pa.Table] = []
    waiting = 0
    for batch in batches:
        kept.append(batch.kept)
        rejects.append(batch.rejects)
        waiting += batch.kept.num_rows + batch.rejects.num_rows
        if waiting >= _STAGED_ROWS:
            yield kept, rejects
            kept, rejects, waiting = [], [], 0
    if kept:
        yield kept, rejects


def _counts(con: duckdb.DuckDBPyConnection, load_id: str) -> list[SliceCount]:
    rows = read(
        con,
        """
        SELECT source, slice, records_read, kept, quarantined, duplicates
        FROM raw.loads WHERE load_id = ? ORDER BY source, slice
        """,
        [load_id],
    )
    return [SliceCount(**row) for row in rows.to_pylist()]


def _check(counts: Sequence[SliceCount], rows_read: int, load_id: str) -> None:
    wrong = [count for count in counts if count.records_read != count.kept + count.quarantined + count.duplicates]
    if wrong or sum(count.records_read for count in counts) != rows_read:
        raise LoadError(
            f"load {load_id}: {rows_read} records were read, but kept + quarantined + duplicates differ from them in "
            f"{wrong or counts}; nothing was loaded. This is a fault of LEAP: please report it with the source"
        )


def _text(field: pa.Field) -> str:
    """Write a column in the one way that hashes are made from: independent of time zone and of display settings."""
    return f'epoch_us("{field.name}")::VARCHAR' if pa.types.is_timestamp(field.type) else f'"{field.name}"::VARCHAR'


# As JSON, because a value may hold any separator, and null differs from an empty string. The user is a pseudonym, which differs
# from home to home, and nothing depends on it: the same log has the same hashes everywhere.
_ATTEMPT_HASH = f"md5(to_json([{', '.join(_text(field) for field in ATTEMPT_SCHEMA if field.name != 'user')}]))"
_REJECT_HASH = """md5(to_json([
    source, attempt_id, reason, record,
    CASE WHEN record IS NULL THEN file END, CASE WHEN record IS NULL THEN line::VARCHAR END
]))"""


# What a home made before had hashed otherwise: a file that comes again is known again. A record received without `known_at`
# was hashed without it, and has its arrival there since.
_HASH_AGAIN = f"""
UPDATE raw.job_attempts SET content_hash = hashed.content_hash
FROM (
    SELECT rowid AS row, {_ATTEMPT_HASH} AS content_hash
    FROM (SELECT rowid, * REPLACE (CASE WHEN known_at != received_at THEN known_at END AS known_at) FROM raw.job_attempts)
) AS hashed
WHERE job_attempts.rowid = hashed.row
"""


def _mark(staged: str, table: str, content_hash: str, same: Sequence[str] = ()) -> str:
    """Say of each staged row whether its content is in `table` already or came before it in the same load.

    `same` are columns that rows of one content agree in and that are never null: where a table lies in their order, DuckDB passes
    over the parts in which no staged row can be, so that a day costs the same after years of history.
    """
    return f"""
    CREATE OR REPLACE TEMP TABLE marked_{staged} AS
    WITH hashed AS MATERIALIZED (SELECT *, {content_hash} AS content_hash FROM temp.{staged})
    SELECT *, row_number() OVER (PARTITION BY content_hash ORDER BY file, line) > 1
        OR content_hash IN (SELECT content_hash FROM {table} SEMI JOIN hashed USING ({", ".join([*same, "content_hash"])}))
        AS is_duplicate
    FROM hashed
    """


def _insert(staged: str, table: str, known_at: str) -> str:
    return f"""
    INSERT INTO {table} BY NAME
    SELECT * EXCLUDE (is_duplicate){known_at}, $received_at::TIMESTAMPTZ AS received_at, $load_id AS load_id
    FROM temp.marked_{staged} WHERE NOT is_duplicate ORDER BY source, file, line, content_hash
    """


@dataclass(frozen=True)
class Entity:
    """What is loaded: its table, the schema of admitted rows, and what a row's content is, as SQL.

    `arrived` completes columns at arrival, `same` are columns for `_mark`.
    """

    table: str
    schema: pa.Schema
    content_hash: str
    arrived: str = ""
    same: tuple[str, ...] = ()

    @property
    def mark(self) -> str:
        """The statement that says which staged records are duplicates."""
        return _mark("records", self.table, self.content_hash, self.same)

    @property
    def insert(self) -> str:
        """The statement that inserts the others."""
        return _insert("records", self.table, self.arrived)


ATTEMPTS = Entity(
    "raw.job_attempts",
    ADMITTED_SCHEMA,
    _ATTEMPT_HASH,
    " REPLACE (coalesce(known_at, $received_at::TIMESTAMPTZ) AS known_at)",
    ("started_at",),
)
MEASUREMENTS = Entity(
    "raw.measurements",
    ADMITTED_MEASUREMENT_SCHEMA,
    f"md5(to_json([source, {', '.join(_text(field) for field in MEASUREMENT_SCHEMA)}]))",
)
PRICES = Entity(
    "raw.prices",
    pa.schema([*PROVENANCE_SCHEMA, *PRICE_SCHEMA, pa.field("known_from", UTC_TIMESTAMP, nullable=False)]),
    f"md5(to_json([{', '.join(_text(field) for field in PRICE_SCHEMA)}]))",
)
_MARK_REJECTS = _mark("rejects", "raw.quarantine", _REJECT_HASH)
_INSERT_REJECTS = _insert("rejects", "raw.quarantine", "")

# What was kept and quarantined is counted in the tables themselves, what was read and found twice in what was staged.
_INSERT_COUNTS = """
INSERT INTO raw.loads BY NAME
WITH counted AS (
    SELECT source, slice, 'read' AS what FROM temp.records
    UNION ALL SELECT source, slice, 'read' FROM temp.rejects
    UNION ALL SELECT source, slice, 'duplicate' FROM temp.marked_records WHERE is_duplicate
    UNION ALL SELECT source, slice, 'duplicate' FROM temp.marked_rejects WHERE is_duplicate
    UNION ALL SELECT source, slice, 'kept' FROM {table} WHERE load_id = $load_id
    UNION ALL SELECT source, slice, 'quarantined' FROM raw.quarantine WHERE load_id = $load_id
)
SELECT
    $load_id AS load_id, source, slice, $received_at::TIMESTAMPTZ AS received_at,
    count(*) FILTER (what = 'read') AS records_read, count(*) FILTER (what = 'kept') AS kept,
    count(*) FILTER (what = 'quarantined') AS quarantined, count(*) FILTER (what = 'duplicate') AS duplicates
FROM counted GROUP BY source, slice ORDER BY source, slice
"""

_INSERT_READMISSION = """
INSERT INTO raw.loads BY NAME
WITH counted AS (
    SELECT source, slice, 'left' AS what FROM raw.quarantine WHERE content_hash IN (FROM temp.leaving)
    UNION ALL SELECT source, slice, 'kept' FROM temp.marked_records WHERE NOT is_duplicate
    UNION ALL SELECT source, slice, 'duplicate' FROM temp.marked_records WHERE is_duplicate
)
SELECT
    $load_id AS load_id, source, slice, $received_at::TIMESTAMPTZ AS received_at,
    0 AS records_read, count(*) FILTER (what = 'kept') AS kept,
    -count(*) FILTER (what = 'left') AS quarantined, count(*) FILTER (what = 'duplicate') AS duplicates
FROM counted GROUP BY source, slice ORDER BY source, slice
"""

# What a spelling means is said by the seeds of today: a mended alias holds for what was loaded before, too.
_MEND_TYPES = """
UPDATE {table} AS stored SET hardware_type = today.hardware_type
FROM (SELECT DISTINCT hardware_name, hardware_type FROM temp.records) AS today
WHERE stored.hardware_name = today.hardware_name AND stored.hardware_type != today.hardware_type
"""
_FORGET_SPELLINGS = """
DELETE FROM raw.hardware_spellings USING temp.records AS today
WHERE hardware_spellings.hardware_name = today.hardware_name AND hardware_spellings.hardware_type != today.hardware_type
"""
_INSERT_SPELLINGS = """
INSERT INTO raw.hardware_spellings BY NAME
SELECT DISTINCT hardware_name, hardware_type, $received_at::TIMESTAMPTZ AS first_seen_at
FROM temp.records
ANTI JOIN raw.hardware_spellings USING (hardware_name, hardware_type)
ORDER BY hardware_name, hardware_type
"""

_RECONCILIATION = """
WITH loaded AS (
    SELECT
        source, slice, count(*) AS loads, sum(records_read)::BIGINT AS records_read, sum(kept)::BIGINT AS kept,
        sum(quarantined)::BIGINT AS quarantined, sum(duplicates)::BIGINT AS duplicates
    FROM raw.loads GROUP BY source, slice
),
kept_rows AS (
    SELECT source, slice, count(*) AS rows_kept
    FROM (
        SELECT source, slice FROM raw.job_attempts
        UNION ALL SELECT source, slice FROM raw.measurements
        UNION ALL SELECT source, slice FROM raw.prices
    )
    GROUP BY source, slice
),
rejects AS (SELECT source, slice, count(*) AS quarantine FROM raw.quarantine GROUP BY source, slice),
counted AS (
    SELECT
        source, slice, coalesce(loads, 0) AS loads, coalesce(records_read, 0) AS records_read, coalesce(kept, 0) AS kept,
        coalesce(quarantined, 0) AS quarantined, coalesce(duplicates, 0) AS duplicates,
        coalesce(rows_kept, 0) AS rows_kept, coalesce(quarantine, 0) AS quarantine
    FROM loaded FULL JOIN kept_rows USING (source, slice) FULL JOIN rejects USING (source, slice)
)
SELECT
    *,
    records_read = kept + quarantined + duplicates AND kept = rows_kept AND quarantined = quarantine AS is_reconciled
FROM counted ORDER BY source, slice
"""
