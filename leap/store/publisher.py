"""Publishing: a ranking and its scorer's bundle become an immutable snapshot, then the one that is served.

What lives here: the order of effects that keeps the old snapshot served, whole, until the new one is on disk; the history of
published rows; pruning. What does not: the snapshot's layout (`leap.serving.snapshot`), and whether to publish at all.

Order: snapshot folder under another name, flushed, renamed; pointer replaced; rows to the history; old snapshots removed. A
publisher that dies on the way leaves at most an unserved folder, which the next one removes, and a row file that the next adds.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import JsonValue

from leap.contracts import RANKING_SCHEMA, RANKING_SCHEMA_VERSION, UTC_TIMESTAMP
from leap.params import PublishParams
from leap.serving.snapshot import (
    BUNDLE,
    MANIFEST,
    POINTER,
    RANKINGS,
    SNAPSHOTS,
    Manifest,
    Pointer,
    SnapshotError,
    describe_file,
    read_pointer,
)
from leap.store.files import (
    copy_atomic,
    exclusive,
    files_below,
    finished,
    remove_folder,
    remove_unfinished,
    staged_folder,
    write_atomic,
)

_LOCK = "publish.lock"
_GRAIN = ("job_key", "hardware_type", "num_devices", "pool")
_ORDER = [(name, "ascending") for name in ("job_key", "rank", "hardware_type", "num_devices", "pool")]
_PUBLISHED_TIMES = ("generated_at", "valid_until")
# Nulls are let in here and refused by `_check`, which names their columns.
_CONTENT_SCHEMA = pa.schema([field.with_nullable(True) for field in RANKING_SCHEMA if field.name not in _PUBLISHED_TIMES])
# Small groups, so that a reader decodes little for one job key.
_ROWS_PER_GROUP = 4096
_SNAPSHOT_ID = re.compile(r"\d{4}-\d\d-\d\dT(?P<generated>\d{8}T\d{6}Z)-[0-9a-f]{12}(-(?P<repeat>\d+))?")


class PublishError(RuntimeError):
    """The ranking cannot be published; the message says what is wrong with it. What was published stays."""


@dataclass(frozen=True)
class SnapshotFacts:
    """What a snapshot was made from; goes into its manifest."""

    night: date
    model_version: str
    fingerprint: str
    price_version: str
    dataset_id: str
    code_version: str
    coverage: Mapping[str, JsonValue]

    @property
    def cut(self) -> datetime:
        """The time up to which facts were used."""
        return datetime.combine(self.night, time(), UTC)


def publish(
    published: Path,
    history: Path,
    rows: pa.Table,
    bundle: Path,
    facts: SnapshotFacts,
    *,
    generated_at: datetime,
    params: PublishParams,
) -> Manifest:
    """Publish `rows` and `bundle` as the current snapshot, and give its manifest.

    Args:
        published: the folder of snapshots and pointer.
        history: rows go to `rankings/date=<night>/<snapshot_id>.parquet` below it.
        rows: RANKING_SCHEMA, in any order; `generated_at` and `valid_until` are filled here and may be null or absent.
        bundle: the folder that `leap.serving.scorer.Scorer` loads; copied.
        facts: what the ranking was made from.
        generated_at: the time of publishing, with an offset; staleness counts from it.
        params: how many snapshots stay, and how long one may be used.

    Raises PublishError where rows or bundle do not keep the contract.
    """
    if generated_at.tzinfo is None:
        raise PublishError(f"generated_at {generated_at.isoformat()} has no offset; give an aware time in UTC")
    content = _content(rows)
    _check(content, bundle)
    snapshots = published / SNAPSHOTS
    snapshots.mkdir(parents=True, exist_ok=True)
    history.mkdir(parents=True, exist_ok=True)
    with exclusive(published / _LOCK):
        remove_unfinished(snapshots)
        remove_unfinished(history)
        manifest = _describe(content, facts, generated_at.astimezone(UTC), params)
        previous = _served(published)
        if previous is not None:
            _append_history(history, snapshots / previous)
        names = {"snapshot_id": _unused(manifest.snapshot_id, snapshots, history), "previous_snapshot_id": previous}
        manifest = manifest.model_copy(update=names)
        with staged_folder(snapshots / manifest.snapshot_id) as folder:
            manifest = _write(folder, content, bundle, manifest)
        pointer = Pointer(snapshot_id=manifest.snapshot_id, manifest_sha256=describe_file(manifest.to_bytes()).sha256)
        write_atomic(published / POINTER, pointer.to_bytes())
        _append_history(history, snapshots / manifest.snapshot_id)
        _prune(snapshots, params.snapshots_kept, manifest.snapshot_id)
    return manifest


def rankings_hash(rows: pa.Table) -> str:
    """Hash RANKING_SCHEMA rows by content: SHA-256, whatever their order and encoding, without the two times of publishing."""
    return _hash(_content(rows))


def _content(rows: pa.Table) -> pa.Table:
    """Give the rows in their one order, with exactly the columns and types that the hash covers."""
    absent = [name for name in _CONTENT_SCHEMA.names if name not in rows.column_names]
    unknown = [name for name in rows.column_names if name not in RANKING_SCHEMA.names]
    if absent or unknown:
        raise PublishError(f"the ranking has not the columns of the contract: missing {absent}, unknown {unknown}")
    try:
        return rows.select(_CONTENT_SCHEMA.names).cast(_CONTENT_SCHEMA).sort_by(_ORDER)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise PublishError(f"the ranking has not the types of the contract: {error}") from error


def _check(content: pa.Table, bundle: Path) -> None:
    if not content.num_rows:
        raise PublishError("the ranking has no rows: nothing to publish")
    empty = [name for name in content.column_names if not RANKING_SCHEMA.field(name).nullable and content[name].null_count]
    if empty:
        raise PublishError(f"the ranking has nulls in {empty}, which the contract does not allow")
    if pc.any(pc.not_equal(content["schema_version"], RANKING_SCHEMA_VERSION)).as_py():
        raise PublishError(f"the ranking has rows of another schema_version than {RANKING_SCHEMA_VERSION}")
    counts = content.group_by(list(_GRAIN)).aggregate([([], "count_all")])
    repeated = counts.filter(pc.greater(counts["count_all"], 1)).slice(0, 1).to_pylist()
    if repeated:
        named = ", ".join(f"{name} {repeated[0][name]!r}" for name in _GRAIN)
        raise PublishError(f"the ranking has {repeated[0]['count_all']} rows for {named}; the contract allows one")
    if not bundle.is_dir() or not files_below(bundle):
        raise PublishError(f"{bundle}: no bundle there; a snapshot needs the files that the scorer loads")


def _describe(content: pa.Table, facts: SnapshotFacts, generated_at: datetime, params: PublishParams) -> Manifest:
    """Make the manifest, as far as it follows from what is published and when."""
    digest = _hash(content)
    return Manifest(
        snapshot_id=f"{facts.night.isoformat()}T{generated_at:%Y%m%dT%H%M%SZ}-{digest[:12]}",
        previous_snapshot_id=None,
        night=facts.night,
        cut=facts.cut,
        generated_at=generated_at,
        fresh_until=generated_at + timedelta(hours=params.fresh_hours),
        valid_until=generated_at + timedelta(hours=params.stale_hours),
        row_count=content.num_rows,
        job_key_count=pc.count_distinct(content["job_key"]).as_py(),
        rankings_hash=digest,
        model_version=facts.model_version,
        fingerprint=facts.fingerprint,
        price_version=facts.price_version,
        dataset_id=facts.dataset_id,
        code_version=facts.code_version,
        coverage=facts.coverage,
        files={},
    )


def _unused(wanted: str, snapshots: Path, history: Path) -> str:
    """Give `wanted`, with a number behind it where the same content was published within the same second."""
    snapshot_id, repeat = wanted, 1
    while (snapshots / snapshot_id).exists() or _history_file(history, snapshot_id).exists():
        repeat += 1
        snapshot_id = f"{wanted}-{repeat}"
    return snapshot_id


def _write(folder: Path, content: pa.Table, bundle: Path, manifest: Manifest) -> Manifest:
    """Fill the snapshot's folder, and give the manifest as written."""
    times = {"generated_at": manifest.generated_at, "valid_until": manifest.valid_until}
    columns = [
        pa.repeat(pa.scalar(times[field.name], UTC_TIMESTAMP), content.num_rows) if field.name in times else content[field.name]
        for field in RANKING_SCHEMA
    ]
    table = pa.table(columns, schema=RANKING_SCHEMA)
    pq.write_table(table, folder / RANKINGS, compression="zstd", row_group_size=_ROWS_PER_GROUP)
    for source in files_below(bundle):
        target = folder / BUNDLE / source.relative_to(bundle)
        target.parent.mkdir(parents=True, exist_ok=True)
        # Content only: a bundle made in a private scratch folder must be readable by the scheduler's user.
        shutil.copyfile(source, target)
    files = {path.relative_to(folder).as_posix(): describe_file(path.read_bytes()) for path in files_below(folder)}
    manifest = manifest.model_copy(update={"files": files})
    (folder / MANIFEST).write_bytes(manifest.to_bytes())
    return manifest


