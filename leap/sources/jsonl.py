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
import math
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from leap.contracts import ATTEMPT_SCHEMA, READ_SCHEMA, REJECT_SCHEMA, UTC_TIMESTAMP
from leap.params import IngestParams
from leap.sources import Progress, ReadBatch, SourceError, no_progress

SOURCE = "jsonl"
SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst")

BATCH_BYTES = 32 << 20  # some 50,000 lines
SMALL_BLOCK_BYTES = 32 << 10  # a block that fails and is not larger than this is read line by line
LONG_RECORD_CHARACTERS = 64 << 10  # what is kept of a line too long to be read

# Arrow's zstd stream drops what it had of a read that meets the end of a cut file: small reads drop little.
_ZSTD_READ_BYTES = 4 << 10
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_READ_ERRORS = (OSError, EOFError, zlib.error)

_KNOWN_OF_REJECT = ("attempt_id", "job_id", "model_type", "hardware_name", "num_devices", "started_at", "ended_at", "outcome")

# A map or list without further ones in it, so that it can be handed to Arrow as a string; deeper ones are read line by line.
# The quotes around the key are bare ones, so that in valid JSON it is a key and never the inside of a string.
_STRING = rb'"(?:[^"\\\n]++|\\[^\n])*+"'
_FOLDED = {
    b'"config"': re.compile(rb'\s*+:\s*+(\{[^{}"\n]*+(?:' + _STRING + rb'[^{}"\n]*+)*+\})'),
    b'"eligible_hardware"': re.compile(rb'\s*+:\s*+(\[[^\[\]"\n]*+(?:' + _STRING + rb'[^\[\]"\n]*+)*+\])'),
}

# Times outside of these are left to the line reader, because Arrow knows years that Python does not.
_EARLIEST = pa.scalar(datetime(1900, 1, 1, tzinfo=UTC), UTC_TIMESTAMP)
_LATEST = pa.scalar(datetime(9000, 1, 1, tzinfo=UTC), UTC_TIMESTAMP)


def read(paths: Sequence[Path], params: IngestParams, progress: Progress = no_progress) -> Iterator[ReadBatch]:
    """Read files of JSON lines, or folders of them, into batches of some 50,000 lines.

    A folder's files are read in the order of their names; ``slice`` is the file's name. Each line that is not blank is in
    exactly one of the two tables. Reasons of rejects: ``not-utf8``, ``not-json``, ``wrong-type``, ``unknown-field``,
    ``duplicate-field``, ``bad-time``, ``line-too-long``, ``unreadable-archive`` (line 0; what was read before it is kept).
    ``progress`` is told the file's name and bytes of all files, as stored. ``params`` plays no part: no number judges here.

    Raises SourceError where a path is missing, no such file is in a folder, or a file cannot be opened.
    """
    del params
    return _read_files(_find_files(paths), progress)


def parse(lines: bytes, name: str) -> ReadBatch:
    """Read lines that are in memory as `read` reads those of a file called `name`; line 1 is the first."""
    return _parse_block(lines, _Place(name, name, 1))


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


def _find_files(paths: Sequence[Path]) -> list[Path]:
    expected = f"expected files that end in {', '.join(SUFFIXES)}, or folders of them"
    if not paths:
        raise SourceError(f"No path of JSON lines was given; {expected}.")
    return [file for path in paths for file in _files_at(path, expected)]


def _files_at(path: Path, expected: str) -> list[Path]:
    if not path.exists():
        raise SourceError(f"{path}: there is no such file or folder; {expected}.")
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.name.endswith(SUFFIXES) and file.is_file())
        if not files:
            raise SourceError(f"{path}: this folder holds no JSON lines; {expected}.")
        return files
    if not path.name.endswith(SUFFIXES):
        raise SourceError(f"{path}: this is not known as a file of JSON lines; {expected}.")
    return [path]


def _read_files(files: Sequence[Path], progress: Progress) -> Iterator[ReadBatch]:
    total = sum(file.stat().st_size for file in files)
    before = 0
    for file in files:
        for read_bytes, batch in _read_file(file):
            progress(_text_of(file.name), before + read_bytes, total)
            yield batch
        before += file.stat().st_size
        progress(_text_of(file.name), before, total)


# Bytes to blocks of lines


