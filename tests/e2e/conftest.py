"""Whole nights as a person runs them: the `leap` command as a process, in a home and a working folder of its own.

What lives here: running the command, and what it leaves in a home. Nights take half a minute each: the good one is made once
for all workers of a test run, and no test changes its home.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Thread
from time import monotonic, sleep
from typing import Any

import pytest
import yaml

from assets.resources import open_registry
from leap.serving.reader import SnapshotMissing, SnapshotReader
from leap.store.control import Control
from leap.store.files import exclusive
from leap.store.home import Home
from leap.store.warehouse import connect, read

REGISTRY = Path(__file__).parents[2] / "mlflow" / "registry.yaml"
COMMAND = Path(sys.executable).with_name("leap")
OURS = ("LEAP_", "DAGSTER", "DBT_", "MLFLOW")

# The gates of params.yaml are for a fleet; a handful of attempts does not meet them. Few trees, for time.
PARAMS: dict[str, Any] = {
    "model": {"num_boost_round": 40},
    "gates": {
        "min_answered": 0.5,
        "min_within_20": 0.01,
        "min_within_10_over_lookup": -1.0,
        "min_within_10_over_champion": -1.0,
        "min_coverage": 0.0,
    },
}
DAYS, ATTEMPTS_PER_DAY = 5, 80

# One attempt of the second day, and what was known of it a day later than the night of the 4th.
LATE = {
    "attempt_id": "late-1",
    "segment_number": 1,
    "job_id": "late",
    "submitted_at": "2026-03-02T07:59:00Z",
    "started_at": "2026-03-02T08:00:00Z",
    "ended_at": "2026-03-02T09:00:00Z",
    "known_at": "2026-03-02T09:05:00Z",
    "outcome": "succeeded",
    "model_type": "corrected-late",
    "num_devices": 1,
    "hardware_name": "NVIDIA A100-SXM-80GB",
    "throughput": 100.0,
    "throughput_unit": "samples/s",
    "throughput_scope": "job",
    "steady_seconds": 3000.0,
}
CORRECTED = {**LATE, "known_at": "2026-03-04T11:00:00Z", "throughput": 500.0}


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str
    seconds: float

    def json(self) -> Any:
        return json.loads(self.out)


@dataclass
class Running:
    """A command that is still going, in a session of its own; `lines` is what it has said on its error stream."""

    process: subprocess.Popen[str]
    began: float
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)

    def wait_for(self, pattern: str, seconds: float = 120) -> None:
        """Wait for a line of progress."""
        self.until(lambda: any(re.search(pattern, line) for line in self.lines), pattern, seconds)

    def until(self, condition: Callable[[], bool], what: str, seconds: float = 120) -> None:
        deadline = monotonic() + seconds
        while not condition():
            if self.process.poll() is not None or monotonic() > deadline:
                raise AssertionError(f"never came: {what}\n{self.process.poll()=}\n{''.join(self.lines)}")
            sleep(0.02)

    def kill(self) -> None:
        """Kill the command alone: what it has started is left to itself."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def kill_all(self) -> None:
        """Kill the command and all that it has started, as when a machine goes down."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def finish(self) -> Done:
        assert self.process.stdout is not None
        out = self.process.stdout.read()
        code = self.process.wait()
        self._reader.join()
        return Done(code, out, "".join(self.lines), monotonic() - self.began)

    def left_behind(self) -> list[str]:
        """List the command lines of the processes of its session that live: the command, and what it has started."""
        lines = []
        for folder in self._session():
            with suppress(OSError):  # ended meanwhile
                lines.append((folder / "cmdline").read_text().replace("\0", " "))
        return lines

    def resident_bytes(self) -> int:
        """Add up the memory that they hold now."""
        pages = 0
        for folder in self._session():
            with suppress(OSError):  # ended meanwhile
                pages += int((folder / "statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def _session(self) -> list[Path]:
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                state, _, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(session) == self.process.pid and state != "Z":
                    found.append(folder)
        return found


@dataclass(frozen=True)
class Leap:
    """The `leap` command on one home, started in an empty folder."""

    home: Path
    folder: Path
    params: Path | None = None

    @property
    def layout(self) -> Home:
        return Home(self.home)

    def __call__(self, *arguments: str | Path) -> Done:
        """Run a command to its end, whatever that is."""
        return self.start(*arguments).finish()

    def start(self, *arguments: str | Path) -> Running:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        process = subprocess.Popen(
            [COMMAND, *arguments],
            cwd=self.folder,
            env={**environment, "LEAP_HOME": str(self.home)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        return Running(process, monotonic())

    def night(self, *arguments: str | Path) -> Done:
        return self.start_night(*arguments).finish()

    def start_night(self, *arguments: str | Path) -> Running:
        params = () if self.params is None or "--params" in arguments else ("--params", self.params)
        return self.start("nightly", *arguments, *params)

    def rows(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        """Ask the warehouse; no night may be running. Workers take turns: it has one user at a time."""
        with exclusive(self.home.with_name("warehouse.lock")), connect(self.layout.warehouse) as connection:
            rows: list[dict[str, Any]] = read(connection, sql, list(values)).to_pylist()
        return rows

    def counts(self) -> dict[str, int]:
        """Count the rows of every table and view."""
        names = self.rows(
            "select table_schema || '.' || table_name as name from information_schema.tables where table_schema <> 'main'"
        )
        counts = " union all ".join(f"select '{row['name']}' as name, count(*) as n from {row['name']}" for row in names)
        return {row["name"]: row["n"] for row in self.rows(f"select * from ({counts}) order by name")}

    def manifest(self) -> dict[str, Any]:
        """Give the manifest of the published snapshot; nothing where there is none."""
        try:
            facts: dict[str, Any] = SnapshotReader(self.layout.published).manifest().model_dump(mode="json")
        except SnapshotMissing:
            return {}
        return facts

    def ledger(self) -> list[tuple[str, str]]:
        """List night and status of each run in the ledger, oldest first."""
        return [(run.night.isoformat(), run.status.value) for run in reversed(Control(self.layout.control).runs())]

    def promotions(self) -> list[dict[str, Any]]:
        """List the promotions, oldest first."""
        return [asdict(promotion) for promotion in reversed(Control(self.layout.control).promotions())]

    def left_by(self, done: Done) -> Night:
        """Give a night that has just ended with what it left."""
        return Night(done, self.counts(), self.manifest())

    def aliases(self) -> dict[str, str | None]:
        """Give the versions that the registry's aliases name."""
        registry = open_registry(self.layout, REGISTRY)
        return {alias: registry.version_of(alias) for alias in ("champion", "challenger")}


