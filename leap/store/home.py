"""The home: the folder that holds all state of LEAP, how it is made, and the lock that a whole night holds.

What lives here: where each thing lies, a safe first start, the night lock. What does not: which folder is the home
(`pipelines/settings.py`), and what the databases in it contain.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from leap.store.control import Control
from leap.store.files import exclusive, write_atomic

LAYOUT_VERSION = 1

# Storage is left out: Dagster then keeps runs, events and schedules as SQLite in DAGSTER_HOME, wherever the home is moved to.
_DAGSTER_CONFIG = """\
# Written once by `leap init`; what is changed here stays.

telemetry:
  enabled: false
nux:
  enabled: false  # the welcome pop-up covers the asset graph

# One night at a time: the warehouse has one writer, and every job writes it. The night lock makes sure of it; this keeps the
# runs of a backfill waiting in the queue instead of meeting the lock.
concurrency:
  runs:
    max_concurrent_runs: 1
  pools:
    default_limit: 1
    granularity: run

# A run whose process was killed together with its server would stay "started" and hold up the queue.
run_monitoring:
  enabled: true
  max_runtime_seconds: 21600
  free_slots_after_run_end_seconds: 60

python_logs:
  managed_python_loggers: [leap]
  python_log_level: INFO

retention:
  schedule:
    purge_after_days: {skipped: 7, success: 90, failure: 90, started: 90}
  sensor:
    purge_after_days: {skipped: 7, success: 30, failure: 90, started: 30}
"""


class HomeError(RuntimeError):
    """The home cannot be made or used; the message names path, reason and what to do."""


class NightIsRunning(RuntimeError):
    """Another process holds the night lock; the message names it, since when, and what to do."""


@dataclass(frozen=True)
class Home:
    """Where each part of the state lies below `root`. Nothing need exist yet."""

    root: Path

    @property
    def warehouse(self) -> Path:
        """The DuckDB database; one writer, no readers from outside a night."""
        return self.root / "warehouse.duckdb"

    @property
    def control(self) -> Path:
        """The SQLite database of runs and promotions (`leap.store.control`)."""
        return self.root / "control.db"

    @property
    def night_lock_file(self) -> Path:
        """The file that `night_lock` locks; its text says who holds it."""
        return self.root / "night.lock"

    @property
    def init_lock_file(self) -> Path:
        """The file that `init_home` locks."""
        return self.root / "init.lock"

    @property
    def stamp(self) -> Path:
        """What `init_home` has made: layout version and fingerprint."""
        return self.root / "home.json"

    @property
    def dagster(self) -> Path:
        """DAGSTER_HOME."""
        return self.root / "dagster"

    @property
    def dagster_config(self) -> Path:
        """Dagster's instance settings."""
        return self.dagster / "dagster.yaml"

    @property
    def mlflow_database(self) -> Path:
        """MLflow's SQLite tracking and registry database."""
        return self.root / "mlflow" / "mlflow.db"

    @property
    def mlflow_artifacts(self) -> Path:
        """The folder of MLflow's artifacts."""
        return self.root / "mlflow" / "artifacts"

    @property
    def dbt_target(self) -> Path:
        """dbt's compiled project and manifest."""
        return self.root / "dbt" / "target"

    @property
    def dbt_logs(self) -> Path:
        """dbt's logs."""
        return self.root / "dbt" / "logs"

    @property
    def datasets(self) -> Path:
        """Immutable datasets (`leap.store.datasets`)."""
        return self.root / "datasets"

    @property
    def results(self) -> Path:
        """What each night's models predicted and scored, as immutable datasets."""
        return self.root / "results"

    @property
    def published(self) -> Path:
        """Published snapshots and the pointer to the current one (`leap.store.publisher`)."""
        return self.root / "published"

    @property
    def history(self) -> Path:
        """Every row that was ever published, below `rankings/date=<night>/`."""
        return self.root / "history"

    @property
    def work(self) -> Path:
        """Scratch space of a night."""
        return self.root / "work"

    @property
    def quality(self) -> Path:
        """Validation results."""
        return self.root / "quality"

    @property
    def folders(self) -> tuple[Path, ...]:
        """Every folder of the layout below `root`."""
        return (
            self.dagster,
            self.mlflow_artifacts,
            self.dbt_target,
            self.dbt_logs,
            self.datasets,
            self.results,
            self.published / "snapshots",
            self.history / "rankings",
            self.work,
            self.quality,
        )


def init_home(home: Home, *, prepare: Sequence[Callable[[Home], None]], fingerprint: str) -> None:
    """Make the home, or bring it up to date; quick where that is done, and safe where several processes do it at once.

    Args:
        home: need not exist; `root` is made for its owner alone.
        prepare: what else a home needs before its first use. Run in order, under the lock, on the first start, whenever
            `fingerprint` changes, and again after an error or `kill -9`, so each must bear to be repeated.
        fingerprint: names what `prepare` was made from, as a hash of the dbt project and the versions installed.

    Raises HomeError where `root` is a file, cannot be written, or was made by a newer LEAP; what `prepare` raises goes through.
    """
    with _explained(home):
        if _is_ready(home, fingerprint):
            return
        home.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        home.init_lock_file.touch()
    with exclusive(home.init_lock_file):
        with _explained(home):
            # Another process may have made it while this one waited.
            if _is_ready(home, fingerprint):
                return
            _lay_out(home)
        for step in prepare:
            step(home)
        with _explained(home):
            stamp = {"layout_version": LAYOUT_VERSION, "fingerprint": fingerprint}
            write_atomic(home.stamp, json.dumps(stamp).encode())