class _Place(NamedTuple):
    """Where a block begins; line 0 is the file as a whole."""

    file: str
    slice: str
    line: int

    def at(self, line: int) -> _Place:
        return self._replace(line=line)


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
    place = _Place(_text_of(path.as_posix()), _text_of(path.name), 1)
    with ExitStack() as stack:
        try:
            raw = stack.enter_context(path.open("rb"))
        except OSError as error:
            raise SourceError(f"{path}: cannot be opened ({error.strerror}); check its permissions.") from error
        for piece in _pieces(_opener(path, raw, stack)):
            if piece.problem is None:
                yield raw.tell(), _parse_block(piece.data, place)
            elif isinstance(piece.problem, _LongLine):
                yield raw.tell(), _long_line(place, piece.data)
            else:
                yield raw.tell(), _broken_file(place, piece.problem, piece.data)
            place = place.at(place.line + piece.num_lines)


def _text_of(name: str) -> str:
    """Give a file's name as text that can be stored: names may hold bytes that are none."""
    return name.encode("utf-8", "replace").decode("utf-8")


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


class _BadBlock(Exception):
    """Something in this block is not as it should be; the line reader finds out what."""


class _BadLine(Exception):
    """A line is not an attempt: a code, a sentence, and what could be read of it."""

    def __init__(self, reason: str, detail: str, known: dict[str, Any] | None = None) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.known = known or {}


def _parse_block(block: bytes, place: _Place) -> ReadBatch:
    try:
        return _parse_at_once(block, place)
    except (_BadBlock, pa.ArrowException):
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


def _parse_at_once(block: bytes, place: _Place) -> ReadBatch:
    """Parse a block in which every line is good, or raise."""
    lines = _object_lines(block) + place.line
    if not len(lines):
        return ReadBatch(READ_SCHEMA.empty_table(), REJECT_SCHEMA.empty_table())
    try:
        block.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _BadBlock from error
    table = pj.read_json(
        pa.BufferReader(_fold_nested(block)),
        parse_options=pj.ParseOptions(explicit_schema=_READ_AS, newlines_in_values=False, unexpected_field_behavior="error"),
    )
    if table.num_rows != len(lines):
        raise _BadBlock
    columns = [_convert(field, table[field.name]) for field in ATTEMPT_SCHEMA]
    attempts = _with_provenance(pa.table(columns, schema=ATTEMPT_SCHEMA), pa.array(lines, pa.int64()), place)
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
        raise _BadBlock
    return filled.astype(np.int64)


def _fold_nested(block: bytes) -> bytes:
    """Turn the map `config` and the list `eligible_hardware` into strings that hold the same JSON."""
    for key, value in _FOLDED.items():
        block = b"".join(_fold(block, key, value))
    return block


def _fold(block: bytes, key: bytes, value: re.Pattern[bytes]) -> Iterator[bytes]:
    """Yield the pieces of a block with each value of a key made a string; few values differ, so each is made once."""
    strings: dict[bytes, bytes] = {}
    done = 0
    at = block.find(key)
    while at >= 0:
        match = value.match(block, at + len(key))
        if match is not None:
            found = match[1]
            if found not in strings:
                strings[found] = b'"' + found.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'
            yield block[done : match.start(1)]
            yield strings[found]
            done = match.end()
        at = block.find(key, max(done, at + len(key)))
    yield block[done:]


def _convert(field: pa.Field, column: pa.ChunkedArray) -> pa.ChunkedArray:
    if field.name in NESTED:
        return _convert_distinct(column, NESTED[field.name])
    if pa.types.is_timestamp(field.type):
        return _require(pc.cast(column, UTC_TIMESTAMP), lambda times: _between(times, _EARLIEST, _LATEST))
    if pa.types.is_integer(field.type) or pa.types.is_floating(field.type):
        return _require(column, pc.is_finite).cast(field.type)
    return column


def _between(values: pa.ChunkedArray, low: pa.Scalar, high: pa.Scalar) -> pa.ChunkedArray:
    return pc.and_(pc.greater_equal(values, low), pc.less(values, high))


def _require(column: pa.ChunkedArray, holds: Callable[[pa.ChunkedArray], pa.ChunkedArray]) -> pa.ChunkedArray:
    if pc.all(holds(column)).as_py() is False:
        raise _BadBlock
    return column


