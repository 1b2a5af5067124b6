"""`params.yaml` is a frozen typed model; a mistake in it is told with file, key and reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from leap.params import ParamsError, load_params


def test_the_file_of_the_project_loads_and_cannot_be_changed(repository: Path):
    params = load_params(repository / "params.yaml")
    assert params.publish.snapshots_kept == 7
    with pytest.raises(ValidationError):
        params.seed = 1  # type: ignore[misc]


def test_an_overlay_changes_what_it_names_and_nothing_else(repository: Path, tmp_path: Path):
    overlay = tmp_path / "strict.yaml"
    overlay.write_text("gates:\n  min_within_20: 2.0\n")
    plain, strict = load_params(repository / "params.yaml"), load_params(repository / "params.yaml", overlay)
    assert strict.gates.min_within_20 == 2.0
    assert strict.gates.min_answered == plain.gates.min_answered
    assert strict.model == plain.model


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("gates:\n  min_within_30: 0.5\n", "gates.min_within_30: Extra inputs are not permitted"),
        ("model:\n  num_leaves: many\n", "model.num_leaves: Input should be a valid integer"),
        ("model:\n  learning_rate: 0\n", "model.learning_rate: Input should be greater than 0"),
        ("features:\n  state_levels:\n    exact: [moon]\n", "state_levels.exact"),
        ("- a list\n", "must hold a mapping"),
        ("a: [1\n", "not YAML"),
    ],
)
def test_a_mistake_is_told_with_its_key(repository: Path, tmp_path: Path, text: str, told: str):
    overlay = tmp_path / "wrong.yaml"
    overlay.write_text(text)
    with pytest.raises(ParamsError, match=r"wrong\.yaml") as error:
        load_params(repository / "params.yaml", overlay)
    assert told in str(error.value)


def test_what_is_no_text_file_is_told_in_a_sentence(repository: Path, tmp_path: Path):
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (binary, tmp_path, tmp_path / "missing.yaml"):
        with pytest.raises(ParamsError, match=str(path)):
            load_params(repository / "params.yaml", path)
