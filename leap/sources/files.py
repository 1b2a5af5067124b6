"""What readers of the canonical attempt log share: finding files, telling progress, and where a record stands.

What lives here: paths to files, rejects with their place. What does not: the content of any format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, NamedTuple

import pyarrow as pa

from leap.contracts import READ_SCHEMA, REJECT_SCHEMA
from leap.sources import Progress, ReadBatch, SourceError
from leap.sources.fields import BadRecord

LONG_RECORD_CHARACTERS = 64 << 10  # what is kept of a record too long to be read


class Kind(NamedTuple):
    """A kind of log: what `source` says, what a person calls it, how the names of its files end."""

    source: str
    called: str
    suffixes: tuple[str, ...]


class Place(NamedTuple):
    """Where a block of records of a kind of log begins; line 0 is the file as a whole."""

    source: str
    file: str
    slice: str
    line: int

    def at(self, line: int) -> Place:
        """Give another line of the same file."""
        return self._replace(line=line)


def find_files(paths: Sequence[Path], kind: Kind) -> list[Path]:
    """Give the files of a kind, those of a folder in the order of their names. Raises SourceError."""
    expected = f"expected files that end in {', '.join(kind.suffixes)}, or folders of them"
    if not paths:
        raise SourceError(f"No path of {kind.called} was given; {expected}.")
    return [file for path in paths for file in _files_at(path, kind, expected)]


def _files_at(path: Path, kind: Kind, expected: str) -> list[Path]:
    if not path.exists():
        raise SourceError(f"{path}: there is no such file or folder; {expected}.")
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.name.endswith(kind.suffixes) and file.is_file())
        if not files:
            raise SourceError(f"{path}: this folder holds no {kind.called}; {expected}.")
        return files
    if not path.name.endswith(kind.suffixes):
        raise SourceError(f"{path}: this is not known as a file of {kind.called}; {expected}.")
    return [path]


def read_files(
    files: Sequence[Path], read_file: Callable[[Path], Iterator[tuple[int, ReadBatch]]], progress: Progress
) -> Iterator[ReadBatch]:
    """Read one file after the other; `read_file` yields how many stored bytes of it were read so far, and a batch."""
    total = sum(file.stat().st_size for file in files)
    before = 0
    for file in files:
        for read_bytes, batch in read_file(file):
            progress(text_of(file.name), before + read_bytes, total)
            yield batch
        before += file.stat().st_size
        progress(text_of(file.name), before, total)


def open_file(path: Path, stack: ExitStack) -> IO[bytes]:
    """Open a file until the stack ends. Raises SourceError."""
    try:
        return stack.enter_context(path.open("rb"))
    except OSError as error:
        raise SourceError(f"{path}: cannot be opened ({error.strerror}); check its permissions.") from error


def place_of(path: Path, kind: Kind) -> Place:
    """Give the place of a file's first line."""
    return Place(kind.source, text_of(path.as_posix()), text_of(path.name), 1)


def text_of(name: str) -> str:
    """Give a file's name as text that can be stored: names may hold bytes that are none."""
    return name.encode("utf-8", "replace").decode("utf-8")


def reject_row(place: Place, bad: BadRecord, record: str | None) -> dict[str, Any]:
    """Give a row of `REJECT_SCHEMA`; `record` is what stands in the file."""
    where = f"{place.file}, line {place.line}" if place.line else place.file
    return {
        "source": place.source,
        "slice": place.slice,
        "file": place.file,
        "line": place.line,
        **bad.known,
        "reason": bad.reason,
        "detail": f"{where}: {bad.detail}",
        "record": record,
    }


def rejected(place: Place, bad: BadRecord, record: str | None) -> ReadBatch:
    """Give a batch of one reject."""
    # none where nothing of it was read: two broken files are not one record that came twice
    text = record[:LONG_RECORD_CHARACTERS] if record else None
    return ReadBatch(READ_SCHEMA.empty_table(), pa.Table.from_pylist([reject_row(place, bad, text)], REJECT_SCHEMA))


def broken_file(place: Place, error: object, record: str | None = None) -> ReadBatch:
    """Give the reject of a file that cannot be read to its end; `place` is where what could be read ended."""
    detail = f"The file cannot be read on from line {place.line} ({error}); the lines before it are kept. Fetch the file again."
    return rejected(place.at(0), BadRecord("unreadable-archive", detail), record)


def with_provenance(attempts: pa.Table, lines: pa.Array, place: Place) -> pa.Table:
    """Give a table of `READ_SCHEMA` from one of `ATTEMPT_SCHEMA` and the line of each row."""
    constants = [pa.repeat(pa.scalar(text), len(lines)) for text in (place.source, place.slice, place.file)]
    return pa.table([*constants, lines, *attempts.columns], schema=READ_SCHEMA)
