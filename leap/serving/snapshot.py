"""A published snapshot on disk: the names of its files, its manifest, and the pointer to the current one.

What lives here: what the publisher writes and the reader reads, and how old is too old. What does not: writing it
(`leap.store.publisher`), finding and serving it (`reader.py`).

    published/current.json                  {"schema_version", "snapshot_id", "manifest_sha256"}, replaced atomically
    published/snapshots/<snapshot_id>/      never changed once it has that name
        manifest.json  rankings.parquet  bundle/
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, JsonValue, ValidationError

from leap.contracts import RANKING_SCHEMA_VERSION

POINTER = "current.json"
SNAPSHOTS = "snapshots"
MANIFEST = "manifest.json"
RANKINGS = "rankings.parquet"
BUNDLE = "bundle"

_SNAPSHOT_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]*")
_CLOCK_TOLERANCE = timedelta(minutes=5)


class SnapshotError(RuntimeError):
    """The published ranking cannot be read; the message names the file, the reason and what to do."""


class SnapshotMissing(SnapshotError):
    """Nothing has been published yet."""


class SnapshotCorrupt(SnapshotError):
    """A file is damaged, or is not the one that the manifest names."""


class SnapshotUnsupported(SnapshotError):
    """The snapshot follows a version of the contract that this reader does not know."""


class Freshness(StrEnum):
    """Whether a snapshot is young enough to act on."""

    FRESH = "fresh"
    STALE = "stale"  # use, and warn
    EXPIRED = "expired"  # ignore


class _Stored(BaseModel):
    """A frozen record that is read from a file; a field of a later release is passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    schema_version: int = RANKING_SCHEMA_VERSION

    @classmethod
    def parse(cls, data: bytes, path: Path) -> Self:
        """Read the record from `data`, the content of `path`. Raises SnapshotCorrupt, SnapshotUnsupported."""
        try:
            values = json.loads(data)
            version = values["schema_version"]
        except (ValueError, TypeError, KeyError, RecursionError):
            raise SnapshotCorrupt(f"{path} is damaged: it is not JSON with a schema_version; {REMEDY}") from None
        if version != RANKING_SCHEMA_VERSION:
            raise SnapshotUnsupported(
                f"{path} has schema_version {version}, this reader knows {RANKING_SCHEMA_VERSION}; "
                "install the release of leap-fleet that published it"
            )
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            fields = ", ".join(".".join(str(part) for part in problem["loc"]) for problem in error.errors())
            raise SnapshotCorrupt(f"{path} is damaged: {fields} is missing or wrong; {REMEDY}") from None

    def to_bytes(self) -> bytes:
        """Give the record as JSON."""
        return self.model_dump_json(indent=1).encode() + b"\n"


class Pointer(_Stored):
    """Which snapshot is current."""

    snapshot_id: str
    manifest_sha256: str


class FileEntry(BaseModel):
    """What a file must be."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    sha256: str
    bytes: Annotated[int, Field(ge=0)]


class Manifest(_Stored):
    """What a snapshot holds, what it was made from, and until when it may be used."""

    snapshot_id: str
    previous_snapshot_id: str | None
    night: date
    cut: AwareDatetime
    generated_at: AwareDatetime
    fresh_until: AwareDatetime
    valid_until: AwareDatetime
    row_count: int
    job_key_count: int
    rankings_hash: str
    model_version: str
    fingerprint: str
    price_version: str
    dataset_id: str
    code_version: str
    coverage: Mapping[str, JsonValue]
    files: Mapping[str, FileEntry]

    def freshness(self, now: datetime) -> tuple[Freshness, str | None]:
        """Say whether the snapshot may be acted on at `now` (with an offset), and a sentence where there is more to say.

        Up to `fresh_until` (not included) it is fresh, up to `valid_until` (included) stale, later expired.
        """
        if now.tzinfo is None:
            raise ValueError(f"the time {now.isoformat()} has no offset; give an aware time in UTC")
        name = f"the ranking {self.snapshot_id}, generated at {self.generated_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC,"
        age = f"is {_hours(now - self.generated_at)} old"
        if now > self.valid_until:
            limit = _hours(self.valid_until - self.generated_at)
            return Freshness.EXPIRED, f"{name} {age}, more than {limit}: it is ignored; {REMEDY}"
        if now >= self.fresh_until:
            return Freshness.STALE, f"{name} {age}: no newer one was published; see why the last `leap nightly` published none"
        if self.generated_at - now > _CLOCK_TOLERANCE:
            return Freshness.FRESH, f"{name} lies in the future; compare the clocks of this machine and the publisher's"
        return Freshness.FRESH, None


REMEDY = "run `leap nightly` to publish another"


def describe_file(data: bytes) -> FileEntry:
    """Say what a file with the content `data` is."""
    return FileEntry(sha256=sha256(data).hexdigest(), bytes=len(data))


def read_pointer(published: Path) -> Pointer:
    """Read which snapshot of the folder `published` is current. Raises SnapshotError."""
    path = published / POINTER
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise SnapshotMissing(
            f"no ranking is published in {published}: no {POINTER}; run `leap nightly`, or see that LEAP_HOME is right"
        ) from None
    except OSError as error:
        raise _unreadable(path, error) from None
    pointer = Pointer.parse(data, path)
    if not _SNAPSHOT_ID.fullmatch(pointer.snapshot_id):
        raise SnapshotCorrupt(f"{path} is damaged: {pointer.snapshot_id!r} is no snapshot id; {REMEDY}")
    return pointer


def read_checked(path: Path, expected: str) -> bytes:
    """Read the file `path`, whose content must have the SHA-256 `expected`. Raises SnapshotCorrupt, FileNotFoundError."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _unreadable(path, error) from None
    if sha256(data).hexdigest() != expected:
        raise SnapshotCorrupt(f"{path} is damaged: its content is not what was published (SHA-256 differs); {REMEDY}")
    return data


def _unreadable(path: Path, error: OSError) -> SnapshotCorrupt:
    return SnapshotCorrupt(f"{path} cannot be read ({error.strerror}); see that it is a file and that its permissions are right")


def _hours(duration: timedelta) -> str:
    return f"{duration / timedelta(hours=1):.1f} h"
