"""`leap simulate`: clean by default, dirty on request, and the truth kept apart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipelines.cli import app

FEW = ["--days", "3", "--attempts-per-day", "40", "--seed", "3"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEAP_HOME", str(tmp_path / "home"))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_clean_logs_have_no_truth_beside_them(tmp_path: Path) -> None:
    said = CliRunner().invoke(app, ["simulate", *FEW, "--out", str(tmp_path / "logs")])

    assert said.exit_code == 0, said.output
    assert names(tmp_path / "logs") == {f"attempts-2026-03-0{day}.jsonl" for day in (1, 2, 3)}
    assert not (tmp_path / "logs-truth").exists()


@pytest.mark.parametrize("truth", ["logs-truth", "elsewhere"])
def test_the_truth_about_dirty_logs_is_kept_apart(truth: str, tmp_path: Path) -> None:
    where = [] if truth == "logs-truth" else ["--truth", str(tmp_path / truth)]

    said = CliRunner().invoke(app, ["simulate", *FEW, "--dirty", "--out", str(tmp_path / "logs"), *where])

    assert said.exit_code == 0, said.output
    assert names(tmp_path / truth) == {"truth.json", "attempts.parquet", "dirt.parquet"}
    counts = json.loads((tmp_path / truth / "truth.json").read_text(encoding="utf-8"))
    assert names(tmp_path / "logs") == {file["name"] for file in counts["files"]}
    assert f"{counts['records_read']} records of 3 days" in said.output
    assert f"{counts['quarantined']} to quarantine" in said.output


def test_a_place_for_the_truth_without_dirt_is_an_error(tmp_path: Path) -> None:
    said = CliRunner().invoke(app, ["simulate", *FEW, "--out", str(tmp_path / "logs"), "--truth", str(tmp_path / "truth")])

    assert said.exit_code != 0
    assert "--truth goes with --dirty" in str(said.exception)


def test_dirty_logs_are_not_mixed_with_others(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "attempts-2026-03-01.jsonl").write_text("{}\n", encoding="utf-8")

    said = CliRunner().invoke(app, ["simulate", *FEW, "--dirty", "--out", str(tmp_path / "logs")])

    assert said.exit_code != 0
    assert "holds logs already" in str(said.exception)
    assert names(tmp_path / "logs") == {"attempts-2026-03-01.jsonl"}
