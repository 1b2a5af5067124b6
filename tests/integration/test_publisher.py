"""What is published is whole and checked, or the snapshot before it still is, wherever the publisher died."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leap.contracts import RANKING_SCHEMA
from leap.params import PublishParams
from leap.serving.snapshot import Manifest, read_pointer
from leap.store.publisher import PublishError, SnapshotFacts, publish, rankings_hash

NIGHT = date(2026, 11, 30)
AT = datetime(2026, 12, 1, 2, 30, 0, 123456, tzinfo=UTC)
PARAMS = PublishParams(snapshots_kept=7, datasets_kept=30, fresh_hours=26, stale_hours=72)
FACTS = SnapshotFacts(
    night=NIGHT,
    model_version="9",
    fingerprint="f9",
    price_version="list@2026-11-01",
    dataset_id="2026-11-30-0123456789ab",
    code_version="410c31b",
    coverage={"job_keys": 2, "measured_share": 0.5},
)

Publish = Callable[..., Manifest]
Run = Callable[..., "subprocess.Popen[str]"]

# Shared by the programs below: publishes rows that all say `version`, with a bundle that says the same.
_PUBLISHING = """
import os, signal, sys
from datetime import UTC, date, datetime
from pathlib import Path
import pyarrow as pa
from leap.contracts import RANKING_SCHEMA
from leap.params import PublishParams
from leap.serving.reader import SnapshotReader
from leap.store.publisher import SnapshotFacts, publish

root = Path(sys.argv[1])
ROWS = 300

def publish_version(version, kept=7):
    (root / "bundle").mkdir(exist_ok=True)
    (root / "bundle" / "booster.txt").write_text(str(version))
    row = {"schema_version": 1, "ranking_id": "r", "hardware_type": "h100-sxm5-80gb", "num_devices": 8, "pool": "default",
           "rank": 1, "throughput": float(version), "is_near_best": True, "eligible": True, "reason": "", "tier": "measured",
           "model_version": str(version)}
    fields = [field.with_nullable(True) for field in RANKING_SCHEMA]
    rows = pa.Table.from_pylist([row | {"job_key": f"job-{number}"} for number in range(ROWS)], schema=pa.schema(fields))
    facts = SnapshotFacts(date(2026, 11, 30), str(version), "f", "p", "d", "c", {})
    return publish(root / "published", root / "history", rows, root / "bundle", facts, generated_at=datetime.now(UTC),
                   params=PublishParams(snapshots_kept=kept, datasets_kept=30, fresh_hours=26, stale_hours=72))

def seen(reader, with_bundle=True):
    "The version served: manifest, rows and (unless it may be pruned meanwhile) bundle agree."
    snapshot = reader.current()
    keys = (f"job-{number}" for number in (0, ROWS - 1))
    rows = pa.concat_tables([snapshot.rank_first([key], datetime.now(UTC)).rows for key in keys])
    versions = {float(snapshot.manifest.model_version), *rows["throughput"].to_pylist()}
    if with_bundle:
        versions.add(float((snapshot.bundle() / "booster.txt").read_text()))
    assert (rows.num_rows, snapshot.manifest.row_count, len(versions)) == (2, ROWS, 1), (rows.num_rows, versions)
    return int(versions.pop())
"""

# Starts publishers that publish for ever, and kills each at a random point once it has published; then waits for the watcher.
_KILL = """
import random, time
kills, kept = map(int, sys.argv[2:])
publish_version(1, kept)
began = time.monotonic()
publish_version(2, kept)
duration = time.monotonic() - began
print("ready", flush=True)
sys.stdin.readline()
chance, driver = random.Random(20260), os.getpid()
served = lambda: SnapshotReader(root / "published").manifest().model_version
for number in range(1, kills + 1):
    version, before = 1000 * number, served()
    child = os.fork()
    while not child and os.getppid() == driver:
        publish_version(version, kept)
        version += 1
    if not child:
        os._exit(0)
    while served() == before:
        time.sleep(0.001)
    time.sleep(duration * chance.uniform(0, 3))
    os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -9
    while (root / "seen").read_text() != served():
        time.sleep(0.001)
