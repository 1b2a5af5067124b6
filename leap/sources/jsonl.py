"""LEAP's own log format: JSON lines, one object per attempt and constant segment, with the fields of `ATTEMPT_SCHEMA`.

What lives here: reading such files (plain, gzip, zstd) into attempts and rejects, and `render`, the inverse: attempts as lines.
What does not: whether an attempt makes sense (`leap.sources.admission`), duplicates and storage (`leap.store.warehouse`).

A line is read in one of two ways that give the same values. Blocks of lines go through Arrow's JSON parser at once; Arrow
stops at the first bad line without saying which, so a block that fails is halved until what fails is small, and only that is
read line by line, which finds the bad lines with their reasons and keeps the good ones. What Arrow lets pass but this format
does not (NaN, times without an offset, two objects on a line) is checked on whole columns and sends the block the same way.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from leap.contracts import ATTEMPT_SCHEMA, READ_SCHEMA, REJECT_SCHEMA
from leap.params import IngestParams
from leap.sources import Progress, ReadBatch, no_progress
from leap.sources.columns import BadBlock, convert, convert_distinct
from leap.sources.fields import NESTED, BadRecord, kind_of, parse_json, parse_record
from leap.sources.files import (
    Kind,
    Place,
    broken_file,
    find_files,
    open_file,
    place_of,
    read_files,
    reject_row,
    rejected,
    with_provenance,
)

SOURCE = "jsonl"
SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
KIND = Kind(SOURCE, "JSON lines", SUFFIXES)

BATCH_BYTES = 32 << 20  # some 50,000 lines
SMALL_BLOCK_BYTES = 32 << 10  # a block that fails and is not larger than this is read line by line

# Arrow's zstd stream drops what it had of a read that meets the end of a cut file: small reads drop little.
_ZSTD_READ_BYTES = 4 << 10
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_READ_ERRORS = (OSError, EOFError, zlib.error)

# A map or list without further ones in it, so that it can be handed to Arrow as a string; deeper ones are read line by line.
# The quotes around the key are bare ones, so that in valid JSON it is a key and never the inside of a string.
_STRING = rb'"(?:[^"\\\n]++|\\[^\n])*+"'
_FOLDED = (
    re.compile(rb'("config"\s*+:\s*+)(\{[^{}"\n]*+(?:' + _STRING + rb'[^{}"\n]*+)*+\})'),
    re.compile(rb'("eligible_hardware"\s*+:\s*+)(\[[^\[\]"\n]*+(?:' + _STRING + rb'[^\[\]"\n]*+)*+\])'),
)


def read(paths: Sequence[Path], params: IngestParams, progress: Progress = no_progress) -> Iterator[ReadBatch]:
    """Read files of JSON lines, or folders of them, into batches of some 50,000 lines.

    A folder's files are read in the order of their names; ``slice`` is the file's name. Each line that is not blank is in
    exactly one of the two tables. Reasons of rejects: ``not-utf8``, ``not-json``, ``wrong-type``, ``unknown-field``,
    ``duplicate-field``, ``bad-time``, ``line-too-long``, ``unreadable-archive`` (line 0; what was read before it is kept).
    ``progress`` is told the file's name and bytes of all files, as stored. ``params`` plays no part: no number judges here.

    Raises SourceError where a path is missing, no such file is in a folder, or a file cannot be opened.
    """
    del params
    return read_files(find_files(paths, KIND), _read_file, progress)


def parse(lines: bytes, name: str) -> ReadBatch:
    """Read lines that are in memory as `read` reads those of a file called `name`; line 1 is the first."""
    return _parse_block(lines, Place(SOURCE, name, name, 1))


def render(attempts: pa.Table) -> pa.ChunkedArray:
    """Give each row of `attempts` as the JSON object that `read` reads back.

    Any columns of `ATTEMPT_SCHEMA` will do, others are passed over; nulls are left out. A number that JSON does not know (NaN,
    infinity) becomes a string, which `read` rejects.
    """
    parts = [_render_column(field.name, attempts[field.name]) for field in ATTEMPT_SCHEMA if field.name in attempts.column_names]
    # Each part ends in a comma: Arrow's join with null_handling="skip" loses rows in which all is null.
    start = pa.chunked_array([pa.repeat("{", attempts.num_rows)])
    joined = pc.binary_join_element_wise(start, *parts, "", null_handling="replace", null_replacement="")
    return pc.binary_join_element_wise(pc.utf8_rtrim(joined, ","), "}", "")


# Bytes to blocks of lines


class _Chunk(NamedTuple):
    """Bytes taken from a stream; ``error`` is why there are no more, where that is not the end."""

    data: bytes
    is_last: bool
    error: Exception | None = None


class _Piece(NamedTuple):
    """Whole lines, or (with a problem) what no lines can be made of, and how many lines it stands for."""

    data: bytes
    num_lines: int
    problem: Exception | None = None


class _LongLine(Exception):
    """A line is longer than a batch."""


def _read_file(path: Path) -> Iterator[tuple[int, ReadBatch]]:
    """Yield how many stored bytes were read so far, and a batch."""
    place = place_of(path, KIND)
    with ExitStack() as stack:
        raw = open_file(path, stack)
        for piece in _pieces(_opener(path, raw, stack)):
            if piece.problem is None:
                yield raw.tell(), _parse_block(piece.data, place)
            elif isinstance(piece.problem, _LongLine):
                yield raw.tell(), _long_line(place, piece.data)
            else:
                yield raw.tell(), broken_file(place, piece.problem, piece.data.decode("utf-8", "replace"))
            place = place.at(place.line + piece.num_lines)


def _pieces(take: Callable[[int], bytes]) -> Iterator[_Piece]:
    chunk = _take(take, BATCH_BYTES)
    data = chunk.data.removeprefix(_BYTE_ORDER_MARK)
    while True:
        end = len(data) if chunk.is_last and chunk.error is None else data.rfind(b"\n") + 1
        block, data = data[:end], data[end:]
        if block:
            yield _Piece(block, block.count(b"\n"))
        if chunk.error is not None:
            yield _Piece(data, 0, chunk.error)
        if chunk.is_last:
            return
        is_long = len(data) >= BATCH_BYTES
        if is_long:
            yield _Piece(data, 1, _LongLine())
        chunk = _take_after_newline(take) if is_long else _take(take, BATCH_BYTES)
        data = chunk.data if is_long else data + chunk.data


def _take_after_newline(take: Callable[[int], bytes]) -> _Chunk:
    """Pass over what is left of a line."""
    while True:
        chunk = _take(take, BATCH_BYTES)
        _, newline, data = chunk.data.partition(b"\n")
        if newline or chunk.is_last:
            return chunk._replace(data=data)


def _opener(path: Path, raw: Any, stack: ExitStack) -> Callable[[int], bytes]:
    """Give a function that reads some bytes, at most as many as asked, and none at the end."""
    if path.name.endswith(".gz"):
        return stack.enter_context(gzip.GzipFile(fileobj=raw)).read1
    if path.name.endswith(".zst"):
        stream = stack.enter_context(pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd"))
        return lambda size: stream.read(min(size, _ZSTD_READ_BYTES))
    read_plain: Callable[[int], bytes] = raw.read
    return read_plain


def _take(take: Callable[[int], bytes], size: int) -> _Chunk:
    parts: list[bytes] = []
    missing = size
    while missing > 0:
        try:
            part = take(missing)
        except _READ_ERRORS as error:
            return _Chunk(b"".join(parts), True, error)
        if not part:
            return _Chunk(b"".join(parts), True)
        parts.append(part)
        missing -= len(part)
    return _Chunk(b"".join(parts), False)


# Blocks to tables


def _parse_block(block: bytes, place: Place) -> ReadBatch:
    try:
        return _parse_at_once(block, place)
    except (BadBlock, pa.ArrowException):
        pass
    middle = block.find(b"\n", len(block) // 2) + 1
    if len(block) <= SMALL_BLOCK_BYTES or middle in (0, len(block)):
        return _parse_line_by_line(block, place)
    first = _parse_block(block[:middle], place)
    second = _parse_block(block[middle:], place.at(place.line + block.count(b"\n", 0, middle)))
    return ReadBatch(*(pa.concat_tables(pair) for pair in zip(first, second, strict=True)))


_READ_AS = pa.schema(
    [
        # Whole numbers come as doubles, so that 8 and 8.0 are one thing. Times come as strings: Arrow's JSON parser
        # takes a time without an offset for UTC, its cast from strings does not.
        pa.field(field.name, pa.float64())
        if pa.types.is_integer(field.type)
        else pa.field(field.name, pa.string())
        if pa.types.is_timestamp(field.type)
        else field
        for field in ATTEMPT_SCHEMA
    ]
)


def _parse_at_once(block: bytes, place: Place) -> ReadBatch:
    """Parse a block in which every line is good, or raise."""
    lines = _object_lines(block) + place.line
    if not len(lines):
        return ReadBatch(READ_SCHEMA.empty_table(), REJECT_SCHEMA.empty_table())
    try:
        block.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadBlock from error
    table = pj.read_json(
        pa.BufferReader(_fold_nested(block)),
        parse_options=pj.ParseOptions(explicit_schema=_READ_AS, newlines_in_values=False, unexpected_field_behavior="error"),
    )
    if table.num_rows != len(lines):
        raise BadBlock
    columns = [convert(field, table[field.name]) for field in ATTEMPT_SCHEMA]
    attempts = with_provenance(pa.table(columns, schema=ATTEMPT_SCHEMA), pa.array(lines, pa.int64()), place)
    return ReadBatch(attempts, REJECT_SCHEMA.empty_table())


def _object_lines(block: bytes) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Give the offsets (0 = the first) of lines that are not blank, where each begins with ``{`` and ends with ``}``.

    With as many objects as such lines, each line is one object: no object can go on in a line that begins with ``{``.
    """
    text = np.frombuffer(block, dtype=np.uint8)
    ends = np.flatnonzero(text == ord("\n"))
    if not block.endswith(b"\n"):
        ends = np.append(ends, len(block))
    starts = np.concatenate(([0], ends[:-1] + 1))
    ends = ends - ((ends > starts) & (text[ends - 1] == ord("\r")))
    filled = np.flatnonzero(ends > starts)
    if np.any(text[starts[filled]] != ord("{")) or np.any(text[ends[filled] - 1] != ord("}")):
        raise BadBlock
    return filled.astype(np.int64)


