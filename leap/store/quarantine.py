"""The quarantine as people work with it: what is in it and why, and letting back in what a mended seed or rule now admits.

What lives here: listing a dataset's quarantine, trying records again, and the share by day of arrival. What does not: the rules
(`leap.sources.admission`), moving rows (`leap.store.warehouse`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from leap.contracts import PROVENANCE_SCHEMA
from leap.params import IngestParams
from leap.sources.jsonl import parse
from leap.store.datasets import Dataset
from leap.store.ingest import FAULTY, AdmissionGate
from leap.store.warehouse import SliceCount, read, readmit

_RETRIED_AT_ONCE = 100_000
_PLACE = "content_hash, source, slice, file, line"


@dataclass(frozen=True)
class Example:
    """One record in quarantine: where it stands in its log, what is wrong with it, and the record itself."""

    file: str
    line: int
    detail: str
    record: str | None


@dataclass(frozen=True)
class Reason:
    """The records of one source that are in quarantine for one reason.

    `admitted_since` of them are of attempts that came again and were kept; the others are `open`.
    """

    source: str
    reason: str
    records: int
    admitted_since: int
    files: int
    first_received_at: datetime
    last_received_at: datetime
    examples: tuple[Example, ...]

    @property
    def open(self) -> int:
        """How many wait for someone to mend them."""
        return self.records - self.admitted_since

    def to_json(self) -> dict[str, Any]:
        """Give it as JSON values."""
        times = {name: getattr(self, name).isoformat() for name in ("first_received_at", "last_received_at")}
        return {**asdict(self), "open": self.open, **times}


def list_reasons(dataset: Dataset, examples: int, reason: str | None = None, source: str | None = None) -> list[Reason]:
    """List a dataset's quarantine by source and reason, most records first, each with the first `examples` by file and line."""
    sql = """
        with
        rejected as (
            select *, attempt_id in (select attempt_id from read_parquet($attempts)) as is_admitted,
                row_number() over (partition by source, reason order by file, line, content_hash) as place
            from read_parquet($quarantine)
            where ($reason is null or reason = $reason) and ($source is null or source = $source)
        )

        select
            source, reason, count(*) as records, count(*) filter (is_admitted) as admitted_since,
            count(distinct file) as files, min(received_at) as first_received_at, max(received_at) as last_received_at,
            list({'file': file, 'line': line, 'detail': detail, 'record': record} order by place)
                filter (place <= $examples) as examples
        from rejected
        group by source, reason
        order by records desc, source, reason
    """
    bound = {name: str(dataset.path(name)) for name in ("attempts", "quarantine")}
    with duckdb.connect(":memory:") as connection:
        connection.execute("set timezone = 'UTC'")
        rows = read(connection, sql, {**bound, "reason": reason, "source": source, "examples": examples}).to_pylist()
    return [Reason(**{**row, "examples": tuple(Example(**one) for one in row["examples"] or ())}) for row in rows]


@dataclass(frozen=True)
class Retried:
    """What became of the records that were tried again; `counts` by slice of those that left the quarantine."""

    tried: int
    counts: list[SliceCount]

    @property
    def admitted(self) -> int:
        """How many are attempts now."""
        return sum(count.kept for count in self.counts)

    @property
    def duplicates(self) -> int:
        """How many were there already, so that they just left the quarantine."""
        return sum(count.duplicates for count in self.counts)

    @property
    def refused(self) -> int:
        """How many stay."""
        return self.tried - self.admitted - self.duplicates


