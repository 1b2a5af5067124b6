"""A night on the terminal: a line as each step starts and ends.

What lives here: turning Dagster's events into lines, and keeping all else off the terminal. What does not: the summary at the
end (`commands/nightly.py`).
"""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Self, TextIO

import dagster as dg
from dagster import DagsterEventType
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.spinner import Spinner

from assets.runs import HELD_LINE, is_held

# Without a terminal that can be redrawn, what a step says of itself is shown this often.
_SAY_EVERY_SECONDS = 10.0
_MAX_WIDTH = 100
# What the summary says again (why a night was held, which steps did not run), and what dagster-dbt says of itself.
_CHATTER = (
    HELD_LINE,
    "Dependencies for step",
    "A dbt subsetted execution",
    "Copying `",
    "Running dbt command",
    "Finished dbt command",
    "Logging an `AssetObservation`",
)


class StepLines:
    """Dagster's event listener for one run: writes lines to `terminal`.

    Keeps the steps that were planned, by key, with the name a person knows them by; and the seconds of those that ended.
    """

    def __init__(self, terminal: TextIO) -> None:
        self._console = Console(file=terminal, highlight=False, soft_wrap=True)
        self._spinner = Spinner("dots", "loading")
        # without rich's redirection: what steps print belongs in the log
        live = Live(self._spinner, console=self._console, transient=True, redirect_stdout=False, redirect_stderr=False)
        self._live = live if self._console.is_terminal else None
        self._started: dict[str, float] = {}
        self._spoke = 0.0
        self._current = ""
        self.seconds: dict[str, float] = {}
        self.planned: dict[str, str] = {}

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, entry: dg.EventLogEntry) -> None:
        """Take one event of the run."""
        event = entry.dagster_event
        if event is None:
            self._said(entry)
        elif event.step_key is None:
            return
        elif event.event_type == DagsterEventType.ASSET_MATERIALIZATION_PLANNED and event.asset_key is not None:
            self._planned(event.step_key, event.asset_key, "__".join(event.asset_key.path), "")
        elif event.event_type == DagsterEventType.ASSET_CHECK_EVALUATION_PLANNED:
            check = event.asset_check_planned_data
            of_check = f"{'__'.join(check.asset_key.path)}_{check.check_name}"
            self._planned(event.step_key, check.asset_key, of_check, f": {check.check_name}")
        elif event.event_type == DagsterEventType.STEP_START:
            self._began(event.step_key)
        elif event.event_type == DagsterEventType.STEP_SUCCESS:
            self._ended(event.step_key, "[green]done[/]  ")
        elif event.event_type == DagsterEventType.STEP_FAILURE:
            self._ended(event.step_key, "[yellow]held[/]  " if is_held(event) else "[red]failed[/]")

    def _planned(self, step: str, asset: dg.AssetKey, own_step: str, suffix: str) -> None:
        """Keep a step, under its asset's or check's name where it makes nothing else."""
        self.planned.setdefault(step, asset.to_user_string() + suffix if step == own_step else step)

    def _began(self, step: str) -> None:
        self._started[step] = self._spoke = monotonic()
        self._current = self.planned.get(step, step)
        if self._live is not None:
            self._spinner.update(text=escape(self._current))
        else:
            self._console.print(f"start   {escape(self._current)}")

    def _ended(self, step: str, how: str) -> None:
        self.seconds[step] = monotonic() - self._started.get(step, monotonic())
        self._console.print(f"{how}  {escape(self.planned.get(step, step))}  {self.seconds[step]:.1f} s")

    def _said(self, entry: dg.EventLogEntry) -> None:
        text = entry.user_message.strip().partition("\n")[0][:_MAX_WIDTH]
        if text.startswith(_CHATTER):
            return
        level = int(entry.level)
        if level >= logging.WARNING:
            self._console.print(f"        {escape(text)}")
        elif level == logging.INFO and self._live is not None:
            self._spinner.update(text=f"{escape(self._current)}  [dim]{escape(text)}[/]")
        elif level == logging.INFO and monotonic() - self._spoke > _SAY_EVERY_SECONDS:
            self._spoke = monotonic()
            self._console.print(f"        {escape(text)}")


@contextmanager
def quiet_process(log: Path) -> Iterator[TextIO]:
    """Send all that this process and its children write to `log`, and give the error stream that was there before.

    Dagster copies what steps write to the process's own streams, by file descriptor, so descriptors are what is redirected.
    """
    with ExitStack() as stack:
        terminal = stack.enter_context(os.fdopen(os.dup(2), "w", encoding="utf-8", errors="replace", buffering=1))
        sink = stack.enter_context(log.open("wb"))
        for stream, descriptor in ((sys.stdout, 1), (sys.stderr, 2)):
            stream.flush()
            before = os.dup(descriptor)
            os.dup2(sink.fileno(), descriptor)
            stack.callback(os.close, before)
            stack.callback(os.dup2, before, descriptor)
            stack.callback(stream.flush)
        yield terminal
