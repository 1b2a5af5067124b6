"""The jobs: `nightly`, every asset in one run and one process, and `ingest`, the raw tables alone.

What lives here: job definitions. What does not: how a night is run from the shell (`nightly.py`), by the clock (`schedules.py`)
or when logs land (`sensors.py`).
"""

import dagster as dg

# In one process: resources, among them the night lock, then start once for the run, and DuckDB sees one writer.
NIGHTLY_JOB = dg.define_asset_job(
    "nightly",
    selection=dg.AssetSelection.all() | dg.AssetSelection.all_asset_checks(),
    description="One night: ingest, features, training, validation, ranking, reporting, under the night lock.",
    executor_def=dg.in_process_executor,
)

_RAW = dg.AssetSelection.groups("raw")
INGEST_JOB = dg.define_asset_job(
    "ingest",
    selection=_RAW | _RAW.required_multi_asset_neighbors(),
    description="Reads sources into the raw tables, checks them, and leaves everything else to the night.",
    executor_def=dg.in_process_executor,
)
