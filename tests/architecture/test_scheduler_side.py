"""The scheduler side needs the base dependencies only: everything under leap.serving imports without any extra."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

# Runs in a fresh interpreter; the names that may not be imported come as arguments after the statement.
_PROGRAM = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in BLOCKED:
            raise ModuleNotFoundError(f'No module named {name!r}', name=name)

statement, *BLOCKED = sys.argv[1:]
sys.meta_path.insert(0, Absent())
exec(statement)
"""


def closure(requirements: list[str]) -> set[str]:
    """Name every installed distribution that `requirements` lead to, canonically."""
    found: set[str] = set()
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in found or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        waiting += [Requirement(text) for text in metadata.requires(name) or []]
    return found


@pytest.fixture(scope="module")
def absent(repository: Path) -> list[str]:
    """The top-level modules of everything installed that the base dependencies do not lead to."""
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    present = closure(project["dependencies"]) | {canonicalize_name(project["name"])}
    modules = metadata.packages_distributions().items()
    names = [
        module
        for module, distributions in modules
        if re.fullmatch(r"\w+", module) and not present & {canonicalize_name(name) for name in distributions}
    ]
    assert {"dagster", "duckdb", "mlflow", "pandas", "great_expectations", "sklearn"} <= set(names)
    assert not {"pyarrow", "numpy", "lightgbm", "pydantic", "yaml", "rich", "typer"} & set(names)
    return names


def run_without(absent: list[str], statement: str, root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _PROGRAM, statement, *absent]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


def test_the_hook_hides_the_extras(absent: list[str], repository: Path) -> None:
    result = run_without(absent, "import duckdb", repository)
    assert "No module named 'duckdb'" in result.stderr


def test_every_serving_module_imports_with_the_base_dependencies(absent: list[str], repository: Path) -> None:
    files = sorted((repository / "leap" / "serving").rglob("*.py"))
    modules = [".".join(file.relative_to(repository).with_suffix("").parts).removesuffix(".__init__") for file in files]
    assert {"leap.serving.reader", "leap.serving.scorer"} <= set(modules)

    result = run_without(absent, f"import {', '.join(modules)}", repository)

    assert result.returncode == 0, result.stderr


def test_the_rank_command_starts_with_the_base_dependencies(absent: list[str], repository: Path) -> None:
    statement = "import sys; sys.argv = ['leap', 'rank', '--help']; from pipelines.cli import main; main()"

    result = run_without(absent, statement, repository)

    assert result.returncode == 0, result.stderr
    assert "--submission" in re.sub(r"\x1b\[[0-9;]*m", "", result.stdout)
