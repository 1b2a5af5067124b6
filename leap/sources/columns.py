"""The fields of many attempts: whole columns of text or numbers to their types at once, or not at all.

What lives here: the quick way, which gives the same values as `fields.py` or raises; and the search for the rows for which it
raises. What does not: what a field may hold (`fields.py`), formats.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from leap.contracts import ATTEMPT_SCHEMA, REJECT_SCHEMA, UTC_TIMESTAMP
from leap.sources import ReadBatch
from leap.sources.fields import NESTED, BadRecord, known_of, parse_record
from leap.sources.files import LONG_RECORD_CHARACTERS, Place, reject_row, with_provenance

SMALL_BLOCK_ROWS = 64  # a block that fails and has no more rows than this is read row by row

# Times outside of these are left to the reader of single records, because Arrow knows years that Python does not.
_EARLIEST = pa.scalar(datetime(1900, 1, 1, tzinfo=UTC), UTC_TIMESTAMP)
_LATEST = pa.scalar(datetime(9000, 1, 1, tzinfo=UTC), UTC_TIMESTAMP)


class BadBlock(Exception):
    """Something in this block is not as it should be; the reader of single records finds out what."""


def convert(field: pa.Field, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Give a column of a field's type from text, doubles (for numbers) or booleans. Raises BadBlock or ArrowException."""
    if field.name in NESTED:
        return convert_distinct(column, NESTED[field.name])
    if pa.types.is_timestamp(field.type):
        return _require(pc.cast(column, UTC_TIMESTAMP), lambda times: _between(times, _EARLIEST, _LATEST))
    if pa.types.is_integer(field.type) or pa.types.is_floating(field.type):
        return _require(column, pc.is_finite).cast(field.type)
    return column


def _between(values: pa.ChunkedArray, low: pa.Scalar, high: pa.Scalar) -> pa.ChunkedArray:
    return pc.and_(pc.greater_equal(values, low), pc.less(values, high))


def _require(column: pa.ChunkedArray, holds: Callable[[pa.ChunkedArray], pa.ChunkedArray]) -> pa.ChunkedArray:
    if pc.all(holds(column)).as_py() is False:
        raise BadBlock
    return column


def convert_distinct(column: pa.ChunkedArray, convert: Callable[[Any], str]) -> pa.ChunkedArray:
    """Convert each distinct text once: a fleet has far fewer settings than attempts. Raises BadBlock."""
    encoded = column.combine_chunks().dictionary_encode()
    try:
        converted = pa.array([convert(text) for text in encoded.dictionary.to_pylist()], pa.string())
    except (ValueError, RecursionError) as error:
        raise BadBlock from error
    return pa.chunked_array([converted.take(encoded.indices)])


Columns = Mapping[str, pa.ChunkedArray]


def read_rows(
    table: pa.Table,
    lines: pa.Array,
    place: Place,
    at_once: Callable[[pa.Table], Columns],
    values_of: Callable[[pa.Table], list[dict[str, Any]]],
) -> ReadBatch:
    """Give attempts and rejects of a table whose columns are named as fields; `lines` has the line of each row.

    `at_once` gives columns of the fields' types, or raises BadBlock or ArrowException: then the table is halved until what fails
    is small, and `values_of` gives its rows as JSON has them. A value may be a BadRecord, which rejects its row.
    """
    try:
        columns = at_once(table)
    except (BadBlock, pa.ArrowException):
        if table.num_rows <= SMALL_BLOCK_ROWS:
            return _row_by_row(values_of(table), lines.to_pylist(), place)
        middle = table.num_rows // 2
        halves = ((table.slice(0, middle), lines.slice(0, middle)), (table.slice(middle), lines.slice(middle)))
        pairs = zip(*(read_rows(*half, place, at_once, values_of) for half in halves), strict=True)
        return ReadBatch(*(pa.concat_tables(pair) for pair in pairs))
    filled = [columns.get(field.name, pa.nulls(table.num_rows, field.type)) for field in ATTEMPT_SCHEMA]
    attempts = pa.table(filled, schema=ATTEMPT_SCHEMA)
    return ReadBatch(with_provenance(attempts, lines, place), REJECT_SCHEMA.empty_table())


def _row_by_row(records: list[dict[str, Any]], lines: list[int], place: Place) -> ReadBatch:
    rows: list[dict[str, Any]] = []
    kept: list[int] = []
    rejects: list[dict[str, Any]] = []
    for line, record in zip(lines, records, strict=True):
        try:
            rows.append(_parse(record))
            kept.append(line)
        except BadRecord as bad:
            given = {name: value for name, value in record.items() if value is not None}
            text = json.dumps(given, ensure_ascii=False, default=str)[:LONG_RECORD_CHARACTERS]
            rejects.append(reject_row(place.at(line), bad, text))
    attempts = with_provenance(pa.Table.from_pylist(rows, ATTEMPT_SCHEMA), pa.array(kept, pa.int64()), place)
    return ReadBatch(attempts, pa.Table.from_pylist(rejects, REJECT_SCHEMA))


def _parse(record: dict[str, Any]) -> dict[str, Any]:
    bad = next((value for value in record.values() if isinstance(value, BadRecord)), None)
    if bad is None:
        return parse_record(record)
    readable = {name: value for name, value in record.items() if not isinstance(value, BadRecord)}
    raise BadRecord(bad.reason, bad.detail, known_of(readable))
