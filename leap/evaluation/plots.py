"""Figures of a score, for those who would rather look.

What lives here: numbers to matplotlib figures, without global state. What does not: where they are shown (MLflow, Dagster).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from leap.contracts import TIERS
from leap.evaluation.backtest import BacktestResult
from leap.evaluation.compare import SliceScore
from leap.evaluation.metrics import Scorecard

_SHOWN_FEATURES = 20
_SHOWN_SLICES = 20
_NIGHTS_SMOOTHED = 15
_RATIOS = (0.2, 0.33, 0.5, 0.67, 0.9, 1.1, 1.5, 2, 3, 5)


def plot_predicted_over_label(predictions: pa.Table, predictor: str) -> Figure:
    """Draw the ratio of predicted to measured throughput per device over the measured one, a dot per attempt, on log axes.

    `predictions` has the columns that `leap.training.train` gives. A ratio beyond the axis is drawn at its edge.
    """
    figure, axes = _figure(f"{predictor}: predicted over measured throughput per device")
    rows = predictions.filter(pc.equal(predictions["predictor"], predictor))
    tiers = np.asarray(rows["tier"].to_numpy(zero_copy_only=False), dtype=np.str_)
    label, predicted = rows["log_throughput_per_device"].to_numpy(), rows["log_p50"].to_numpy()
    ratio = np.clip(np.exp(predicted - label), min(_RATIOS), max(_RATIOS))
    for tier in TIERS:
        here = (tiers == tier) & np.isfinite(ratio)
        if here.any():
            axes.scatter(np.exp(label[here]), ratio[here], s=12, alpha=0.6, label=f"{tier} ({here.sum()})")
    axes.axhline(1, color="black", linewidth=0.8)
    axes.axhspan(0.9, 1.1, color="grey", alpha=0.2, linewidth=0, label="within 10%")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_yticks(_RATIOS, [f"{ratio:g}" for ratio in _RATIOS], minor=False)
    axes.minorticks_off()
    axes.set_ylim(min(_RATIOS) * 0.97, max(_RATIOS) * 1.03)
    axes.set_xlabel("measured, samples/s per device")
    axes.set_ylabel("predicted / measured")
    axes.legend(fontsize=8)
    return figure


def plot_scores(scorecards: Mapping[str, Scorecard]) -> Figure:
    """Draw each predictor's share within 10% with its 95% interval, and within 20%."""
    figure, axes = _figure("share of attempts predicted within 10% (line: 95% interval by job) and within 20%")
    places = np.arange(len(scorecards))
    for offset, color, figure_name in ((-0.18, "tab:blue", "within_10"), (0.18, "tab:cyan", "within_20")):
        shares = [getattr(card, figure_name) for card in scorecards.values()]
        bars = axes.bar(places + offset, shares, width=0.34, color=color, label=figure_name.replace("_", " ") + "%")
        axes.bar_label(bars, fmt="{:.1%}", label_type="center", fontsize=8)
    intervals = np.array([card.interval_within_10 for card in scorecards.values()])
    axes.vlines(places - 0.18, intervals[:, 0], intervals[:, 1], color="black")
    axes.set_xticks(places, [f"{name}\n{card.n} attempts, {card.jobs} jobs" for name, card in scorecards.items()])
    axes.set_yticks(np.linspace(0, 1, 6))
    axes.set_ylim(0, 1.12)  # room for the legend above a full bar
    axes.legend(fontsize=8, loc="upper center", ncols=2)
    return figure


def plot_importance(importance: Mapping[str, float]) -> Figure:
    """Draw the features that gave most of the booster's gain."""
    figure, axes = _figure("share of the gain by feature")
    shown = list(importance.items())[:_SHOWN_FEATURES][::-1]
    axes.barh([name for name, _ in shown], [share for _, share in shown], color="tab:blue")
    axes.tick_params(axis="y", labelsize=7)
    return figure


