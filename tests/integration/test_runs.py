"""Dagster's books on a real instance: dead runs are told from living ones, a held gate from an error."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from assets.runs import (
    HELD,
    PROCESS_TAG,
    StepFailure,
    clear_dead_runs,
    find_failures,
    is_alive,
    place_run,
    this_process,
)
from leap.sources import SourceError


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test(temp_dir=str(tmp_path)) as instance:
        yield instance


@dg.asset
def upstream() -> int:
    return 1


def _job(*assets: dg.AssetsDefinition, checks: list[dg.AssetChecksDefinition] | None = None) -> dg.JobDefinition:
    definitions = dg.Definitions(assets=assets, asset_checks=checks, executor=dg.in_process_executor)
    return definitions.resolve_implicit_global_asset_job_def()


def _dead_process() -> str:
    script = "from assets.runs import this_process; print(this_process())"
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()


def _started(instance: dg.DagsterInstance, process: str) -> str:
    job = _job(upstream)
    run = instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED, tags={PROCESS_TAG: process})
    return run.run_id


def _status(instance: dg.DagsterInstance, run_id: str) -> dg.DagsterRunStatus:
    run = instance.get_run_by_id(run_id)
    assert run is not None
    return run.status


def test_a_run_from_the_shell_gets_the_origin_that_its_tag_names(instance: dg.DagsterInstance) -> None:
    job = _job(upstream)
    tagged = instance.create_run_for_job(job, tags={".dagster/repository": "__repository__@pipelines.definitions", "a": "b"})
    bare = instance.create_run_for_job(job)

    place_run(instance, tagged.run_id)
    place_run(instance, bare.run_id)

    placed, left = instance.get_run_by_id(tagged.run_id), instance.get_run_by_id(bare.run_id)
    assert placed is not None
    assert placed.remote_job_origin is not None
    assert placed.remote_job_origin.location_name == "pipelines.definitions"
    assert placed.remote_job_origin.repository_origin.repository_name == "__repository__"
    assert placed.remote_job_origin.job_name == job.name
    assert placed.tags["a"] == "b"
    assert left is not None
    assert left.remote_job_origin is None


def test_a_process_is_alive_while_it_runs_and_not_after() -> None:
    assert is_alive(this_process())
    assert not is_alive(_dead_process())


def test_a_later_process_with_the_same_number_is_another() -> None:
    pid, _, started = this_process().partition(":")

    assert not is_alive(f"{pid}:{int(started) - 1}")


def test_only_runs_whose_process_is_gone_are_marked_failed(instance: dg.DagsterInstance) -> None:
    dead, living = _started(instance, _dead_process()), _started(instance, this_process())

    cleared = clear_dead_runs(instance)

    assert cleared == [dead]
    assert _status(instance, dead) == dg.DagsterRunStatus.FAILURE
    assert _status(instance, living) == dg.DagsterRunStatus.STARTED


def test_the_run_that_asks_is_left_alone(instance: dg.DagsterInstance) -> None:
    asking = _started(instance, _dead_process())

    assert clear_dead_runs(instance, except_run=asking) == []
    assert _status(instance, asking) == dg.DagsterRunStatus.STARTED


def test_a_run_that_has_just_begun_and_said_nothing_yet_is_left_alone(instance: dg.DagsterInstance) -> None:
    run = instance.create_run_for_job(_job(upstream), status=dg.DagsterRunStatus.STARTED)

    assert clear_dead_runs(instance) == []
    assert _status(instance, run.run_id) == dg.DagsterRunStatus.STARTED


def test_a_blocking_check_holds_and_gives_its_sentences(instance: dg.DagsterInstance) -> None:
    @dg.asset_check(asset=upstream, blocking=True)
    def gate() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(
            passed=False, description="the challenger is held", metadata={"reason": ["too few answers", "too wide"]}
        )

    @dg.asset(deps=[upstream])
    def downstream() -> None:
        raise AssertionError("must not run")

    result = _job(upstream, downstream, checks=[gate]).execute_in_process(instance=instance, raise_on_error=False)

    assert find_failures(instance, result.run_id) == [
        StepFailure("upstream_gate", True, ("upstream: gate: the challenger is held", "too few answers", "too wide"))
    ]


def test_a_check_that_says_the_same_twice_is_quoted_once(instance: dg.DagsterInstance) -> None:
    @dg.asset_check(asset=upstream, blocking=True)
    def gate() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=False, description="too wide", metadata={"reason": "too wide"})

    result = _job(upstream, checks=[gate]).execute_in_process(instance=instance, raise_on_error=False)

    assert [failure.reasons for failure in find_failures(instance, result.run_id)] == [("upstream: gate: too wide",)]


def test_a_warning_and_a_check_that_does_not_block_hold_nothing(instance: dg.DagsterInstance) -> None:
    @dg.asset_check(asset=upstream, blocking=True)
    def warns() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=False, severity=dg.AssetCheckSeverity.WARN)

    @dg.asset_check(asset=upstream)
    def tells() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=False)

    result = _job(upstream, checks=[warns, tells]).execute_in_process(instance=instance, raise_on_error=False)

    assert result.success
    assert find_failures(instance, result.run_id) == []


def test_an_error_is_no_gate_and_gives_what_was_raised(instance: dg.DagsterInstance) -> None:
    @dg.asset
    def broken() -> None:
        raise ValueError("line 3: no such column")

    result = _job(broken).execute_in_process(instance=instance, raise_on_error=False)

    assert find_failures(instance, result.run_id) == [StepFailure("broken", False, ("ValueError: line 3: no such column",))]


def test_an_error_of_our_own_is_its_sentence(instance: dg.DagsterInstance) -> None:
    @dg.asset
    def unread() -> None:
        raise SourceError("/nope: no such file or folder")

    result = _job(unread).execute_in_process(instance=instance, raise_on_error=False)

    assert find_failures(instance, result.run_id) == [StepFailure("unread", False, ("/nope: no such file or folder",))]


@pytest.mark.parametrize("held", [True, False])
def test_a_failure_holds_only_where_it_says_so(instance: dg.DagsterInstance, held: bool) -> None:
    @dg.asset
    def raises() -> None:
        raise dg.Failure("tests failed", metadata={HELD: True} if held else {})

    result = _job(raises).execute_in_process(instance=instance, raise_on_error=False)

    assert find_failures(instance, result.run_id) == [StepFailure("raises", held, ("tests failed",))]


def test_a_resource_that_does_not_start_is_told(instance: dg.DagsterInstance) -> None:
    @dg.resource
    def door() -> None:
        raise RuntimeError("the door is locked")

    @dg.asset(required_resource_keys={"door"})
    def behind() -> None: ...

    job = dg.Definitions(assets=[behind], resources={"door": door}).resolve_implicit_global_asset_job_def()
    result = job.execute_in_process(instance=instance, raise_on_error=False)

    assert find_failures(instance, result.run_id) == [StepFailure("resources", False, ("RuntimeError: the door is locked",))]
