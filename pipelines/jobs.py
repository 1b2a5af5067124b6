"""The jobs: `nightly`, every asset in one run and one process.

What lives here: job definitions. What does not: how a night is run from the shell (`nightly.py`) or by the clock
(`schedules.py`).
"""

import dagster as dg

# In one process: resources, among them the night lock, then start once for the run, and DuckDB sees one writer.
NIGHTLY_JOB = dg.define_asset_job(
    "nightly",
    selection=dg.AssetSelection.all() | dg.AssetSelection.all_asset_checks(),
    description="One night: ingest, features, training, validation, ranking, reporting, under the night lock.",
    executor_def=dg.in_process_executor,
)
