"""The warehouse: loads that add up, repeat and fail without harm, and tables that are replaced as a whole."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leap.contracts import REJECT_SCHEMA
from leap.sources.admission import ADMITTED_SCHEMA, Admission
from leap.store import warehouse
from leap.store.warehouse import SliceCount

ARRIVED = datetime(2025, 3, 10, 6, tzinfo=UTC)
ENDED = datetime(2025, 3, 1, 9, tzinfo=UTC)

ATTEMPT: dict[str, Any] = {
    "source": "jsonl",
    "slice": "monday.jsonl",
    "file": "monday.jsonl",
    "line": 1,
    "attempt_id": "a1",
    "segment_number": 1,
    "job_id": "job",
    "started_at": ENDED - timedelta(hours=1),
    "ended_at": ENDED,
    "known_at": ENDED,
    "outcome": "succeeded",
    "cluster": "north",
    "model_type": "bert",
    "num_devices": 8,
    "hardware_name": "NVIDIA H100 80GB HBM3",
    "throughput": 100.0,
    "throughput_unit": "samples/s",
    "throughput_scope": "job",
    "hardware_type": "H100",
}
REJECT: dict[str, Any] = {
    "source": "jsonl",
    "slice": "monday.jsonl",
    "file": "monday.jsonl",
    "line": 2,
    "reason": "not-json",
    "detail": "monday.jsonl, line 2 is not JSON; mend the line.",
    "record": "{",
}


def batch(*attempts: dict[str, Any], rejects: tuple[dict[str, Any], ...] = ()) -> Admission:
    """Make what admission hands over, from the fields that matter."""
    return Admission(
        pa.Table.from_pylist([ATTEMPT | attempt for attempt in attempts], schema=ADMITTED_SCHEMA),
        pa.Table.from_pylist([REJECT | reject for reject in rejects], schema=REJECT_SCHEMA),
    )


def rows(con: duckdb.DuckDBPyConnection, sql: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = warehouse.read(con, sql).to_pylist()
    return found


def count(con: duckdb.DuckDBPyConnection, table: str) -> int:
    return int(rows(con, f"SELECT count(*) AS n FROM {table}")[0]["n"])


@pytest.fixture
def con(tmp_path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    with warehouse.connect(tmp_path / "warehouse.duckdb") as connection:
        yield connection


# --- loading


def test_a_load_counts_what_became_of_each_slice(con: duckdb.DuckDBPyConnection) -> None:
    # given two slices, one with a reject and a record that stands in it twice
    batches = [
        batch({}, {"line": 3}, {"line": 4, "attempt_id": "a2"}, rejects=({},)),
        batch({"slice": "tuesday.jsonl", "file": "tuesday.jsonl", "attempt_id": "a3"}),
    ]
    # when
    counts = warehouse.load(con, batches, ARRIVED, "first")
    # then
    assert counts == [
        SliceCount("jsonl", "monday.jsonl", records_read=4, kept=2, quarantined=1, duplicates=1),
        SliceCount("jsonl", "tuesday.jsonl", records_read=1, kept=1, quarantined=0, duplicates=0),
    ]
    assert [attempt["attempt_id"] for attempt in rows(con, "SELECT attempt_id FROM raw.job_attempts ORDER BY 1")] == [
        "a1",
        "a2",
        "a3",
    ]
    assert all(slice_["is_reconciled"] for slice_ in warehouse.reconciliation(con).to_pylist())


def test_the_first_of_equal_records_is_the_one_that_is_kept(con: duckdb.DuckDBPyConnection) -> None:
    warehouse.load(con, [batch({"line": 9}, {"line": 2}), batch({"file": "a.jsonl", "line": 5})], ARRIVED, "first")
    assert rows(con, "SELECT file, line FROM raw.job_attempts") == [{"file": "a.jsonl", "line": 5}]


def test_a_record_in_two_files_is_one_attempt(con: duckdb.DuckDBPyConnection) -> None:
    # given
    warehouse.load(con, [batch({})], ARRIVED, "first")
    # when the same content arrives a day later in another file
    counts = warehouse.load(con, [batch({"file": "copy.jsonl", "slice": "copy.jsonl"})], ARRIVED + timedelta(days=1), "second")
    # then
    assert counts == [SliceCount("jsonl", "copy.jsonl", records_read=1, kept=0, quarantined=0, duplicates=1)]
    assert rows(con, "SELECT file, load_id FROM raw.job_attempts") == [{"file": "monday.jsonl", "load_id": "first"}]


def test_the_same_load_again_adds_nothing(con: duckdb.DuckDBPyConnection) -> None:
    # given records without a time of knowing, and rejects with and without a record
    batches = [batch({"known_at": None}, rejects=({}, {"line": 3, "record": None}, {"line": 4, "record": None}))]
    warehouse.load(con, batches, ARRIVED, "monday")
    before = rows(con, "FROM raw.job_attempts"), rows(con, "FROM raw.quarantine ORDER BY line")
    # when
    counts = warehouse.load(con, batches, ARRIVED + timedelta(days=1), "tuesday")
    # then
    assert counts == [SliceCount("jsonl", "monday.jsonl", records_read=4, kept=0, quarantined=0, duplicates=4)]
    assert (rows(con, "FROM raw.job_attempts"), rows(con, "FROM raw.quarantine ORDER BY line")) == before
    assert len(before[1]) == 3


def test_a_record_with_an_unknown_cluster_loaded_three_times_is_one_row(con: duckdb.DuckDBPyConnection) -> None:
    for load_id in ("one", "two", "three"):
        warehouse.load(con, [batch({"cluster": None})], ARRIVED, load_id)
    assert count(con, "raw.job_attempts") == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("throughput", 500.0),
        ("throughput", 100.00000000000001),
        ("known_at", ENDED + timedelta(microseconds=1)),
        ("known_at", None),
        ("cluster", ""),
        ("cluster", None),
        ("num_devices", 16),
        ("pinned", False),
        ("config", '{"a": 1}'),
    ],
)
def test_a_corrected_record_is_a_further_row(con: duckdb.DuckDBPyConnection, field: str, value: object) -> None:
    warehouse.load(con, [batch({})], ARRIVED, "first")
    counts = warehouse.load(con, [batch({field: value})], ARRIVED, "second")
    assert counts == [SliceCount("jsonl", "monday.jsonl", records_read=1, kept=1, quarantined=0, duplicates=0)]
    assert count(con, "raw.job_attempts") == 2


def test_text_that_moves_between_fields_is_another_record(con: duckdb.DuckDBPyConnection) -> None:
    warehouse.load(
        con, [batch({"team": 'a","b', "user": None}, {"team": "a", "user": "b"}, {"team": "ab", "user": ""})], ARRIVED, "x"
    )
    assert count(con, "raw.job_attempts") == 3


def test_known_at_is_filled_with_the_arrival_where_the_source_gave_none(con: duckdb.DuckDBPyConnection) -> None:
    warehouse.load(con, [batch({"known_at": None}, {"attempt_id": "a2"})], ARRIVED, "first")
    assert rows(con, "SELECT attempt_id, known_at, received_at FROM raw.job_attempts ORDER BY attempt_id") == [
        {"attempt_id": "a1", "known_at": ARRIVED, "received_at": ARRIVED},
        {"attempt_id": "a2", "known_at": ENDED, "received_at": ARRIVED},
    ]


def test_rejects_are_told_apart_by_record_and_by_place_where_there_is_none(con: duckdb.DuckDBPyConnection) -> None:
    rejects = (
        {},
        {"line": 7, "file": "copy.jsonl"},  # the same record elsewhere: a duplicate
        {"record": None},
        {"record": None, "line": 3},  # another line without a record: another reject
        {"record": None, "detail": "the same place, told otherwise"},  # a duplicate
        {"reason": "no-time"},
    )
    counts = warehouse.load(con, [batch(rejects=rejects)], ARRIVED, "first")
    assert counts == [SliceCount("jsonl", "monday.jsonl", records_read=6, kept=0, quarantined=4, duplicates=2)]


def test_an_error_in_the_middle_leaves_nothing(con: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a reader that fails after its first batch has been staged
    monkeypatch.setattr(warehouse, "_STAGED_ROWS", 1)

    def failing() -> Iterator[Admission]:
        yield batch({}, rejects=({},))
        raise OSError("the archive ends too early")

    warehouse.load(con, [batch({"attempt_id": "before"})], ARRIVED, "before")
    # when
    with pytest.raises(OSError, match="ends too early"):
        warehouse.load(con, failing(), ARRIVED, "crashed")
    # then what was there is there, and the next load is a load like any other
    assert [count(con, table) for table in warehouse.RAW_SCHEMAS] == [1, 0, 0, 0, 1, 1]
    assert warehouse.load(con, [batch({})], ARRIVED, "crashed")[0].kept == 1


def test_a_process_killed_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    # given a process that dies without a word while it reads
    path = tmp_path / "warehouse.duckdb"
    script = (
        "import os, pathlib, sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "import test_warehouse as given\n"
        "given.warehouse._STAGED_ROWS = 1\n"
        "def dying():\n"
        "    yield given.batch({}, rejects=({},))\n"
        "    os._exit(9)\n"
        "with given.warehouse.connect(pathlib.Path(sys.argv[2])) as con:\n"
        "    given.warehouse.load(con, [given.batch({'attempt_id': 'before'})], given.ARRIVED, 'before')\n"
        "    given.warehouse.load(con, dying(), given.ARRIVED, 'killed')\n"
    )
    # when
    ended = subprocess.run([sys.executable, "-c", script, str(Path(__file__).parent), str(path)], check=False)
    # then
    assert ended.returncode == 9
    with warehouse.connect(path) as con:
        assert [count(con, table) for table in warehouse.RAW_SCHEMAS] == [1, 0, 0, 0, 1, 1]


def test_a_retry_of_a_load_does_not_double_it(con: duckdb.DuckDBPyConnection) -> None:
    # given a load that was kept, and a night that died before it noted so
    batches = [batch({}, {"attempt_id": "a2"}, rejects=({},))]
    first = warehouse.load(con, batches, ARRIVED, "night")
    # when it is tried again under the same name
    again = warehouse.load(con, batches, ARRIVED + timedelta(minutes=5), "night")
    # then
    assert again == first == [SliceCount("jsonl", "monday.jsonl", records_read=3, kept=2, quarantined=1, duplicates=0)]
    assert [count(con, table) for table in warehouse.RAW_SCHEMAS] == [2, 0, 0, 1, 1, 1]


def test_a_load_that_does_not_add_up_is_refused(con: duckdb.DuckDBPyConnection) -> None:
    # given a fault that loses a record
    class Losing(warehouse.Entity):
        @property
        def insert(self) -> str:
            return super().insert + " LIMIT 1"

    given = warehouse.ATTEMPTS
    losing = Losing(given.table, given.schema, given.content_hash, given.arrived)
    # when, then
    with pytest.raises(warehouse.LoadError, match="load night: 2 records were read"):
        warehouse.load(con, [batch({}, {"attempt_id": "a2"})], ARRIVED, "night", losing)
    warehouse.create_raw_tables(con)
    assert count(con, "raw.job_attempts") == 0


def test_spellings_of_hardware_are_noted_once(con: duckdb.DuckDBPyConnection) -> None:
    warehouse.load(con, [batch({}, {"attempt_id": "a2"}, {"attempt_id": "a3", "hardware_name": "H100-SXM"})], ARRIVED, "first")
    warehouse.load(con, [batch({"attempt_id": "a4"})], ARRIVED + timedelta(days=1), "second")
    assert rows(con, "FROM raw.hardware_spellings ORDER BY hardware_name") == [
        {"hardware_name": "H100-SXM", "hardware_type": "H100", "first_seen_at": ARRIVED},
        {"hardware_name": "NVIDIA H100 80GB HBM3", "hardware_type": "H100", "first_seen_at": ARRIVED},
    ]


def test_a_mended_alias_holds_for_what_was_loaded_before(con: duckdb.DuckDBPyConnection) -> None:
    # given: a spelling that was taken for another type, and one that was not
    warehouse.load(con, [batch({}, {"attempt_id": "a2", "hardware_name": "H100-SXM"})], ARRIVED, "first")
    # when: the same record comes again after the alias was mended
    counts = warehouse.load(con, [batch({"hardware_type": "H200"})], ARRIVED + timedelta(days=1), "second")
    # then
    assert [count.duplicates for count in counts] == [1]
    types = {row["attempt_id"]: row["hardware_type"] for row in rows(con, "FROM raw.job_attempts")}
    assert types == {"a1": "H200", "a2": "H100"}
    known = {row["hardware_name"]: row["hardware_type"] for row in rows(con, "FROM raw.hardware_spellings")}
    assert known == {"NVIDIA H100 80GB HBM3": "H200", "H100-SXM": "H100"}


def test_a_source_without_records_loads_nothing(con: duckdb.DuckDBPyConnection) -> None:
    assert warehouse.load(con, [], ARRIVED, "empty") == []
    assert warehouse.load(con, [batch()], ARRIVED, "empty") == []


@settings(max_examples=20, deadline=None)
@given(st.lists(st.lists(st.integers(0, 5), max_size=6), max_size=4))
def test_counts_add_up_however_records_repeat(loads: list[list[int]]) -> None:
    """Every content is kept once; all other records are duplicates, in every split over batches and loads."""
    seen: set[int] = set()
    with duckdb.connect() as con:
        for number, contents in enumerate(loads):
            attempts = [{"throughput": 1.0 + content, "line": line} for line, content in enumerate(contents, 1)]
            counts = warehouse.load(con, [batch(*attempts[:2]), batch(*attempts[2:])], ARRIVED, f"load {number}")
            fresh = set(contents) - seen
            assert sum(slice_.records_read for slice_ in counts) == len(contents)
            assert sum(slice_.kept for slice_ in counts) == len(fresh)
            assert sum(slice_.duplicates for slice_ in counts) == len(contents) - len(fresh)
            seen |= fresh
        warehouse.create_raw_tables(con)
        assert count(con, "raw.job_attempts") == len(seen)


# --- reading and replacing


def test_times_are_utc_wherever_the_process_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    with warehouse.connect(tmp_path / "warehouse.duckdb") as con:
        warehouse.load(con, [batch({"ended_at": datetime(2025, 3, 1, 23, 30, tzinfo=UTC)})], ARRIVED, "first")
        table = warehouse.read(con, "SELECT ended_at, ended_at::DATE AS day FROM raw.job_attempts")
    assert table.schema.field("ended_at").type == pa.timestamp("us", tz="UTC")
    assert table["day"].to_pylist() == [date(2025, 3, 1)]


def test_read_binds_parameters(con: duckdb.DuckDBPyConnection) -> None:
    warehouse.load(con, [batch({}, {"attempt_id": "it's", "throughput": 7.0})], ARRIVED, "first")
    by_position = warehouse.read(con, "SELECT throughput FROM raw.job_attempts WHERE attempt_id = ?", ["it's"])
    by_name = warehouse.read(con, "SELECT throughput FROM raw.job_attempts WHERE attempt_id = $attempt", {"attempt": "it's"})
    assert by_position == by_name == pa.table({"throughput": [7.0]})


def test_replace_puts_rows_in_place_of_those_with_the_same_key(con: duckdb.DuckDBPyConnection) -> None:
    # given
    monday, tuesday = date(2025, 3, 3), date(2025, 3, 4)
    for night, scores in ((monday, [1.0, 2.0]), (tuesday, [3.0])):
        table = pa.table({"night": [night] * len(scores), "score": scores})
        warehouse.replace(con, "model.scorecards", table, {"night": night})
    # when
    warehouse.replace(con, "model.scorecards", pa.table({"score": [9.0], "night": [monday]}), {"night": monday})
    # then
    assert rows(con, "FROM model.scorecards ORDER BY night") == [
        {"night": monday, "score": 9.0},
        {"night": tuesday, "score": 3.0},
    ]


def test_replace_takes_null_as_a_key_and_no_key_as_the_whole_table(con: duckdb.DuckDBPyConnection) -> None:
    table = pa.table({"pool": pa.array([None], pa.string()), "price": [1.0]})
    for _ in range(2):
        warehouse.replace(con, "model.prices", table, {"pool": None})
    assert count(con, "model.prices") == 1
    warehouse.replace(con, "model.prices", pa.table({"pool": ["a", "b"], "price": [1.0, 2.0]}), {})
    assert count(con, "model.prices") == 2


def test_replace_that_fails_changes_nothing(con: duckdb.DuckDBPyConnection) -> None:
    # given
    warehouse.replace(con, "model.scorecards", pa.table({"night": ["a"], "score": [1.0]}), {"night": "a"})
    # when a row would escape the next retry, or a column is unknown
    with pytest.raises(ValueError, match=r"model\.scorecards: 1 of 2 rows"):
        warehouse.replace(con, "model.scorecards", pa.table({"night": ["a", "b"], "score": [2.0, 2.0]}), {"night": "a"})
    with pytest.raises(duckdb.BinderException, match="points"):
        warehouse.replace(con, "model.scorecards", pa.table({"night": ["a"], "points": [2.0]}), {"night": "a"})
    # then
    assert rows(con, "FROM model.scorecards") == [{"night": "a", "score": 1.0}]


@pytest.mark.parametrize(
    "table", ["scorecards; DROP TABLE raw.loads", "model.score cards", 'model."x"', "Model.x", "", "x", "a.b.c"]
)
def test_replace_refuses_what_is_no_plain_name(con: duckdb.DuckDBPyConnection, table: str) -> None:
    with pytest.raises(ValueError, match="is no name of a table"):
        warehouse.replace(con, table, pa.table({"x": [1]}), {})


@pytest.mark.parametrize("column", ['x"', "x; DROP TABLE raw.loads", "X", ""])
def test_replace_refuses_columns_that_are_no_plain_name(con: duckdb.DuckDBPyConnection, column: str) -> None:
    with pytest.raises(ValueError, match="is no name of a column"):
        warehouse.replace(con, "model.x", pa.table({column: [1]}), {})
    with pytest.raises(ValueError, match="is no name of a column"):
        warehouse.replace(con, "model.x", pa.table({"x": [1]}), {column: 1})


# --- one user at a time


def test_a_warehouse_that_is_open_elsewhere_is_busy(tmp_path: Path) -> None:
    # given another process that has it open
    path = tmp_path / "warehouse.duckdb"
    script = "import duckdb, sys; con = duckdb.connect(sys.argv[1]); print('open', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", script, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"open\n"
        # when, then
        with pytest.raises(warehouse.WarehouseBusy) as busy, warehouse.connect(path):
            pass
        other.communicate()
    assert str(path) in str(busy.value)
    assert f"PID {other.pid}" in str(busy.value)
    assert "Wait until the night that runs has ended" in str(busy.value)
    # and once the other is gone it opens
    with warehouse.connect(path) as con:
        assert warehouse.read(con, "SELECT 1 AS one").to_pylist() == [{"one": 1}]


def test_a_closed_warehouse_can_be_opened_by_another_process(tmp_path: Path) -> None:
    path = tmp_path / "warehouse.duckdb"
    with warehouse.connect(path) as con:
        warehouse.load(con, [batch({})], ARRIVED, "first")
    script = "import duckdb, sys; print(duckdb.connect(sys.argv[1]).sql('FROM raw.loads').fetchall()[0][0])"
    other = subprocess.run([sys.executable, "-c", script, str(path)], check=True, capture_output=True, text=True)
    assert other.stdout == "first\n"
