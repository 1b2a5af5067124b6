"""Answers from the published ranking: which hardware for this job key, and whether the answer may still be used.

What lives here: following the pointer to the current snapshot, checking it once, and finding a job key's rows in it. What does
not: scoring a job that no row covers (`scorer.py`), and the snapshot's layout (`snapshot.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from leap.contracts import RANKING_SCHEMA
from leap.serving.snapshot import (
    BUNDLE,
    MANIFEST,
    POINTER,
    RANKINGS,
    REMEDY,
    SNAPSHOTS,
    Freshness,
    Manifest,
    Pointer,
    SnapshotCorrupt,
    SnapshotError,
    SnapshotMissing,
    SnapshotUnsupported,
    read_checked,
    read_pointer,
)

__all__ = [
    "Answer",
    "Freshness",
    "Manifest",
    "Snapshot",
    "SnapshotCorrupt",
    "SnapshotError",
    "SnapshotMissing",
    "SnapshotReader",
    "SnapshotUnsupported",
]

# How often to follow the pointer while it moves on: a snapshot can be pruned between reading the pointer and opening it.
_ATTEMPTS = 5


@dataclass(frozen=True)
class Answer:
    """What the published ranking says of a job key.

    `rows` are RANKING_SCHEMA rows of one job key, best first; none where no key is known or the snapshot has expired.
    `warning` is a sentence wherever the rows are not to be used without a thought, or are missing.
    """

    rows: pa.Table
    manifest: Manifest
    freshness: Freshness
    warning: str | None
    key_used: str | None


class SnapshotReader:
    """Reads the folder `published`; follows each new snapshot without a restart. May be shared by threads.

    Every method raises SnapshotMissing, SnapshotCorrupt or SnapshotUnsupported where there is no snapshot to answer from. Each
    call looks for the newest one: take `current()` where several answers must come from the same.
    """

    def __init__(self, published: Path) -> None:
        self._published = published
        self._snapshot: Snapshot | None = None

    def current(self) -> Snapshot:
        """Give the current snapshot; read from disk when it is a new one."""
        pointer = read_pointer(self._published)
        for _ in range(_ATTEMPTS):
            held = self._snapshot
            if held is not None and held.pointer == pointer:
                return held
            try:
                self._snapshot = snapshot = Snapshot.load(self._published, pointer)
            except FileNotFoundError as error:
                missing = error.filename
            else:
                return snapshot
            again = read_pointer(self._published)
            if again == pointer:
                break
            pointer = again
        raise SnapshotCorrupt(f"{self._published / POINTER} names {pointer.snapshot_id}, but {missing} is not there; {REMEDY}")

    def manifest(self) -> Manifest:
        """Give the manifest of the current snapshot."""
        return self.current().manifest

    def bundle(self) -> Path:
        """Give the folder of the current snapshot's scorer bundle, each file of it checked."""
        return self.current().bundle()

    def rank(self, job_key: str, now: datetime) -> Answer:
        """Give the rows of `job_key` as of `now` (with an offset)."""
        return self.current().rank_first([job_key], now)

    def rank_first(self, job_keys: Sequence[str], now: datetime) -> Answer:
        """Give the rows of the first of `job_keys` that the ranking knows."""
        return self.current().rank_first(job_keys, now)


class Snapshot:
    """A snapshot whose ranking was checked. Its content is held as stored; rows are decoded when asked for.

    Its answers stay what they are when it is no longer the current one; its bundle stays for as long as snapshots are kept.
    """

    def __init__(self, pointer: Pointer, folder: Path, manifest: Manifest, rankings: bytes) -> None:
        self.pointer = pointer
        self.folder = folder
        self.manifest = manifest
        self._rankings = pa.py_buffer(rankings)
        self._metadata = pq.read_metadata(pa.BufferReader(self._rankings))
        self._bounds = _bounds(self._metadata)
        self._is_bundle_checked = False

    @classmethod
    def load(cls, published: Path, pointer: Pointer) -> Snapshot:
        """Read the snapshot that `pointer` names. Raises SnapshotCorrupt, SnapshotUnsupported, FileNotFoundError."""
        folder = published / SNAPSHOTS / pointer.snapshot_id
        path = folder / MANIFEST
        manifest = Manifest.parse(read_checked(path, pointer.manifest_sha256), path)
        if RANKINGS not in manifest.files:
            raise SnapshotCorrupt(f"{path} is damaged: it does not name {RANKINGS}; {REMEDY}")
        return cls(pointer, folder, manifest, read_checked(folder / RANKINGS, manifest.files[RANKINGS].sha256))

    def rank_first(self, job_keys: Sequence[str], now: datetime) -> Answer:
        """Give the rows of the first of `job_keys` that the ranking knows, as of `now` (with an offset)."""
        freshness, warning = self.manifest.freshness(now)
        if freshness is not Freshness.EXPIRED:
            for job_key in job_keys:
                rows = self._rows_of(job_key)
                if rows.num_rows:
                    return Answer(rows, self.manifest, freshness, warning, job_key)
            warning = f"the ranking {self.manifest.snapshot_id} has no rows for {' or '.join(map(repr, job_keys))}"
        return Answer(RANKING_SCHEMA.empty_table(), self.manifest, freshness, warning, None)

    def bundle(self) -> Path:
        """Give the folder of the scorer's bundle; every file of it is compared with the manifest, once."""
        if not self._is_bundle_checked:
            for name, entry in self.manifest.files.items():
                if name.startswith(f"{BUNDLE}/"):
                    self._check(name, entry.sha256)
            self._is_bundle_checked = True
        return self.folder / BUNDLE

    def _check(self, name: str, expected: str) -> None:
        try:
            read_checked(self.folder / name, expected)
        except FileNotFoundError:
            raise SnapshotCorrupt(f"{self.folder / name} is not there, though the manifest names it; {REMEDY}") from None

    def _rows_of(self, job_key: str) -> pa.Table:
        """Give the rows of `job_key` from the row groups whose bounds hold it."""
        groups = [group for group, bounds in enumerate(self._bounds) if bounds is None or bounds[0] <= job_key <= bounds[1]]
        if not groups or not _is_text(job_key):
            return RANKING_SCHEMA.empty_table()
        file = pq.ParquetFile(pa.BufferReader(self._rankings), metadata=self._metadata)
        rows = file.read_row_groups(groups, columns=RANKING_SCHEMA.names, use_threads=False)
        return rows.filter(pc.equal(rows["job_key"], job_key)).cast(RANKING_SCHEMA)


def _bounds(metadata: pq.FileMetaData) -> list[tuple[str, str] | None]:
    """Give the least and greatest job key of each row group; None where the file does not say."""
    column = metadata.schema.to_arrow_schema().get_field_index("job_key")
    statistics = [metadata.row_group(group).column(column).statistics for group in range(metadata.num_row_groups)]
    return [(found.min, found.max) if found is not None and found.has_min_max else None for found in statistics]


def _is_text(job_key: str) -> bool:
    """Tell whether the key is Unicode text: a name with stray bytes, as from a command line, is in no ranking."""
    try:
        job_key.encode()
    except UnicodeEncodeError:
        return False
    return True
