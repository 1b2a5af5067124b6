"""requirements.lock holds all that pyproject.toml asks for, and nothing that ties it to one place."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

Entry = tuple[str, Marker | None]


@pytest.fixture(scope="module")
def lock_text(repository: Path) -> str:
    return (repository / "requirements.lock").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def locked(lock_text: str) -> dict[str, list[Entry]]:
    """Version and marker of each entry, by canonical name; a package may stand twice, for two ranges of Python."""
    entries: dict[str, list[Entry]] = {}
    for block in re.split(r"\n(?=[A-Za-z0-9])", lock_text):
        requirement, *hashes = block.split("\\\n")
        if requirement.startswith("#"):
            continue
        parsed = Requirement(requirement.strip())
        assert any("--hash=sha256:" in line for line in hashes), f"{parsed.name} has no hash"
        pins = [pin.version for pin in parsed.specifier if pin.operator == "=="]
        assert len(pins) == 1, f"{parsed} is not pinned to one version"
        entries.setdefault(canonicalize_name(parsed.name), []).append((pins[0], parsed.marker))
    return entries


@pytest.fixture(scope="module")
def project(repository: Path) -> dict[str, list[str]]:
    """What pyproject.toml asks for, by where it says so."""
    settings = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))
    return {
        "build-system": settings["build-system"]["requires"],
        "dependencies": settings["project"]["dependencies"],
        **settings["project"]["optional-dependencies"],
    }


@pytest.mark.parametrize("part", ["build-system", "dependencies", "pipeline", "compare", "dev"])
def test_the_lock_satisfies_pyproject(project: dict[str, list[str]], locked: dict[str, list[Entry]], part: str) -> None:
    unmet = [
        text
        for text in project[part]
        for requirement in [Requirement(text)]
        for versions in [[version for version, _ in locked.get(canonicalize_name(requirement.name), [])]]
        if not versions or not all(requirement.specifier.contains(version) for version in versions)
    ]
    assert unmet == [], "run `make lock`"


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_each_python_gets_one_version_of_a_package(locked: dict[str, list[Entry]], python: str) -> None:
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.1",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    counts = {
        name: sum(marker is None or marker.evaluate(dict(environment)) for _, marker in entries)
        for name, entries in locked.items()
    }
    assert {name: count for name, count in counts.items() if count > 1} == {}
    assert counts["numpy"] == counts["dagster"] == counts["hatchling"] == 1


def test_the_lock_names_no_address(lock_text: str) -> None:
    assert re.findall(r"\w+://\S+|^--?(?:index-url|extra-index-url|find-links|i)\b.*", lock_text, flags=re.MULTILINE) == []
