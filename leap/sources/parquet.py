"""The canonical attempt log as Parquet: one row per attempt and constant segment, columns named as fields of `ATTEMPT_SCHEMA`.

What lives here: reading such files into attempts and rejects, and `render`, the inverse. What does not: whether an attempt makes
sense (`leap.sources.admission`), duplicates and storage (`leap.store.warehouse`).

A file says the type of each column, so a column that cannot be a field rejects the file, once, by name. Values that the type lets
pass but the format does not (NaN, a fraction of a device, text that is no time) reject their rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from leap.contracts import ATTEMPT_SCHEMA, UTC_TIMESTAMP
from leap.params import IngestParams
from leap.sources import Progress, ReadBatch, no_progress
from leap.sources.columns import BadBlock, Columns, convert, read_rows
from leap.sources.fields import BadRecord
from leap.sources.files import Kind, Place, broken_file, find_files, open_file, place_of, read_files, rejected

SOURCE = "parquet"
SUFFIXES = (".parquet",)
KIND = Kind(SOURCE, "Parquet", SUFFIXES)

BATCH_ROWS = 64 << 10

# What Arrow raises of bytes that are no Parquet, beside its own errors.
_READ_ERRORS = (OSError, EOFError, pa.ArrowException, ValueError)


def read(paths: Sequence[Path], params: IngestParams, progress: Progress = no_progress) -> Iterator[ReadBatch]:
    """Read Parquet files, or folders of them, into batches of at most 65,536 rows; ``line`` is the number of the row from 1.

    A folder's files are read in the order of their names; ``slice`` is the file's name. Columns may be absent (null) and of any
    type that can be cast without a loss: strings also as dictionaries, numbers as any integer, float or decimal, times as
    timestamps with a time zone or as text with an offset (digits below microseconds are cut off), ``eligible_hardware`` as a
    list of strings or as JSON, ``config`` as JSON. Reasons of rejects: ``unknown-field``, ``duplicate-field``, ``wrong-type``
    (line 0: the file as a whole, none of whose rows is read; else the row), ``bad-time``, ``not-utf8``, ``unreadable-archive``
    (line 0; what was read before it is kept). ``progress`` is told the file's name and bytes of all files. ``params`` plays no
    part: no number judges here.

    Raises SourceError where a path is missing, no such file is in a folder, or a file cannot be opened.
    """
    del params
    return read_files(find_files(paths, KIND), _read_file, progress)


def render(attempts: pa.Table) -> bytes:
    """Give attempts as the content of a Parquet file that `read` reads back.

    Any columns of `ATTEMPT_SCHEMA` will do, others are passed over. Raises ArrowException where one cannot be cast.
    """
    fields = [field for field in ATTEMPT_SCHEMA if field.name in attempts.column_names]
    sink = pa.BufferOutputStream()
    pq.write_table(attempts.select([field.name for field in fields]).cast(pa.schema(fields)), sink, compression="zstd")
    return bytes(sink.getvalue().to_pybytes())


def _read_file(path: Path) -> Iterator[tuple[int, ReadBatch]]:
    """Yield how many stored bytes were read so far, by the share of rows, and a batch."""
    place = place_of(path, KIND)
    with ExitStack() as stack:
        raw = open_file(path, stack)
        size = path.stat().st_size
        try:
            file = pq.ParquetFile(raw)
            schema, num_rows = file.schema_arrow, file.metadata.num_rows
        except _READ_ERRORS as error:
            yield size, broken_file(place, error)
            return
        bad = _bad_schema(schema, num_rows)
        if bad is not None:
            yield size, rejected(place.at(0), bad, None)
            return
        for batch in _batches(file, place):
            if isinstance(batch, ReadBatch):
                yield size, batch
                return
            lines = pa.array(range(place.line, place.line + batch.num_rows), pa.int64())
            place = place.at(place.line + batch.num_rows)
            table = pa.Table.from_batches([batch])
            yield size * (place.line - 1) // max(num_rows, 1), read_rows(table, lines, place, _at_once, _values_of)


def _batches(file: pq.ParquetFile, place: Place) -> Iterator[pa.RecordBatch | ReadBatch]:
    """Yield batches of rows, and where they end too early the reject of the file."""
    done = 0
    try:
        for batch in file.iter_batches(BATCH_ROWS):
            batch.validate()
            yield batch
            done += batch.num_rows
    except _READ_ERRORS as error:
        yield broken_file(place.at(place.line + done), error)


# What a file's columns may be


def _bad_schema(schema: pa.Schema, num_rows: int) -> BadRecord | None:
    """Tell why none of a file's rows can be read, if so."""
    end = f"none of the file's {num_rows} rows is read."
    unknown = sorted(set(schema.names) - set(ATTEMPT_SCHEMA.names))
    if unknown:
        what = f"Column {', '.join(map(repr, unknown))} is not a field of an attempt"
        return BadRecord("unknown-field", f"{what}; leave it out, or move it into `config` as JSON; {end}")
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if twice:
        return BadRecord(
            "duplicate-field", f"Column {', '.join(map(repr, twice))} stands twice; which one holds is not known; {end}"
        )
    wrong = [
        f"column {field.name!r} is {field.type} and must be {expected}"
        for field in schema
        if (expected := _expected(ATTEMPT_SCHEMA.field(field.name), field.type))
    ]
    if wrong:
        return BadRecord("wrong-type", f"{'; '.join(wrong).capitalize()}; cast it before writing; {end}")
    return None


