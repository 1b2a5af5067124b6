"""How tables, columns and figures are shown in Dagster's metadata.

What lives here: Arrow tables, text and matplotlib figures to metadata values, and what the data dictionary says of a table's
columns. What does not: what is shown (each asset decides), and how a figure is drawn (`leap/evaluation/plots.py`).
"""

from base64 import b64encode
from datetime import datetime
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
from matplotlib.figure import Figure

from leap.store import dictionary

_SHOWN_ROWS = 200
_DOTS_PER_INCH = 80  # a plot of 20 to 40 kB: metadata lies in Dagster's event log, twice for each materialisation


def markdown_table(table: pa.Table) -> dg.MarkdownMetadataValue:
    """Show the first rows of a table; shares and rates with four digits."""
    rows = [[_text(value) for value in row.values()] for row in table.slice(0, _SHOWN_ROWS).to_pylist()]
    lines = [table.column_names, ["---"] * table.num_columns, *rows]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    more = table.num_rows - _SHOWN_ROWS
    return dg.MetadataValue.md(f"{text}\n\nand {more} more rows" if more > 0 else text)


def transposed(table: pa.Table, heading: str) -> pa.Table:
    """Turn rows into columns, named by the column `heading`: few rows of many figures are read side by side, all as text."""
    names = [name for name in table.column_names if name != heading]
    columns = {row[heading]: pa.array([_text(row[name]) for name in names]) for row in table.to_pylist()}
    return pa.table({"": pa.array(names, pa.string()), **columns})


def markdown_lines(text: str) -> dg.MarkdownMetadataValue:
    """Show text as the lines that it has; Dagster would run the lines of a plain text together."""
    return dg.MetadataValue.md("\n".join(f"{line}  " for line in text.splitlines()))


def markdown_figure(figure: Figure) -> dg.MarkdownMetadataValue:
    """Show a figure as an image that the metadata itself holds."""
    image = BytesIO()
    figure.savefig(image, format="png", dpi=_DOTS_PER_INCH)
    return dg.MetadataValue.md(f"![plot](data:image/png;base64,{b64encode(image.getvalue()).decode()})")


def described(table: str) -> dict[str, Any]:
    """Give the metadata of a table that Python writes, by schema.table: its columns as in the data dictionary."""
    schema = dictionary.TABLES[table][1]
    columns = dictionary.table_of_schema(table, "", schema, _glossary()).columns
    return {
        "dagster/column_schema": dg.TableSchema(
            columns=[
                dg.TableColumn(
                    column.name,
                    column.type.lower(),
                    description=f"{column.meaning} ({column.unit})" if column.unit else column.meaning,
                    constraints=dg.TableColumnConstraints(nullable=schema.field(column.name).nullable),
                )
                for column in columns
            ]
        ),
    }


@cache
def _glossary() -> dict[str, tuple[str, str]]:
    return dictionary.read_glossary(Path(dictionary.__file__).with_name("glossary.yaml"))


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M}"
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("|", "\\|")
