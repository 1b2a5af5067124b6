"""How a table is shown in Dagster's metadata.

What lives here: Arrow to markdown. What does not: what is shown (each asset decides).
"""

import dagster as dg
import pyarrow as pa

_SHOWN_ROWS = 200


def markdown_table(table: pa.Table) -> dg.MarkdownMetadataValue:
    """Show the first rows of a table; shares and rates with four digits."""
    rows = [[_text(value) for value in row.values()] for row in table.slice(0, _SHOWN_ROWS).to_pylist()]
    lines = [table.column_names, ["---"] * table.num_columns, *rows]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    more = table.num_rows - _SHOWN_ROWS
    return dg.MetadataValue.md(f"{text}\n\nand {more} more rows" if more > 0 else text)


def _text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("|", "\\|")
