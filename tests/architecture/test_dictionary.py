"""docs/data_dictionary.md is what its sources say now; `make dictionary` writes it anew."""

from __future__ import annotations

from pathlib import Path

import yaml

from leap.params import load_params
from leap.store.dictionary import PAGE, make_page, read_parameters


def test_the_page_agrees_with_its_sources(repository: Path) -> None:
    written = (repository / PAGE).read_text(encoding="utf-8")
    assert written == make_page(repository), "run `make dictionary` and commit the page"


def test_the_page_has_every_key_of_the_parameters(repository: Path) -> None:
    path = repository / "params.yaml"
    parameters = read_parameters(path.read_text(encoding="utf-8"))
    listed = {item.key: yaml.safe_load(item.value) for item in parameters if item.value}
    assert listed == flat(load_params(path).model_dump(mode="json"))


def flat(values: dict[str, object], prefix: str = "") -> dict[str, object]:
    """Put the keys of all levels into one, with dots between."""
    leaves: dict[str, object] = {}
    for key, value in values.items():
        leaves |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return leaves
