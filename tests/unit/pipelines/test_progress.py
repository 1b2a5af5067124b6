"""A night on the terminal: one line per step, under the name of its asset or check, and nothing else."""

import io
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import dagster as dg
import pytest

from assets.runs import HELD
from pipelines.progress import StepLines


@dg.asset(key_prefix="raw")
def job_attempts(context: dg.AssetExecutionContext) -> None:
    context.log.debug("nobody wants to know")
    context.log.warning("two files are empty")


@dg.asset_check(asset=job_attempts)
def counts_reconcile() -> dg.AssetCheckResult:
    return dg.AssetCheckResult(passed=True)


@dg.multi_asset(specs=[dg.AssetSpec(["marts", "a"], deps=[job_attempts]), dg.AssetSpec(["marts", "b"], deps=[job_attempts])])
def build() -> Iterator[dg.MaterializeResult[None]]:
    yield dg.MaterializeResult(asset_key=["marts", "a"])
    yield dg.MaterializeResult(asset_key=["marts", "b"])


@dg.asset_check(asset=["marts", "a"], blocking=True)
def gate() -> dg.AssetCheckResult:
    return dg.AssetCheckResult(passed=False)


@dg.asset(key_prefix="published", deps=[["marts", "a"]])
def rankings() -> None: ...


def _run(*assets: dg.AssetsDefinition, checks: tuple[dg.AssetChecksDefinition, ...] = ()) -> tuple[StepLines, list[str]]:
    terminal, run_id = io.StringIO(), str(uuid4())
    job = dg.Definitions(
        assets=assets, asset_checks=checks, executor=dg.in_process_executor
    ).resolve_implicit_global_asset_job_def()
    with dg.instance_for_test() as instance, StepLines(terminal) as lines:
        instance.add_event_listener(run_id, lines)
        job.execute_in_process(instance=instance, raise_on_error=False, run_id=run_id)
    return lines, [re.sub(r"\d+\.\d s", "0.0 s", line.rstrip()) for line in terminal.getvalue().splitlines()]


def test_a_step_has_a_line_at_its_start_and_its_end_and_warnings_between() -> None:
    lines, said = _run(job_attempts)

    assert said == ["start   raw/job_attempts", "        two files are empty", "done    raw/job_attempts  0.0 s"]
    assert list(lines.seconds) == ["raw__job_attempts"]


def test_steps_are_named_after_what_they_make() -> None:
    lines, said = _run(job_attempts, build, checks=(counts_reconcile,))

    assert lines.planned == {
        "raw__job_attempts": "raw/job_attempts",
        "raw__job_attempts_counts_reconcile": "raw/job_attempts: counts_reconcile",
        "build": "build",
    }
    assert "done    raw/job_attempts: counts_reconcile  0.0 s" in said


def test_a_blocking_check_is_held_and_what_it_kept_from_running_has_no_line() -> None:
    lines, said = _run(job_attempts, build, rankings, checks=(gate,))

    assert said[-1] == "held    marts/a: gate  0.0 s"
    assert [lines.planned[step] for step in lines.planned if step not in lines.seconds] == ["published/rankings"]


@pytest.mark.parametrize(("failure", "word"), [(dg.Failure("no"), "failed"), (dg.Failure("no", metadata={HELD: True}), "held  ")])
def test_an_error_is_failed_and_a_gate_is_held(failure: dg.Failure, word: str) -> None:
    @dg.asset
    def broken() -> None:
        raise failure

    assert _run(broken)[1] == ["start   broken", f"{word}  broken  0.0 s"]


def test_what_this_process_and_its_children_write_goes_to_the_log(tmp_path: Path) -> None:
    # given: a process that writes in every way there is while it is quiet
    script = f"""
import os, subprocess, sys
from pathlib import Path
from pipelines.progress import quiet_process
print("before")
with quiet_process(Path({str(tmp_path / "log")!r})) as terminal:
    print("from Python")
    print("to the error stream", file=sys.stderr)
    os.write(1, b"past Python\\n")
    subprocess.run(["echo", "from a child"])
    terminal.write("progress\\n")
print("after")
"""

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["before", "after"]
    assert done.stderr.split() == ["progress"]
    assert sorted((tmp_path / "log").read_text().splitlines()) == [
        "from Python",
        "from a child",
        "past Python",
        "to the error stream",
    ]
