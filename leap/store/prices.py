"""Prices: append-only, as they became known, so that what a past night paid never moves.

What lives here: reading price lists, which rows are trusted, holding back wild jumps, and what is in force. What does not: the
price of a candidate at a cut (dbt, `int_prices_as_of`), approvals (`control.py`).

A price is of a hardware type, pool and list from a first day on. A row with another figure for the same first day is a further
version of it: nights that knew the older one keep it. What the first load of a home brings counts as known from the beginning.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from leap.contracts import PRICE_SCHEMA, REJECT_SCHEMA
from leap.sources.admission import Admission
from leap.sources.delimited import TextRows, read_delimited
from leap.store.control import PriceApproval
from leap.store.warehouse import PRICES, SliceCount, create_raw_tables, load, read

SOURCE = "prices"
_NEEDED = ("hardware_type", "price_list", "valid_from")
_COLUMNS = (
    *(*_NEEDED, "pool", "price_per_device_hour", "usd_per_device_hour", "currency", "valid_to"),
    *("source", "is_assumption", "note"),
)
_ROW = "leap row"
_APPROVED = pa.schema(
    [*((name, pa.string()) for name in ("hardware_type", "pool", "price_list")), ("usd_per_device_hour", pa.float64())]
)
# What was known when a home was made is known to all its nights, those of years before included.
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Price:
    """A price of a list: what it is of, from when, in US dollars and as it was listed."""

    hardware_type: str
    pool: str
    price_list: str
    usd_per_device_hour: float
    valid_from: date
    valid_to: date | None
    is_assumption: bool
    published_by: str
    version: int

    def to_json(self) -> dict[str, Any]:
        """Give it as JSON values."""
        valid_to = None if self.valid_to is None else self.valid_to.isoformat()
        return asdict(self) | {"valid_from": self.valid_from.isoformat(), "valid_to": valid_to}


@dataclass(frozen=True)
class Held:
    """A price that is held back, and why."""

    hardware_type: str
    pool: str
    price_list: str
    usd_per_device_hour: float
    valid_from: date
    detail: str

    def to_json(self) -> dict[str, Any]:
        """Give it as JSON values."""
        return asdict(self) | {"valid_from": self.valid_from.isoformat()}


def load_prices(
    connection: duckdb.DuckDBPyConnection,
    files: Sequence[Path],
    *,
    seeds: Path,
    max_jump: float,
    approved: Iterable[PriceApproval],
    received_at: datetime,
    load_id: str,
) -> list[SliceCount]:
    """Load price lists (CSV); rows that will not do go to quarantine and stand in no other's way.

    A list has the columns hardware_type, price_list, valid_from (a date), and usd_per_device_hour, or price_per_device_hour with
    currency; it may have pool (default), valid_to (the first day on which it no longer holds), source, is_assumption and note.
    Reasons: ``missing-field``, ``unknown-hardware``, ``bad-price``, ``unknown-currency``, ``bad-time``, ``contradicts-itself``
    (two figures for one day in one file), ``price-jump``: more than `max_jump` times the price in force, or less than that part
    of it, and not among `approved`. `seeds` has ``hardware_types.csv`` and ``exchange_rates.csv``.

    Raises SourceError where a file is missing or has no header.
    """
    create_raw_tables(connection)
    is_first = read(connection, "select count(*) as n from raw.prices")["n"][0].as_py() == 0
    types = _text_table(seeds / "hardware_types.csv").select(["hardware_type"])
    rates = _text_table(seeds / "exchange_rates.csv")
    words = pa.Table.from_pylist([asdict(one) for one in approved], _APPROVED)
    standing = read(connection, _IN_FORCE.format(at="'9999-12-31'"))
    known_from = _BEGINNING if is_first else received_at
    tables = {"types": types, "rates": rates, "approved": words, "standing": standing}
    return load(
        connection,
        _admissions(files, tables, max_jump, known_from),
        received_at=received_at,
        load_id=load_id,
        entity=PRICES,
    )


def in_force(connection: duckdb.DuckDBPyConnection, on: date) -> list[Price]:
    """List the prices that hold on a day, as known now."""
    return [Price(**row) for row in read(connection, _IN_FORCE.format(at="$on"), {"on": on}).to_pylist()]


def held_back(connection: duckdb.DuckDBPyConnection) -> list[Held]:
    """List the prices that wait for a person's word: jumps that were not approved since."""
    sql = """
        select
            hardware_name as hardware_type, record ->> '$.pool' as pool, record ->> '$.price_list' as price_list,
            (record ->> '$.usd')::double as usd_per_device_hour, (record ->> '$.valid_from')::date as valid_from, detail
        from raw.quarantine as rejected
        where
            source = 'prices' and reason = 'price-jump'
            and not exists (
                select 1 from raw.prices as kept
                where
                    kept.hardware_type = rejected.hardware_name and kept.pool = rejected.record ->> '$.pool'
                    and kept.price_list = rejected.record ->> '$.price_list'
                    and kept.valid_from = (rejected.record ->> '$.valid_from')::date
                    and kept.usd_per_device_hour = (rejected.record ->> '$.usd')::double
            )
        order by all
    """
    return [Held(**row) for row in read(connection, sql).to_pylist()]


