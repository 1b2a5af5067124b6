"""The quarantine as a tool: listed with examples, let back in once a seed is mended, watched by day of arrival."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest

from leap.params import IngestParams
from leap.store import warehouse
from leap.store.datasets import export, open_dataset
from leap.store.ingest import ingest
from leap.store.quarantine import DayShare, list_reasons, retry, share_by_day, sudden_rise
from leap.store.warehouse import connect, read

PARAMS = IngestParams(max_label_disagreement=0.05, min_steady_seconds=5)
ARRIVED = datetime(2026, 3, 2, 1, tzinfo=UTC)
GOOD = {
    "attempt_id": "a-1",
    "job_id": "job",
    "user": "Ada Lovelace",
    "started_at": "2026-03-01T10:00:00Z",
    "ended_at": "2026-03-01T11:00:00Z",
    "outcome": "succeeded",
    "model_type": "bert",
    "num_devices": 8,
    "hardware_name": "NVIDIA H100-SXM5-80GB",
    "throughput": 100.0,
    "throughput_unit": "samples/s",
    "throughput_scope": "job",
}
NEW_NAME = "Our Own H100 Board Rev B"


def write(path: Path, *records: dict[str, Any] | str) -> Path:
    path.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in records), encoding="utf-8")
    return path


@pytest.fixture
def seeds(repository: Path, tmp_path: Path) -> Path:
    """The seeds, in a folder where they may be edited."""
    return Path(shutil.copytree(repository / "dbt_project" / "seeds", tmp_path / "seeds"))


def load(con: duckdb.DuckDBPyConnection, seeds: Path, path: Path, received_at: datetime = ARRIVED, load_id: str = "load") -> None:
    ingest(con, "jsonl", [path], seeds=seeds, params=PARAMS, received_at=received_at, load_id=load_id)


def tried_again(con: duckdb.DuckDBPyConnection, seeds: Path, load_id: str = "again", **chosen: str) -> tuple[int, int, int, int]:
    done = retry(con, seeds=seeds, params=PARAMS, received_at=ARRIVED + timedelta(days=1), load_id=load_id, **chosen)
    assert all(row["is_reconciled"] for row in warehouse.reconciliation(con).to_pylist())
    return done.tried, done.admitted, done.duplicates, done.refused


def test_a_mended_alias_lets_the_records_back_in(seeds: Path, tmp_path: Path) -> None:
    unknown = [{**GOOD, "attempt_id": f"new-{number}", "hardware_name": NEW_NAME} for number in range(3)]
    log = write(tmp_path / "log.jsonl", GOOD, *unknown, {**GOOD, "attempt_id": "bad", "throughput": -1}, "not json")
    with connect(tmp_path / "warehouse.duckdb") as con:
        load(con, seeds, log)
        # nothing has changed: nothing comes back
        assert tried_again(con, seeds, "too early") == (4, 0, 0, 4)

        with (seeds / "hardware_aliases.csv").open("a", encoding="utf-8") as aliases:
            aliases.write(f"{NEW_NAME},H100-80GB-SXM5,ours\n")
        assert tried_again(con, seeds, reason="bad-throughput") == (1, 0, 0, 1)
        assert tried_again(con, seeds) == (4, 3, 0, 1)
        # and once is enough
        assert tried_again(con, seeds, "once more") == (1, 0, 0, 1)

        kept = read(con, "select * from raw.job_attempts where attempt_id like 'new-%' order by line").to_pylist()
        assert [(row["file"], row["line"], row["hardware_type"]) for row in kept] == [
            (log.as_posix(), line, "H100-80GB-SXM5") for line in (2, 3, 4)
        ]
        # it has no known_at of its own, so no night before the retry knew of it
        assert {row["known_at"] for row in kept} == {ARRIVED + timedelta(days=1)}
        assert read(con, "select attempt_id, reason from raw.quarantine order by line").to_pylist() == [
            {"attempt_id": "bad", "reason": "bad-throughput"},
            {"attempt_id": None, "reason": "not-json"},
        ]
        # the table is the one that a first load with the mended seeds would have made
        with connect(tmp_path / "clean.duckdb") as clean:
            load(clean, seeds, log, received_at=ARRIVED + timedelta(days=1))
            same = "select * exclude (received_at, load_id, known_at, user) from raw.job_attempts order by attempt_id"
            assert read(con, same).equals(read(clean, same))


def test_a_record_that_came_again_meanwhile_is_not_doubled(seeds: Path, tmp_path: Path) -> None:
    log = write(tmp_path / "log.jsonl", {**GOOD, "hardware_name": NEW_NAME})
    with connect(tmp_path / "warehouse.duckdb") as con:
        load(con, seeds, log)
        with (seeds / "hardware_aliases.csv").open("a", encoding="utf-8") as aliases:
            aliases.write(f"{NEW_NAME},H100-80GB-SXM5,ours\n")
        load(con, seeds, log, load_id="the file again")

        assert tried_again(con, seeds) == (1, 0, 1, 0)
        assert read(con, "select count(*) as n from raw.job_attempts")["n"].to_pylist() == [1]
        assert read(con, "select count(*) as n from raw.quarantine")["n"].to_pylist() == [0]


def test_the_list_shows_reasons_with_examples_and_what_is_still_open(seeds: Path, tmp_path: Path) -> None:
    first = write(tmp_path / "a.jsonl", {**GOOD, "throughput": 0}, {**GOOD, "attempt_id": "a-2", "throughput": -5}, "not json")
    with connect(tmp_path / "warehouse.duckdb") as con:
        load(con, seeds, first)
        load(con, seeds, write(tmp_path / "b.jsonl", GOOD), load_id="a-1 comes again, good")
        tables = {
            "attempts": read(con, "select * from raw.job_attempts"),
            "quarantine": read(con, "select * from raw.quarantine"),
        }
    export(tmp_path / "datasets", tables, date(2026, 3, 2), "digest")
    dataset = open_dataset(tmp_path / "datasets")

    bad, unreadable = list_reasons(dataset, examples=1)
    assert (bad.source, bad.reason, bad.records, bad.admitted_since, bad.open, bad.files) == (
        "jsonl",
        "bad-throughput",
        2,
        1,
        1,
        1,
    )
    assert [(one.line, json.loads(one.record or "")["throughput"]) for one in bad.examples] == [(1, 0)]
    assert "throughput is 0" in bad.examples[0].detail
    assert (unreadable.reason, unreadable.records, unreadable.first_received_at) == ("not-json", 1, ARRIVED)
    assert [one.reason for one in list_reasons(dataset, 0, reason="not-json")] == ["not-json"]
    assert list_reasons(dataset, 0, source="mlperf") == []
    assert list_reasons(dataset, 0)[0].examples == ()
    assert json.loads(json.dumps(bad.to_json()))["open"] == 1


def test_who_submitted_a_job_is_a_pseudonym_everywhere(seeds: Path, tmp_path: Path) -> None:
    other = {**GOOD, "attempt_id": "a-2", "user": "Grace Hopper"}
    bad = {**GOOD, "attempt_id": "a-3", "throughput": -1}
    log = write(tmp_path / "log.jsonl", GOOD, other, {**GOOD, "attempt_id": "a-4", "user": None}, bad, json.dumps(bad)[:-1])
    with connect(tmp_path / "warehouse.duckdb") as con:
        load(con, seeds, log)
        load(con, seeds, write(tmp_path / "next.jsonl", {**GOOD, "attempt_id": "a-5"}), load_id="the next day")
        users = dict(con.execute('select attempt_id, "user" from raw.job_attempts').fetchall())
        records = [record for (record,) in con.execute("select record from raw.quarantine order by line").fetchall()]

    assert users["a-1"] == users["a-5"] != users["a-2"]
    assert users["a-4"] is None
    assert users["a-1"].startswith("user-")
    assert json.loads(records[0])["user"] == "(left out)"
    assert '"user": "(left out)"' in records[1]
    assert not any("Ada" in record for record in records)
    with connect(tmp_path / "another_home.duckdb") as con:
        load(con, seeds, log)
        assert con.execute("""select "user" from raw.job_attempts where attempt_id = 'a-1'""").fetchall() != [(users["a-1"],)]
        hashes = con.execute("select content_hash from raw.job_attempts order by all").fetchall()
    with connect(tmp_path / "warehouse.duckdb") as con:  # the same log has the same hashes in every home
        ours = con.execute("select content_hash from raw.job_attempts where load_id = 'load' order by all").fetchall()
    assert ours == hashes


def days(*figures: tuple[int, int]) -> list[DayShare]:
    return [DayShare(date(2026, 3, 1) + timedelta(days=at), records, faulty) for at, (records, faulty) in enumerate(figures)]


def test_a_sudden_rise_is_told_and_a_usual_day_is_not() -> None:
    risen = sudden_rise(days((1000, 20), (1000, 10), (1000, 30), (1000, 100)), most=0.05, min_records=50)

    assert risen is not None
    assert "100 of the 1000 records that arrived on 2026-03-04 are faulty, 10.0%" in risen
    assert "on the 3 days before it was 2.0% (median)" in risen
    for usual in (
        days((1000, 20), (1000, 60)),  # within the limit
        days((1000, 500)),  # nothing to compare with: the gate max_quarantined_share decides
        days((1000, 0), (40, 40)),  # too few to say anything
        days((40, 0), (1000, 500)),
        [],
    ):
        assert sudden_rise(usual, most=0.05, min_records=50) is None


def test_shares_are_by_day_of_arrival_and_leave_out_what_is_no_fault(seeds: Path, tmp_path: Path) -> None:
    with connect(tmp_path / "warehouse.duckdb") as con:
        warehouse.create_raw_tables(con)
        assert share_by_day(con, 28) == []
        for day in range(3):
            records = [{**GOOD, "attempt_id": f"{day}-{number}"} for number in range(4)]
            records[0]["throughput"] = -1
            records[1]["outcome"] = "running"  # has nothing to tell yet
            log = write(tmp_path / f"{day}.jsonl", *records)
            load(con, seeds, log, received_at=ARRIVED + timedelta(days=day), load_id=str(day))

        assert share_by_day(con, 2) == days((3, 1), (3, 1), (3, 1), (3, 1))[2:]
