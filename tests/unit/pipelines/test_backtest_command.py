"""`leap backtest`: what does not fit together is told before anything is read."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipelines.cli import app


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--predictors", "leap,oracle"), "no predictor oracle; there are leap, lookup"),
        (("--predictors", " , "), "no predictor is named"),
        (("--against", "champion"), "needs --params"),
        (("--against", "v3"), "a challenger is scored against `champion`"),
        (("--only", "H200-SXM"), "--hold-out hardware"),
        (("--regime", "pair-unseen"), "--hold-out hardware"),
        (("--final", "--skip-first", "3"), "--final has its own nights"),
    ],
)
def test_wrong_usage_is_told(tmp_path: Path, arguments: tuple[str, ...], reason: str) -> None:
    done = CliRunner().invoke(app, ["backtest", *arguments], env={"LEAP_HOME": str(tmp_path / "absent")})
    assert done.exit_code == 2
    assert reason in " ".join(done.stderr.replace("│", " ").split())
    assert not (tmp_path / "absent").exists()
