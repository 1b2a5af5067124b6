"""The asset graph with its resources, jobs and schedules, as Dagster loads it: `dagster dev -m pipelines.definitions`.

What lives here: instances of the resources, and the one `build_defs`. What does not: resource types (`assets/resources.py`).
Loading opens no database and no socket; it reads the dbt manifest that `leap init` has made.
"""

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import dagster as dg

from assets.features import build_dbt_assets
from assets.resources import (
    HomeResource,
    LeapDbtResource,
    NightLockResource,
    NightResource,
    ParamsResource,
    ProjectResource,
    RegistryResource,
    WarehouseResource,
)
from pipelines.jobs import INGEST_JOB, NIGHTLY_JOB
from pipelines.schedules import build_nightly_schedule
from pipelines.sensors import build_landing_sensor, dead_runs
from pipelines.settings import Settings, SettingsError


def build_defs(settings: Settings, *, resource_overrides: Mapping[str, Any] | None = None) -> dg.Definitions:
    """Put the graph together for one home; `resource_overrides` replaces resources by key. Raises SettingsError."""
    if not settings.manifest.is_file():
        raise SettingsError(f"{settings.manifest}: no such file; run `leap init` (LEAP_HOME is {settings.home})")
    modules = _asset_modules()
    return dg.Definitions(
        assets=[build_dbt_assets(settings.manifest), *dg.load_assets_from_modules(modules)],
        asset_checks=dg.load_asset_checks_from_modules(modules),
        jobs=[NIGHTLY_JOB, INGEST_JOB],
        schedules=[build_nightly_schedule(settings.sources)],
        sensors=[dead_runs, build_landing_sensor(settings.sources)],
        resources={**_resources(settings), **(resource_overrides or {})},
        # also for assets that a person materialises by hand: the night lock is held by the run's one process
        executor=dg.in_process_executor,
    )


@dg.definitions
def defs() -> dg.Definitions:
    """Build the graph for the home that the environment names."""
    settings = Settings.from_environment()
    settings.enter()
    return build_defs(settings)


def _asset_modules() -> tuple[ModuleType, ...]:
    # imported here and not above: lightgbm reads OMP_WAIT_POLICY when it is imported, which the settings must have set by then
    from assets import ingest, ranking, reporting, training, validation

    return (ingest, training, validation, ranking, reporting)


def _resources(settings: Settings) -> dict[str, Any]:
    home = HomeResource(root=str(settings.home))
    project = ProjectResource(root=str(settings.root))
    night_lock = NightLockResource(home=home)
    warehouse = WarehouseResource(home=home, night_lock=night_lock)
    return {
        "home": home,
        "night_lock": night_lock,
        "params": ParamsResource.configure_at_launch(path=str(settings.params)),
        "warehouse": warehouse,
        "night": NightResource.configure_at_launch(
            warehouse=warehouse, as_of="", sources=[str(source) for source in settings.sources]
        ),
        "project": project,
        "registry": RegistryResource(home=home, project=project),
        "dbt": LeapDbtResource(
            project_dir=str(settings.dbt_project),
            profiles_dir=str(settings.dbt_project),
            dbt_executable=sys.executable,
            global_config_flags=["-m", "assets.dbt_process"],
        ),
    }
