"""`leap dataset`."""

import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.commands.tables import wide_console
from pipelines.settings import Settings, SettingsError

if TYPE_CHECKING:
    import pyarrow as pa

    from leap.params import Params
    from leap.store.datasets import Dataset

# What a row says of itself, before its features.
_ROW = ("attempt_id", "segment_number", "version", "is_newest", "job", "outcome", "night", "visible_from", "visible_to")
_LABEL = ("throughput", "log_throughput_per_device")


def dataset(
    dataset_id: Annotated[
        str | None, typer.Argument(metavar="ID", help="The dataset of a night. Default: the newest.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="A new folder to write to. Default: one of the dataset's name, here.", show_default=False
        ),
    ] = None,
    params: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            metavar="FILE",
            help="A YAML file with some of the keys of params.yaml, laid over it.",
            show_default=False,
        ),
    ] = None,
    show: Annotated[bool, typer.Option("--list", help="List the datasets there are, and write nothing.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print what was written, or the list, as one JSON object.")] = False,
) -> None:
    """Write the frozen examples of a night as Parquet, with the features that LEAP's model sees, for anyone's notebook.

    One row per attempt and version of its label: examples.parquet has the features as known at the cut of the attempt's own
    night, the label, and the nights that could learn from it; README.json says what each column means, in which unit, and which
    params made it.

    Exit codes: 0 written. 1 no such dataset; the message lists those there are. 2 wrong usage.

    Examples:

        leap dataset --list

        leap dataset 2025-05-15-38890336008d --out ~/notebooks/leap
    """
    settings = Settings.from_environment()
    settings.enter()
    from leap.params import load_params
    from leap.store.datasets import open_dataset

    datasets = settings.home / "datasets"
    if show:
        rows = _known(datasets)
        typer.echo(json_format.dumps(rows, indent=2) if json else _listed(rows, datasets))
        return
    chosen = load_params(settings.params, params)
    opened = open_dataset(datasets, dataset_id)
    written = _write(opened, chosen, Path(opened.id) if out is None else out.expanduser())
    if json:
        typer.echo(json_format.dumps(written, indent=2))
    else:
        typer.echo(f"{written['rows']} rows of {written['columns']} columns, README.json beside them: {written['folder']}")


def _write(dataset: "Dataset", params: "Params", folder: Path) -> dict[str, Any]:
    import pyarrow.parquet as pq

    from leap.store.files import staged_folder

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SettingsError(f"{folder} is there already and is not an empty folder; name another with --out")
    matrix = _matrix(dataset, params)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with staged_folder(folder) as unfinished:
        pq.write_table(matrix, unfinished / "examples.parquet", compression="zstd")
        readme = json_format.dumps(_readme(dataset, params, matrix), indent=1)
        (unfinished / "README.json").write_text(readme + "\n", encoding="utf-8")
    return {
        "dataset_id": dataset.id,
        "folder": str(folder.resolve()),
        "rows": matrix.num_rows,
        "columns": matrix.num_columns,
    }


def _matrix(dataset: "Dataset", params: "Params") -> "pa.Table":
    """Give the examples as the model sees them: what a row says of itself, its label, its features."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from leap.evaluation.history import MATRIX_COLUMNS
    from leap.store.examples import assemble_examples, read_examples

    examples = read_examples(dataset, params)
    features = assemble_examples(dataset, params)
    row = {name: examples[name] for name in (*_ROW, *_LABEL) if name in examples.column_names}
    row["job"] = pc.coalesce(examples["job_id"], examples["attempt_id"])
    named = {name: row[name] for name in (*_ROW, *_LABEL) if name in row}
    return pa.table(named | {name: features[name] for name in features.column_names if name not in MATRIX_COLUMNS})


def _readme(dataset: "Dataset", params: "Params", matrix: "pa.Table") -> dict[str, Any]:
    import pyarrow.compute as pc

    from leap.evaluation.columns import describe

    described = describe(matrix.column_names, params.features.state_levels)
    nights = pc.min_max(matrix["night"]).as_py()
    return {
        "dataset_id": dataset.id,
        "night": dataset.manifest.night.isoformat(),
        "file": "examples.parquet",
        "rows": matrix.num_rows,
        "rows_in_dataset": dataset.manifest.tables["training_examples"].rows,
        "attempts": pc.count_distinct(matrix["attempt_id"]).as_py(),
        "jobs": pc.count_distinct(matrix["job"]).as_py(),
        "nights": {name: None if value is None else value.isoformat() for name, value in nights.items()},
        "how_to_use": (
            "At the cut of night N learn from rows with visible_from <= N, N < visible_to or visible_to null, and night < N; "
            "score on rows with night = N, is_newest and outcome = succeeded. NaN or null = unknown."
        ),
        "columns": {
            name: {"type": str(matrix.schema.field(name).type), "unit": unit, "meaning": meaning}
            for name, (unit, meaning) in described.items()
        },
        "params": params.model_dump(mode="json"),
        "tables_of_the_dataset": {name: entry.rows for name, entry in dataset.manifest.tables.items()},
    }


def _known(datasets: Path) -> list[dict[str, Any]]:
    from leap.store.datasets import DatasetMissing, open_dataset
    from leap.store.files import finished

    try:
        newest = open_dataset(datasets).id
    except DatasetMissing:
        return []
    opened = [open_dataset(datasets, folder.name) for folder in finished(datasets)]
    return [
        {
            "dataset_id": one.id,
            "night": one.manifest.night.isoformat(),
            "examples": one.manifest.tables["training_examples"].rows,
            "bytes": sum(entry.bytes for entry in one.manifest.tables.values()),
            "is_newest": one.id == newest,
        }
        for one in opened
    ]


def _listed(rows: list[dict[str, Any]], datasets: Path) -> str:
    from rich.table import Table

    if not rows:
        return f"There is no dataset in {datasets} yet; run `leap nightly`, or see that LEAP_HOME is right."
    table = Table(title=f"Datasets in {datasets}", title_justify="left")
    for name in ("dataset", "night", "examples", "megabytes", ""):
        table.add_column(name, justify="right" if name in ("examples", "megabytes") else "left")
    for row in rows:
        size = f"{row['bytes'] / 1e6:.1f}"
        table.add_row(row["dataset_id"], row["night"], str(row["examples"]), size, "the newest" if row["is_newest"] else "")
    console = wide_console()
    with console.capture() as capture:
        console.print(table)
    return capture.get().rstrip("\n")
