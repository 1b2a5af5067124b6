"""The run ledger and the promotions keep what they were told, whoever writes and however a writer ends."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path

import pytest

from leap.store import control as control_module
from leap.store.control import CONTROL_SCHEMA_VERSION, Control, ControlError, Promotion, RunStatus

NIGHT = date(2026, 11, 30)
START = datetime(2026, 12, 1, 2, 30, tzinfo=UTC)
PROMOTION = Promotion(
    promoted_at=START,
    night=NIGHT,
    model_version="9",
    fingerprint="f9",
    dataset_id="2026-11-30-0123456789ab",
    code_version="410c31b",
    params_hash="p1",
    price_version="list@2026-11-01",
    snapshot_id=None,
    verdict={"promote": True, "gates": [{"name": "min_answered", "value": 0.93}]},
    reason="passes every gate",
)

_WRITER = """
import os, signal, sys
from datetime import UTC, date, datetime
from pathlib import Path
from leap.store.control import Control, RunStatus

path, name, count, ending = sys.argv[1:]
control = Control(Path(path))
for number in range(int(count)):
    at = datetime(2026, 12, 1, 2, number, tzinfo=UTC)
    control.start_run(f"{name}-{number}", night=date(2026, 11, 30), as_of=at, pid=os.getpid(), started_at=at)
    if ending == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    control.finish_run(f"{name}-{number}", status=RunStatus.SUCCEEDED, ended_at=at)
