"""The types of resource that assets ask for by name: home, project, params, night, warehouse, registry, dbt.

What lives here: types only; each wraps one thing of `leap` and opens it when asked, never when the definitions load. What does
not: instances, which are made in `pipelines/definitions.py`, and anything that computes.

Every asset asks for `night` or `warehouse`: both carry the night lock, so that whoever starts a run (shell, schedule, UI,
backfill) holds it from before the first step to after the last. This rests on the in-process executor, which starts resources
once a run.
"""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, date, datetime, time
from functools import cached_property
from importlib import metadata
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Self

import dagster as dg
from dagster_dbt import DbtCliResource
from packaging.version import Version
from pydantic import Field, PrivateAttr

from assets.runs import HELD_LINE, HELD_TAG, NIGHT_TAG, PROCESS_TAG, clear_dead_runs, find_failures, place_run, this_process
from leap.params import Params, load_params
from leap.store.control import Control, RunStatus
from leap.store.home import Home, NightIsRunning, night_lock
from leap.store.registry import Registry, load_registry_config
from leap.store.warehouse import connect, create_raw_tables

OWNER = "team:leap"
_POLL_SECONDS = 2.0
_TAG_LENGTH = 200
_BY_HAND = "__ASSET_JOB"  # Dagster's name for a run of assets that a person has picked: no night, so not in the ledger


class HomeResource(dg.ConfigurableResource[Any]):
    """The folder that holds all state."""

    root: str = Field(description="LEAP_HOME as an absolute path.")

    def get(self) -> Home:
        """Give the home's layout."""
        return Home(Path(self.root))


class ParamsResource(dg.ConfigurableResource[Any]):
    """`params.yaml` as the frozen typed model."""

    path: str = Field(description="The params file.")
    overlay: str = Field(default="", description="A file with some of the same keys, laid over it for this run.")
    _params: Params | None = PrivateAttr(default=None)

    def get(self) -> Params:
        """Read and check the file, once a run. Raises ParamsError."""
        if self._params is None:
            self._params = load_params(Path(self.path), Path(self.overlay) if self.overlay else None)
        return self._params