# Of each type, pool and list the newest day that has begun, by its newest version.
_IN_FORCE = """
    select
        hardware_type, pool, price_list, usd_per_device_hour, valid_from, valid_to, is_assumption, published_by,
        version::integer as version
    from (
        select
            *, row_number() over (
                partition by hardware_type, pool, price_list, valid_from order by known_from, content_hash
            ) as version
        from raw.prices where valid_from <= {at}
    )
    qualify row_number() over (partition by hardware_type, pool, price_list order by valid_from desc, version desc) = 1
    order by hardware_type, pool, price_list
"""

_JUDGED = """
    with
    given as (
        select
            "leap row" as line, nullif(trim(hardware_type), '') as hardware_type,
            coalesce(nullif(trim(pool), ''), 'default') as pool, nullif(trim(price_list), '') as price_list,
            nullif(trim(valid_from), '') as first_day, nullif(trim(valid_to), '') as end_day,
            coalesce(nullif(trim(price_per_device_hour), ''), nullif(trim(usd_per_device_hour), '')) as listed,
            upper(coalesce(nullif(trim(currency), ''), 'USD')) as currency, nullif(trim(source), '') as published_by,
            coalesce(try_cast(is_assumption as boolean), false) as is_assumption, nullif(trim(note), '') as note
        from rows
    ),

    typed as (
        select
            *, try_cast(listed as double) as price,
            try_cast(first_day as date) as valid_from, try_cast(end_day as date) as valid_to
        from given
    ),

    rated as (
        select
            typed.*, case when typed.currency = 'USD' then 1.0 else rates.usd end as rate
        from typed
        asof left join (
            select upper(currency) as currency, try_cast(valid_from as date) as valid_from, try_cast(usd as double) as usd
            from rates
        ) as rates on typed.currency = rates.currency and typed.valid_from >= rates.valid_from
    ),

    compared as (
        select
            rated.*, price * rate as usd,
            count(distinct price) over same_day as figures,
            coalesce(
                standing.usd_per_device_hour,
                first_value(case when isfinite(price) and price > 0 then price * rate end ignore nulls) over (
                    partition by rated.hardware_type, rated.pool, rated.price_list order by rated.valid_from, line
                )
            ) as before
        from rated
        left join standing using (hardware_type, pool, price_list)
        window same_day as (partition by rated.hardware_type, rated.pool, rated.price_list, rated.valid_from)
    )

    select
        compared.*,
        case
            when hardware_type is null or price_list is null or first_day is null then 'missing-field'
            when hardware_type not in (select hardware_type from types) then 'unknown-hardware'
            when not coalesce(isfinite(price) and price > 0, false) then 'bad-price'
            when valid_from is null or (end_day is not null and coalesce(valid_to <= valid_from, true)) then 'bad-time'
            when rate is null then 'unknown-currency'
            when figures > 1 then 'contradicts-itself'
            when greatest(usd / before, before / usd) > $max_jump and not exists (
                select 1 from approved
                where
                    approved.hardware_type = compared.hardware_type and approved.pool = compared.pool
                    and approved.price_list = compared.price_list and abs(approved.usd_per_device_hour / usd - 1) < 1e-6
            ) then 'price-jump'
        end as reason
    from compared
    order by line
"""