"""


@pytest.fixture
def control(tmp_path: Path) -> Control:
    return Control(tmp_path / "control.db")


def start_run(control: Control, run_id: str, *, pid: int = 1, minutes: int = 0) -> None:
    control.start_run(run_id, night=NIGHT, as_of=START, pid=pid, started_at=START + timedelta(minutes=minutes))


def writer(path: Path, name: str, count: int, ending: str, repository: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", _WRITER, str(path), name, str(count), ending], cwd=repository)


def test_a_run_is_kept_from_start_to_end(control: Control) -> None:
    start_run(control, "a", pid=4242)
    figures = {"read": 18000, "share": 0.96, "none": float("nan"), "list": [float("inf"), 1]}
    control.finish_run("a", status=RunStatus.BLOCKED, ended_at=START + timedelta(minutes=8), reason="gate shut", figures=figures)

    (run,) = Control(control.path).runs()

    assert (run.run_id, run.night, run.as_of, run.pid) == ("a", NIGHT, START, 4242)
    assert (run.status, run.started_at, run.ended_at) == (RunStatus.BLOCKED, START, START + timedelta(minutes=8))
    assert (run.reason, run.figures) == ("gate shut", {"read": 18000, "share": 0.96, "none": None, "list": [None, 1]})


def test_runs_are_listed_newest_first(control: Control) -> None:
    for minutes, run_id in enumerate("abc"):
        start_run(control, run_id, minutes=minutes)
    assert [run.run_id for run in control.runs(limit=2)] == ["c", "b"]


def test_a_time_is_kept_in_utc_and_must_have_an_offset(control: Control) -> None:
    elsewhere = datetime(2026, 12, 1, 4, 30, tzinfo=timezone(timedelta(hours=2)))
    control.start_run("a", night=NIGHT, as_of=START, pid=1, started_at=elsewhere)
    assert control.runs()[0].started_at.isoformat() == "2026-12-01T02:30:00+00:00"
    with pytest.raises(ControlError, match="has no offset"):
        control.start_run("b", night=NIGHT, as_of=START, pid=1, started_at=START.replace(tzinfo=None))


def test_a_run_starts_once_and_ends_once(control: Control) -> None:
    start_run(control, "a")
    with pytest.raises(ControlError, match="run a is in the ledger already"):
        start_run(control, "a")
    control.finish_run("a", status=RunStatus.FAILED, ended_at=START)
    with pytest.raises(ControlError, match=r"run a cannot end as succeeded: it stands as failed"):
        control.finish_run("a", status=RunStatus.SUCCEEDED, ended_at=START)
    with pytest.raises(ControlError, match="run b cannot end as failed: it is not in the ledger"):
        control.finish_run("b", status=RunStatus.FAILED, ended_at=START)
    assert control.runs()[0].status is RunStatus.FAILED


def test_only_started_runs_whose_process_is_gone_are_dead(control: Control) -> None:
    for run_id, pid in (("gone", 10), ("going", 11), ("done", 12)):
        start_run(control, run_id, pid=pid)
    control.finish_run("done", status=RunStatus.SUCCEEDED, ended_at=START)

    dead = control.mark_dead_runs(lambda pid: pid == 11, ended_at=START + timedelta(days=1))

    assert [(run.run_id, run.status, run.ended_at) for run in dead] == [("gone", RunStatus.DEAD, START + timedelta(days=1))]
    assert {run.run_id: run.status.value for run in control.runs()} == {"gone": "dead", "going": "started", "done": "succeeded"}
    assert control.mark_dead_runs(lambda pid: pid == 11, ended_at=START) == []


def test_the_last_promotion_recorded_is_live(control: Control) -> None:
    assert control.live_promotion() is None
    control.record_promotion(PROMOTION)
    # Versions are texts, and times may be equal: neither decides.
    newer = replace(PROMOTION, model_version="10", snapshot_id="2026-11-30T20261201T023000Z-0123456789ab")
    control.record_promotion(newer)

    assert control.live_promotion() == newer
    assert control.promotions() == [newer, PROMOTION]
    assert control.promotions(limit=1) == [newer]


def test_a_retry_of_the_live_promotion_adds_nothing_but_going_back_does(control: Control) -> None:
    older, newer = PROMOTION, replace(PROMOTION, model_version="10")
    control.record_promotion(older)
    control.record_promotion(newer)
    control.record_promotion(replace(newer, promoted_at=START + timedelta(hours=1)))
    control.record_promotion(older)
    assert [promotion.model_version for promotion in control.promotions()] == ["9", "10", "9"]


@pytest.mark.parametrize(
    "statement",
    [
        "update promotions set reason = 'another'",
        "delete from promotions",
        "insert or replace into promotions select promotion_id, promoted_at, night, '11', fingerprint, dataset_id,"
        " code_version, params_hash, price_version, snapshot_id, verdict, reason from promotions",
    ],
)
def test_a_promotion_cannot_be_changed(control: Control, statement: str) -> None:
    control.record_promotion(PROMOTION)
    connection = sqlite3.connect(control.path)
    with pytest.raises(sqlite3.IntegrityError, match="promotions are append-only"):
        connection.execute(statement)
    connection.close()
    assert control.promotions() == [PROMOTION]


def test_eight_processes_share_a_new_database(tmp_path: Path, repository: Path) -> None:
    path = tmp_path / "control.db"

    writers = [writer(path, f"w{number}", 10, "finish", repository) for number in range(8)]

    assert [process.wait(60) for process in writers] == [0] * 8
    runs = Control(path).runs(limit=100)
    assert len({run.run_id for run in runs}) == 80
    assert {run.status for run in runs} == {RunStatus.SUCCEEDED}


def test_a_copy_of_the_file_has_what_a_killed_writer_committed(tmp_path: Path, repository: Path) -> None:
    path = tmp_path / "control.db"
    assert writer(path, "w", 1, "kill", repository).wait(60) == -9

    shutil.copyfile(path, tmp_path / "copy.db")

    assert [run.run_id for run in Control(tmp_path / "copy.db").runs()] == ["w-0"]
    assert Control(path).mark_dead_runs(lambda _pid: False, ended_at=START)[0].run_id == "w-0"


def test_an_older_database_is_brought_forward(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    start_run(control, "a")
    migrations = (*control_module._MIGRATIONS, ("create table freezes (until text not null)",))
    monkeypatch.setattr(control_module, "_MIGRATIONS", migrations)
    monkeypatch.setattr(control_module, "CONTROL_SCHEMA_VERSION", len(migrations))

    assert [run.run_id for run in Control(control.path).runs()] == ["a"]

    connection = sqlite3.connect(control.path)
    assert connection.execute("pragma user_version").fetchone() == (CONTROL_SCHEMA_VERSION + 1,)
    assert connection.execute("select count(*) from freezes").fetchone() == (0,)
    connection.close()


def test_a_newer_database_is_refused(control: Control) -> None:
    connection = sqlite3.connect(control.path)
    connection.execute(f"pragma user_version = {CONTROL_SCHEMA_VERSION + 1}")
    connection.close()
    with pytest.raises(ControlError, match=rf"schema version is {CONTROL_SCHEMA_VERSION + 1}, this LEAP knows versions up to"):
        Control(control.path)


def test_another_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "control.db").write_text("no database, but long enough to be looked at " * 20)
    with pytest.raises(ControlError, match=r"control\.db: file is not a database"):
        Control(tmp_path / "control.db")