def retry(
    connection: duckdb.DuckDBPyConnection,
    *,
    seeds: Path,
    params: IngestParams,
    received_at: datetime,
    load_id: str,
    reason: str | None = None,
    source: str | None = None,
) -> Retried:
    """Try the records in quarantine again, by the seeds, rules and params of today; those that pass become attempts.

    Tried are records that hold an attempt as JSON: those that were read and not admitted, and lines of JSON. A record that could
    not be read otherwise needs its file again. What passes keeps source, file and line; its ``known_at`` is its own, else
    `received_at`, so that no past night knew of it. What does not pass stays as it is.
    """
    sql = f"""
        select {_PLACE}, record from raw.quarantine
        where
            record like '{{%}}' and strpos(record, chr(10)) = 0
            and ($reason is null or reason = $reason) and ($source is null or source = $source)
        order by {_PLACE}
    """
    waiting = read(connection, sql, {"reason": reason, "source": source})
    gate = AdmissionGate.from_seeds(seeds, params)
    kept, hashes = [], []
    for start in range(0, waiting.num_rows, _RETRIED_AT_ONCE):
        some = waiting.slice(start, _RETRIED_AT_ONCE)
        attempts = parse("\n".join(some["record"].to_pylist()).encode(), "quarantine").attempts
        # The line of a record within the block says which one it is. Until it has passed it goes by its hash in place of a file.
        rows = some.take(pa.array(attempts["line"].to_numpy() - 1))
        nobody = pa.nulls(attempts.num_rows, pa.string())  # no record in quarantine says who it was
        attempts = _replaced(attempts, {"source": rows["source"], "file": rows["content_hash"], "user": nobody})
        passed = gate.admit(attempts, received_at).kept
        rows = some.take(pc.index_in(passed["file"], value_set=some["content_hash"].combine_chunks()))
        kept.append(_replaced(passed, {name: rows[name] for name in PROVENANCE_SCHEMA.names}))
        hashes.append(rows["content_hash"])
    if not kept:
        return Retried(0, [])
    leaving = pa.chunked_array([chunk for column in hashes for chunk in column.chunks], pa.string())
    counts = readmit(connection, pa.concat_tables(kept), leaving, received_at, load_id)
    return Retried(waiting.num_rows, counts)


def _replaced(rows: pa.Table, columns: Mapping[str, pa.ChunkedArray | pa.Array]) -> pa.Table:
    for name, values in columns.items():
        at = rows.column_names.index(name)
        rows = rows.set_column(at, rows.schema.field(at), values)
    return rows


@dataclass(frozen=True)
class DayShare:
    """The records that arrived on one UTC day, and how many of them went to quarantine for a fault."""

    day: date
    records: int
    faulty: int

    @property
    def share(self) -> float:
        """Faulty ones among all, 0 to 1."""
        return self.faulty / self.records if self.records else 0.0


def share_by_day(connection: duckdb.DuckDBPyConnection, days: int) -> list[DayShare]:
    """Give the newest `days` UTC days on which records arrived, oldest first. Duplicates do not count: they are no news."""
    sql = f"""
        with
        faulty as (select received_at::date as day, count(*) as faulty from ({FAULTY}) group by day),
        kept as (select received_at::date as day, count(*) as kept from raw.job_attempts group by day)
        select
            coalesce(kept.day, faulty.day) as day, (coalesce(kept, 0) + coalesce(faulty, 0))::bigint as records,
            coalesce(faulty, 0)::bigint as faulty
        from kept full join faulty using (day)
        order by day desc limit ?
    """
    rows = read(connection, sql, [days]).to_pylist()
    return [DayShare(**row) for row in reversed(rows)]


def sudden_rise(shares: Sequence[DayShare], most: float, min_records: int) -> str | None:
    """Say how far the newest day's share is above the usual; None where that is no more than `most`.

    The usual is the median share of the days before it, nothing where there are none. Days of fewer than `min_records` records
    say nothing.
    """
    telling = [day for day in shares if day.records >= min_records]
    if not telling or telling[-1].day != shares[-1].day or len(telling) < 2:
        return None
    *before, newest = telling
    usual = float(np.median([day.share for day in before]))
    if newest.share - usual <= most:
        return None
    return (
        f"{newest.faulty} of the {newest.records} records that arrived on {newest.day} are faulty, {newest.share:.1%}; "
        f"on the {len(before)} days before it was {usual:.1%} (median). `leap quarantine` lists them with their reasons"
    )
