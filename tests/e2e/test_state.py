"""The statement that a dataset carries rebuilds the history that dbt built, row by row."""

from __future__ import annotations

from leap.store.datasets import open_dataset
from leap.store.state import compiled_state, rebuild_state


def test_the_statement_of_a_night_rebuilds_its_history(good):
    dataset = open_dataset(good.leap.home / "datasets")
    rebuilt = rebuild_state(dataset.table("training_examples"), dataset.state_statement())
    history = dataset.table("state_history")
    assert rebuilt.num_rows == history.num_rows > 0
    # a statement promises no order; the dataset is written in one
    rebuilt = rebuilt.sort_by([(name, "ascending") for name in ("level", "key", "night")])
    assert rebuilt.select(history.column_names).cast(history.schema).to_pylist() == history.to_pylist()


def test_the_relation_of_the_examples_is_freed_of_its_database(tmp_path):
    folder = tmp_path / "compiled" / "leap" / "models" / "marts"
    folder.mkdir(parents=True)
    (folder / "state_history.sql").write_text('select count(*) from "warehouse"."marts"."fct_training_examples"')
    assert compiled_state(tmp_path) == "select count(*) from fct_training_examples"
    assert compiled_state(tmp_path / "nothing") is None
