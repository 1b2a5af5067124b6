"""`leap leaks`."""

import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.commands.tables import wide_console
from pipelines.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa

    from leap.evaluation.leaks import LeakReport
    from leap.features import Levels
    from leap.store.datasets import Dataset


def leaks(
    dataset: Annotated[
        str | None, typer.Option(metavar="ID", help="The dataset of a night. Default: the newest.", show_default=False)
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the report as one JSON object.")] = False,
) -> None:
    """Report how old the newest fact behind each feature is at its row's cut, and find what a cut could not have known.

    The facts are worked out anew from the attempts of the dataset, without the SQL and the code that make the features, and are
    compared with the features row by row.

    Exit codes: 0 nothing found. 1 a feature knows what its cut could not, or disagrees with the attempts. 2 wrong usage.

    Examples:

        leap leaks

        leap leaks --dataset 2025-05-15-38890336008d --json
    """
    settings = Settings.from_environment()
    settings.enter()
    from leap.params import load_params
    from leap.store.datasets import open_dataset

    opened = open_dataset(settings.home / "datasets", dataset)
    levels = load_params(settings.params).features.state_levels
    present = set(opened.table("state_history", ["level"])["level"].unique().to_pylist())
    found = _report(opened, {level: key for level, key in levels.items() if level in present})
    typer.echo(json_format.dumps({"dataset_id": opened.id, **found.to_json()}, indent=2) if json else _as_text(found, opened.id))
    if found.findings:
        raise typer.Exit(1)


def _report(dataset: "Dataset", levels: "Levels") -> "LeakReport":
    import pyarrow as pa

    from leap.evaluation.history import training_matrix
    from leap.evaluation.leaks import report
    from leap.features import State
    from leap.store.warehouse import connect, read

    examples = dataset.table("training_examples")
    matrix = training_matrix(examples, State.from_table(dataset.table("state_history"), levels))
    numbered = examples.append_column("row", pa.array(range(examples.num_rows), pa.int64()))
    with connect(Path(":memory:")) as connection:
        connection.register("examples", numbered)
        connection.register("attempts", dataset.table("attempts"))

        def query(statement: str) -> "pa.Table":
            return read(connection, statement)

        return report(matrix, levels, query)


def _age(days: float | None) -> str:
    if days is None:
        return "-"
    for unit, size in (("d", 1.0), ("h", 24.0), ("min", 1440.0)):
        if abs(days) * size >= 2:
            return f"{days * size:.1f} {unit}"
    return f"{days * 86_400:.1f} s"


def _as_text(found: "LeakReport", dataset_id: str) -> str:
    from rich.table import Table

    table = Table(
        title=f"Age of the newest fact behind each feature at its row's cut, {found.rows} rows",
        caption=f"dataset {dataset_id}; features of one source share a line, `--json` has each",
    )
    for name in ("source", "features", "rows with a fact", "youngest", "median", "youngest by when known"):
        table.add_column(name, justify="left" if name in ("source", "features") else "right")
    by_source = {feature.source: [one for one in found.features if one.source == feature.source] for feature in found.features}
    for source, features in by_source.items():
        first, names = features[0], ", ".join(one.feature.removeprefix(f"{source}_") for one in features)
        days = (first.min_days, first.median_days, first.min_known_days)
        table.add_row(source, names, str(first.rows) if first.rows else "-", *map(_age, days))
    console = wide_console()
    with console.capture() as capture:
        console.print(table)
        if not found.findings:
            console.print("No feature knows what its cut did not, and all agree with the attempts.")
        for one in found.findings:
            console.print(f"{one.source}: {one.what}, {one.rows} rows:")
            console.print("\n".join(f"  {attempt}" for attempt in one.attempts))
    return capture.get().rstrip("\n")
