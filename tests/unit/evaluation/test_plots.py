"""Figures show the numbers that they are made from."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from leap.evaluation.metrics import score
from leap.evaluation.plots import plot_predicted_over_label, plot_scores
from leap.predictors import Prediction


def test_bars_are_the_shares_and_the_line_is_the_interval() -> None:
    # three of four answers are within 20%, two of them within 10%
    p50 = np.log([1.05, 1.0, 1.15, 2.0])
    answer = Prediction(p50, p50, p50, np.full(4, "learned"))
    card = score("leap", np.zeros(4), answer, np.array(["a", "b", "c", "d"]), seed=1)

    (axes,) = plot_scores({"leap": card}).axes

    assert [bar.get_height() for bar in axes.patches] == [0.5, 0.75]
    assert [text.get_text() for text in axes.texts] == ["50.0%", "75.0%"]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["leap\n4 attempts, 4 jobs"]
    (segment,) = axes.collections[0].get_segments()
    assert segment[:, 1].tolist() == list(card.interval_within_10)


def test_dots_are_ratios_of_one_predictor_and_stay_in_the_picture() -> None:
    rows = pa.table(
        {
            "predictor": ["leap", "leap", "leap", "lookup"],
            "tier": ["measured", "analytic", "none", "measured"],
            "log_throughput_per_device": np.log([100.0, 10.0, 1.0, 1.0]),
            "log_p50": [np.log(110.0), np.log(1000.0), np.nan, np.log(3.0)],
        }
    )

    (axes,) = plot_predicted_over_label(rows, "leap").axes

    dots = {dot.get_label(): dot.get_offsets().tolist() for dot in axes.collections}
    assert dots["measured (1)"] == [pytest.approx([100.0, 1.1])]
    assert dots["analytic (1)"] == [pytest.approx([10.0, 5.0])]
    assert set(dots) == {"measured (1)", "analytic (1)"}
