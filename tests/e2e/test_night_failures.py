"""Nights that are killed, meet another, stand before a shut gate or lose a record; and the next one is as if nothing had been.

One home goes through all of it: each fixture is one more night in it, and keeps what that night left.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest

from leap.serving.snapshot import POINTER
from leap.store.warehouse import connect

if TYPE_CHECKING:
    from tests.e2e.conftest import Done, GoodHome, Leap, Night, Running

SHUT = "share within 20% is"


@pytest.fixture(scope="module")
def leap(tmp_path_factory: pytest.TempPathFactory, make_leap_in: Callable[[Path], Leap]) -> Leap:
    return make_leap_in(tmp_path_factory.mktemp("failures"))


@pytest.fixture(scope="module")
def source(logs: Path) -> tuple[str, str]:
    return ("--source", f"jsonl={logs}")


@pytest.fixture(scope="module")
def killed_in_dbt(leap: Leap, source: tuple[str, str]) -> Running:
    """The first night of the home, killed while dbt writes; dbt, a process of its own, is left to itself."""
    running = leap.start_night(*source)
    running.wait_for("^start +dbt_build")
    running.until(lambda: has_open(leap.layout.warehouse, other_than=running.process.pid), "dbt opens the warehouse")
    running.kill()
    return running


@dataclass(frozen=True)
class KilledWhenPublished:
    running: Running
    manifest: dict[str, Any]
    promotions: list[dict[str, Any]]


@pytest.fixture(scope="module")
def killed_when_published(leap: Leap, source: tuple[str, str], killed_in_dbt: Running) -> KilledWhenPublished:
    """Killed after the pointer names the new snapshot and before it is recorded why."""
    running = leap.start_night(*source)
    running.wait_for("^start +published/rankings")
    running.until((leap.layout.published / POINTER).exists, "the pointer names the first snapshot")
    running.kill()
    return KilledWhenPublished(running, leap.manifest(), leap.promotions())


@dataclass(frozen=True)
class Met:
    """A night that went through, and what the commands said that met it."""

    night: Night
    pid: int
    second_night: Done
    ingest: Done
    promotions: list[dict[str, Any]]
    aliases: dict[str, str | None]


@pytest.fixture(scope="module")
def met(leap: Leap, source: tuple[str, str], logs: Path, killed_when_published: KilledWhenPublished) -> Met:
    running = leap.start_night(*source)
    running.wait_for("^start")
    second_night, ingest = leap.night(*source), leap("ingest", "jsonl", logs)
    night = leap.left_by(running.finish())
    return Met(night, running.process.pid, second_night, ingest, leap.promotions(), leap.aliases())


@dataclass(frozen=True)
class Held:
    night: Night
    aliases: dict[str, str | None]
    evaluation: dg.AssetCheckEvaluation


@pytest.fixture(scope="module")
def held(leap: Leap, source: tuple[str, str], met: Met, write_params: Callable[..., Path]) -> Held:
    # another seed makes another model, so that it is not the champion by chance
    params = write_params(leap.folder.with_name("impossible.yaml"), gates={"min_within_20": 2.0}, seed=7)
    night = leap.left_by(leap.night(*source, "--params", params))
    return Held(night, leap.aliases(), evaluation_of_the_gates(leap))


@pytest.fixture(scope="module")
def killed_in_training(leap: Leap, source: tuple[str, str], held: Held) -> Running:
    running = leap.start_night(*source)
    running.until(lambda: "RUNNING" in mlflow_runs(leap), "MLflow is told of the run")
    running.kill_all()
    return running


@pytest.fixture(scope="module")
def recovered(leap: Leap, source: tuple[str, str], killed_in_training: Running) -> Night:
    return leap.left_by(leap.night(*source))


@pytest.fixture(scope="module")
def lost_a_record(leap: Leap, recovered: Night) -> Night:
    """A night without new logs, over a warehouse in which a row was removed behind LEAP's back."""
    with connect(leap.layout.warehouse) as connection:
        connection.execute("delete from raw.job_attempts where attempt_id = 'late-1' and throughput = 500")
    return leap.left_by(leap.night())


def has_open(file: Path, *, other_than: int) -> bool:
    """Tell whether a process has the file open."""
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if link.readlink() == file and int(link.parts[2]) != other_than:
                return True
    return False


def mlflow_runs(leap: Leap) -> list[str]:
    """List the status of each of MLflow's runs, oldest first."""
    with closing(sqlite3.connect(f"file:{leap.layout.mlflow_database}?mode=ro", uri=True)) as connection:
        return [status for (status,) in connection.execute("select status from runs order by start_time")]


