"""Where MLPerf Training results lie: checkouts and tar archives, and what the path of a file in them says.

What lives here: finding sources, streaming their wanted files, parsing paths. What does not: the content of any file
(`mlperf_log.py`, `mlperf_systems.py`).

The layout is that of the public repositories `training_results_vX.Y` of github.com/mlcommons:
``<submitter>/results/<system>/<benchmark>/result_<n>.txt`` and ``<submitter>/systems/<system>.json``; other files are passed
over.
"""

from __future__ import annotations

import io
import lzma
import os
import re
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final, NamedTuple

from leap.sources import SourceError
from leap.sources.mlperf_log import as_text

LAYOUT: Final = "<submitter>/results/<system>/<benchmark>/result_<n>.txt beside <submitter>/systems/<system>.json"
ARCHIVE_SUFFIXES: Final = (".tar", ".tar.xz", ".txz", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2")

# What reading a damaged archive may raise, at a member's header or in the middle of its content.
READ_ERRORS: Final = (OSError, EOFError, tarfile.TarError, lzma.LZMAError, zlib.error)

_END_OF_TAR: Final = b"\0" * tarfile.BLOCKSIZE
_LARGEST_RUN_NUMBER: Final = 9_999

_RESULT_NAME = re.compile(r"result_.*\.txt")
_ROUND = re.compile(r"(?<![A-Za-z0-9])(v\d+\.\d+)")


class SystemPath(NamedTuple):
    """What the path of a system description says; `top` is the repository's own folder in an archive, else empty."""

    top: str
    submitter: str
    system: str


class ResultPath(NamedTuple):
    """What the path of a result file says."""

    round: str
    at: SystemPath
    benchmark: str
    stem: str

    @property
    def attempt_id(self) -> str:
        """The run's name, unique over all rounds."""
        return "/".join((self.round, self.at.submitter, self.at.system, self.benchmark, self.stem))

    @property
    def job_id(self) -> str:
        """The job's name, the same for all runs of one submission."""
        return "/".join((self.at.submitter, self.at.system, self.benchmark, self.round))

    @property
    def slice(self) -> str:
        """What counts are reconciled by."""
        return f"{self.round}/{self.benchmark}"

    @property
    def attempt_number(self) -> int | None:
        """The number in the file's name, from 1: the last one, or the first where the last is a time or an id."""
        numbers = [int(digits) for digits in re.findall(r"\d+", self.stem)]
        return next((number + 1 for number in (*numbers[-1:], *numbers[:1]) if number <= _LARGEST_RUN_NUMBER), None)


class SourceFile(NamedTuple):
    """A wanted file of a source: how it is called in reports, what its path says, and its bytes."""

    name: str
    path: SystemPath | ResultPath
    content: IO[bytes]


def find_sources(path: Path) -> list[Path]:
    """Return the checkouts and archives that `path` is or holds, in the order of their names.

    Raises SourceError where it is missing, is another kind of file, is empty, or holds neither.
    """
    if path.is_file():
        if not path.name.endswith(ARCHIVE_SUFFIXES):
            raise SourceError(f"{path}: neither a folder nor an archive ({', '.join(ARCHIVE_SUFFIXES)})")
        return [path]
    if not path.is_dir():
        raise SourceError(f"{path}: no such file or folder")
    if _is_checkout(path):
        return [path.absolute()]
    entries = sorted(path.iterdir())
    if not entries:
        raise SourceError(f"{path}: the folder is empty; expected {LAYOUT}, or archives of that")
    sources = [each for each in entries if _is_checkout(each) or (each.is_file() and each.name.endswith(ARCHIVE_SUFFIXES))]
    if not sources:
        raise SourceError(f"{path}: no results in it; expected {LAYOUT}, or archives of that")
    return sources


def stream_files(source: Path) -> Iterator[SourceFile]:
    """Give the wanted files of a checkout, or of an archive in its own order; nothing is unpacked.

    The content of a file is to be read before the next is asked for. Raises READ_ERRORS where an archive is damaged or cut, and
    so may reading a content.
    """
    return _of_folder(source) if source.is_dir() else _of_archive(source)


def round_of(*names: str) -> str:
    """Return the round (`v3.0`) that the first of `names` has in it, or the last name without its suffix where none has."""
    found = (match[1] for name in names if (match := _ROUND.search(name)))
    return next(found, names[-1].split(".tar")[0])


def _is_checkout(path: Path) -> bool:
    return path.is_dir() and any(each.is_dir() for each in path.glob("*/results"))


def _of_folder(root: Path) -> Iterator[SourceFile]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        for name in sorted(names):
            below = (Path(folder) / name).relative_to(root).as_posix()
            path = _parse(below, root.name)
            if path is not None:
                with _open(root / below) as content:
                    yield SourceFile(f"{root.name}/{as_text(below)}", path, content)


def _open(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except OSError:  # a link to nowhere, no permission: the run or system is then reported as unreadable, the rest goes on
        return io.BytesIO()


def _of_archive(archive: Path) -> Iterator[SourceFile]:
    with tarfile.open(archive, "r:*") as tar:
        for member in tar:
            path = _parse(member.name, archive.name) if member.isfile() else None
            content = tar.extractfile(member) if path is not None else None
            if path is not None and content is not None:
                yield SourceFile(f"{archive.name}!/{as_text(member.name)}", path, content)
        # tarfile takes a damaged or missing header for the end; a whole archive ends in two empty blocks.
        if tar.fileobj is None or tar.fileobj.read(tarfile.BLOCKSIZE) != _END_OF_TAR:
            raise tarfile.ReadError("it ends without its end mark")


def _parse(path: str, source_name: str) -> SystemPath | ResultPath | None:
    parts = tuple(part for part in as_text(path).split("/") if part not in ("", "."))
    if 3 <= len(parts) <= 4 and parts[-2] == "systems" and parts[-1].endswith(".json"):
        return SystemPath("/".join(parts[:-3]), parts[-3], parts[-1].removesuffix(".json"))
    at = next((index for index in (1, 2) if len(parts) > index + 3 and parts[index] == "results"), None)
    if at is None or not _RESULT_NAME.fullmatch(parts[-1]):
        return None
    return ResultPath(
        round=round_of(*parts[: at - 1], source_name),
        at=SystemPath("/".join(parts[: at - 1]), parts[at - 1], parts[at + 1]),
        benchmark=parts[-2],  # one submitter has a folder more between system and benchmark
        stem=parts[-1].removesuffix(".txt"),
    )