def _fold_nested(block: bytes) -> bytes:
    """Turn the map `config` and the list `eligible_hardware` into strings that hold the same JSON."""
    for nested in _FOLDED:
        # What stands between two values, the key with its colon, the value; and so on.
        parts = nested.split(block)
        if len(parts) > 1:
            strings = _Strings()
            parts[2::3] = [strings[value] for value in parts[2::3]]
            block = b"".join(parts)
    return block


class _Strings(dict[bytes, bytes]):
    """JSON text as a JSON string that holds it; few values differ, so each is made once."""

    def __missing__(self, value: bytes) -> bytes:
        self[value] = string = b'"' + value.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'
        return string


# Lines to rows


def _parse_line_by_line(block: bytes, place: Place) -> ReadBatch:
    rows: list[dict[str, Any]] = []
    lines: list[int] = []
    rejects: list[dict[str, Any]] = []
    for line, text in enumerate(block.removesuffix(b"\n").split(b"\n"), start=place.line):
        if not text.strip(b" \t\r"):
            continue
        try:
            rows.append(_parse_line(text))
            lines.append(line)
        except BadRecord as bad:
            rejects.append(reject_row(place.at(line), bad, text.decode("utf-8", "replace")))
    attempts = with_provenance(pa.Table.from_pylist(rows, ATTEMPT_SCHEMA), pa.array(lines, pa.int64()), place)
    return ReadBatch(attempts, pa.Table.from_pylist(rejects, REJECT_SCHEMA))


