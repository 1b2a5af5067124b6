"""The ranking: scored candidates, the published snapshot, and the promotion that follows it.

What lives here: the assets behind the gates. What does not: ranking (`leap/ranking.py`), writing (`leap/store/publisher.py`).
"""

from datetime import UTC, datetime
from typing import Any

import dagster as dg
import pyarrow as pa

from assets.resources import (
    OWNER,
    HomeResource,
    NightResource,
    ParamsResource,
    ProjectResource,
    RegistryResource,
    WarehouseResource,
)
from assets.tables import described, markdown_table
from leap.serving.snapshot import SNAPSHOTS
from leap.store.night import NightFolder, open_night
from leap.store.publication import coverage, first_choices, promote, promotion_table, publish_night, score_candidates
from leap.store.warehouse import replace


@dg.asset(
    key_prefix="model",
    group_name="model",
    owners=[OWNER],
    kinds={"python", "lightgbm"},
    deps=[["model", "verdicts"]],
    description="Every candidate of every job key scored and ranked, as it is to be published.",
)
def rankings(night: NightResource, home: HomeResource) -> dg.MaterializeResult[Any]:
    """Score and rank with the model that passed the gates."""
    folder = NightFolder.of(home.get(), night.night)
    rows = score_candidates(folder, open_night(home.get(), night.night))
    folder.write_table("rankings", rows)
    return dg.MaterializeResult(
        metadata={
            "dagster/row_count": rows.num_rows,
            "coverage": markdown_table(coverage(rows)),
            "first choices": markdown_table(first_choices(rows)),
        }
    )


@dg.asset(
    key=["published", "rankings"],
    group_name="published",
    owners=[OWNER],
    kinds={"parquet"},
    deps=[rankings],
    description="The snapshot that the scheduler reads: ranked rows, manifest and the scorer's bundle, immutable, seven kept.",
    metadata=described("published.rankings"),
)
def published_rankings(
    night: NightResource, home: HomeResource, params: ParamsResource, project: ProjectResource
) -> dg.MaterializeResult[Any]:
    """Publish the night's ranking and let the pointer name it."""
    manifest = publish_night(
        home.get(),
        NightFolder.of(home.get(), night.night),
        params.get().publish,
        night=night.night,
        code_version=project.code_version(),
        generated_at=datetime.now(UTC),
    )
    return dg.MaterializeResult(
        metadata={
            "dagster/row_count": manifest.row_count,
            "job keys": manifest.job_key_count,
            "snapshot": manifest.snapshot_id,
            "folder": dg.MetadataValue.path(str(home.get().published / SNAPSHOTS / manifest.snapshot_id)),
            "valid until": dg.MetadataValue.timestamp(manifest.valid_until),
            "model version": manifest.model_version,
            "prices": manifest.price_version,
            "rankings hash": manifest.rankings_hash,
        }
    )


@dg.asset(
    key_prefix="model",
    group_name="model",
    owners=[OWNER],
    kinds={"sqlite", "mlflow", "duckdb"},
    deps=[published_rankings],
    description="Which model was live from when, and why: the append-only log in control.db, and its copy here.",
    metadata=described("model.promotions"),
)
def promotions(
    night: NightResource, home: HomeResource, params: ParamsResource, warehouse: WarehouseResource, registry: RegistryResource
) -> dg.MaterializeResult[Any]:
    """Record what the snapshot made live, and let the registry's alias follow."""
    promote(home.get(), NightFolder.of(home.get(), night.night), registry.get(), params.get(), promoted_at=datetime.now(UTC))
    log: pa.Table = promotion_table(home.get())
    with warehouse.connect() as connection:
        replace(connection, "model.promotions", log, {})
    shown = log.select(["promoted_at", "night", "model_version", "reason"])
    return dg.MaterializeResult(metadata={"dagster/row_count": log.num_rows, "log": markdown_table(shown)})
