"""A dataset is there whole under an id that comes from its content, or not at all."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from leap.contracts import UTC_TIMESTAMP
from leap.store.datasets import DatasetError, DatasetMissing, export, open_dataset, prune
from leap.store.examples import with_possible_start

NIGHT = date(2026, 11, 30)
ATTEMPTS = pa.table({"attempt_id": ["a", "b", "c"], "throughput": [100.0, 110.0, None]})
REJECTS = pa.table({"reason": ["no-time"]})

_DIES_HALF_WAY = """
import os, signal, sys
from datetime import date
from pathlib import Path
import pyarrow as pa
from leap.store.datasets import export

def batches():
    yield pa.record_batch({"number": list(range(1000))})
    os.kill(os.getpid(), signal.SIGKILL)

reader = pa.RecordBatchReader.from_batches(pa.schema({"number": pa.int64()}), batches())
export(Path(sys.argv[1]), {"attempts": reader}, date(2026, 11, 30), "digest")
"""


@pytest.fixture
def datasets(tmp_path: Path) -> Path:
    return tmp_path / "datasets"


def unreadable() -> pa.RecordBatchReader:
    """A reader of `ATTEMPTS` that fails after the first batch."""

    def batches() -> Iterator[pa.RecordBatch]:
        yield from ATTEMPTS.to_batches()
        raise RuntimeError("the query was interrupted")

    return pa.RecordBatchReader.from_batches(ATTEMPTS.schema, batches())


def names(datasets: Path) -> list[str]:
    return sorted(path.name for path in datasets.iterdir() if path.is_dir())


def test_what_was_exported_is_read_back(datasets: Path) -> None:
    dataset_id = export(datasets, {"attempts": ATTEMPTS, "quarantine": REJECTS.to_reader()}, NIGHT, "digest")

    dataset = open_dataset(datasets)

    assert dataset.id == dataset_id
    assert dataset_id.startswith("2026-11-30-")
    assert len(dataset_id) == len("2026-11-30-") + 12
    assert dataset.table("attempts").equals(ATTEMPTS)
    assert dataset.table("quarantine").equals(REJECTS)
    assert (dataset.manifest.night, dataset.manifest.digest) == (NIGHT, "digest")
    assert {name: entry.rows for name, entry in dataset.manifest.tables.items()} == {"attempts": 3, "quarantine": 1}
    assert dataset.manifest.tables["attempts"].columns == {"attempt_id": "string", "throughput": "double"}


def test_columns_and_rows_can_be_chosen(datasets: Path) -> None:
    export(datasets, {"attempts": ATTEMPTS}, NIGHT, "digest")
    chosen = open_dataset(datasets).table("attempts", columns=["attempt_id"], filters=[("throughput", ">", 105.0)])
    assert chosen.to_pydict() == {"attempt_id": ["b"]}


def test_a_table_without_rows_keeps_its_columns(datasets: Path) -> None:
    export(datasets, {"attempts": ATTEMPTS.slice(0, 0)}, NIGHT, "digest")
    assert open_dataset(datasets).table("attempts").equals(ATTEMPTS.slice(0, 0))


def test_the_id_comes_from_night_digest_and_columns(datasets: Path) -> None:
    ids = [
        export(datasets, {"attempts": ATTEMPTS}, NIGHT, "digest"),
        export(datasets, {"attempts": ATTEMPTS}, date(2026, 12, 1), "digest"),
        export(datasets, {"attempts": ATTEMPTS}, NIGHT, "another"),
        export(datasets, {"attempts": ATTEMPTS.select(["attempt_id"])}, NIGHT, "digest"),
        export(datasets, {"attempts": ATTEMPTS, "quarantine": REJECTS}, NIGHT, "digest"),
    ]
    assert len(set(ids)) == 5
    assert names(datasets) == sorted(ids)


def test_the_same_dataset_is_written_once(datasets: Path) -> None:
    first = export(datasets, {"attempts": ATTEMPTS}, NIGHT, "digest")
    inode = (datasets / first / "attempts.parquet").stat().st_ino
    export(datasets, {"attempts": ATTEMPTS}, NIGHT, "later")

    again = export(datasets, {"attempts": unreadable()}, NIGHT, "digest")

    assert again == first
    assert (datasets / first / "attempts.parquet").stat().st_ino == inode
    assert open_dataset(datasets).id == first


def test_an_older_dataset_is_opened_by_its_id(datasets: Path) -> None:
    first = export(datasets, {"attempts": ATTEMPTS}, NIGHT, "digest")
    second = export(datasets, {"attempts": ATTEMPTS.slice(0, 1)}, NIGHT, "later")
    assert open_dataset(datasets).id == second
    assert open_dataset(datasets, first).table("attempts").num_rows == 3


def test_an_export_that_fails_leaves_nothing(datasets: Path) -> None:
    before = export(datasets, {"attempts": REJECTS}, NIGHT, "digest")
    with pytest.raises(RuntimeError, match="interrupted"):
        export(datasets, {"attempts": unreadable()}, NIGHT, "digest")
    assert names(datasets) == [before]
    assert open_dataset(datasets).id == before


def test_an_export_that_is_killed_leaves_nothing_to_read(datasets: Path, repository: Path) -> None:
    died = subprocess.run([sys.executable, "-c", _DIES_HALF_WAY, str(datasets)], cwd=repository, check=False)
    assert died.returncode == -9
    with pytest.raises(DatasetMissing, match="run `leap nightly`"):
        open_dataset(datasets)

    dataset_id = export(datasets, {"attempts": ATTEMPTS}, NIGHT, "digest")

    assert names(datasets) == [dataset_id]
    assert open_dataset(datasets).table("attempts").num_rows == 3


def test_what_is_not_there_is_named(datasets: Path) -> None:
    with pytest.raises(DatasetMissing, match=r"there is no dataset in .* yet; run `leap nightly`"):
        open_dataset(datasets)
    dataset_id = export(datasets, {"attempts": ATTEMPTS}, NIGHT, "digest")
    for wrong in ("2026-11-30-000000000000", "..", ""):
        with pytest.raises(DatasetMissing, match=rf"there are: {dataset_id}"):
            open_dataset(datasets, wrong)
    with pytest.raises(DatasetMissing, match="has no table 'predictions', it has attempts"):
        open_dataset(datasets).table("predictions")
    with pytest.raises(DatasetError, match="has no column usd"):
        open_dataset(datasets).table("attempts", columns=["attempt_id", "usd"])


def test_a_damaged_file_is_named(datasets: Path) -> None:
    export(datasets, {"attempts": ATTEMPTS}, NIGHT, "digest")
    dataset = open_dataset(datasets)
    data = bytearray(dataset.path("attempts").read_bytes())
    data[data.index(b"PAR1") + 40] ^= 0xFF
    dataset.path("attempts").write_bytes(data)
    with pytest.raises(DatasetError, match=r"attempts\.parquet is damaged"):
        dataset.table("attempts")


def test_a_damaged_manifest_is_named(datasets: Path) -> None:
    dataset_id = export(datasets, {"attempts": ATTEMPTS}, NIGHT, "digest")
    (datasets / dataset_id / "manifest.json").write_text("{}")
    with pytest.raises(DatasetError, match=r"manifest\.json is damaged"):
        open_dataset(datasets)


@pytest.mark.parametrize("name", ["", "../out", "marts.fct_attempts", ".hidden"])
def test_a_table_name_that_is_no_file_name_is_refused(datasets: Path, name: str) -> None:
    with pytest.raises(DatasetError, match="names of letters, digits and underscores"):
        export(datasets, {name: ATTEMPTS}, NIGHT, "digest")
    assert not datasets.exists()


def test_a_start_that_cannot_be_makes_no_night() -> None:
    # given rejects that say they started before computers, in their own future, and at a time that can be
    received_at = datetime(2026, 3, 2, tzinfo=UTC)
    starts = [datetime(1970, 1, 1, tzinfo=UTC), datetime(2099, 1, 1, tzinfo=UTC), datetime(2026, 3, 1, tzinfo=UTC), None]
    rejects = pa.table(
        {
            "attempt_id": ["old", "future", "possible", "none"],
            "started_at": pa.array(starts, UTC_TIMESTAMP),
            "received_at": pa.array([received_at] * 4, UTC_TIMESTAMP),
        }
    )
    # then a backtest counts the one that can be
    assert with_possible_start(rejects)["attempt_id"].to_pylist() == ["possible"]


def test_the_datasets_written_last_stay(datasets: Path) -> None:
    ids = [export(datasets, {"attempts": ATTEMPTS}, NIGHT, str(number)) for number in range(5)]
    export(datasets, {"attempts": ATTEMPTS}, NIGHT, "0")  # the latest again, though written first

    assert prune(datasets, keep=3) == sorted(ids[1:3])

    assert names(datasets) == sorted([ids[0], *ids[3:]])
    assert prune(datasets, keep=3) == []


def test_a_pruned_dataset_says_so_to_those_who_hold_it(datasets: Path) -> None:
    old = export(datasets, {"attempts": ATTEMPTS}, NIGHT, "digest")
    export(datasets, {"attempts": ATTEMPTS}, NIGHT, "later")
    held = open_dataset(datasets, old)
    prune(datasets, keep=1)
    with pytest.raises(DatasetMissing, match="the dataset was pruned"):
        held.table("attempts")
