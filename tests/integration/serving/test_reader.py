"""The reader answers from the current snapshot, says how old it is, and never from a damaged one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from leap.contracts import RANKING_SCHEMA
from leap.params import PublishParams
from leap.serving import reader as reader_module
from leap.serving.reader import Freshness, Manifest, SnapshotCorrupt, SnapshotMissing, SnapshotReader, SnapshotUnsupported
from leap.serving.snapshot import Pointer, read_pointer
from leap.store.publisher import SnapshotFacts, publish

AT = datetime(2026, 12, 1, 2, 30, tzinfo=UTC)
FACTS = SnapshotFacts(date(2026, 11, 30), "9", "f9", "p", "d", "c", {})

Publish = Callable[..., Manifest]


@pytest.fixture
def published(tmp_path: Path) -> Path:
    return tmp_path / "published"


@pytest.fixture
def put(published: Path, tmp_path: Path) -> Publish:
    """Publish rows of (job key, rank, throughput), the bundle saying what is asked."""

    def put(*rows: tuple[str, int | None, float], at: datetime = AT, kept: int = 7, booster: str = "tree") -> Manifest:
        bundle = tmp_path / "bundle"
        bundle.mkdir(exist_ok=True)
        (bundle / "booster.txt").write_text(booster)
        table = pa.Table.from_pylist(
            [row(*values) for values in rows], schema=pa.schema([field.with_nullable(True) for field in RANKING_SCHEMA])
        )
        params = PublishParams(snapshots_kept=kept, datasets_kept=30, fresh_hours=26, stale_hours=72)
        return publish(published, tmp_path / "history", table, bundle, FACTS, generated_at=at, params=params)

    return put


@pytest.fixture
def reader(published: Path) -> SnapshotReader:
    return SnapshotReader(published)


def row(job_key: str, rank: int | None, throughput: float) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "ranking_id": "r",
        "job_key": job_key,
        "hardware_type": f"type-{rank}",
        "num_devices": 8,
        "pool": "default",
        "rank": rank,
        "throughput": throughput,
        "is_near_best": rank == 1,
        "eligible": rank is not None,
        "reason": "",
        "tier": "measured",
        "model_version": "9",
    }


def test_a_known_key_gets_its_rows_best_first(put: Publish, reader: SnapshotReader) -> None:
    manifest = put(("bert", None, 1.0), ("bert", 2, 90.0), ("bert", 1, 100.0), ("bert@8", 1, 5.0), ("ber", 1, 6.0))

    answer = reader.rank("bert", AT)

    assert answer.rows.schema.equals(RANKING_SCHEMA)
    assert answer.rows["rank"].to_pylist() == [1, 2, None]
    assert answer.rows["throughput"].to_pylist() == [100.0, 90.0, 1.0]
    assert (answer.freshness, answer.warning, answer.key_used) == (Freshness.FRESH, None, "bert")
    assert answer.manifest == manifest == reader.manifest()


def test_the_first_key_that_is_known_answers(put: Publish, reader: SnapshotReader) -> None:
    put(("bert", 1, 1.0), ("*", 1, 2.0))
    assert reader.rank_first(["nightly-bert", "bert@8", "bert", "*"], AT).key_used == "bert"
    assert reader.rank_first(["x", "*"], AT).rows["throughput"].to_pylist() == [2.0]


@pytest.mark.parametrize("key", ["x", "", "zz", "caf\udce9", "*"])
def test_an_unknown_key_gets_no_rows_and_a_sentence(put: Publish, reader: SnapshotReader, key: str) -> None:
    put(("bert", 1, 1.0), ("z", 1, 1.0))
    answer = reader.rank(key, AT)
    assert answer.rows.num_rows == 0
    assert answer.rows.schema.equals(RANKING_SCHEMA)
    assert answer.key_used is None
    assert answer.warning is not None
    assert f"has no rows for {key!r}" in answer.warning


def test_keys_are_found_across_row_groups(put: Publish, reader: SnapshotReader) -> None:
    # Keys beyond ASCII, so that bounds compare as text does; one key wide enough to lie in two groups.
    keys = [f"job-{number:05}" for number in range(9000)] + ["é", "漢", "𝄞", "~"]
    put(*((key, 1, float(number)) for number, key in enumerate(keys)), *(("job-04000", rank, -1.0) for rank in range(2, 500)))
    for number in (0, 3999, 4000, 4001, 8999, 9000, 9001, 9002, 9003):
        rows = reader.rank(keys[number], AT).rows
        assert rows["throughput"][0].as_py() == number
        assert rows.num_rows == (499 if number == 4000 else 1)


@pytest.mark.parametrize(
    ("age", "freshness", "rows", "said"),
    [
        (timedelta(0), Freshness.FRESH, 1, None),
        (timedelta(hours=26) - timedelta(microseconds=1), Freshness.FRESH, 1, None),
        (timedelta(hours=26), Freshness.STALE, 1, "is 26.0 h old: no newer one was published"),
        (timedelta(hours=72), Freshness.STALE, 1, "is 72.0 h old: no newer one was published"),
        (timedelta(hours=72, microseconds=1), Freshness.EXPIRED, 0, "is 72.0 h old, more than 72.0 h: it is ignored"),
        (timedelta(days=9), Freshness.EXPIRED, 0, "is 216.0 h old, more than 72.0 h: it is ignored; run `leap nightly`"),
        (timedelta(minutes=-4), Freshness.FRESH, 1, None),
        (timedelta(hours=-5), Freshness.FRESH, 1, "lies in the future; compare the clocks"),
    ],
)
def test_age_decides_at_26_and_72_hours(
    put: Publish, reader: SnapshotReader, age: timedelta, freshness: Freshness, rows: int, said: str | None
) -> None:
    put(("bert", 1, 1.0))
    answer = reader.rank("bert", AT + age)
    assert (answer.freshness, answer.rows.num_rows) == (freshness, rows)
    assert answer.key_used == ("bert" if rows else None)
    if said is None:
        assert answer.warning is None
    else:
        assert answer.warning is not None
        assert said in answer.warning


def test_a_time_without_offset_is_refused(put: Publish, reader: SnapshotReader) -> None:
    put(("bert", 1, 1.0))
    with pytest.raises(ValueError, match="has no offset"):
        reader.rank("bert", AT.replace(tzinfo=None))


def test_a_new_snapshot_is_picked_up_without_a_restart(put: Publish, reader: SnapshotReader) -> None:
    for version in (1.0, 2.0):
        manifest = put(("bert", 1, version), at=AT + timedelta(days=version), booster=str(version))
        assert reader.rank("bert", AT + timedelta(days=version)).rows["throughput"].to_pylist() == [version]
        assert reader.manifest() == manifest
        assert (reader.bundle() / "booster.txt").read_text() == str(version)


def test_a_snapshot_is_read_once(put: Publish, reader: SnapshotReader, published: Path) -> None:
    manifest = put(("bert", 1, 1.0))
    reader.rank("bert", AT)
    (published / "snapshots" / manifest.snapshot_id / "rankings.parquet").unlink()
    assert reader.rank("bert", AT).rows.num_rows == 1


def test_nothing_published_says_what_to_do(reader: SnapshotReader) -> None:
    with pytest.raises(SnapshotMissing, match=r"no ranking is published in .*; run `leap nightly`"):
        reader.rank("bert", AT)


@pytest.mark.parametrize("name", ["rankings.parquet", "manifest.json"])
def test_a_damaged_file_is_named_and_not_served(put: Publish, reader: SnapshotReader, published: Path, name: str) -> None:
    manifest = put(("bert", 1, 1.0))
    file = published / "snapshots" / manifest.snapshot_id / name
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    for _ in range(2):
        with pytest.raises(SnapshotCorrupt, match=rf"{manifest.snapshot_id}/{name} is damaged"):
            reader.rank("bert", AT)


def test_a_damaged_or_missing_bundle_file_is_named(put: Publish, reader: SnapshotReader, published: Path) -> None:
    file = published / "snapshots" / put(("bert", 1, 1.0)).snapshot_id / "bundle" / "booster.txt"
    file.write_text("bush")
    with pytest.raises(SnapshotCorrupt, match=r"bundle/booster\.txt is damaged"):
        reader.bundle()
    file.unlink()
    with pytest.raises(SnapshotCorrupt, match=r"bundle/booster\.txt is not there"):
        reader.bundle()
    assert reader.rank("bert", AT).rows.num_rows == 1


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"schema_version": 1}', b'{"schema_version": 1, "snapshot_id": "../x", "manifest_sha256": ""}'],
)
def test_a_damaged_pointer_is_named(put: Publish, reader: SnapshotReader, published: Path, content: bytes) -> None:
    put(("bert", 1, 1.0))
    (published / "current.json").write_bytes(content)
    with pytest.raises(SnapshotCorrupt, match=r"current\.json is damaged"):
        reader.rank("bert", AT)


@pytest.mark.parametrize("version", [2, 0, "1"])
def test_another_version_of_the_contract_is_refused(put: Publish, reader: SnapshotReader, published: Path, version: Any) -> None:
    put(("bert", 1, 1.0))
    pointer = json.loads((published / "current.json").read_text())
    (published / "current.json").write_text(json.dumps({**pointer, "schema_version": version, "renamed": 1}))
    with pytest.raises(SnapshotUnsupported, match=rf"schema_version {version}, this reader knows 1; install the release"):
        reader.rank("bert", AT)


def test_a_field_of_a_later_release_is_passed_over(put: Publish, reader: SnapshotReader, published: Path) -> None:
    put(("bert", 1, 1.0))
    pointer = json.loads((published / "current.json").read_text())
    (published / "current.json").write_text(json.dumps({**pointer, "added": 1}))
    assert reader.rank("bert", AT).rows.num_rows == 1


def test_what_is_no_file_or_nested_without_end_is_named(put: Publish, reader: SnapshotReader, published: Path) -> None:
    # given a folder where the pointer should be
    put(("bert", 1, 100.0))
    pointer = published / "current.json"
    pointer.unlink()
    pointer.mkdir()
    # then it is a sentence, and so is JSON that no parser can follow
    with pytest.raises(SnapshotCorrupt, match=r"current\.json cannot be read \(Is a directory\)"):
        reader.manifest()
    pointer.rmdir()
    pointer.write_text("[" * 100_000)
    with pytest.raises(SnapshotCorrupt, match="is not JSON with a schema_version"):
        reader.manifest()


def test_a_manifest_without_the_ranking_is_named(put: Publish, reader: SnapshotReader, published: Path) -> None:
    manifest = put(("bert", 1, 100.0))
    path = published / "snapshots" / manifest.snapshot_id / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"files": {}}))
    pointer = Pointer(snapshot_id=manifest.snapshot_id, manifest_sha256=sha256(path.read_bytes()).hexdigest())
    (published / "current.json").write_bytes(pointer.to_bytes())
    with pytest.raises(SnapshotCorrupt, match=r"does not name rankings\.parquet"):
        reader.manifest()


def test_a_pointer_to_nowhere_is_named(put: Publish, reader: SnapshotReader, published: Path) -> None:
    manifest = put(("bert", 1, 1.0))
    shutil.rmtree(published / "snapshots" / manifest.snapshot_id)
    with pytest.raises(SnapshotCorrupt, match=rf"current\.json names {manifest.snapshot_id}, but .* is not there"):
        reader.rank("bert", AT)


def test_a_snapshot_pruned_before_it_was_opened_is_not_missed(
    put: Publish, reader: SnapshotReader, published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(("bert", 1, 1.0))
    overtaken = [read_pointer(published)]
    put(("bert", 1, 2.0), at=AT + timedelta(hours=1), kept=1)

    def read_slowly(folder: Path) -> Pointer:
        return overtaken.pop() if overtaken else read_pointer(folder)

    monkeypatch.setattr(reader_module, "read_pointer", read_slowly)

    assert reader.rank("bert", AT).rows["throughput"].to_pylist() == [2.0]
    assert overtaken == []


def test_the_reader_imports_little(repository: Path) -> None:
    heavy = ("dagster", "duckdb", "great_expectations", "lightgbm", "mlflow", "pandas", "pyarrow.dataset", "rich", "yaml")
    program = f"import sys, leap.serving.reader; print([name for name in {heavy!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", program], cwd=repository, capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"
