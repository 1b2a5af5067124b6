"""What every test may use: the folder of shared measured data, where it is there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of shared measured data; a test that asks for it is skipped where the folder is absent."""
    folder = Path(os.environ.get("LEAP_SHARED_DATA", REPOSITORY.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"shared measured data is not at {folder}; set LEAP_SHARED_DATA to its folder")
    return folder