def _convert_distinct(column: pa.ChunkedArray, convert: Callable[[Any], str]) -> pa.ChunkedArray:
    """Convert each distinct text once: a fleet has far fewer settings than attempts."""
    encoded = column.combine_chunks().dictionary_encode()
    try:
        converted = pa.array([convert(text) for text in encoded.dictionary.to_pylist()], pa.string())
    except (ValueError, RecursionError) as error:
        raise _BadBlock from error
    return pa.chunked_array([converted.take(encoded.indices)])


def _with_provenance(attempts: pa.Table, lines: pa.Array, place: _Place) -> pa.Table:
    constants = [pa.repeat(pa.scalar(text), len(lines)) for text in (SOURCE, place.slice, place.file)]
    return pa.table([*constants, lines, *attempts.columns], schema=READ_SCHEMA)


# Lines to rows


def _parse_line_by_line(block: bytes, place: _Place) -> ReadBatch:
    rows: list[dict[str, Any]] = []
    lines: list[int] = []
    rejects: list[dict[str, Any]] = []
    for line, text in enumerate(block.removesuffix(b"\n").split(b"\n"), start=place.line):
        if not text.strip(b" \t\r"):
            continue
        try:
            rows.append(_parse_line(text))
            lines.append(line)
        except _BadLine as bad:
            rejects.append(_reject_row(place.at(line), bad, text.decode("utf-8", "replace")))
    attempts = _with_provenance(pa.Table.from_pylist(rows, ATTEMPT_SCHEMA), pa.array(lines, pa.int64()), place)
    return ReadBatch(attempts, pa.Table.from_pylist(rejects, REJECT_SCHEMA))


def _parse_line(text: bytes) -> dict[str, Any]:
    try:
        value = _parse_json(text.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise _BadLine("not-utf8", f"Byte {error.start + 1} of the line is not UTF-8; write the log in UTF-8.") from error
    except _BadLine:
        raise
    except (ValueError, RecursionError) as error:
        raise _BadLine("not-json", f"The line is not JSON ({error or 'nested too deep'}); write one object a line.") from error
    if not isinstance(value, dict):
        raise _BadLine("wrong-type", f"The line holds {_kind(value)}, not an object; write one object of attempt fields a line.")
    unknown = [name for name in value if name not in _FIELDS]
    if unknown:
        detail = f"Field {unknown[0]!r} is not one of an attempt; move settings of your own into `config`."
        raise _BadLine("unknown-field", detail, _known(value))
    return {name: _parse_field(name, raw, value) for name, raw in value.items()}


def _parse_field(name: str, raw: Any, record: dict[str, Any]) -> Any:
    if raw is None:
        return None
    reason = "bad-time" if _FIELDS[name] is _time and isinstance(raw, str) else "wrong-type"
    try:
        return _FIELDS[name](raw)
    except (ValueError, OverflowError, RecursionError) as error:
        raise _BadLine(reason, f"Field {name!r} is {_shown(raw)}; it must be {error}.", _known(record)) from error


def _known(record: dict[str, Any]) -> dict[str, Any]:
    known = {}
    for name in _KNOWN_OF_REJECT:
        try:
            known[name] = None if record.get(name) is None else _FIELDS[name](record[name])
        except (ValueError, OverflowError):
            known[name] = None
    return known


def _parse_json(text: str) -> Any:
    value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_without_duplicates)
    if "\\u" in text:
        _require_text(json.dumps(value, ensure_ascii=False))
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _BadLine("duplicate-field", f"Field {twice!r} stands twice in one object; which value holds is not known.")
    return record


