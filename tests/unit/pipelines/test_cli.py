"""The `leap` command: quick to answer, and errors are one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

HEAVY = ("dagster", "dbt", "duckdb", "great_expectations", "lightgbm", "mlflow", "numpy", "pandas", "pyarrow")
RUN = [sys.executable, "-c", "from pipelines.cli import main; main()"]


def _leap(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*RUN, *arguments], capture_output=True, text=True, env={**os.environ, **environment})


def test_the_command_line_imports_nothing_heavy_before_a_command_runs() -> None:
    script = f"import json, sys, pipelines.cli; print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"

    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout

    assert json.loads(said) == []


def test_every_command_has_help_with_examples() -> None:
    from typer.main import get_command

    from pipelines.cli import app

    commands = get_command(app).commands  # type: ignore[attr-defined]
    leaves = {name: command for name, command in commands.items() if not hasattr(command, "commands")}
    for name, command in commands.items():
        leaves |= {f"{name} {sub}": leaf for sub, leaf in getattr(command, "commands", {}).items()}

    without = [name for name, command in leaves.items() if "Example" not in (command.help or "")]

    assert {"init", "nightly", "ui", "version"} <= set(commands)
    assert without == []


def test_a_wrong_setting_is_one_line_and_exit_code_2() -> None:
    done = _leap("version", LEAP_SOURCES="no-equals-sign", LEAP_DEBUG="")

    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "leap: source 'no-equals-sign': must be KIND=PATH, as in mlperf=/data/training_results_v4.0"
    ]


def test_the_traceback_is_shown_when_asked_for() -> None:
    done = _leap("version", LEAP_SOURCES="no-equals-sign", LEAP_DEBUG="1")

    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "SettingsError" in done.stderr


def test_wrong_usage_is_exit_code_2() -> None:
    assert _leap("nightly", "--as-of", "yesterday").returncode == 2
    assert _leap("no-such-command").returncode == 2


def test_an_unknown_params_key_is_told_before_anything_runs(tmp_path: Path) -> None:
    overlay = tmp_path / "overlay.yaml"
    overlay.write_text("gates: {min_answred: 0.5}\n")

    done = _leap("nightly", "--params", str(overlay), LEAP_HOME=str(tmp_path / "home"), LEAP_DEBUG="")

    assert done.returncode == 2
    assert "gates.min_answred" in done.stderr
    assert not (tmp_path / "home").exists()


def test_a_home_that_is_a_file_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "home").touch()

    done = _leap("init", LEAP_HOME=str(tmp_path / "home"), LEAP_DEBUG="")

    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert str(tmp_path / "home") in done.stderr
