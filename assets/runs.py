"""What LEAP asks of Dagster's books: whether a run's process still lives, and why a run did not go through.

What lives here: reading and correcting Dagster's record of runs. What does not: the run ledger (`leap/store/control.py`), the
night lock (`leap/store/home.py`), and how any of it is shown (`pipelines/nightly.py`).
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from time import time
from typing import Any, NamedTuple

import dagster as dg
from dagster import DagsterEventType
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin

PROCESS_TAG = ".dagster/leap_process"  # tags of this prefix are kept and not shown
NIGHT_TAG = "leap/night"
HELD_TAG = "leap/held"
HELD_LINE = "The night was held:"  # how the last line of a held run begins
# A dg.Failure with this in its metadata is a gate that held, as a blocking check is, and no fault of the code.
HELD = "held"
# A run that has not said which process it is in has either just begun or died before it could.
_SILENT_SECONDS = 300.0
_UNDER_WAY = [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
_TELLING = {
    DagsterEventType.STEP_FAILURE,
    DagsterEventType.ASSET_CHECK_EVALUATION,
    DagsterEventType.RESOURCE_INIT_FAILURE,
}
_REPOSITORY_TAG = ".dagster/repository"
_DBT_ROWS = "dagster_dbt/failed_row_count"
_OURS = re.compile(r"^(leap|assets|pipelines)\.[\w.]+: ")  # errors of our own are sentences and need no name before them
_CHECK_FAILED = "DagsterAssetCheckFailedError"


class StepFailure(NamedTuple):
    """A step that did not go through. `held` = a gate or blocking check said no; `reasons` are its sentences, or the error."""

    step: str
    held: bool
    reasons: tuple[str, ...]


def this_process() -> str:
    """Name this process so that another can tell whether it still lives: `pid:start`, start as the kernel counts it."""
    return f"{os.getpid()}:{_started(os.getpid())}"


def is_alive(process: str) -> bool:
    """Tell whether the process that `this_process` named still runs; a later process with the same number is another."""
    pid, _, started = process.partition(":")
    try:
        os.kill(int(pid), 0)
    except PermissionError:
        return True
    except (ValueError, ProcessLookupError):
        return False
    return _started(int(pid)) == started


def place_run(instance: dg.DagsterInstance, run_id: str) -> None:
    """Let Dagster's UI find the job of a run that says where it is from by its tag alone, as one started from the shell does.

    A run without an origin is listed, but missing from the timeline, which is the UI's first page.
    """
    run = instance.get_run_by_id(run_id)
    repository, _, location = run.tags.get(_REPOSITORY_TAG, "").partition("@") if run is not None else ("", "", "")
    if run is not None and location and run.remote_job_origin is None:
        origin = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin(location), repository)
        instance.run_storage.replace_job_origin(run, RemoteJobOrigin(origin, run.job_name))


def clear_dead_runs(instance: dg.DagsterInstance, except_run: str = "") -> list[str]:
    """Mark runs failed that are under way by the books but whose process is gone; this frees their pool slots too.

    Returns their ids.
    """
    dead = [
        record.dagster_run
        for record in instance.get_run_records(dg.RunsFilter(statuses=_UNDER_WAY))
        if record.dagster_run.run_id != except_run and _is_dead(record)
    ]
    for run in dead:
        instance.report_run_failed(run, "The process of this run is gone: it was killed, or its machine went down.")
    return [run.run_id for run in dead]


def find_failures(instance: dg.DagsterInstance, run_id: str) -> list[StepFailure]:
    """List the steps of a run that failed, in order, with what a person needs to know of each."""
    entries = instance.all_logs(run_id, of_type=_TELLING)
    events = [entry.dagster_event for entry in entries if entry.dagster_event is not None]
    return [_describe(event, events) for event in events if event.event_type != DagsterEventType.ASSET_CHECK_EVALUATION]


def is_held(failure: dg.DagsterEvent) -> bool:
    """Tell whether a step failed only because a blocking check of it did, or because it said that a gate held."""
    data = failure.step_failure_data
    if data.user_failure_data is not None:
        return HELD in data.user_failure_data.metadata
    return data.error is not None and data.error.cls_name == _CHECK_FAILED


def _describe(failure: dg.DagsterEvent, events: Iterable[dg.DagsterEvent]) -> StepFailure:
    if not failure.is_step_failure:
        return StepFailure("resources", False, (_root(failure.engine_event_data.error),))
    step, data = failure.step_key or "", failure.step_failure_data
    if data.user_failure_data is not None:
        reasons = [data.user_failure_data.description or "no reason was given"]
    elif is_held(failure):
        evaluations = [event.asset_check_evaluation_data for event in events if _is_failed_check(event, step)]
        reasons = [reason for evaluation in evaluations for reason in _check_reasons(evaluation)]
    else:
        reasons = [_root(data.error)]
    return StepFailure(step, is_held(failure), tuple(reasons))


def _root(error: Any) -> str:
    """Give the message of what was raised in our code, inside Dagster's own wrapping."""
    while error is not None and error.cause is not None:
        error = error.cause
    if error is None:
        return "no error was recorded"
    if error.cls_name == "DagsterExecutionInterruptedError":
        return "interrupted"
    return _OURS.sub("", str(error.message).strip())


def _is_failed_check(event: dg.DagsterEvent, step: str) -> bool:
    if event.event_type != DagsterEventType.ASSET_CHECK_EVALUATION or event.step_key != step:
        return False
    evaluation = event.asset_check_evaluation_data
    return not evaluation.passed and evaluation.severity == dg.AssetCheckSeverity.ERROR


def _check_reasons(evaluation: dg.AssetCheckEvaluation) -> list[str]:
    """Give what the check said: its description, then each sentence of its `reason` that is not the same again."""
    rows = evaluation.metadata.get(_DBT_ROWS)
    said = evaluation.description or (f"{rows.value} rows" if rows is not None else "did not pass")
    reason = evaluation.metadata.get("reason")
    values = [] if reason is None else reason.value if isinstance(reason.value, list) else str(reason.value).splitlines()
    name = f"{evaluation.asset_key.to_user_string()}: {evaluation.check_name}"
    return [f"{name}: {said}", *(str(value) for value in values if str(value) != said)]


def _is_dead(record: dg.RunRecord) -> bool:
    process = record.dagster_run.tags.get(PROCESS_TAG)
    if process is None:
        return time() - record.update_timestamp.timestamp() > _SILENT_SECONDS
    return not is_alive(process)


def _started(pid: int) -> str:
    """Give the process's start in clock ticks since boot; empty for a process that has ended, or on a system without /proc."""
    stat = Path(f"/proc/{pid}/stat")
    if not stat.exists():
        return ""
    # the name in parentheses may hold blanks; state and start are the 3rd and 22nd field, the 1st and 20th after it
    fields = stat.read_text().rpartition(")")[2].split()
    return "" if fields[0] == "Z" else fields[19]
