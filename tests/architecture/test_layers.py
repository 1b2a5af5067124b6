"""The one-way rule holds, and a wrong import is caught with a message that says where the code belongs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def copy(repository: Path, tmp_path: Path) -> Path:
    """The packages and the linters' settings, in a folder of their own."""
    ignore = shutil.ignore_patterns("__pycache__")
    for package in ("leap", "assets", "pipelines"):
        shutil.copytree(repository / package, tmp_path / package, ignore=ignore)
    shutil.copy(repository / "pyproject.toml", tmp_path)
    return tmp_path


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    tool = Path(sys.executable).with_name("lint-imports")
    return subprocess.run([tool, "--no-cache"], cwd=root, capture_output=True, text=True, check=False)


def ruff(root: Path, path: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format", "concise", path]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


def test_every_import_goes_downward(repository: Path) -> None:
    result = lint_imports(repository)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("module", "line", "guidance"),
    [
        ("leap/features.py", "import assets", "Move what both need down into leap"),
        ("assets/__init__.py", "import pipelines", "Move what both need down into leap"),
        ("leap/features.py", "import leap.store", "reading and writing them is"),
        ("leap/ranking.py", "import leap.serving", "reading and writing them is"),
        ("leap/contracts.py", "import leap.params", "leap.contracts is not allowed to import leap.params"),
        ("leap/promotion.py", "import dagster", "An asset belongs in assets/"),
        ("leap/store/__init__.py", "import dagster_dbt", "An asset belongs in assets/"),
        ("leap/evaluation/__init__.py", "import duckdb", "One file of leap/store per outside thing"),
        ("leap/ranking.py", "import mlflow", "One file of leap/store per outside thing"),
        ("leap/sources/__init__.py", "import sqlite3", "One file of leap/store per outside thing"),
        ("leap/serving/__init__.py", "import leap.store", "The scheduler side installs no extra"),
        ("leap/serving/__init__.py", "import pandas", "The scheduler side installs no extra"),
        ("leap/predictors/__init__.py", "import leap.simulator", "scored on its own answer"),
    ],
)
def test_a_wrong_import_is_caught(copy: Path, module: str, line: str, guidance: str) -> None:
    planted = copy / module
    planted.write_text(f"{planted.read_text(encoding='utf-8')}\n{line}\n", encoding="utf-8")

    result = lint_imports(copy)

    assert result.returncode == 1
    assert guidance in result.stdout


def test_a_module_without_a_layer_is_caught(copy: Path) -> None:
    (copy / "leap" / "novelty.py").write_text('"""A module nobody gave a layer."""\n', encoding="utf-8")

    result = lint_imports(copy)

    assert result.returncode == 1
    assert "- leap.novelty" in result.stdout


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("from datetime import UTC, datetime\nNOW = datetime.now(UTC)", "leap has no clock outside store/ and serving/"),
        ("import time\nNOW = time.time()", "leap has no clock outside store/ and serving/"),
        ("import os\nHOME = os.environ['HOME']", "Only pipelines/settings.py reads environment variables"),
        ("import dagster", "an asset belongs in assets/"),
        ("import duckdb", "reached in leap/store/warehouse.py only"),
        ("print('done')", "T201"),
    ],
)
def test_an_impure_line_is_caught(copy: Path, line: str, message: str) -> None:
    (copy / "leap" / "features.py").write_text(f'"""Impure."""\n\n{line}\n', encoding="utf-8")

    result = ruff(copy, "leap/features.py")

    assert result.returncode == 1
    assert message in result.stdout