class ProjectResource(dg.ConfigurableResource[Any]):
    """The checkout that LEAP runs from."""

    root: str = Field(description="The folder that holds dbt_project/, mlflow/ and params.yaml.")

    @property
    def seeds(self) -> Path:
        """The folder of the seeds: hardware types, spellings, prices."""
        return Path(self.root) / "dbt_project" / "seeds"

    @property
    def registry_config(self) -> Path:
        """The file that names experiment, model, aliases and required tags."""
        return Path(self.root) / "mlflow" / "registry.yaml"

    def code_version(self) -> str:
        """Give LEAP's version and, in a checkout, the commit, with `-dirty` where files differ from it."""
        release = metadata.version("leap-fleet")
        git = ["git", "-C", self.root, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        try:
            commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
        except (FileNotFoundError, subprocess.CalledProcessError):
            return release
        return f"{release}+{commit}"


class NightLockResource(dg.ConfigurableResource[Any]):
    """The lock that one night at a time holds. A run that Dagster started waits for its turn.

    The shell takes the lock before it starts a run (it is re-entrant in its process) and so never waits here.
    """

    home: dg.ResourceDependency[HomeResource]
    wait_hours: float = Field(default=12.0, description="How long a run waits for the night before it to end.")

    @contextmanager
    def yield_for_execution(self, context: dg.InitResourceContext) -> Iterator[Self]:
        """Hold the lock from before the first step of the run to after its last, and clear what dead runs left."""
        instance, run = context.instance, context.run
        if instance is None or run is None:  # opened outside a run, to look at one thing
            yield self
            return
        place_run(instance, run.run_id)
        instance.add_run_tags(run.run_id, {PROCESS_TAG: this_process()})
        with ExitStack() as held:
            self._wait_for_turn(held, context)
            clear_dead_runs(instance, except_run=run.run_id)
            yield self

    def _wait_for_turn(self, held: ExitStack, context: dg.InitResourceContext) -> None:
        owner = f"Dagster run {context.run.run_id}" if context.run is not None else "Dagster"
        deadline = monotonic() + self.wait_hours * 3600
        told = False
        while True:
            try:
                held.enter_context(night_lock(self.home.get(), owner=owner))
            except NightIsRunning as running:
                if monotonic() > deadline:
                    raise
                if not told and context.log is not None:
                    context.log.info(f"Waiting for the night lock: {running}")
                told = True
                sleep(_POLL_SECONDS)
            else:
                return


class WarehouseResource(dg.ConfigurableResource[Any]):
    """The DuckDB warehouse, open for as long as an asset says.

    Not dagster-duckdb's `DuckDBResource`: that one leaves the connection open where the asset raises (dbt then fails on the
    lock), has no hook to set the time zone, and hides another process's lock behind ten retries.
    """

    home: dg.ResourceDependency[HomeResource]
    night_lock: dg.ResourceDependency[NightLockResource]

    @contextmanager
    def connect(self, read_only: bool = False) -> Iterator[Any]:
        """Open the warehouse in UTC, and close it whatever happens. Gives a DuckDB connection.

        `read_only` opens a read-only transaction, in which a write is an error. Raises WarehouseBusy.
        """
        with connect(self.home.get().warehouse) as connection:
            if read_only:
                connection.execute("begin transaction read only")
            yield connection


class NightResource(dg.ConfigurableResource[Any]):
    """Which night this run is, and what it reads; set in the Launchpad, by the schedule or on the command line.

    Keeps the run ledger: a run is entered when its night is known, and closed when its last step is over.
    """

    as_of: str = Field(default="", description="The night as YYYY-MM-DD; empty = the UTC day of the newest known_at.")
    sources: list[str] = Field(default=[], description="What to ingest first, each KIND=PATH; empty = nothing new.")
    warehouse: dg.ResourceDependency[WarehouseResource]
    _night: date | None = PrivateAttr(default=None)
    _started_at: datetime = PrivateAttr()
    _run_id: str | None = PrivateAttr(default=None)
    _instance: dg.DagsterInstance = PrivateAttr()

    @contextmanager
    def yield_for_execution(self, context: dg.InitResourceContext) -> Iterator[Self]:
        """Keep the run ledger of the control database around the run."""
        if context.instance is None or context.run is None:
            yield self
            return
        self._instance = context.instance
        self._started_at = datetime.now(UTC)
        # under the night lock no other run can be alive
        self._control.mark_dead_runs(lambda _pid: False, ended_at=self._started_at)
        if context.run.job_name != _BY_HAND:
            self._run_id = context.run.run_id
        if self.as_of:
            self._settle(date.fromisoformat(self.as_of))
        try:
            yield self
        finally:
            if self._run_id is not None and self._night is not None:
                self._close(self._run_id, context.log)

    @property
    def night(self) -> date:
        """The night's UTC day. Where `as_of` is empty it is read off the warehouse at first use and then stays for the run.

        So first use must come after ingest, and while the asset holds no connection of its own.
        """
        return self._night or self._settle(self._newest_known())

    @property
    def cut(self) -> datetime:
        """00:00 UTC of the night: only facts that ended and were known before it count."""
        return _midnight(self.night)

    def sources_to_read(self) -> list[tuple[str, Path]]:
        """Split `sources` into kinds and paths."""
        return [(kind, Path(path)) for kind, _, path in (source.partition("=") for source in self.sources)]

    @property
    def _control(self) -> Control:
        return Control(self.warehouse.home.get().control)

    def _settle(self, night: date) -> date:
        self._night = night
        if self._run_id is not None:
            self._control.start_run(
                self._run_id, night=night, as_of=_midnight(night), pid=os.getpid(), started_at=self._started_at
            )
            self._instance.add_run_tags(self._run_id, {NIGHT_TAG: night.isoformat()})
        return night

    def _close(self, run_id: str, log: dg.DagsterLogManager | None) -> None:
        failures = find_failures(self._instance, run_id)
        reason = "\n".join(reason for failure in failures for reason in failure.reasons)
        status = RunStatus.SUCCEEDED
        if failures:
            status = RunStatus.BLOCKED if all(failure.held for failure in failures) else RunStatus.FAILED
        if status == RunStatus.BLOCKED:
            # Dagster's own words at the end of a run name the check that held it, and not what the check said
            self._instance.add_run_tags(run_id, {HELD_TAG: reason[:_TAG_LENGTH]})
            if log is not None:
                log.error(f"{HELD_LINE} {reason}")
        ended_at = datetime.now(UTC)
        self._control.finish_run(
            run_id,
            status=status,
            ended_at=ended_at,
            reason=reason,
            figures={"seconds": round((ended_at - self._started_at).total_seconds(), 1)},
        )

    def _newest_known(self) -> date:
        with self.warehouse.connect() as connection:
            create_raw_tables(connection)
            row = connection.execute("select max(least(known_at, received_at)) from raw.job_attempts").fetchone()
        if row is None or row[0] is None:
            raise dg.Failure(
                "The warehouse holds no attempts, so there is no night to run: name a source with --source KIND=PATH."
            )
        newest: datetime = row[0]
        return newest.astimezone(UTC).date()


class RegistryResource(dg.ConfigurableResource[Any]):
    """MLflow's tracking store and model registry in the home."""

    home: dg.ResourceDependency[HomeResource]
    project: dg.ResourceDependency[ProjectResource]

    def get(self) -> Registry:
        """Give the registry; it is opened by the first of its methods. Raises RegistryError."""
        return open_registry(self.home.get(), self.project.registry_config)


def open_registry(home: Home, config: Path) -> Registry:
    """Give the registry of a home as `mlflow/registry.yaml` says. Raises RegistryError."""
    return Registry(f"sqlite:///{home.mlflow_database}", home.mlflow_artifacts, load_registry_config(config))


class LeapDbtResource(DbtCliResource):
    """dbt as dagster-dbt runs it, in a process of its own, without two things that dagster-dbt does first."""

    @cached_property
    def _cli_version(self) -> Version:
        # `dbt --version`, which dagster-dbt calls, asks the package index for newer versions
        return Version(metadata.version("dbt-core"))

    def _initialize_dbt_core_adapter(self, args: Sequence[str]) -> None:  # type: ignore[override]  # noqa: ARG002
        # its adapter would import dbt and hold a DuckDB connection in this process; row counts are read without it
        return None


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)