_SAID = {
    "missing-field": "hardware_type, price_list and valid_from are needed.",
    "unknown-hardware": "hardware_type {hardware_type} is not in hardware_types.csv; add the type first, or mend the name.",
    "bad-price": "the price is {listed}; it must be a number above 0: what costs nothing would rank first.",
    "bad-time": "valid_from is {first_day} and valid_to {end_day}; both are dates, the second after the first or left out.",
    "unknown-currency": "currency {currency} has no rate on {first_day} in exchange_rates.csv; add a line.",
    "contradicts-itself": "{hardware_type}, pool {pool}, list {price_list} has several prices from {first_day} on in this file.",
    "price-jump": (
        "{hardware_type}, pool {pool}, list {price_list}: {usd:g} US dollars after {before:g} is a jump, so the older price "
        "stays; if it is meant: leap prices approve {hardware_type} --price {usd:g} --pool {pool} --list {price_list} --by NAME "
        "--because WHY"
    ),
}


def _admissions(files: Sequence[Path], tables: dict[str, pa.Table], max_jump: float, known_from: datetime) -> Iterator[Admission]:
    for file in files:
        yield _judge(file, list(read_delimited(file, ",", "utf-8")), tables, max_jump, known_from)


def _judge(
    file: Path, batches: Sequence[TextRows], tables: dict[str, pa.Table], max_jump: float, known_from: datetime
) -> Admission:
    text = pa.concat_tables([batch.table.append_column(_ROW, pa.array(batch.line)) for batch in batches])
    for name in _COLUMNS:
        if name not in text.column_names:
            text = text.append_column(name, pa.nulls(text.num_rows, pa.string()))
    with duckdb.connect(":memory:") as connection:
        for name, table in {"rows": text, **tables}.items():
            connection.register(name, table)
        judged = read(connection, _JUDGED, {"max_jump": max_jump})
    place = {"source": SOURCE, "slice": file.name, "file": file.as_posix()}
    rows = judged.to_pylist()
    made = {"usd_per_device_hour": "usd", "price_as_listed": "price"}
    kept = [
        {**place, "line": row["line"], "known_from": known_from}
        | {name: row[made.get(name, name)] for name in PRICE_SCHEMA.names}
        for row in rows
        if row["reason"] is None
    ]
    rejects = [_reject(place, row) for row in rows if row["reason"] is not None]
    rejects += [
        place | {"line": bad.line, "reason": bad.reason, "detail": f"{file}, line {bad.line}: {bad.detail}", "record": bad.text}
        for batch in batches
        for bad in batch.bad
    ]
    return Admission(pa.Table.from_pylist(kept, PRICES.schema), pa.Table.from_pylist(rejects, REJECT_SCHEMA))


def _reject(place: dict[str, str], row: dict[str, Any]) -> dict[str, Any]:
    told = {name: "empty" if value is None else value for name, value in row.items()}
    shown = ("hardware_type", "pool", "price_list", "listed", "currency", "usd", "note")
    record = {name: row[name] for name in shown} | {"valid_from": row["first_day"], "valid_to": row["end_day"]}
    return place | {
        "line": row["line"],
        "hardware_name": row["hardware_type"],
        "reason": row["reason"],
        "detail": f"{place['file']}, line {row['line']}: {_SAID[row['reason']].format(**told)}",
        "record": json.dumps(record, sort_keys=True, default=str),
    }


def _text_table(path: Path) -> pa.Table:
    return pa.concat_tables([batch.table for batch in read_delimited(path, ",", "utf-8")])
