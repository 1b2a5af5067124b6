"""The canonical attempt log as CSV: a header of field names, then one row per attempt and constant segment.

What lives here: reading such files (plain, gzip, zstd) into attempts and rejects, and `render`, the inverse. What does not: rows
and quotes (`delimited.py`), whether an attempt makes sense (`leap.sources.admission`).

Values are never guessed: each column has the type of its field. An empty value, quoted or not, is null.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from leap.contracts import ATTEMPT_SCHEMA
from leap.params import IngestParams
from leap.sources import Progress, ReadBatch, SourceError, no_progress
from leap.sources.columns import BadBlock, Columns, convert, read_rows
from leap.sources.delimited import BadRow, read_delimited
from leap.sources.fields import BadRecord
from leap.sources.files import Kind, Place, find_files, open_file, place_of, read_files, rejected

SOURCE = "csv"
SUFFIXES = (".csv", ".csv.gz", ".csv.zst")
KIND = Kind(SOURCE, "CSV", SUFFIXES)

# What Arrow takes for a number, without names of what is none.
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_FLAGS = {"true": True, "false": False}


def read(paths: Sequence[Path], params: IngestParams, progress: Progress = no_progress) -> Iterator[ReadBatch]:
    """Read CSV files, or folders of them, into batches of some 20,000 rows; ``line`` is where the row begins, the header is 1.

    RFC 4180 with a header: values with commas, quotes or line breaks are quoted, a quote in them is doubled. UTF-8. A folder's
    files are read in the order of their names; ``slice`` is the file's name. Columns may be absent (null); rows in which all is
    empty are no records. Numbers are as in JSON, flags ``true`` or ``false``, times ISO 8601 with an offset, `config` and
    `eligible_hardware` JSON. Reasons of rejects: ``no-header`` and ``unknown-field`` (line 0, none of the rows is read),
    ``ragged-row``, ``not-utf8``, ``wrong-type``, ``bad-time``, ``not-csv`` and ``unreadable-archive`` (line 0; what was read
    before it is kept). ``progress`` is told the file's name and bytes of all files, as stored. ``params`` plays no part: no
    number judges here.

    Raises SourceError where a path is missing, no such file is in a folder, or a file cannot be opened.
    """
    del params
    return read_files(find_files(paths, KIND), _read_file, progress)


def render(attempts: pa.Table) -> bytes:
    """Give attempts as the content of a CSV file that `read` reads back, with a header.

    Any columns of `ATTEMPT_SCHEMA` will do, others are passed over. An empty string is read back as null, and a row of nulls not
    at all. Raises ArrowException where a column cannot be cast.
    """
    fields = [field for field in ATTEMPT_SCHEMA if field.name in attempts.column_names]
    sink = pa.BufferOutputStream()
    pyarrow.csv.write_csv(attempts.select([field.name for field in fields]).cast(pa.schema(fields)), sink)
    return bytes(sink.getvalue().to_pybytes())


def _read_file(path: Path) -> Iterator[tuple[int, ReadBatch]]:
    """Yield how many stored bytes were read so far, and a batch."""
    place = place_of(path, KIND)
    with ExitStack() as stack:
        open_file(path, stack)  # so that what fails after this is the content's fault
    if not path.stat().st_size:
        return
    try:
        for rows in read_delimited(path, ",", "utf-8"):
            unknown = sorted(set(rows.table.column_names) - set(ATTEMPT_SCHEMA.names))
            if unknown:
                yield rows.read_bytes, rejected(place.at(0), _unknown(unknown), None)
                return
            if len(rows.line):
                batch = read_rows(rows.table, pa.array(rows.line, pa.int64()), place, _at_once, _values_of)
                yield rows.read_bytes, batch
            for bad in rows.bad:
                yield rows.read_bytes, _rejected_row(place, bad, "user" in rows.table.column_names)
    except SourceError as error:
        yield path.stat().st_size, rejected(place.at(0), BadRecord("no-header", f"{error}"), None)


def _unknown(names: Sequence[str]) -> BadRecord:
    what = f"Column {', '.join(map(repr, names))} is not a field of an attempt"
    todo = "leave it out, move it into `config` as JSON, or read the file by a mapping (`leap ingest table`)"
    return BadRecord("unknown-field", f"{what}; {todo}; none of the file's rows is read.")


def _rejected_row(place: Place, bad: BadRow, may_name_user: bool) -> ReadBatch:
    record = bad.text
    if record is not None and may_name_user:
        # Which of its values is the user is not known; the hash tells one such row from another.
        digest = hashlib.sha256(record.encode()).hexdigest()
        record = f"(left out, because it may say who submitted the job; {len(record)} characters, SHA-256 {digest})"
    return rejected(place.at(bad.line), BadRecord(bad.reason, f"{bad.detail[:1].upper()}{bad.detail[1:]}"), record)


def _at_once(table: pa.Table) -> Columns:
    return {name: _convert(ATTEMPT_SCHEMA.field(name), _none_if_empty(table[name])) for name in table.column_names}


def _none_if_empty(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.if_else(pc.equal(column, ""), None, column)


def _convert(field: pa.Field, column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_boolean(field.type):
        if not pc.all(pc.is_in(column, pa.array([*_FLAGS, None], pa.string()))).as_py():
            raise BadBlock
        return pc.equal(column, "true")
    if pa.types.is_integer(field.type) or pa.types.is_floating(field.type):
        column = column.cast(pa.float64())
    return convert(field, column)


def _values_of(table: pa.Table) -> list[dict[str, Any]]:
    fields = [ATTEMPT_SCHEMA.field(name) for name in table.column_names]
    columns = [[_value(field, text) for text in table[field.name].to_pylist()] for field in fields]
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def _value(field: pa.Field, text: str) -> Any:
    """Give a value as JSON has it; text that is none of the field's type stays text, which the field refuses by name."""
    if text == "":
        return None
    if pa.types.is_boolean(field.type):
        return _FLAGS.get(text, text)
    is_number = pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
    return float(text) if is_number and _NUMBER.fullmatch(text) else text
