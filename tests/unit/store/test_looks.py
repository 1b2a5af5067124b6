"""Every look at the final nights is one more row of the same table, and nothing else of the document changes."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest

from leap.evaluation.backtest import BacktestResult, Share
from leap.evaluation.compare import Difference, SliceScore
from leap.evaluation.metrics import Scorecard
from leap.store.looks import LooksError, record_look

AT = datetime(2026, 12, 1, 9, 30, tzinfo=UTC)


def result() -> BacktestResult:
    def card(name: str, share: float) -> Scorecard:
        return Scorecard(name, 40, 8, 1.0, share, 0.9, (share - 0.1, share + 0.1), 0.03, 0.8, 0.2, {})

    slices = [
        SliceScore(name, "exact history", "no", 10, 3, share, 0.7, None) for name, share in (("leap", 0.6), ("lookup", 0.3))
    ]
    nights = np.array(["2025-01-01", "2025-01-03"], "datetime64[D]")
    cards = {"leap": card("leap", 0.8), "lookup": card("lookup", 0.7)}
    over = {"leap": {"lookup": Difference(0.1, 0.02, 0.18)}}
    return BacktestResult(nights, cards, {}, over, slices, {}, {}, {}, Share(40, 0.9, 0.95))


def test_looks_are_counted_and_the_rest_of_the_document_stays(tmp_path):
    document = tmp_path / "experiments.md"
    document.write_text("# Experiments\n\nWhat was tried.\n")
    assert record_look(document, result(), "set-1", "0.1+abc", AT) == 1
    document.write_text(document.read_text() + "\n## Another part\n\n| a | b |\n|---|---|\n")
    assert record_look(document, result(), "set-2", "0.1+abd", AT) == 2
    text = document.read_text()
    assert text.startswith("# Experiments\n\nWhat was tried.\n")
    assert text.endswith("## Another part\n\n| a | b |\n|---|---|\n")
    first, second = (line for line in text.splitlines() if "set-" in line)
    assert first.startswith(
        "| 1 | 2026-12-01 09:30 | 0.1+abc | set-1 | 2025-01-01 to 2025-01-03 | 40 (8) | 80.0% (70.0% to 90.0%), 70.0%, +10.0%"
    )
    assert "60.0% (n = 10), table 30.0%" in second


def test_a_document_that_cannot_be_written_is_a_sentence(tmp_path):
    (tmp_path / "docs").write_text("a file")
    with pytest.raises(LooksError, match=r"experiments\.md"):
        record_look(tmp_path / "docs" / "experiments.md", result(), "set-1", "0.1", AT)
