"""Figures show the numbers that they are made from."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from leap.evaluation.backtest import BacktestResult, Share
from leap.evaluation.compare import SliceScore
from leap.evaluation.metrics import Scorecard, score
from leap.evaluation.plots import plot_by_night, plot_calibration, plot_predicted_over_label, plot_scores, plot_slices
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


def card_of(hits: int, of: int) -> Scorecard:
    """`of` attempts of tier learned, of which `hits` are predicted exactly and lie between p10 and p90."""
    p50 = np.where(np.arange(of) < hits, 0.0, 1.0)
    answer = Prediction(p50, p50, p50, np.full(of, "learned"))
    return score("leap", np.zeros(of), answer, np.arange(of).astype(str), seed=1)


def test_a_line_by_night_is_the_mean_over_the_attempts_of_the_last_nights() -> None:
    # given: 20 nights; on the first five of 10 attempts are hits, on all others each of 5
    cards = [card_of(5, 10), *[card_of(5, 5)] * 19]
    nights = np.datetime64("2024-01-01") + np.arange(20)
    result = BacktestResult(nights, {"leap": cards[0]}, {"leap": cards}, {}, [], {}, {}, {}, Share(0, 0.0, 0.0))

    (axes,) = plot_by_night(result).axes

    (line,) = axes.lines
    assert line.get_xdata().tolist() == [14, 15, 16, 17, 18, 19]
    assert line.get_ydata().tolist() == pytest.approx([75 / 80, 1, 1, 1, 1, 1])
    assert axes.get_xticklabels()[0].get_text() == "2024-01-01"


def test_calibration_shows_each_tiers_share_beside_the_nominal_one() -> None:
    (axes,) = plot_calibration({"leap": card_of(3, 4)}, 0.8).axes
    assert [bar.get_height() for bar in axes.patches] == [0.75]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["learned\n4 attempts"]
    assert axes.lines[0].get_ydata()[0] == 0.8


def test_slices_are_the_largest_of_one_axis_for_both_predictors() -> None:
    def slice_of(predictor: str, value: str, n: int, share: float, axis: str = "hardware_type") -> SliceScore:
        return SliceScore(predictor, axis, value, n, 1, share, share, None)

    slices = [
        slice_of("leap", "A30", 5, 0.4),
        slice_of("leap", "H100", 50, 0.9),
        slice_of("lookup", "H100", 50, 0.7),
        slice_of("leap", "bert", 55, 0.8, "model_type"),
    ]
    (axes,) = plot_slices(slices, "hardware_type").axes
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["A30 (5)", "H100 (50)"]
    widths = {bars.get_label(): [bar.get_width() for bar in bars] for bars in axes.containers}
    assert widths["leap"] == [0.4, 0.9]
    assert np.isnan(widths["lookup"][0])
    assert widths["lookup"][1] == 0.7