@dataclass(frozen=True)
class Night:
    """A night that was run: how it ended, and what it left."""

    done: Done
    counts: dict[str, int]
    manifest: dict[str, Any]


@dataclass(frozen=True)
class GoodHome:
    """A home in which the same night was run twice. Read it, copy it, do not change it."""

    leap: Leap
    first: Night
    again: Night


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A folder that all workers of this test run share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "nights"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def write_params() -> Callable[..., Path]:
    """Write an overlay over params.yaml that lets a handful of attempts through the gates; what is given is laid over it."""

    def write(path: Path, gates: Mapping[str, float] | None = None, **keys: Any) -> Path:
        path.write_text(yaml.safe_dump({**PARAMS, **keys, "gates": {**PARAMS["gates"], **(gates or {})}}))
        return path

    return write


@pytest.fixture(scope="session")
def make_leap_in(write_params: Callable[..., Path]) -> Callable[[Path], Leap]:
    """Make a `leap` whose home and working folder lie in a folder."""

    def make(root: Path) -> Leap:
        (root / "working-folder").mkdir()
        return Leap(root / "home", root / "working-folder", write_params(root / "params.yaml"))

    return make


@pytest.fixture(scope="session")
def logs(shared_folder: Path) -> Path:
    """The logs of five days of a tiny simulated fleet, and an attempt that was corrected later."""
    folder = shared_folder / "logs"
    with exclusive(shared_folder / "lock"):
        if not folder.exists():
            unfinished = shared_folder / "unfinished"
            leap = Leap(shared_folder / "no-home", shared_folder)
            arguments = ("--days", str(DAYS), "--attempts-per-day", str(ATTEMPTS_PER_DAY), "--out", unfinished)
            assert leap("simulate", *arguments).code == 0
            lines = [json.dumps(record) for record in (LATE, CORRECTED)]
            (unfinished / "corrections.jsonl").write_text("\n".join(lines) + "\n")
            unfinished.rename(folder)
    return folder


@pytest.fixture(scope="session")
def good(shared_folder: Path, logs: Path, make_leap_in: Callable[[Path], Leap]) -> GoodHome:
    """A night of the tiny fleet, run twice in one home; made by the worker that first asks for it."""
    root = shared_folder / "good"
    record = root / "nights.json"
    with exclusive(shared_folder / "good.lock"):
        if not record.exists():
            if root.exists():
                pytest.fail("the good night did not go well; the test that first asked for it says how")
            root.mkdir()
            leap = make_leap_in(root)
            nights = [_run_night(leap, logs, *arguments) for arguments in ((), ("--json",))]
            record.write_text(json.dumps([asdict(night) for night in nights]))
    first, again = (Night(Done(**night["done"]), night["counts"], night["manifest"]) for night in json.loads(record.read_text()))
    return GoodHome(Leap(root / "home", root / "working-folder", root / "params.yaml"), first, again)


def _run_night(leap: Leap, logs: Path, *arguments: str) -> Night:
    done = leap.night("--source", f"jsonl={logs}", *arguments)
    assert done.code == 0, f"{done.out}\n{done.err}"
    return leap.left_by(done)
