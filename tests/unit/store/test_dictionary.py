"""The data dictionary's page says what contracts, dbt's YAML, the glossary and params.yaml say."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from leap.store.dictionary import (
    Column,
    DictionaryError,
    Parameter,
    Table,
    make_page,
    read_parameters,
    render,
    table_of_schema,
    tables_of_dbt,
    write,
)

GLOSSARY = {"steady_seconds": ("s", "how long it was measured"), "job_id": ("", "the job")}


def test_a_schema_becomes_a_table_with_units_and_meanings() -> None:
    schema = pa.schema([("job_id", pa.string()), ("steady_seconds", pa.float64()), ("seen_at", pa.timestamp("us", tz="UTC"))])

    table = table_of_schema("raw.attempts", "One row per record.", schema, GLOSSARY)

    assert table.columns == (
        Column("job_id", "VARCHAR", "", "the job"),
        Column("steady_seconds", "DOUBLE", "s", "how long it was measured"),
        Column("seen_at", "TIMESTAMPTZ", "", ""),
    )


def test_dbt_yaml_goes_before_the_glossary_and_the_folder_names_the_schema(tmp_path: Path) -> None:
    (tmp_path / "models" / "marts").mkdir(parents=True)
    (tmp_path / "models" / "marts" / "_marts.yml").write_text(
        """
models:
  - name: fct_attempts
    description: One row
      per attempt.
    columns:
      - {name: job_id, data_type: varchar}
      - name: steady_seconds
        data_type: double
        description: without warm-up
      - {name: age, data_type: integer, description: how old, config: {meta: {unit: days}}}
"""
    )
    (tmp_path / "seeds").mkdir()
    (tmp_path / "seeds" / "_seeds.yml").write_text("seeds: [{name: prices, description: One row per price.}]")

    marts, seeds = tables_of_dbt(tmp_path, GLOSSARY)

    assert seeds == Table("seeds.prices", "One row per price.", ())
    assert marts == Table(
        "marts.fct_attempts",
        "One row per attempt.",
        (
            Column("job_id", "VARCHAR", "", "the job"),
            Column("steady_seconds", "DOUBLE", "s", "without warm-up"),
            Column("age", "INTEGER", "days", "how old"),
        ),
    )


def test_parameters_take_the_comment_beside_or_above_them_or_point_to_their_parents() -> None:
    text = """\
# The header is nobody's comment.

seed: 7  # one seed for all

gates:  # each can hold a night
  min_share: 0.90       # share of attempts
  # A comment on
  # two lines.
  levels: [a, b]
  max_share: -0.05
other:
  bare: 1
"""

    assert read_parameters(text) == [
        Parameter("seed", "7", "one seed for all"),
        Parameter("gates", "", "each can hold a night"),
        Parameter("gates.min_share", "0.90", "share of attempts"),
        Parameter("gates.levels", "[a, b]", "A comment on two lines."),
        Parameter("gates.max_share", "-0.05", "see `gates`"),
        Parameter("other.bare", "1", ""),
    ]


def test_the_page_keeps_the_order_of_schemas_and_escapes_pipes() -> None:
    published = Table("published.rankings", "One row per key.", (Column("job_key", "VARCHAR", "", "a | b"),))
    raw = Table("raw.attempts", "One row per record.", ())

    page = render([published, raw], [Parameter("seed", "7", "one seed")])

    assert page.index("## raw") < page.index("## published") < page.index("## params.yaml")
    assert "| `job_key` | VARCHAR |  | a \\| b |" in page
    assert "| `seed` | `7` | one seed |" in page


def test_what_nobody_describes_is_named(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("seed: 7\n")
    (tmp_path / "dbt_project" / "models" / "marts").mkdir(parents=True)
    (tmp_path / "dbt_project" / "models" / "marts" / "marts.yml").write_text("models: [{name: dim, columns: [{name: odd}]}]")

    with pytest.raises(DictionaryError) as error:
        make_page(tmp_path)

    missing = "column marts.dim.odd, type of marts.dim.odd, table marts.dim, params.yaml seed"
    assert f"described nowhere: {missing};" in str(error.value)


def test_write_puts_the_page_into_docs(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("seed: 7  # one seed\n")
    (tmp_path / "docs").mkdir()

    page = write(tmp_path)

    assert page == tmp_path / "docs" / "data_dictionary.md"
    assert page.read_text() == make_page(tmp_path)
    assert "| `ended_at` | TIMESTAMPTZ | UTC | when the attempt ended |" in page.read_text()
