"""The data dictionary: one page made from the contracts, dbt's YAML, the glossary and `params.yaml`.

What lives here: reading those four, and the page's text. What does not: the meaning of a column (`glossary.yaml`, or dbt's
YAML where it is of one table), the tables themselves (`warehouse.py`, `dbt_project/`).

`python -m leap.store.dictionary` writes docs/data_dictionary.md; a test fails where the page and its sources disagree.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

from leap.contracts import RANKING_SCHEMA
from leap.store.model_tables import PREDICTIONS_SCHEMA, PROMOTIONS_SCHEMA, SCORECARDS_SCHEMA, VERDICTS_SCHEMA
from leap.store.warehouse import RAW_SCHEMAS

PAGE = Path("docs", "data_dictionary.md")
SCHEMAS = ("raw", "seeds", "staging", "intermediate", "marts", "model", "published")
Glossary = Mapping[str, tuple[str, str]]  # column -> unit, meaning

# Tables that Python writes: grain and columns.
TABLES: dict[str, tuple[str, pa.Schema]] = {
    "raw.job_attempts": (
        "One row per attempt, segment and version received and admitted; throughput as received, in `throughput_unit`.",
        RAW_SCHEMAS["raw.job_attempts"],
    ),
    "raw.measurements": (
        "One row per published or measured figure without job or time of its own, as received.",
        RAW_SCHEMAS["raw.measurements"],
    ),
    "raw.prices": ("One row per price and version: type, pool, list, first day and figure.", RAW_SCHEMAS["raw.prices"]),
    "raw.quarantine": ("One row per record received and not trusted, with the reason.", RAW_SCHEMAS["raw.quarantine"]),
    "raw.loads": ("One row per load and slice: what became of the records read.", RAW_SCHEMAS["raw.loads"]),
    "raw.hardware_spellings": (
        "One row per spelling admitted, and the type it stands for.",
        RAW_SCHEMAS["raw.hardware_spellings"],
    ),
    "model.scorecards": (
        "One row per night and predictor: its score on the newest window of attempts, the same for all.",
        SCORECARDS_SCHEMA,
    ),
    "model.predictions": (
        "One row per night, predictor and attempt of the window: what was predicted without having trained on it.",
        PREDICTIONS_SCHEMA,
    ),
    "model.verdicts": ("One row per night and gate: what came of it.", VERDICTS_SCHEMA),
    "model.promotions": ("One row per promotion, newest first: a copy of the control database's.", PROMOTIONS_SCHEMA),
    "published.rankings": (
        "One row per job key, hardware type, device count and pool; a snapshot's `rankings.parquet`.",
        RANKING_SCHEMA,
    ),
}

_TYPES = {
    pa.string(): "VARCHAR",
    pa.bool_(): "BOOLEAN",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.float64(): "DOUBLE",
    pa.date32(): "DATE",
}


class DictionaryError(ValueError):
    """The page cannot be made; the message names what is described nowhere, and where to describe it."""


@dataclass(frozen=True)
class Column:
    """A column as the page shows it."""

    name: str
    type: str
    unit: str
    meaning: str


@dataclass(frozen=True)
class Table:
    """A table as the page shows it; `name` is schema.table."""

    name: str
    grain: str
    columns: tuple[Column, ...]


@dataclass(frozen=True)
class Parameter:
    """A key of `params.yaml` with its value, as written, and the comment that stands with it; a section has no value."""

    key: str
    value: str
    comment: str


def write(root: Path) -> Path:
    """Write the page of the checkout at `root` and return its path. Raises DictionaryError."""
    page = root / PAGE
    page.write_text(make_page(root), encoding="utf-8")
    return page


def make_page(root: Path) -> str:
    """Make the page's text from the checkout at `root`. Raises DictionaryError where a column or a key is described nowhere."""
    tables = list_tables(root)
    parameters = read_parameters((root / "params.yaml").read_text(encoding="utf-8"))
    undescribed = [
        *(f"column {table.name}.{column.name}" for table in tables for column in table.columns if not column.meaning),
        *(f"type of {table.name}.{column.name}" for table in tables for column in table.columns if not column.type),
        *(f"table {table.name}" for table in tables if not table.grain),
        *(f"params.yaml {parameter.key}" for parameter in parameters if not parameter.comment),
    ]
    if undescribed:
        raise DictionaryError(
            f"described nowhere: {', '.join(undescribed)}; describe a column in leap/store/glossary.yaml or in dbt's YAML, "
            "its type there too; a table's grain in leap/store/dictionary.py or in dbt's YAML; a key in a comment beside it"
        )
    return render(tables, parameters)


def list_tables(root: Path) -> list[Table]:
    """Describe every table that a night of the checkout at `root` writes."""
    glossary = read_glossary(Path(__file__).with_name("glossary.yaml"))
    return [
        *(table_of_schema(name, grain, schema, glossary) for name, (grain, schema) in TABLES.items()),
        *tables_of_dbt(root / "dbt_project", glossary),
    ]


def read_glossary(path: Path) -> dict[str, tuple[str, str]]:
    """Read unit and meaning of each column name."""
    return {name: (unit, meaning) for name, (unit, meaning) in yaml.safe_load(path.read_text(encoding="utf-8")).items()}