def _served(published: Path) -> str | None:
    """Give the id of the snapshot served so far; None where there is none, or none that can be read: publishing mends that."""
    try:
        snapshot_id = read_pointer(published).snapshot_id
    except SnapshotError:
        return None
    return snapshot_id if (published / SNAPSHOTS / snapshot_id / RANKINGS).is_file() else None


def _history_file(history: Path, snapshot_id: str) -> Path:
    night = snapshot_id.partition("T")[0]
    return history / "rankings" / f"date={night}" / f"{snapshot_id}.parquet"


def _append_history(history: Path, snapshot: Path) -> None:
    """Add a served snapshot's rows to the history, unless they are there: whoever published it may have died before this."""
    target = _history_file(history, snapshot.name)
    if not target.exists():
        copy_atomic(snapshot / RANKINGS, target, staging=history)


def _prune(snapshots: Path, kept: int, served: str) -> None:
    """Remove all but the last `kept` snapshots, never the served one; folders that are no snapshots stay."""
    others = {
        folder: (match["generated"], int(match["repeat"] or 1))
        for folder in finished(snapshots)
        if folder.name != served and (match := _SNAPSHOT_ID.fullmatch(folder.name))
    }
    newest_first = sorted(others, key=lambda folder: (others[folder], folder.name), reverse=True)
    for folder in newest_first[kept - 1 :]:
        remove_folder(folder)


def _hash(content: pa.Table) -> str:
    digest = sha256()
    for field in _CONTENT_SCHEMA:
        column = content[field.name].combine_chunks()
        digest.update(f"{field.name} {field.type} {len(column)}\n".encode())
        digest.update(_bytes(column.is_valid()))
        digest.update(_bytes(column))
    return digest.hexdigest()


def _bytes(column: pa.Array) -> bytes:
    """Give the values of a column as bytes that depend on nothing else: nulls as zero, one NaN, one zero, little-endian."""
    if pa.types.is_string(column.type):
        filled = pc.fill_null(column, "")
        everything = pa.ListArray.from_arrays([0, len(filled)], filled)
        return _bytes(pc.binary_length(filled)) + bytes(pc.binary_join(everything, "")[0].as_buffer())
    if pa.types.is_boolean(column.type):
        return _bytes(pc.fill_null(column, False).cast(pa.int32()))
    if pa.types.is_floating(column.type):
        values = pc.fill_null(column, 0.0).to_numpy() + 0.0
        return np.where(np.isnan(values), np.nan, values).astype("<f8").tobytes()
    return bytes(pc.fill_null(column, 0).to_numpy().astype("<i8").tobytes())
