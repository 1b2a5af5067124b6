"""`leap dataset`: what a notebook reads is what the model is trained on, and each column says what it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.parquet as pq
import pytest

from leap.evaluation.history import days
from leap.store.examples import load_history

if TYPE_CHECKING:
    from tests.integration.conftest import SimulatedNight


def leap(night: SimulatedNight, *arguments: str | Path, home: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).with_name("leap"), "dataset", *arguments],
        env={**os.environ, "LEAP_HOME": str(home or night.home)},
        check=False,
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def written(simulated_night: SimulatedNight, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("notebook") / "new" / "leap"
    options = ("--params", simulated_night.overlay, "--out", folder, "--json")
    done = leap(simulated_night, simulated_night.dataset.id, *options)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["dataset_id"] == simulated_night.dataset.id
    assert Path(told["folder"]) == folder
    return folder


def test_the_rows_are_those_that_the_model_learns_from(simulated_night: SimulatedNight, written: Path) -> None:
    table = pq.read_table(written / "examples.parquet")
    history = load_history(simulated_night.dataset, simulated_night.params)
    assert table.num_rows == simulated_night.dataset.manifest.tables["training_examples"].rows
    for name in history.features.column_names:
        assert table[name].type == history.features[name].type
        ours, theirs = (one[name].to_numpy(zero_copy_only=False) for one in (table, history.features))
        np.testing.assert_array_equal(ours, theirs, err_msg=name)
    np.testing.assert_array_equal(table["log_throughput_per_device"].to_numpy(), history.target)
    whole = table["throughput"].to_numpy() / table["num_devices"].to_numpy()
    np.testing.assert_allclose(np.log(whole), history.target)
    # and the README's recipe gives what a night learns from and is scored on
    cut = np.datetime64("2026-03-08")
    visible_to = days(table["visible_to"])
    recipe = (days(table["visible_from"]) <= cut) & (np.isnat(visible_to) | (cut < visible_to)) & (days(table["night"]) < cut)
    np.testing.assert_array_equal(recipe, history.known_at(cut, 3650))
    scored = table["is_newest"].to_numpy() & (table["outcome"].to_numpy(zero_copy_only=False) == "succeeded")
    np.testing.assert_array_equal(scored, history.is_scored)


def test_the_readme_tells_of_every_column_and_counts(simulated_night: SimulatedNight, written: Path) -> None:
    table = pq.read_table(written / "examples.parquet")
    readme = json.loads((written / "README.json").read_text())
    assert list(readme["columns"]) == table.column_names
    assert {name: column["type"] for name, column in readme["columns"].items()} == {
        field.name: str(field.type) for field in table.schema
    }
    assert all(column["meaning"] for column in readme["columns"].values())
    assert readme["columns"]["exact_last"] == {
        "type": "double",
        "unit": "ln(samples/s per device)",
        "meaning": "the newest run with the same model_type, hardware_type, num_devices, known at the cut",
    }
    assert readme["columns"]["log_memory_bytes"]["unit"] == "ln(bytes)"
    assert (readme["rows"], readme["nights"]) == (table.num_rows, {"min": "2026-03-01", "max": "2026-03-10"})
    assert readme["attempts"] == len(table["attempt_id"].unique())
    assert readme["params"] == simulated_night.params.model_dump(mode="json")


def test_nothing_that_is_there_is_written_over(simulated_night: SimulatedNight, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    done = leap(simulated_night, "--out", tmp_path)
    assert (done.returncode, [path.name for path in tmp_path.iterdir()]) == (2, ["mine.txt"])
    assert "is there already and is not an empty folder; name another with --out" in done.stderr


def test_an_unknown_id_is_told_the_known_ones(simulated_night: SimulatedNight, tmp_path: Path) -> None:
    done = leap(simulated_night, "2020-01-01-0123456789ab", "--out", tmp_path / "out")
    assert done.returncode == 1
    assert f"(there are: {simulated_night.dataset.id})" in done.stderr
    assert not (tmp_path / "out").exists()


def test_the_list_names_what_there_is(simulated_night: SimulatedNight, tmp_path: Path) -> None:
    (listed,) = json.loads(leap(simulated_night, "--list", "--json").stdout)
    rows = simulated_night.dataset.manifest.tables["training_examples"].rows
    assert (listed["dataset_id"], listed["examples"], listed["is_newest"]) == (simulated_night.dataset.id, rows, True)
    assert simulated_night.dataset.id in leap(simulated_night, "--list").stdout
    assert leap(simulated_night, "--list", home=tmp_path).stdout.startswith("There is no dataset in")
