"""What people see in Dagster's metadata: tables that keep their shape, lines that stay lines, plots that are images."""

from __future__ import annotations

from base64 import b64decode
from datetime import UTC, datetime

import pyarrow as pa
from matplotlib.figure import Figure

from assets.features import describe_test
from assets.tables import described, markdown_figure, markdown_lines, markdown_table, transposed
from leap.store.dictionary import TABLES


def test_a_table_shows_values_as_people_write_them() -> None:
    table = pa.table(
        {
            "name": ["a|b", None],
            "share": [0.123456, 1.0],
            "has_passed": [True, False],
            "at": [datetime(2026, 3, 1, 1, 15, 7, tzinfo=UTC), None],
        }
    )

    assert markdown_table(table).md_str.splitlines() == [
        "| name | share | has_passed | at |",
        "| --- | --- | --- | --- |",
        "| a\\|b | 0.1235 | yes | 2026-03-01 01:15 |",
        "|  | 1 | no |  |",
    ]


def test_a_long_table_says_how_much_is_left_out() -> None:
    assert markdown_table(pa.table({"n": range(203)})).md_str.endswith("| 199 |\n\nand 3 more rows")


def test_few_rows_of_many_figures_stand_side_by_side() -> None:
    table = pa.table({"predictor": ["leap", "lookup"], "n": [50, 50], "within_10": [0.75, None]})

    assert transposed(table, "predictor").to_pydict() == {
        "": ["n", "within_10"],
        "leap": ["50", "0.75"],
        "lookup": ["50", ""],
    }


def test_lines_are_broken_where_they_were() -> None:
    assert markdown_lines("read 2\n  kept 1").md_str == "read 2  \n  kept 1  "


def test_a_plot_is_a_small_image_in_the_metadata() -> None:
    figure = Figure(figsize=(7, 5))
    figure.subplots().plot([0, 1], [0, 1])

    text = markdown_figure(figure).md_str

    before, _, image = text.partition("base64,")
    assert before == "![plot](data:image/png;"
    assert b64decode(image.removesuffix(")")).startswith(b"\x89PNG")
    assert len(text) < 60_000


def test_every_table_that_python_writes_tells_its_columns() -> None:
    for table, (_, schema) in TABLES.items():
        columns = described(table)["dagster/column_schema"].columns

        assert [column.name for column in columns] == schema.names
        assert all(column.description for column in columns)


def test_a_dbt_test_says_in_words_what_it_promises() -> None:
    def node(name: str, where: str | None = None, **kwargs: object) -> dict[str, object]:
        return {"description": "", "config": {"where": where}, "test_metadata": {"name": name, "kwargs": {"model": "", **kwargs}}}

    assert describe_test(node("not_null", column_name="job_id")) == "`job_id` is never null."
    assert describe_test(node("accepted_values", column_name="a", values=["x", "y"])) == "`a` is one of `x`, `y`."
    assert describe_test(node("relationships", column_name="a", field="b", to="ref('dim_c')")) == "Every `a` is a `b` of `dim_c`."
    assert (
        describe_test(node("unique_combination", "is_newest", columns=["a", "b"]))
        == "Where `is_newest`: No two rows have the same `a`, `b`."
    )
    assert describe_test(node("expression_is_true", expression="a\n= b")) == "In every row `a = b`."
    assert describe_test({**node("not_null", column_name="a"), "description": "Known."}) == "Known."
    assert describe_test({"description": "", "config": {}, "test_metadata": None}) == ""