def evaluation_of_the_gates(leap: Leap) -> dg.AssetCheckEvaluation:
    """Give what Dagster keeps of the last check of the gates."""
    with dg.DagsterInstance.from_config(str(leap.layout.dagster)) as instance:
        key = dg.AssetCheckKey(dg.AssetKey(["model", "verdicts"]), "gates")
        (record,) = instance.event_log_storage.get_asset_check_execution_history(key, limit=1)
    assert record.evaluation is not None
    return record.evaluation


def gone(running: Running, seconds: float = 10) -> bool:
    """Tell whether nothing of a killed command lives on, or soon will not."""
    deadline = monotonic() + seconds
    while running.left_behind() and monotonic() < deadline:
        sleep(0.1)
    return not running.left_behind()


def test_dbt_does_not_outlive_a_night_that_is_killed(killed_in_dbt: Running) -> None:
    assert gone(killed_in_dbt), killed_in_dbt.left_behind()


def test_the_night_after_one_killed_in_dbt_runs_at_once(killed_when_published: KilledWhenPublished) -> None:
    # the fixture started it without waiting for anything, and it came as far as publishing
    assert killed_when_published.manifest["night"] == "2026-03-05"
    assert killed_when_published.promotions == []


def test_a_promotion_that_a_killed_night_owed_is_recorded_by_the_next(
    killed_when_published: KilledWhenPublished, met: Met
) -> None:
    served = met.night.manifest
    assert [promotion["snapshot_id"] for promotion in met.promotions] == [served["snapshot_id"]]
    assert served["previous_snapshot_id"] == killed_when_published.manifest["snapshot_id"]
    assert met.aliases == {"champion": served["model_version"], "challenger": served["model_version"]}


def test_after_killed_nights_all_is_as_if_they_had_not_been(met: Met, good: GoodHome) -> None:
    night = met.night
    assert night.done.code == 0, night.done.err
    same = ("rankings_hash", "fingerprint", "model_version", "dataset_id", "row_count")
    assert {name: night.manifest[name] for name in same} == {name: good.first.manifest[name] for name in same}
    assert without_loads(night.counts) == without_loads(good.first.counts)


def without_loads(counts: dict[str, int]) -> dict[str, int]:
    return {name: n for name, n in counts.items() if name != "raw.loads"}


def test_of_two_nights_at_once_one_runs_and_the_other_says_who_does(met: Met) -> None:
    for refused in (met.second_night, met.ingest):
        assert (refused.code, refused.out) == (4, "")
        assert f"a night is running already (leap nightly, process {met.pid} on " in refused.err
    assert met.second_night.seconds < met.night.done.seconds


def test_a_shut_gate_changes_nothing_that_is_served(held: Held, met: Met) -> None:
    assert held.night.done.code == 3
    assert held.night.manifest == met.night.manifest
    assert held.aliases["champion"] == met.aliases["champion"]
    assert held.aliases["challenger"] != met.aliases["challenger"]


def test_a_shut_gate_says_why(held: Held) -> None:
    said = held.night.done.out
    assert "was held: champion and published table are as they were" in said
    reasons = [line.strip() for line in said.splitlines() if SHUT in line]
    assert len(reasons) == 1
    assert "must be at least 2 (min_within_20)" in reasons[0]
    assert not held.evaluation.passed
    assert SHUT in (held.evaluation.description or "")


def test_after_a_held_and_a_killed_night_a_normal_one_goes_well(recovered: Night, met: Met, killed_in_training: Running) -> None:
    assert recovered.done.code == 0, recovered.done.err
    same = ("rankings_hash", "fingerprint", "model_version")
    assert {name: recovered.manifest[name] for name in same} == {name: met.night.manifest[name] for name in same}
    assert recovered.manifest["previous_snapshot_id"] == met.night.manifest["snapshot_id"]
    assert without_loads(recovered.counts) == without_loads(met.night.counts)
    assert gone(killed_in_training), killed_in_training.left_behind()


def test_a_record_that_is_lost_holds_the_night_before_anything_is_learned(lost_a_record: Night, recovered: Night) -> None:
    assert lost_a_record.done.code == 3, lost_a_record.done.err
    assert "raw/loads: counts_reconcile" in lost_a_record.done.out
    assert "start   datasets/night_dataset" not in lost_a_record.done.err
    assert lost_a_record.manifest == recovered.manifest


def test_the_books_say_what_became_of_each_night(lost_a_record: Night, leap: Leap) -> None:
    success, failure = dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE
    with dg.DagsterInstance.from_config(str(leap.layout.dagster)) as instance:
        runs = [run.status for run in reversed(instance.get_runs())]
    assert runs == [failure, failure, success, failure, failure, success, failure]
    statuses = [status for _, status in leap.ledger()]
    assert statuses == ["dead", "dead", "succeeded", "blocked", "dead", "succeeded", "blocked"]
    # the night killed in dbt had not come as far as training, that which had lost a record neither
    assert mlflow_runs(leap) == ["FINISHED", "FINISHED", "FINISHED", "KILLED", "FINISHED"]
