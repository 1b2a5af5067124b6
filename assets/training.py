"""The night's dataset, the training matrix, the challenger and its scores.

What lives here: the assets from the marts to the scorecards. What does not: what is fitted and scored on what
(`leap/training.py`), tracking (`leap/store/registry.py`), the decision (`validation.py`).
"""

from collections.abc import Iterator
from typing import Any

import dagster as dg
import numpy as np
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
from assets.tables import described, markdown_figure, markdown_table, transposed
from leap.evaluation.history import History
from leap.evaluation.plots import plot_predicted_over_label, plot_scores
from leap.store.challenger import load_champion, log_challenger, prediction_table, scorecard_table, write_challenger
from leap.store.examples import assemble_examples, read_quarantine
from leap.store.night import NightFolder, export_night, open_night
from leap.store.warehouse import replace
from leap.training import train

_MARTS = [
    dg.AssetKey(["marts", name])
    for name in (
        "dim_hardware_type",
        "fct_attempts",
        "fct_measurements",
        "fct_ranking_candidates",
        "fct_training_examples",
        "state_current",
        "state_history",
    )
]
# Of the raw tables dbt waits for the attempts' checks alone: where a record was lost, the night must hold here at the latest.
_RAW = [dg.AssetKey(["raw", name]) for name in ("hardware_spellings", "loads", "quarantine")]

_TRAINED: dict[str, dict[str, Any]] = {
    "challenger": {
        "kinds": {"lightgbm", "mlflow"},
        "description": "The model trained on all that was known at the cut, registered in MLflow.",
    },
    "scorecards": {
        "kinds": {"duckdb"},
        "description": "Scores of challenger (`leap`), lookup table and champion on the same newest window, one row each. The "
        "champion has none where it has trained on the window.",
        "metadata": described("model.scorecards"),
    },
    "predictions": {
        "kinds": {"duckdb"},
        "description": "What each of them predicted for each attempt of the window, beside the label.",
        "metadata": described("model.predictions"),
    },
}


@dg.asset(
    key_prefix="datasets",
    group_name="datasets",
    owners=[OWNER],
    kinds={"parquet"},
    deps=[*_MARTS, *_RAW],
    description="What the night knew, as an immutable folder of Parquet that people, backtests and MLflow refer to by its id.",
)
def night_dataset(night: NightResource, home: HomeResource, warehouse: WarehouseResource) -> dg.MaterializeResult[Any]:
    """Export marts and quarantine under an id that comes from their content."""
    with warehouse.connect(read_only=True) as connection:
        dataset = export_night(connection, home.get(), night.night)
    tables = dataset.manifest.tables
    rows = pa.table({"table": list(tables), "rows": [table.rows for table in tables.values()]})
    return dg.MaterializeResult(
        metadata={
            "dataset id": dataset.id,
            "folder": dg.MetadataValue.path(str(dataset.folder)),
            "tables": markdown_table(rows),
        }
    )


@dg.asset(
    key_prefix="model",
    group_name="model",
    owners=[OWNER],
    kinds={"python", "parquet"},
    deps=[night_dataset],
    description="The assembled features and target of every label version, one row each, at the cut of its own night.",
)
def assembled_examples(night: NightResource, home: HomeResource, params: ParamsResource) -> dg.MaterializeResult[Any]:
    """Assemble the features once, for all who need them."""
    dataset = open_night(home.get(), night.night)
    matrix = assemble_examples(dataset, params.get())
    NightFolder.of(home.get(), night.night).write_table("matrix", matrix)
    return dg.MaterializeResult(
        metadata={
            "dagster/row_count": matrix.num_rows,
            "examples in all": dataset.manifest.tables["training_examples"].rows,
            "columns": matrix.num_columns,
        }
    )


@dg.multi_asset(
    specs=[
        dg.AssetSpec(["model", name], group_name="model", owners=[OWNER], deps=[assembled_examples], **said)
        for name, said in _TRAINED.items()
    ],
    name="train_challenger",
)
def train_challenger(
    night: NightResource,
    home: HomeResource,
    params: ParamsResource,
    warehouse: WarehouseResource,
    registry: RegistryResource,
    project: ProjectResource,
) -> Iterator[dg.MaterializeResult[Any]]:
    """Train, score, register."""
    folder = NightFolder.of(home.get(), night.night)
    dataset = open_night(home.get(), night.night)
    matrix = folder.read_table("matrix")
    champion = load_champion(home.get(), matrix.column_names)
    history = History.from_matrix(matrix, read_quarantine(dataset, params.get()))
    result = train(history, params.get(), np.datetime64(night.night, "D"), champion)
    bundle = write_challenger(folder, result, dataset, params.get())
    model = log_challenger(
        registry.get(), bundle, result, params=params.get(), dataset=dataset, code_version=project.code_version()
    )
    scorecards = scorecard_table(result, night.night, model.version)
    predictions = prediction_table(result, night.night)
    with warehouse.connect() as connection:
        replace(connection, "model.scorecards", scorecards, {"night": night.night})
        replace(connection, "model.predictions", predictions, {"night": night.night})
    folder.write_facts("scorecards", {name: card.to_json() for name, card in result.scorecards.items()})
    folder.write_facts("challenger", {"model_version": model.version, "run_id": model.run_id, "fingerprint": model.fingerprint})
    yield dg.MaterializeResult(
        asset_key=["model", "challenger"],
        metadata={
            "model version": model.version,
            "was registered before": model.reused,
            "MLflow run": model.run_id,
            "examples trained on": result.trained_on,
            "scored from night": str(result.window_start),
        },
    )
    yield dg.MaterializeResult(
        asset_key=["model", "scorecards"],
        metadata={
            "dagster/row_count": scorecards.num_rows,
            "scores": markdown_table(transposed(scorecards.drop_columns(["night"]), "predictor")),
            "plot": markdown_figure(plot_scores(result.scorecards)),
            # figures by themselves: Dagster draws them over the nights
            **{f"within 10%, {name}": card.within_10 for name, card in result.scorecards.items()},
        },
    )
    yield dg.MaterializeResult(
        asset_key=["model", "predictions"],
        metadata={
            "dagster/row_count": predictions.num_rows,
            "plot": markdown_figure(plot_predicted_over_label(result.predictions, result.challenger.name)),
        },
    )
