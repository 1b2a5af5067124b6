"""Files that land in the folders of the night's sources: which of them hold something that was not there before.

What lives here: finding new content among files. What does not: reading it (`leap.store.ingest`), and when anyone looks
(`pipelines/sensors.py`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from leap.sources.readers import SUFFIXES

# A file that was written to within so many seconds may still be written to.
SETTLED_SECONDS = 30.0
# What a writer calls a file that is not done, beside names that begin with a dot.
_UNDONE = (".tmp", ".part", ".partial", ".crdownload", "~")


@dataclass(frozen=True)
class Seen:
    """A file as it was when it was looked at: bytes, time of the last write in nanoseconds, and the SHA-256 of its content."""

    size: int
    modified: int
    content: str


@dataclass(frozen=True)
class Landed:
    """A file with content that no file had before."""

    kind: str
    path: Path
    content: str


def look(
    sources: Sequence[tuple[str, Path]], before: Mapping[str, Seen], contents: set[str], now: float
) -> tuple[list[Landed], dict[str, Seen]]:
    """Give the files with new content, by the order of their names, and what to remember of all files for the next look.

    `sources` are kinds of log with a folder or a file each; folders are not searched deeper. `before` is what the last look gave
    by path, `contents` every SHA-256 ever taken, `now` the time in seconds since 1970. A file that is as it was is not read; one
    written to within `SETTLED_SECONDS` waits for the next look; one that cannot be read is passed over.
    """
    new, remembered, taken = list[Landed](), dict[str, Seen](), set(contents)
    for kind, place in sources:
        for path in _files(kind, place):
            seen = _look_at(path, before.get(str(path)), now)
            if seen is None:
                continue
            remembered[str(path)] = seen
            if seen.content not in taken:
                taken.add(seen.content)
                new.append(Landed(kind, path, seen.content))
    return new, remembered


def to_text(remembered: Mapping[str, Seen], contents: set[str]) -> str:
    """Write what a look leaves for the next one as JSON."""
    files = {path: asdict(seen) for path, seen in sorted(remembered.items())}
    return json.dumps({"files": files, "contents": sorted(contents)}, separators=(",", ":"))


def from_text(text: str | None) -> tuple[dict[str, Seen], set[str]]:
    """Read what `to_text` wrote; nothing where there is none."""
    if not text:
        return {}, set()
    kept = json.loads(text)
    return {path: Seen(**seen) for path, seen in kept["files"].items()}, set(kept["contents"])


def _files(kind: str, place: Path) -> list[Path]:
    files = sorted(place.iterdir()) if place.is_dir() else [place]
    suffixes = SUFFIXES.get(kind, ("",))
    return [
        path
        for path in files
        if path.is_file() and path.name.endswith(suffixes) and not path.name.startswith(".") and not path.name.endswith(_UNDONE)
    ]


def _look_at(path: Path, before: Seen | None, now: float) -> Seen | None:
    try:
        stat = path.stat()
        if before is not None and (before.size, before.modified) == (stat.st_size, stat.st_mtime_ns):
            return before
        if now - stat.st_mtime < SETTLED_SECONDS:
            return before  # as it was known; None for a new one
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return before
    return Seen(stat.st_size, stat.st_mtime_ns, content)