def plot_by_night(result: BacktestResult) -> Figure:
    """Draw each predictor's share within 10%, night by night: the mean over the attempts of `_NIGHTS_SMOOTHED` nights."""
    figure, axes = _figure(f"share within 10%, mean over the attempts of {_NIGHTS_SMOOTHED} nights")
    for name, cards in result.by_night.items():
        size = np.array([card.n for card in cards], dtype=np.float64)
        hits = np.nan_to_num([card.within_10 for card in cards]) * size
        window = np.ones(min(_NIGHTS_SMOOTHED, len(cards)))
        shares = np.convolve(hits, window, "valid") / np.convolve(size, window, "valid")
        # Nights that have runs lie in rounds, months apart: drawn by number, not by date, so that each is seen.
        axes.plot(
            np.arange(len(window) - 1, len(cards)),
            shares,
            label=name,
            linewidth=2.2 if name == "leap" else 1.1,
            color="black" if name == "leap" else None,
        )
    places = np.unique(np.linspace(0, len(result.nights) - 1, 6).astype(int))
    axes.set_xticks(places, [str(result.nights[place]) for place in places], fontsize=8)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("night that has runs")
    axes.legend(fontsize=8, loc="lower right", ncols=2)
    return figure


def plot_calibration(scorecards: Mapping[str, Scorecard], interval: float) -> Figure:
    """Draw by tier what share of labels lies between p10 and p90, beside the nominal `interval`."""
    figure, axes = _figure("share of labels between p10 and p90, by tier")
    tiers = [tier for tier in TIERS if any(tier in card.tiers for card in scorecards.values()) and tier != TIERS[-1]]
    width = 0.8 / max(len(scorecards), 1)
    for place, (name, card) in enumerate(scorecards.items()):
        shares = [card.tiers[tier].coverage if tier in card.tiers else np.nan for tier in tiers]
        places = np.arange(len(tiers)) - 0.4 + (place + 0.5) * width
        axes.bar(places, shares, width=0.9 * width, color="black" if name == "leap" else None, label=name)
    axes.axhline(interval, color="tab:red", linewidth=1, label=f"nominal {interval:.0%}")
    leap = scorecards.get("leap")
    counts = {tier: leap.tiers[tier].n if leap and tier in leap.tiers else 0 for tier in tiers}
    axes.set_xticks(np.arange(len(tiers)), [f"{tier}\n{counts[tier]} attempts" for tier in tiers])
    axes.set_yticks(np.linspace(0, 1, 6))
    axes.set_ylim(0, 1.3)  # room for the legend above a full bar
    axes.legend(fontsize=8, loc="upper center", ncols=4)
    return figure


def plot_slices(slices: Sequence[SliceScore], axis: str, predictors: Sequence[str] = ("leap", "lookup")) -> Figure:
    """Draw the share within 10% on each value of `axis`, the largest slices, for some predictors side by side."""
    figure, axes = _figure(f"share within 10% by {axis.replace('_', ' ')}")
    shown = [each for each in slices if each.axis == axis and each.predictor in predictors]
    largest = {each.value: each.n for each in sorted(shown, key=lambda each: -each.n)}
    names = list(largest)[:_SHOWN_SLICES][::-1]
    height = 0.8 / max(len(predictors), 1)
    for place, predictor in enumerate(predictors):
        found = {each.value: each.within_10 for each in shown if each.predictor == predictor}
        places = np.arange(len(names)) + 0.4 - (place + 0.5) * height
        bars = axes.barh(
            places,
            [found.get(name, np.nan) for name in names],
            height=0.9 * height,
            label=predictor,
            color="black" if predictor == "leap" else "tab:cyan",
        )
        axes.bar_label(bars, fmt="{:.0%}", fontsize=6, padding=2)
    axes.set_yticks(np.arange(len(names)), [f"{name} ({largest[name]})" for name in names], fontsize=7)
    axes.set_xlim(0, 1.1)
    axes.legend(fontsize=8, loc="lower right")
    return figure


def _figure(title: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, fontsize=10)
    return figure, axes