def _parse_line(text: bytes) -> dict[str, Any]:
    try:
        value = parse_json(text.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise BadRecord("not-utf8", f"Byte {error.start + 1} of the line is not UTF-8; write the log in UTF-8.") from error
    except BadRecord:
        raise
    except (ValueError, RecursionError) as error:
        raise BadRecord("not-json", f"The line is not JSON ({error or 'nested too deep'}); write one object a line.") from error
    if not isinstance(value, dict):
        raise BadRecord(
            "wrong-type", f"The line holds {kind_of(value)}, not an object; write one object of attempt fields a line."
        )
    return parse_record(value)


def _long_line(place: Place, rest: bytes) -> ReadBatch:
    detail = f"The line is longer than {BATCH_BYTES >> 20} MiB; only its beginning is kept here. Write one object a line."
    return rejected(place, BadRecord("line-too-long", detail), rest.decode("utf-8", "replace"))


# Attempts to lines


def _render_column(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Give ``"name":value,`` for each value, null for each null."""
    return pc.binary_join_element_wise(f'"{name}":', _render_values(name, column), ",", "")


def _render_values(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    if name in NESTED:
        return convert_distinct(column, lambda text: _render_nested(name, text))
    if pa.types.is_timestamp(column.type):
        naive = pc.cast(column.cast(pa.timestamp("us", tz="UTC")), pa.timestamp("us")).cast(pa.string())
        return pc.binary_join_element_wise('"', pc.replace_substring(naive, " ", "T"), 'Z"', "")
    if pa.types.is_floating(column.type):
        text = column.cast(pa.string())
        return pc.if_else(pc.is_finite(column), text, pc.binary_join_element_wise('"', text, '"', ""))
    if pa.types.is_string(column.type):
        return convert_distinct(column, lambda text: json.dumps(text, ensure_ascii=False))
    return column.cast(pa.string())


def _render_nested(name: str, text: str) -> str:
    try:
        return NESTED[name](text)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
