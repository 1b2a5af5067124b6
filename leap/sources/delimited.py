"""Comma- or tab-separated files as batches of text columns, each row with the number of the line where it begins.

What lives here: bytes to columns of text. What does not: what the columns mean (`leap.store.mapped_table`, by a mapping).

Nothing is guessed of the content: every value is text. A row with more or fewer values than the header, or with bytes that are no
text, is handed back with its line and the rest goes on. A file that ends in the middle keeps what came before.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from leap.sources import SourceError

BLOCK_BYTES = 8 << 20  # some 20,000 rows
_READ_ERRORS = (OSError, EOFError, zlib.error, pa.ArrowInvalid)
_SMALL_READ = 64 << 10
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
KEPT_CHARACTERS = 64 << 10  # of a row that cannot be read


@dataclass(frozen=True)
class BadRow:
    """A row that is none: its line (0 = the file as a whole), a reason code, a sentence, and what stands there."""

    line: int
    reason: str
    detail: str
    text: str | None


@dataclass(frozen=True)
class TextRows:
    """Rows of text columns, the line of each, those that could not be read, and how many stored bytes were read so far."""

    table: pa.Table
    line: npt.NDArray[np.int64]
    bad: list[BadRow]
    read_bytes: int


def read_delimited(path: Path, delimiter: str, encoding: str, block_bytes: int = BLOCK_BYTES) -> Iterator[TextRows]:
    """Read a file with a header (plain, gzip or zstd by its name) into batches of columns of text.

    Raises SourceError where the file cannot be opened or has no header of distinct names.
    """
    with ExitStack() as stack:
        try:
            raw = stack.enter_context(path.open("rb"))
        except OSError as error:
            raise SourceError(f"{path}: cannot be opened ({error.strerror}); check its permissions.") from error
        stream = _WholeLines(decompressed(path, raw, stack), is_utf8=encoding.lower().replace("-", "") == "utf8")
        head = stream.head(block_bytes, encoding)
        names = _names(path, head, delimiter)
        yield from _batches(stream, names, delimiter, encoding, block_bytes, raw)
        if stream.error is not None:
            detail = f"The file cannot be read to its end ({stream.error}); the rows before that are kept. Fetch it again."
            yield TextRows(_no_rows(names), np.empty(0, np.int64), [BadRow(0, "unreadable-archive", detail, None)], raw.tell())


def decompressed(path: Path, raw: IO[bytes], stack: ExitStack) -> Any:
    """Give the content of an open file, by the ending of its name."""
    if path.name.endswith(".gz"):
        return stack.enter_context(gzip.GzipFile(fileobj=raw))
    if path.name.endswith(".zst"):
        return stack.enter_context(pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd"))
    return raw


class _WholeLines(io.RawIOBase):
    """A stream that ends after its last whole line where reading it fails, and says why in `error`.

    Of UTF-8, bytes that are none come as U+FFFD, and `not_utf8` has the lines that held such, as far as they were read.
    """

    def __init__(self, source: Any, is_utf8: bool) -> None:
        super().__init__()
        self._source = source
        self._is_utf8 = is_utf8
        self._line = 1
        self.not_utf8: list[int] = []
        self._ready = b""
        self._pending = b""
        self._is_done = False
        self.error: Exception | None = None

    def readable(self) -> bool:
        return True

    def head(self, size: int, encoding: str) -> str:
        """Give the first line without taking it; quoted names may hold line breaks, so all of a block is looked at."""
        while len(self._ready) < size and not self._is_done:
            self._fill()
        self._ready = self._ready.removeprefix(_BYTE_ORDER_MARK)
        return self._ready[:size].decode(encoding, "replace")

    def read(self, size: int = -1) -> bytes:
        while not self._is_done and (size < 0 or len(self._ready) < size):
            self._fill()
        size = len(self._ready) if size < 0 else size
        taken, self._ready = self._ready[:size], self._ready[size:]
        return taken

    def _fill(self) -> None:
        try:
            data = self._source.read(_SMALL_READ)
        except _READ_ERRORS as error:
            self.error, self._is_done, self._pending = error, True, b""
            return
        if not data:
            self._is_done = True
            self._ready += self._as_utf8(self._pending)
            self._pending = b""
            return
        whole, newline, rest = (self._pending + data).rpartition(b"\n")
        self._ready += self._as_utf8(whole + newline)
        self._pending = rest

    def _as_utf8(self, lines: bytes) -> bytes:
        """Mend lines, because the parser hands back no refused row that is not UTF-8 and stops at it."""
        if not self._is_utf8:
            return lines
        try:
            lines.decode("utf-8")
        except UnicodeDecodeError:
            lines = b"\n".join(self._mended(self._line + at, line) for at, line in enumerate(lines.split(b"\n")))
        self._line += lines.count(b"\n")
        return lines

    def _mended(self, number: int, line: bytes) -> bytes:
        mended = line.decode("utf-8", "replace").encode()
        if mended != line:
            self.not_utf8.append(number)
        return mended


def _names(path: Path, head: str, delimiter: str) -> list[str]:
    try:
        names = next(csv.reader(io.StringIO(head), delimiter=delimiter), [])
    except csv.Error as error:
        raise SourceError(f"{path}: its first line is no header ({error}); expected names of columns.") from error
    names = [name.strip() for name in names]
    twice = sorted({name for name in names if names.count(name) > 1})
    if not any(names) or twice:
        what = f"{', '.join(twice)} stands twice" if twice else "there is none"
        raise SourceError(f"{path}: its first line must be a header of distinct names; {what}.")
    return names


def _no_rows(names: Sequence[str]) -> pa.Table:
    return pa.schema([pa.field(name, pa.string()) for name in names]).empty_table()


@dataclass
class _Invalid:
    """Rows that the parser refuses, by their number: 1 is the header."""

    rows: dict[int, tuple[int, str]] = field(default_factory=dict)

    def __call__(self, row: Any) -> str:
        self.rows[int(row.number)] = (int(row.actual_columns), str(row.text))
        return "skip"


def _batches(
    stream: _WholeLines, names: list[str], delimiter: str, encoding: str, block_bytes: int, raw: IO[bytes]
) -> Iterator[TextRows]:
    invalid = _Invalid()
    options = {
        "read_options": pyarrow.csv.ReadOptions(
            use_threads=False, block_size=block_bytes, column_names=names, skip_rows=0, encoding=encoding
        ),
        "parse_options": pyarrow.csv.ParseOptions(
            delimiter=delimiter, newlines_in_values=True, ignore_empty_lines=False, invalid_row_handler=invalid
        ),
        "convert_options": pyarrow.csv.ConvertOptions(
            column_types={name: pa.string() for name in names}, strings_can_be_null=False
        ),
    }
    lines = _Lines(invalid)
    try:
        reader = pyarrow.csv.open_csv(stream, **options)
        for batch in reader:
            line, last, told = lines.of(batch)
            table = pa.Table.from_batches([batch])
            is_bad = _holds_any(line, last, stream.not_utf8)
            keep = ~is_bad
            if line.size and line[0] == 1:  # the header
                keep[0] = is_bad[0] = False
            keep &= ~_blank(table)
            yield TextRows(
                table.filter(pa.array(keep)),
                line[keep],
                [*_ragged(told, len(names)), *_not_utf8(table.filter(pa.array(is_bad)), line[is_bad], delimiter)],
                raw.tell(),
            )
    except (pa.ArrowInvalid, UnicodeError) as error:
        reason = "not-utf8" if isinstance(error, UnicodeError) else "not-csv"
        detail = f"The file cannot be read on from line {lines.next_line} ({error}); the rows before it are kept."
        yield TextRows(_no_rows(names), np.empty(0, np.int64), [BadRow(0, reason, detail, None)], raw.tell())
        return
    rest = lines.rest()
    if rest:
        yield TextRows(_no_rows(names), np.empty(0, np.int64), _ragged(rest, len(names)), raw.tell())


def _blank(table: pa.Table) -> npt.NDArray[np.bool_]:
    """Tell which rows hold nothing at all: blank lines, and lines of delimiters alone, are no records."""
    blank = np.ones(table.num_rows, dtype=bool)
    for column in table.columns:
        blank &= pc.equal(column, "").to_numpy()
    return blank


class _Lines:
    """Gives rows their lines: a row begins after the one before it, and holds as many breaks as its values do."""

    def __init__(self, invalid: _Invalid) -> None:
        self._invalid = invalid
        self._number = 0  # of the last row that was given its line
        self.next_line = 1

    def of(self, batch: pa.RecordBatch) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], list[tuple[int, int, str]]]:
        """Give first and last line of each row, and line, number of values and text of the refused ones among and before."""
        breaks = np.zeros(batch.num_rows, dtype=np.int64)
        for column in batch.columns:
            breaks += pc.fill_null(pc.count_substring(column, "\n"), 0).to_numpy(zero_copy_only=False)
        refused: list[tuple[int, int, str]] = []
        line = np.empty(batch.num_rows, dtype=np.int64)
        done = 0
        while done < batch.num_rows:
            self._pass_refused(refused)
            # All rows up to the next refused one follow each other.
            ahead = min((number for number in self._invalid.rows if number > self._number), default=None)
            count = batch.num_rows - done
            if ahead is not None:
                count = min(count, ahead - self._number - 1)
            some = slice(done, done + count)
            ends = self.next_line + np.cumsum(breaks[some] + 1)
            line[some] = ends - breaks[some] - 1
            self.next_line = int(ends[-1])
            self._number += count
            done += count
        return line, line + breaks, refused

    def rest(self) -> list[tuple[int, int, str]]:
        """Give the refused rows after the last good one."""
        refused: list[tuple[int, int, str]] = []
        self._pass_refused(refused)
        return refused

    def _pass_refused(self, refused: list[tuple[int, int, str]]) -> None:
        while self._number + 1 in self._invalid.rows:
            self._number += 1
            count, text = self._invalid.rows.pop(self._number)
            refused.append((self.next_line, count, text))
            self.next_line += 1 + text.rstrip("\r\n").count("\n")


def _ragged(refused: Sequence[tuple[int, int, str]], expected: int) -> list[BadRow]:
    return [
        BadRow(
            line, "ragged-row", f"the row has {count} values and the header {expected}; is a delimiter in a value not quoted?",
            text[:KEPT_CHARACTERS],
        )
        for line, count, text in refused
        if text.strip()  # a blank line is no record
    ]  # fmt: skip


def _holds_any(first: npt.NDArray[np.int64], last: npt.NDArray[np.int64], numbers: Sequence[int]) -> npt.NDArray[np.bool_]:
    """Tell which of the rows from `first` to `last` line hold any of the lines, which are in order."""
    lines = np.asarray(numbers, dtype=np.int64)
    return np.searchsorted(lines, first, side="left") < np.searchsorted(lines, last, side="right")


def _not_utf8(table: pa.Table, line: npt.NDArray[np.int64], delimiter: str) -> list[BadRow]:
    detail = "the row holds bytes that are no UTF-8 (here U+FFFD); write the file in UTF-8, or name its encoding in a mapping"
    texts = [delimiter.join(row.values()) for row in table.to_pylist()]
    return [BadRow(int(at), "not-utf8", detail, text[:KEPT_CHARACTERS]) for at, text in zip(line, texts, strict=True)]