def _expected(field: pa.Field, found: pa.DataType) -> str:
    """Give what a column's type should be, nothing where it is one that can be cast."""
    if pa.types.is_dictionary(found):
        found = found.value_type
    if pa.types.is_null(found):
        return ""
    if field.name == "eligible_hardware" and _is_list(found) and _is_text(found.value_type):
        return ""
    if pa.types.is_timestamp(field.type):
        good = _is_text(found) or (pa.types.is_timestamp(found) and found.tz is not None)
        return "" if good else "a timestamp with a time zone (UTC), or text with an offset"
    if pa.types.is_string(field.type):
        return "" if _is_text(found) else "text"
    if pa.types.is_boolean(field.type):
        return "" if pa.types.is_boolean(found) else "boolean"
    return "" if _is_number(found) else "a number"


def _is_text(found: pa.DataType) -> bool:
    return bool(pa.types.is_string(found) or pa.types.is_large_string(found) or pa.types.is_string_view(found))


def _is_list(found: pa.DataType) -> bool:
    return bool(pa.types.is_list(found) or pa.types.is_large_list(found))


def _is_number(found: pa.DataType) -> bool:
    return bool(pa.types.is_integer(found) or pa.types.is_floating(found) or pa.types.is_decimal(found))


# Columns at once


def _at_once(table: pa.Table) -> Columns:
    return {name: _convert(ATTEMPT_SCHEMA.field(name), _plain(table[name])) for name in table.column_names}


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Undo encodings that mean nothing."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return column.cast(pa.string()) if _is_text(column.type) and not pa.types.is_string(column.type) else column


def _convert(field: pa.Field, column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_null(column.type):
        return column.cast(field.type)
    if pa.types.is_string(column.type):
        column.validate(full=True)  # Parquet's text may hold any bytes
        return convert(field, column)
    if _is_list(column.type):
        return convert(field, _list_as_json(column))
    if pa.types.is_timestamp(column.type):
        return convert(field, _in_microseconds(column))
    if pa.types.is_integer(column.type) and pa.types.is_integer(field.type):
        return column.cast(field.type)
    # A whole number that a double does not hold is told by the cast.
    return column if pa.types.is_boolean(column.type) else convert(field, column.cast(pa.float64()))


def _in_microseconds(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(UTC_TIMESTAMP, safe=column.type.unit != "ns")


def _list_as_json(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Write each list of strings as a JSON array."""
    return pa.chunked_array([_array_as_json(chunk) for chunk in column.chunks], pa.string())


def _array_as_json(lists: pa.ListArray) -> pa.Array:
    lists.validate(full=True)
    if lists.flatten().null_count:
        raise BadBlock
    names = lists.flatten().cast(pa.string()).dictionary_encode()
    quoted = pa.array([json.dumps(name, ensure_ascii=False) for name in names.dictionary.to_pylist()], pa.string())
    counts = pc.fill_null(pc.list_value_length(lists), 0)
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(counts).cast(pa.int64())]).cast(pa.int32())
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, quoted.take(names.indices)), ",")
    return pc.if_else(lists.is_valid(), pc.binary_join_element_wise("[", joined, "]", ""), None)


# Rows one by one


def _values_of(table: pa.Table) -> list[dict[str, Any]]:
    columns = [_json_values(table[name]) for name in table.column_names]
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)] or [{}] * table.num_rows


def _json_values(column: pa.ChunkedArray) -> list[Any]:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if _is_text(column.type):
        return [_text(value) for value in column.cast(pa.large_binary()).to_pylist()]
    if _is_list(column.type):
        as_bytes = column.cast(pa.list_(pa.large_binary()))
        return [_each(value) for value in as_bytes.to_pylist()]
    if pa.types.is_timestamp(column.type):
        # as text, because Arrow has years that Python has not
        return list(column.cast(pa.timestamp(column.type.unit, "UTC")).cast(pa.string()).to_pylist())
    return [float(value) if isinstance(value, Decimal) else value for value in column.to_pylist()]


def _text(value: bytes | None) -> str | BadRecord | None:
    if value is None:
        return None
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        # The value is not shown: it may be the user.
        return BadRecord(
            "not-utf8", f"A value holds bytes that are no UTF-8 ({error.reason} at {error.start}); write text in UTF-8."
        )


def _each(value: list[bytes | None] | None) -> Any:
    if value is None:
        return None
    texts = [_text(each) for each in value]
    return next((text for text in texts if isinstance(text, BadRecord)), texts)