def table_of_schema(name: str, grain: str, schema: pa.Schema, glossary: Glossary) -> Table:
    """Describe a table that Python writes."""
    columns = (_column(name, field.name, _type_name(field.type), glossary) for field in schema)
    return Table(name, grain, tuple(columns))


def tables_of_dbt(project: Path, glossary: Glossary) -> Iterator[Table]:
    """Describe dbt's seeds and models, in the order of their files.

    A model's schema is its folder under models/, as in dbt_project.yml.
    """
    for path in sorted([*project.glob("seeds/*.yml"), *project.glob("models/**/*.yml")]):
        for kind, entries in (yaml.safe_load(path.read_text(encoding="utf-8")) or {}).items():
            if kind in ("seeds", "models"):
                schema = "seeds" if kind == "seeds" else path.relative_to(project / "models").parts[0]
                for entry in entries:
                    yield _dbt_table(schema, entry, glossary)


def _dbt_table(schema: str, entry: Mapping[str, Any], glossary: Glossary) -> Table:
    name = f"{schema}.{entry['name']}"
    types = entry.get("config", {}).get("column_types", {})
    columns = tuple(
        _column(
            name,
            column["name"],
            _dbt_type(column.get("data_type") or types.get(column["name"], "")),
            glossary,
            unit=_dbt_meta(column).get("unit"),
            meaning=column.get("description"),
        )
        for column in entry.get("columns", ())
    )
    return Table(name, _one_line(entry.get("description", "")), columns)


def _dbt_meta(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    meta: Mapping[str, Any] = entry.get("config", {}).get("meta") or entry.get("meta") or {}
    return meta


def _column(table: str, name: str, type_: str, glossary: Glossary, unit: str | None = None, meaning: str | None = None) -> Column:
    known_unit, known_meaning = glossary.get(f"{table}.{name}") or glossary.get(name, ("", ""))
    return Column(name, type_, known_unit if unit is None else unit, _one_line(meaning or known_meaning))


def _dbt_type(written: str) -> str:
    return written.upper().replace("TIMESTAMP WITH TIME ZONE", "TIMESTAMPTZ")


def _type_name(type_: pa.DataType) -> str:
    return "TIMESTAMPTZ" if pa.types.is_timestamp(type_) else _TYPES[type_]


def _one_line(text: str) -> str:
    return " ".join(text.split())


def read_parameters(text: str) -> list[Parameter]:
    """List the keys of a `params.yaml` in order, with dots between levels; one that holds other keys only if it has a comment.

    A key's comment stands behind it on its line, or on lines of their own above it; a key without one points to its parent's.
    """
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    return list(_parameters(root, "", "", text)) if isinstance(root, yaml.MappingNode) else []


def _parameters(node: yaml.MappingNode, prefix: str, parent: str, text: str) -> Iterator[Parameter]:
    lines = text.splitlines()
    for key, value in node.value:
        name = f"{prefix}{key.value}"
        comment = _comment(lines, key.start_mark.line)
        if isinstance(value, yaml.MappingNode):
            if comment:
                yield Parameter(name, "", comment)
            yield from _parameters(value, f"{name}.", name if comment else parent, text)
        else:
            written = _one_line(text[value.start_mark.index : value.end_mark.index])
            yield Parameter(name, written, comment or (f"see `{parent}`" if parent else ""))


def _comment(lines: list[str], number: int) -> str:
    behind = re.search(r"\s#\s*(.*)$", lines[number])
    if behind:
        return behind[1].strip()
    above: list[str] = []
    for line in reversed(lines[:number]):
        if not line.lstrip().startswith("#"):
            break
        above.insert(0, line.strip().lstrip("#").strip())
    return _one_line(" ".join(above))


def render(tables: Iterable[Table], parameters: Iterable[Parameter]) -> str:
    """Give the page as Markdown: a section per schema with its tables, then the parameters."""
    by_schema: dict[str, list[Table]] = {schema: [] for schema in SCHEMAS}
    for table in tables:
        by_schema[table.name.partition(".")[0]].append(table)
    parts = [
        "# Data dictionary\n",
        "Made by `make dictionary` from the contracts, dbt's YAML, `leap/store/glossary.yaml` and `params.yaml`; `make check`",
        "fails where they disagree. Change those, not this page. Every time is UTC. Throughput in marts and in the ranking is",
        "samples/s of the whole job; raw tables keep it as received.",
    ]
    for schema, members in by_schema.items():
        if members:
            parts += ["", f"## {schema}", *(line for table in members for line in _render_table(table))]
    parts += ["", "## params.yaml", "", "| key | value | meaning |", "|---|---|---|"]
    parts += [_row(f"`{item.key}`", item.value and f"`{item.value}`", item.comment) for item in parameters]
    return "\n".join(parts) + "\n"


def _render_table(table: Table) -> list[str]:
    heading = ["", f"### {table.name}", "", table.grain]
    if not table.columns:
        return heading
    rows = [_row(f"`{column.name}`", column.type, column.unit, column.meaning) for column in table.columns]
    return [*heading, "", "| column | type | unit | meaning |", "|---|---|---|---|", *rows]


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    write(Path(__file__).parents[2])
