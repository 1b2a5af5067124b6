"""What the tests of the tree itself share: the files that are part of the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Never part of the repository, wherever they lie (see .gitignore).
_GENERATED = {".git", ".venv", ".cache", "__pycache__", "var", "target", "logs", "dbt_packages", "build", "dist"}


@pytest.fixture(scope="session")
def tree(repository: Path) -> dict[str, Path]:
    """Every file of the checkout that is not generated, by its path from the root."""
    files: dict[str, Path] = {}
    for folder, folders, names in os.walk(repository):
        folders[:] = [name for name in folders if name not in _GENERATED and not name.endswith(("_cache", ".egg-info"))]
        for name in names:
            path = Path(folder, name)
            files[path.relative_to(repository).as_posix()] = path
    return files