def _require_text(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise _BadLine("not-utf8", "A string holds half of a surrogate pair; write the log in UTF-8.") from error


def _shown(value: Any) -> str:
    return _kind(value) if isinstance(value, dict | list) else json.dumps(value, ensure_ascii=False)[:200]


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "an array", str: "a string", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")


def _text(raw: Any) -> str:
    if not isinstance(raw, str):
        raise ValueError("a string")
    return raw


def _flag(raw: Any) -> bool:
    if not isinstance(raw, bool):
        raise ValueError("true or false")
    return raw


def _number(raw: Any) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        raise ValueError("a number")
    try:
        number = float(raw)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError("a finite number")
    return number


def _integer(raw: Any) -> int:
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        raise ValueError("a whole number")
    if raw != raw // 1 or not -(2**31) <= raw < 2**31:
        raise ValueError("a whole number of at most 32 bits")
    return int(raw)


def _time(raw: Any) -> datetime:
    expected = "a time in ISO 8601 with its offset from UTC, such as 2026-03-01T09:30:00Z"
    try:
        time = datetime.fromisoformat(_text(raw))
        offset = time.utcoffset()
        utc = time.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise ValueError(expected) from error
    if offset is None:
        raise ValueError(expected)
    return utc


def _settings(raw: Any) -> str:
    value = _nested(raw)
    if not isinstance(value, dict):
        raise ValueError("an object, or a string that holds one")
    return _canonical(value)


def _names(raw: Any) -> str:
    value = _nested(raw)
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValueError("an array of names of hardware types, or a string that holds one")
    return _canonical(value)


def _nested(raw: Any) -> Any:
    """Give the value of a field that may be written as JSON or as a string that holds JSON."""
    if not isinstance(raw, str):
        return raw
    try:
        return _parse_json(raw)
    except (_BadLine, ValueError, RecursionError) as error:
        raise ValueError("JSON, or a string that holds JSON") from error


def _canonical(value: Any) -> str:
    """Write JSON in one way, so that the same settings give the same content hash."""
    try:
        return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError as error:
        raise ValueError("made of finite numbers") from error


NESTED: dict[str, Callable[[Any], str]] = {"config": _settings, "eligible_hardware": _names}


def _field_parser(field: pa.Field) -> Callable[[Any], Any]:
    if field.name in NESTED:
        return NESTED[field.name]
    if pa.types.is_timestamp(field.type):
        return _time
    if pa.types.is_integer(field.type):
        return _integer
    if pa.types.is_floating(field.type):
        return _number
    return _flag if pa.types.is_boolean(field.type) else _text


_FIELDS = {field.name: _field_parser(field) for field in ATTEMPT_SCHEMA}


# Rejects


def _reject_row(place: _Place, bad: _BadLine, record: str | None) -> dict[str, Any]:
    where = f"{place.file}, line {place.line}" if place.line else place.file
    return {
        "source": SOURCE,
        "slice": place.slice,
        "file": place.file,
        "line": place.line,
        **bad.known,
        "reason": bad.reason,
        "detail": f"{where}: {bad.detail}",
        "record": record,
    }


def _one_reject(place: _Place, bad: _BadLine, record: bytes) -> ReadBatch:
    # none where nothing of it was read: two broken files are not one record that came twice
    text = record.decode("utf-8", "replace")[:LONG_RECORD_CHARACTERS] or None
    return ReadBatch(READ_SCHEMA.empty_table(), pa.Table.from_pylist([_reject_row(place, bad, text)], REJECT_SCHEMA))


def _broken_file(place: _Place, error: Exception, rest: bytes) -> ReadBatch:
    detail = f"The file cannot be read on from line {place.line} ({error}); the lines before it are kept. Fetch the file again."
    return _one_reject(place.at(0), _BadLine("unreadable-archive", detail), rest)


def _long_line(place: _Place, rest: bytes) -> ReadBatch:
    detail = f"The line is longer than {BATCH_BYTES >> 20} MiB; only its beginning is kept here. Write one object a line."
    return _one_reject(place, _BadLine("line-too-long", detail), rest)


# Attempts to lines


def _render_column(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Give ``"name":value,`` for each value, null for each null."""
    return pc.binary_join_element_wise(f'"{name}":', _render_values(name, column), ",", "")


def _render_values(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    if name in NESTED:
        return _convert_distinct(column, lambda text: _render_nested(name, text))
    if pa.types.is_timestamp(column.type):
        naive = pc.cast(column.cast(pa.timestamp("us", tz="UTC")), pa.timestamp("us")).cast(pa.string())
        return pc.binary_join_element_wise('"', pc.replace_substring(naive, " ", "T"), 'Z"', "")
    if pa.types.is_floating(column.type):
        text = column.cast(pa.string())
        return pc.if_else(pc.is_finite(column), text, pc.binary_join_element_wise('"', text, '"', ""))
    if pa.types.is_string(column.type):
        return _convert_distinct(column, lambda text: json.dumps(text, ensure_ascii=False))
    return column.cast(pa.string())


def _render_nested(name: str, text: str) -> str:
    try:
        return NESTED[name](text)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
