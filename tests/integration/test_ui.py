"""Both UIs of a home: they answer, they end, and they leave nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from threading import Timer
from urllib.request import urlopen

import pytest

from leap.store.home import Home
from pipelines.settings import Settings
from pipelines.ui import UiError, serve

RUN = [sys.executable, "-c", "from pipelines.cli import main; main()"]
_MAX_SECONDS = 300


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _processes_of(home: Path) -> list[str]:
    """List the commands of the processes whose environment names `home`, without this one."""
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal() or process.name == str(os.getpid()):
            continue
        try:
            environment = (process / "environ").read_bytes().split(b"\0")
            if f"LEAP_HOME={home}".encode() in environment:
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:  # it ended while we looked
            continue
    return found


def test_a_port_in_use_is_told_with_the_option_that_changes_it(tmp_path: Path, repository: Path) -> None:
    settings = Settings(home=tmp_path / "home", params=repository / "params.yaml")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        with pytest.raises(UiError, match=f"port {port} for MLflow is in use.*--port-mlflow"):
            serve(settings, port_dagster=_free_port(), port_mlflow=port)

    assert not settings.home.exists()


@pytest.mark.slow  # half a minute and more: three servers and a first start of the home
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["interrupt", "terminate"])
def test_both_answer_until_told_to_end_and_then_nothing_is_left(tmp_path: Path, number: signal.Signals) -> None:
    # given: both UIs of a new home
    home, dagster, mlflow = tmp_path / "home", _free_port(), _free_port()
    command = [*RUN, "ui", "--port-dagster", str(dagster), "--port-mlflow", str(mlflow)]
    ui = subprocess.Popen(command, env={**os.environ, "LEAP_HOME": str(home)}, stderr=subprocess.PIPE, text=True)
    guard = Timer(_MAX_SECONDS, ui.kill)
    guard.start()
    assert ui.stderr is not None
    said = []
    for line in ui.stderr:
        said.append(line.split())
        if line.startswith("Ctrl-C"):
            break

    # when: a person looks at both
    addresses = {words[0]: words[1] for words in said if words[0] in ("Dagster", "MLflow")}
    answers = {name: urlopen(address).status for name, address in addresses.items()}
    graph = urlopen(f"http://127.0.0.1:{dagster}/graphql?query=%7BrepositoriesOrError%7B__typename%7D%7D").read()

    # then: they answer, on the state of this home
    assert answers == {"Dagster": 200, "MLflow": 200}
    assert b"RepositoryConnection" in graph
    assert addresses["MLflow"].endswith("/#/experiments/1/runs?workflowType=machine_learning&viewStateShareKey=scores")
    assert Home(home).mlflow_database.is_file()
    assert len(_processes_of(home)) > 4

    # when: told to end
    ui.send_signal(number)
    code = ui.wait(timeout=60)
    guard.cancel()

    # then: it ends well, and with it every process that it started
    assert code == 0
    assert _processes_of(home) == []