"""

# Watches with one reader that lives on and with a new one each time; ends with the number of versions seen.
_WATCH = """
until, kept = Path(sys.argv[2]), int(sys.argv[3])
lasting, versions = SnapshotReader(root / "published"), []
(root / "seen").touch()
print("ready", flush=True)
while not until.exists():
    for reader in (lasting, SnapshotReader(root / "published")):
        versions.append(seen(reader, with_bundle=kept > 1))
    (root / "seen").write_text(str(versions[-1]))
assert versions == sorted(versions)
print(len(set(versions)))
"""

# Version 1 is published; then, for each n, a child publishes version 2 and kills itself at its n-th effect.
_EVERY_EFFECT = """
import json, shutil

def kill_at(nth):
    left = [nth]
    def counted(call):
        def effect(*arguments, **options):
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **options)
        return effect
    effects = ((os, "fsync"), (os, "rename"), (os, "replace"), (os, "mkdir"), (shutil, "copyfile"), (shutil, "rmtree"))
    for module, name in effects:
        setattr(module, name, counted(getattr(module, name)))

publish_version(1)
nth, status, base = 0, -9, root
while status:
    nth += 1
    root = base / str(nth)
    root.mkdir()
    shutil.copytree(base / "published", root / "published")
    shutil.copytree(base / "history", root / "history")
    child = os.fork()
    if not child:
        kill_at(nth)
        publish_version(2, kept=1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    after_death = seen(SnapshotReader(root / "published"))
    publish_version(3, kept=1)
    snapshots = os.listdir(root / "published" / "snapshots")
    history = sorted(path.name for path in (root / "history").rglob("*") if path.is_file())
    print(json.dumps([status, after_death, seen(SnapshotReader(root / "published")), snapshots, history]))
"""


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "bundle"
    folder.mkdir()
    (folder / "booster.txt").write_text("tree")
    (folder / "encoder.json").write_text("{}")
    folder.chmod(0o700)
    return folder


@pytest.fixture
def published(tmp_path: Path) -> Path:
    return tmp_path / "published"


@pytest.fixture
def history(tmp_path: Path) -> Path:
    return tmp_path / "history"


@pytest.fixture
def put(published: Path, history: Path, bundle: Path) -> Publish:
    """Publish rows, with what a test does not care about filled in."""

    def put(rows: pa.Table, *, at: datetime = AT, facts: SnapshotFacts = FACTS, params: PublishParams = PARAMS) -> Manifest:
        return publish(published, history, rows, bundle, facts, generated_at=at, params=params)

    return put


@pytest.fixture
def run(repository: Path) -> Iterator[Run]:
    """Start a publishing program in a process of its own, which is gone after the test."""
    processes: list[subprocess.Popen[str]] = []

    def run(program: str, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-W", "ignore", "-c", _PUBLISHING + program, *map(str, arguments)]
        processes.append(subprocess.Popen(command, cwd=repository, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return processes[-1]

    yield run
    for process in processes:
        process.kill()
        process.communicate()


def row(job_key: str, rank: int | None, **values: Any) -> dict[str, Any]:
    filled = {
        "schema_version": 1,
        "ranking_id": f"{job_key}-{rank}",
        "job_key": job_key,
        "hardware_type": f"type-{rank}",
        "num_devices": 8,
        "pool": "default",
        "rank": rank,
        "throughput": 100.0,
        "is_near_best": rank == 1,
        "eligible": rank is not None,
        "reason": "",
        "tier": "measured",
        "model_version": "9",
    }
    return filled | values


def ranking(*rows: dict[str, Any]) -> pa.Table:
    """As the ranking step gives it: the times of publishing are null."""
    return pa.Table.from_pylist(list(rows), schema=pa.schema([field.with_nullable(True) for field in RANKING_SCHEMA]))


TWO_JOBS = ranking(row("b", 1), row("a", None), row("a", 2), row("a", 1))


def snapshots(published: Path) -> list[str]:
    return sorted(path.name for path in (published / "snapshots").iterdir())


def test_a_snapshot_holds_the_rows_in_order_with_the_times_of_publishing(put: Publish, published: Path) -> None:
    manifest = put(TWO_JOBS)

    table = pq.read_table(published / "snapshots" / manifest.snapshot_id / "rankings.parquet")
    assert table.schema.equals(RANKING_SCHEMA)
    assert list(zip(table["job_key"].to_pylist(), table["rank"].to_pylist(), strict=True)) == [
        ("a", 1),
        ("a", 2),
        ("a", None),
        ("b", 1),
    ]
    assert set(table["generated_at"].to_pylist()) == {AT}
    assert set(table["valid_until"].to_pylist()) == {AT + timedelta(hours=72)}


def test_the_manifest_says_what_was_published_and_from_what(put: Publish, published: Path) -> None:
    put(ranking(row("a", 1)))
    manifest = put(TWO_JOBS, at=AT + timedelta(days=1))

    folder = published / "snapshots" / manifest.snapshot_id
    stored = json.loads((folder / "manifest.json").read_text())
    assert manifest.snapshot_id == f"2026-11-30T20261202T023000Z-{rankings_hash(TWO_JOBS)[:12]}"
    assert Manifest.parse((folder / "manifest.json").read_bytes(), folder) == manifest
    assert {name: stored[name] for name in stored if name not in ("files", "previous_snapshot_id", "snapshot_id")} == {
        "schema_version": 1,
        "night": "2026-11-30",
        "cut": "2026-11-30T00:00:00Z",
        "generated_at": "2026-12-02T02:30:00.123456Z",
        "fresh_until": "2026-12-03T04:30:00.123456Z",
        "valid_until": "2026-12-05T02:30:00.123456Z",
        "row_count": 4,
        "job_key_count": 2,
        "rankings_hash": rankings_hash(TWO_JOBS),
        "model_version": "9",
        "fingerprint": "f9",
        "price_version": "list@2026-11-01",
        "dataset_id": "2026-11-30-0123456789ab",
        "code_version": "410c31b",
        "coverage": {"job_keys": 2, "measured_share": 0.5},
    }
    assert stored["previous_snapshot_id"] == snapshots(published)[0]
    assert sorted(stored["files"]) == ["bundle/booster.txt", "bundle/encoder.json", "rankings.parquet"]
    assert stored["files"]["bundle/booster.txt"]["bytes"] == 4
    assert read_pointer(published).snapshot_id == manifest.snapshot_id


def test_the_first_snapshot_has_none_before_it(put: Publish) -> None:
    assert put(TWO_JOBS).previous_snapshot_id is None


def test_a_private_bundle_becomes_readable_to_others(put: Publish, bundle: Path, published: Path) -> None:
    (bundle / "booster.txt").chmod(0o600)
    manifest = put(TWO_JOBS)
    copied = published / "snapshots" / manifest.snapshot_id / "bundle"
    assert copied.stat().st_mode & 0o055 == 0o055
    assert (copied / "booster.txt").stat().st_mode & 0o044 == 0o044


def test_every_published_row_goes_to_the_history_of_its_night(put: Publish, history: Path) -> None:
    manifest = put(TWO_JOBS)
    (file,) = (path for path in history.rglob("*") if path.is_file())
    assert file.relative_to(history).as_posix() == f"rankings/date=2026-11-30/{manifest.snapshot_id}.parquet"
    assert pq.read_table(file, partitioning=None).num_rows == 4


def test_the_same_content_has_the_same_hash_whenever_it_is_published(put: Publish) -> None:
    first = put(TWO_JOBS)
    second = put(TWO_JOBS.take([3, 0, 2, 1]), at=AT + timedelta(days=1))
    assert first.rankings_hash == second.rankings_hash
    assert first.snapshot_id != second.snapshot_id


def test_the_same_content_within_one_second_is_another_snapshot(put: Publish, published: Path, history: Path) -> None:
    ids = [put(TWO_JOBS, at=AT + timedelta(milliseconds=n)).snapshot_id for n in range(3)]
    assert ids == [ids[0], f"{ids[0]}-2", f"{ids[0]}-3"]
    assert read_pointer(published).snapshot_id == ids[2]
    assert len(list(history.rglob("*.parquet"))) == 3


@pytest.mark.parametrize(
    "other",
    [
        row("a", 1, throughput=100.00000000000001),
        row("a", 1, throughput=None),
        row("a", 1, throughput=float("nan")),
        row("a", 1, price_version=""),
        row("a", 1, num_devices=None),
        row("a", 1, is_near_best=False),
        row("a", 1, reason="no price"),
    ],
)
def test_another_value_is_another_hash(other: dict[str, Any]) -> None:
    assert rankings_hash(ranking(row("a", 1))) != rankings_hash(ranking(other))


def test_a_text_moved_into_the_next_row_is_another_hash() -> None:
    rows = (row("a", 1), row("a", 2))
    one = ranking(rows[0] | {"reason": "xy"}, rows[1] | {"reason": "z"})
    two = ranking(rows[0] | {"reason": "x"}, rows[1] | {"reason": "yz"})
    assert rankings_hash(one) != rankings_hash(two)


@given(
    values=st.lists(
        st.tuples(st.text(max_size=3), st.none() | st.floats()), min_size=1, max_size=8, unique_by=lambda value: value[0]
    ),
    data=st.data(),
)
def test_the_hash_knows_no_order_no_chunks_and_no_encoding(values: list[tuple[str, float | None]], data: st.DataObject) -> None:
    table = ranking(*(row(key, 1, throughput=throughput) for key, throughput in values))
    shuffled = table.take(data.draw(st.permutations(range(len(values)))))
    cut = data.draw(st.integers(0, len(values)))
    chunked = pa.concat_tables([shuffled.slice(0, cut), shuffled.slice(cut)])
    keys = pc.dictionary_encode(chunked["job_key"])
    encoded = chunked.set_column(chunked.column_names.index("job_key"), "job_key", keys)
    assert rankings_hash(encoded) == rankings_hash(table)


def test_seven_snapshots_stay_and_no_row_is_lost(put: Publish, published: Path, history: Path) -> None:
    ids = [put(TWO_JOBS, at=AT + timedelta(days=day)).snapshot_id for day in range(10)]
    assert snapshots(published) == sorted(ids[3:])
    assert len(list(history.rglob("*.parquet"))) == 10


def test_a_night_done_again_is_not_pruned_for_its_date(put: Publish, published: Path) -> None:
    for day in range(3):
        put(TWO_JOBS, at=AT + timedelta(days=day))
    again = SnapshotFacts(**{**vars(FACTS), "night": date(2020, 1, 1)})
    kept = PublishParams(snapshots_kept=2, datasets_kept=30, fresh_hours=26, stale_hours=72)

    old_night = put(TWO_JOBS, at=AT + timedelta(days=3), facts=again, params=kept)
    newest = put(TWO_JOBS, at=AT + timedelta(days=4), params=kept)

    assert snapshots(published) == sorted([old_night.snapshot_id, newest.snapshot_id])


def test_the_served_snapshot_stays_whatever_the_clock_says(put: Publish, published: Path) -> None:
    kept = PublishParams(snapshots_kept=1, datasets_kept=30, fresh_hours=26, stale_hours=72)
    put(TWO_JOBS, at=AT)
    earlier = put(TWO_JOBS, at=AT - timedelta(days=1), params=kept)
    assert snapshots(published) == [earlier.snapshot_id]


def test_a_folder_that_is_no_snapshot_stays(put: Publish, published: Path) -> None:
    (published / "snapshots" / "kept-by-hand").mkdir(parents=True)
    for day in range(9):
        put(TWO_JOBS, at=AT + timedelta(days=day))
    assert "kept-by-hand" in snapshots(published)


def test_a_served_snapshot_that_is_gone_does_not_stop_the_next(put: Publish, published: Path, history: Path) -> None:
    lost = put(TWO_JOBS)
    (published / "snapshots" / lost.snapshot_id / "rankings.parquet").unlink()
    next(history.rglob("*.parquet")).unlink()
    manifest = put(TWO_JOBS, at=AT + timedelta(days=1))
    assert manifest.previous_snapshot_id is None
    assert read_pointer(published).snapshot_id == manifest.snapshot_id


def test_a_damaged_pointer_is_mended(put: Publish, published: Path) -> None:
    put(TWO_JOBS)
    (published / "current.json").write_bytes(b"{")
    manifest = put(TWO_JOBS, at=AT + timedelta(days=1))
    assert manifest.previous_snapshot_id is None
    assert read_pointer(published).snapshot_id == manifest.snapshot_id


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (ranking(), "no rows"),
        (ranking(row("a", 1, hardware_type=None)), r"nulls in \['hardware_type'\]"),
        (ranking(row("a", 1), row("a", 1, throughput=5.0)), "2 rows for job_key 'a', hardware_type 'type-1', num_devices 8"),
        (ranking(row("a", 1)).drop_columns(["tier"]), r"missing \['tier'\]"),
        (ranking(row("a", 1)).append_column("note", [["x"]]), r"unknown \['note'\]"),
        (ranking(row("a", 1, schema_version=2)), "another schema_version than 1"),
        (ranking(row("a", 1)).drop_columns(["rank"]).append_column("rank", [["first"]]), "not the types of the contract"),
    ],
)
def test_what_breaks_the_contract_is_not_published(put: Publish, published: Path, rows: pa.Table, message: str) -> None:
    before = put(TWO_JOBS)
    with pytest.raises(PublishError, match=message):
        put(rows, at=AT + timedelta(days=1))
    assert read_pointer(published).snapshot_id == before.snapshot_id
    assert snapshots(published) == [before.snapshot_id]


def test_a_missing_bundle_or_a_time_without_offset_is_not_published(put: Publish, bundle: Path, published: Path) -> None:
    with pytest.raises(PublishError, match="has no offset"):
        put(TWO_JOBS, at=AT.replace(tzinfo=None))
    for file in bundle.iterdir():
        file.unlink()
    with pytest.raises(PublishError, match="no bundle there"):
        put(TWO_JOBS)
    assert not published.exists()


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize(("kills", "kept"), [(10, 500), (3, 1)])
def test_a_reader_sees_one_whole_version_while_publishers_are_killed(run: Run, tmp_path: Path, kills: int, kept: int) -> None:
    killer = run(_KILL, tmp_path, kills, kept)
    assert first_line(killer) == "ready"
    watcher = run(_WATCH, tmp_path, tmp_path / "stop", kept)
    assert first_line(watcher) == "ready"

    killer.communicate("go\n", timeout=60)
    (tmp_path / "stop").touch()

    versions, _ = watcher.communicate(timeout=60)
    assert (killer.returncode, watcher.returncode) == (0, 0)
    assert int(versions) > kills


def test_a_publisher_may_die_at_any_effect(run: Run, tmp_path: Path) -> None:
    driver = run(_EVERY_EFFECT, tmp_path)
    output, _ = driver.communicate(timeout=120)
    assert driver.returncode == 0
    deaths = [json.loads(line) for line in output.splitlines()]

    assert [status for status, *_ in deaths] == [-9] * (len(deaths) - 1) + [0]
    served = [after_death for _, after_death, *_ in deaths]
    # Old, then new, never neither; many effects on each side.
    assert served == sorted(served)
    assert served.count(1) > 8
    assert served.count(2) > 5
    for _, after_death, next_served, left, history in deaths:
        # The next publisher serves its own, leaves no litter, and the history has every version that was served.
        assert next_served == 3
        assert len(left) == 1
        assert len(history) == 1 + (after_death == 2) + 1
        assert not any(name.startswith(".") for name in (*left, *history))
