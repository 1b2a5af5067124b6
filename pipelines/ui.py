"""The Dagster and the MLflow UI of one home, side by side on loopback.

What lives here: starting both servers, telling when they answer, and ending them with all their children. What does not:
anything they show.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Event
from time import monotonic, sleep
from typing import NamedTuple
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import OpenerDirector, ProxyHandler, build_opener

from rich.console import Console

from leap.store.home import Home
from leap.store.registry import QUIET_ENVIRONMENT, RUNS_VIEW, load_registry_config
from pipelines.prepare import prepare_home
from pipelines.settings import Settings

HOST = "127.0.0.1"
_START_SECONDS = 180.0
_STOP_SECONDS = 20.0
_POLL_SECONDS = 0.3
_ANSWER_SECONDS = 5.0
_SHOWN_LINES = 15
_MLFLOW = "MLflow"
# MLflow's background jobs (scoring of language models and the like) would start eight processes that LEAP has no use for.
_NO_JOBS = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class UiError(RuntimeError):
    """A UI could not be started or ended by itself; the message says which, and what it said."""


class Server(NamedTuple):
    """A server to start: its command, the page that answers when it is ready, and its log."""

    name: str
    port: int
    option: str
    ready: str
    command: tuple[str, ...]
    log: Path

    @property
    def address(self) -> str:
        """Where a person looks at it."""
        return f"http://{HOST}:{self.port}"


def serve(settings: Settings, port_dagster: int, port_mlflow: int) -> None:
    """Run both UIs until this process is interrupted, then end them. Raises UiError where one cannot start or stops."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    home = Home(settings.home)
    servers = (_dagster(home, port_dagster), _mlflow(home, port_mlflow))
    for server in servers:
        _check_port(server)
    prepare_home(settings)
    stop = Event()
    with ExitStack() as stack:
        for number in _SIGNALS:
            stack.callback(signal.signal, number, signal.signal(number, lambda *_: stop.set()))
        environment = {**settings.subprocess_environment(), **QUIET_ENVIRONMENT, **_NO_JOBS}
        processes = [stack.enter_context(_Group(server, home, environment)) for server in servers]
        waiting = list(processes)
        deadline = monotonic() + _START_SECONDS
        while not stop.wait(_POLL_SECONDS):
            for process in processes:
                process.check_running()
            for process in [process for process in waiting if process.answers()]:
                console.print(f"{process.server.name:<8} {_page(process.server, settings)}")
                waiting.remove(process)
                if not waiting:
                    console.print(f"home     {home.root}\nCtrl-C ends both")
            if waiting and monotonic() > deadline:
                raise UiError(waiting[0].told("does not answer"))
        console.print("ending both")
        for process in processes:
            process.interrupt()


def _dagster(home: Home, port: int) -> Server:
    # `dagster dev` shares one code server between web server and daemon; two `dagster-...` commands would start two
    command = [sys.executable, "-m", "dagster", "dev", "--module-name", "pipelines.definitions"]
    command += ["--host", HOST, "--port", str(port), "--log-level", "warning", "--code-server-log-level", "warning"]
    return Server("Dagster", port, "--port-dagster", "/server_info", tuple(command), home.work / "ui-dagster.log")


def _mlflow(home: Home, port: int) -> Server:
    # one worker: each takes some 300 MB, and one person looks. MLflow itself lets in requests to loopback names only
    command = [sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{home.mlflow_database}"]
    command += ["--artifacts-destination", str(home.mlflow_artifacts), "--serve-artifacts"]
    return Server(_MLFLOW, port, "--port-mlflow", "/health", tuple(command), home.work / "ui-mlflow.log")


def _page(server: Server, settings: Settings) -> str:
    """Give the address to look at: of MLflow the nights' runs with their scores, for its front page is about language models."""
    if server.name != _MLFLOW:
        return server.address
    experiment = load_registry_config(settings.root / "mlflow" / "registry.yaml").experiment
    query = f"/api/2.0/mlflow/experiments/get-by-name?experiment_name={quote(experiment)}"
    with _opener().open(server.address + query, timeout=_ANSWER_SECONDS) as response:
        number = json.load(response)["experiment"]["experiment_id"]
    return f"{server.address}/#/experiments/{number}/runs?workflowType=machine_learning&viewStateShareKey={RUNS_VIEW}"


def _opener() -> OpenerDirector:
    # not through a proxy that the environment may name: it cannot reach this machine's loopback
    return build_opener(ProxyHandler({}))


def _check_port(server: Server) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, server.port))
        except OSError:
            raise UiError(
                f"port {server.port} for {server.name} is in use, maybe by another `leap ui`; choose one with {server.option}"
            ) from None


class _Group:
    """A server in a process group of its own, ended with everything it has started."""

    def __init__(self, server: Server, home: Home, environment: Mapping[str, str]) -> None:
        self.server = server
        self._home = home
        self._environment = environment
        self._interrupted = False

    def __enter__(self) -> "_Group":
        with self.server.log.open("wb") as log:
            self._process = subprocess.Popen(
                self.server.command,
                # a folder without Python in it: `python -m` puts the current one on the path
                cwd=self._home.work,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def interrupt(self) -> None:
        """Ask the leader to end; it ends its children in order."""
        if not self._interrupted:
            self._process.send_signal(signal.SIGINT)
            self._interrupted = True

    def __exit__(self, *_: object) -> None:
        self.interrupt()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_SECONDS)
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._is_gone():
                return
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            deadline = monotonic() + _STOP_SECONDS / 4
            while monotonic() < deadline and not self._is_gone():
                sleep(_POLL_SECONDS)

    def _is_gone(self) -> bool:
        self._process.poll()  # takes note of the leader's end, which would otherwise stay in the group
        try:
            os.killpg(self._process.pid, 0)
        except ProcessLookupError:
            return True
        return False

    def check_running(self) -> None:
        """Raise UiError where the server has ended by itself."""
        if (code := self._process.poll()) is not None:
            raise UiError(self.told(f"ended by itself with exit code {code}"))

    def answers(self) -> bool:
        """Tell whether the server answers with HTTP 200."""
        try:
            with _opener().open(self.server.address + self.server.ready, timeout=_ANSWER_SECONDS) as response:
                return bool(response.status == 200)
        except (URLError, OSError):
            return False

    def told(self, what: str) -> str:
        """Say what happened, with the end of the server's log."""
        last: Sequence[str] = self.server.log.read_text(encoding="utf-8", errors="replace").splitlines()[-_SHOWN_LINES:]
        return "\n".join([f"the {self.server.name} server {what}; its log is {self.server.log}:", *last])