def _is_ready(home: Home, fingerprint: str) -> bool:
    stamp = _read_stamp(home)
    return (
        stamp == {"layout_version": LAYOUT_VERSION, "fingerprint": fingerprint}
        and all(folder.is_dir() for folder in home.folders)
        and home.dagster_config.is_file()
        and home.control.is_file()
    )


def _read_stamp(home: Home) -> object:
    """Give the stamp's content; None where there is none. A stamp that cannot be read counts as none: init destroys nothing."""
    try:
        stamp = json.loads(home.stamp.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    layout = stamp.get("layout_version") if isinstance(stamp, dict) else None
    if isinstance(layout, int) and layout > LAYOUT_VERSION:
        raise HomeError(
            f"the home {home.root} was made by a newer LEAP: its layout is {layout}, this LEAP knows layouts up to "
            f"{LAYOUT_VERSION}; use that LEAP, or set LEAP_HOME to another folder"
        )
    return stamp


def _lay_out(home: Home) -> None:
    for folder in home.folders:
        folder.mkdir(parents=True, exist_ok=True)
    if not home.dagster_config.exists():
        write_atomic(home.dagster_config, _DAGSTER_CONFIG.encode())
    Control(home.control)


@contextmanager
def _explained(home: Home) -> Iterator[None]:
    """Turn an operating system error into a sentence about the home."""
    try:
        yield
    except (FileExistsError, NotADirectoryError) as error:
        wanted = Path(error.filename)
        file = next(path for path in (wanted, *wanted.parents) if path.exists())
        raise HomeError(f"{file} is a file where the home {home.root} needs a folder; set LEAP_HOME to a folder") from error
    except OSError as error:
        raise HomeError(
            f"the home {home.root} cannot be made: {error.strerror} ({error.filename}); "
            "set LEAP_HOME to a folder that you may write"
        ) from error


@contextmanager
def night_lock(home: Home, *, owner: str) -> Iterator[None]:
    """Hold the night lock of `home` for the block; raise NightIsRunning at once if another process holds it.

    Within one process the lock may be taken again, by any thread: the last to leave frees it. A process started or forked
    meanwhile does not hold it. The kernel frees it when its holder dies; the file's text then is a leftover and means nothing.

    Args:
        home: must exist.
        owner: what holds the lock, for people: a command or a run.
    """
    path = home.night_lock_file.resolve()
    _locks.take(path, owner)
    try:
        yield
    finally:
        _locks.leave(path)


@dataclass
class _Hold:
    descriptor: int
    depth: int = 1


class _NightLocks:
    """The night locks that this process holds, by path."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._holds: dict[Path, _Hold] = {}

    def take(self, path: Path, owner: str) -> None:
        with self._guard:
            hold = self._holds.get(path)
            if hold is None:
                self._holds[path] = _Hold(_lock_file(path, owner))
            else:
                hold.depth += 1

    def leave(self, path: Path) -> None:
        with self._guard:
            hold = self._holds.get(path)
            if hold is None:
                return  # a forked child that leaves its parent's block
            hold.depth -= 1
            if hold.depth == 0:
                del self._holds[path]
                os.ftruncate(hold.descriptor, 0)
                # Not left to closing: a child that inherited the descriptor would keep the lock.
                fcntl.flock(hold.descriptor, fcntl.LOCK_UN)
                os.close(hold.descriptor)

    def forget(self) -> None:
        """Let go of what a fork copied. Closing a copy does not free the parent's lock; keeping it would outlive the parent."""
        for hold in self._holds.values():
            os.close(hold.descriptor)
        self._guard = threading.Lock()
        self._holds = {}


_locks = _NightLocks()
os.register_at_fork(after_in_child=_locks.forget)


def _lock_file(path: Path, owner: str) -> int:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise HomeError(f"{path}: the night lock cannot be opened: {error.strerror}; `leap init` makes the home") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        holder = {
            "owner": owner,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        os.ftruncate(descriptor, 0)
        os.write(descriptor, json.dumps(holder).encode())
    except BlockingIOError:
        os.close(descriptor)
        raise NightIsRunning(_describe_holder(path)) from None
    except OSError as error:
        os.close(descriptor)
        raise HomeError(f"{path}: the night lock cannot be taken: {error.strerror}; put LEAP_HOME on a local disk") from error
    return descriptor


def _describe_holder(path: Path) -> str:
    try:
        holder = json.loads(path.read_bytes())
        who = f"{holder['owner']}, process {holder['pid']} on {holder['host']}, since {holder['started_at']}"
        remedy = f"wait until it is done, or end it with `kill {holder['pid']}`"
    except (ValueError, TypeError, KeyError):
        # Locked this instant; the holder has not written its name yet.
        who, remedy = "started just now", "wait until it is done"
    return f"a night is running already ({who}); {remedy}. The lock {path} frees itself when that process ends"
