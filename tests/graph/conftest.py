"""The asset graph as `leap init` leaves it to be loaded: a home with a dbt manifest and nothing else."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

from leap.store.home import Home
from pipelines.definitions import build_defs
from pipelines.prepare import parse_dbt
from pipelines.settings import Settings


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Settings:
    """A home that holds the manifest."""
    settings = Settings(home=tmp_path_factory.mktemp("home"), params=repository / "params.yaml")
    settings.manifest.parent.mkdir(parents=True)
    settings.dagster_home.mkdir()
    parse_dbt(settings, Home(settings.home))
    return settings


@pytest.fixture(scope="session")
def definitions(settings: Settings) -> dg.Definitions:
    """The definitions of that home."""
    return build_defs(settings)
