"""`leap hardware list` and `leap hardware unknown`."""

import json as json_format
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.commands.tables import wide_console
from pipelines.settings import Settings

if TYPE_CHECKING:
    from leap.store.unknown_hardware import UnknownSpelling

_AsJson = Annotated[bool, typer.Option("--json", help="Print it as one JSON object.")]

hardware = typer.Typer(no_args_is_help=True, help="Show the hardware types that are known, and the spellings that are not.")


@hardware.command("list")
def list_types(json: _AsJson = False) -> None:
    """List the hardware types with their specifications and how many spellings name them.

    Examples:

        leap hardware list
    """
    settings = Settings.from_environment()
    from leap.hardware.catalog import read_catalog
    from leap.hardware.names import read_aliases

    seeds = settings.dbt_project / "seeds"
    types = read_catalog(seeds / "hardware_types.csv").table.to_pylist()
    aliases = read_aliases(seeds / "hardware_aliases.csv")["hardware_type"].to_pylist()
    rows = [{**row, "spellings": aliases.count(row["hardware_type"])} for row in types]
    if json:
        typer.echo(json_format.dumps({"hardware_types": rows}, indent=2))
        return
    from rich.table import Table

    table = Table(title=f"{len(rows)} hardware types; dbt_project/seeds/hardware_types.csv")
    for name in ("hardware", "vendor", "family", "form", "memory", "bandwidth", "bf16", "fp8", "fp32", "year", "spellings"):
        table.add_column(name, justify="left" if name in ("hardware", "vendor", "family", "form") else "right")
    for row in rows:
        memory = "" if row["memory_bytes"] is None else f"{row['memory_bytes'] / 1e9:g} GB"
        rates = ("memory_bandwidth_gbps", "peak_bf16_tflops", "peak_fp8_tflops", "peak_fp32_tflops")
        figures = ["" if row[name] is None else f"{row[name]:g}" for name in rates]
        names = [row["hardware_type"], row["vendor"], row["family"], row["form_factor"] or ""]
        table.add_row(*names, memory, *figures, str(row["release_year"] or ""), str(row["spellings"]))
    console = wide_console()
    with console.capture() as capture:
        console.print(table)
    typer.echo(capture.get().rstrip("\n"))


@hardware.command()
def unknown(
    dataset: Annotated[
        str | None, typer.Option(metavar="ID", help="The dataset of a night. Default: the newest.", show_default=False)
    ] = None,
    json: _AsJson = False,
) -> None:
    """List spellings of hardware in quarantine that no seed names, with the nearest types and what differs.

    A person decides: add the line that is shown, or a new type, then `leap quarantine retry --reason unknown-hardware`.
    Works while a night runs.

    Examples:

        leap hardware unknown
    """
    settings = Settings.from_environment()
    settings.enter()
    from leap.hardware.catalog import read_catalog
    from leap.store.datasets import open_dataset
    from leap.store.ingest import read_resolver
    from leap.store.unknown_hardware import list_unknown

    seeds = settings.dbt_project / "seeds"
    opened = open_dataset(settings.home / "datasets", dataset)
    found = list_unknown(opened, read_resolver(seeds), read_catalog(seeds / "hardware_types.csv").types)
    if json:
        typer.echo(json_format.dumps({"dataset_id": opened.id, "unknown": [one.to_json() for one in found]}, indent=2))
    else:
        typer.echo(_as_text(found, opened.id))


def _as_text(found: "list[UnknownSpelling]", dataset_id: str) -> str:
    if not found:
        return f"Every spelling of hardware resolves (dataset {dataset_id})."
    lines = [f"{len(found)} spellings of hardware are unknown (dataset {dataset_id}):"]
    for one in found:
        lines += [f"\n{one.hardware_name}: {one.records} records, the first in {one.first}", f"  {one.reason}"]
        lines += [f"  near: {near.hardware_type}; differs in {near.differs}" for near in one.candidates]
        lines += [f"  add to {one.line_to_add}"]
    lines += ["\nThen: leap quarantine retry --reason unknown-hardware"]
    return "\n".join(lines)
