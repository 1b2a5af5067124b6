"""`leap schema`."""

import json
from enum import StrEnum
from typing import Annotated

import typer

from pipelines.commands.tables import wide_console


class Format(StrEnum):
    """How the schema is printed."""

    JSON_SCHEMA = "json-schema"
    TABLE = "table"


def schema(
    form: Annotated[
        Format, typer.Option("--format", help="A JSON Schema (draft 2020-12), or a table to read.")
    ] = Format.JSON_SCHEMA,
) -> None:
    """Print what one record of the canonical attempt log is: fields, types, units, meaning.

    The same fields are keys of a JSON line, columns of a CSV file or of a Parquet file; see docs/attempt-log.md.

    Examples:

        leap schema > attempt.schema.json

        leap schema --format table
    """
    from leap.store.record_schema import field_rows, json_schema

    if form is Format.JSON_SCHEMA:
        typer.echo(json.dumps(json_schema(), indent=2))
        return
    from rich.table import Table

    from leap.contracts import ATTEMPT_SCHEMA_VERSION

    table = Table(title=f"the canonical attempt, version {ATTEMPT_SCHEMA_VERSION}; * = quarantined without it")
    for name in ("field", "type", "unit", "meaning"):
        table.add_column(name, overflow="fold")
    for row in field_rows():
        table.add_row(f"{row.name}{' *' if row.required else ''}", row.type, row.unit, row.meaning)
    console = wide_console()
    with console.capture() as capture:
        console.print(table)
    typer.echo(capture.get().rstrip("\n"))
