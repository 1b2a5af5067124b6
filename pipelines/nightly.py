"""One night from the shell: the `nightly` job in this process, under the night lock, on the home's own Dagster instance.

What lives here: running the job and reading off how it went. What does not: what is printed (`progress.py`,
`commands/nightly.py`), and the job itself (`jobs.py`).
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from enum import IntEnum
from pathlib import Path
from time import monotonic
from typing import Any, TextIO
from uuid import uuid4

import dagster as dg

from assets.runs import PROCESS_TAG, StepFailure, clear_dead_runs, find_failures, this_process
from leap.params import load_params
from leap.store.control import Control
from leap.store.home import Home, night_lock
from pipelines.definitions import build_defs
from pipelines.jobs import NIGHTLY_JOB
from pipelines.prepare import prepare_home
from pipelines.progress import StepLines, quiet_process
from pipelines.schedules import night_config
from pipelines.settings import Settings, Source

# Dagster's UI lists a run under its job only where it carries the job's code location, and says who launched it with `user`.
_TAGS = {".dagster/repository": "__repository__@pipelines.definitions", "user": "leap nightly"}

_PUBLISHED = "published/rankings"
SUMMARY = "summary"  # the metadata with which an asset says what a person would want to know of the night


class ExitCode(IntEnum):
    """How `leap nightly` ends."""

    GOOD = 0
    FAILED = 1
    USAGE = 2
    HELD = 3
    BUSY = 4


@dataclass(frozen=True)
class NightResult:
    """How a night went. `assets` are the figures of each table and model made, by asset key, in order.

    `not_run` names the steps that a failure kept from running.
    """

    exit_code: ExitCode
    night: date | None
    run_id: str
    seconds: float
    log: Path
    steps: dict[str, float] = field(default_factory=dict)
    not_run: tuple[str, ...] = ()
    failures: tuple[StepFailure, ...] = ()
    assets: dict[str, dict[str, Any]] = field(default_factory=dict)


def run_night(settings: Settings, as_of: date | None, sources: Sequence[Source], overlay: Path | None = None) -> NightResult:
    """Run a night and wait for its end; progress goes to the error stream, everything else to the night's log.

    `as_of` empty = the UTC day of the newest known attempt. `sources` empty = those of the settings. `overlay` is laid over the
    params file. Raises NightIsRunning, HomeError, PrepareError, ParamsError; a step that fails is no exception but a result.
    """
    load_params(settings.params, overlay)  # a mistake in it is told before anything runs
    home = prepare_home(settings)
    log = home.work / "nightly.log"
    with night_lock(home, owner="leap nightly"), quiet_process(log) as terminal, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _run_job(settings, home, _run_config(as_of, sources or settings.sources, overlay), terminal, log)


def _run_config(as_of: date | None, sources: Sequence[Source], overlay: Path | None) -> dict[str, Any]:
    config = night_config(as_of.isoformat() if as_of else "", sources, str(overlay.resolve()) if overlay else "")
    # Dagster's own log is kept in its event log; a second copy of it would bury what the steps write
    return {**config, "loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


def _run_job(settings: Settings, home: Home, config: Mapping[str, Any], terminal: TextIO, log: Path) -> NightResult:
    began = monotonic()
    with StepLines(terminal) as lines:
        run_id = str(uuid4())
        job = build_defs(settings).resolve_job_def(NIGHTLY_JOB.name)
        with dg.DagsterInstance.from_config(str(home.dagster)) as instance:
            clear_dead_runs(instance)
            instance.add_event_listener(run_id, lines)
            result = job.execute_in_process(
                run_config=config,
                instance=instance,
                raise_on_error=False,
                run_id=run_id,
                tags={**_TAGS, PROCESS_TAG: this_process()},
            )
            failures = find_failures(instance, run_id)
    names = lines.planned
    assets = {
        event.asset_key.to_user_string(): _figures(event.materialization.metadata)
        for event in result.all_events
        if event.is_step_materialization and event.asset_key is not None
    }
    return NightResult(
        exit_code=_exit_code(result.success, failures, is_published=_PUBLISHED in assets),
        night=_night_of(home, run_id),
        run_id=run_id,
        seconds=monotonic() - began,
        log=log,
        steps={names.get(step, step): seconds for step, seconds in lines.seconds.items()},
        not_run=tuple(name for step, name in names.items() if step not in lines.seconds),
        failures=tuple(failure._replace(step=names.get(failure.step, failure.step)) for failure in failures),
        assets=assets,
    )


def _exit_code(success: bool, failures: Sequence[StepFailure], *, is_published: bool) -> ExitCode:
    if success:
        return ExitCode.GOOD
    # held means that what is served is as it was: a check that fails behind publishing is no such thing
    is_held = bool(failures) and all(failure.held for failure in failures) and not is_published
    return ExitCode.HELD if is_held else ExitCode.FAILED


def _night_of(home: Home, run_id: str) -> date | None:
    return next((run.night for run in Control(home.control).runs() if run.run_id == run_id), None)


def _figures(metadata: Mapping[str, dg.MetadataValue[Any]]) -> dict[str, Any]:
    """Keep of an asset's metadata what is a figure or a short text, and the summary; tables and plots are for the UI."""
    values = {
        name: getattr(value, "value", None)
        for name, value in metadata.items()
        if name == SUMMARY or not isinstance(value, dg.MarkdownMetadataValue)
    }
    figures = {name: value for name, value in values.items() if isinstance(value, int | float | str)}
    if SUMMARY in figures:  # its lines end in blanks, which break them in markdown
        figures[SUMMARY] = "\n".join(line.rstrip() for line in str(figures[SUMMARY]).splitlines())
    return figures
