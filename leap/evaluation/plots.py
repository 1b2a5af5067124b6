"""Figures of a score, for those who would rather look.

What lives here: numbers to matplotlib figures, without global state. What does not: where they are shown (MLflow, Dagster).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from leap.contracts import TIERS
from leap.evaluation.metrics import Scorecard

_SHOWN_FEATURES = 20


def plot_predicted_over_label(predictions: pa.Table, predictor: str) -> Figure:
    """Draw predicted over measured throughput per device, one dot per attempt, on log axes.

    `predictions` has the columns that `leap.training.train` gives.
    """
    figure, axes = _figure(f"{predictor}: predicted and measured throughput per device")
    rows = predictions.filter(pc.equal(predictions["predictor"], predictor))
    tiers = np.asarray(rows["tier"].to_numpy(zero_copy_only=False), dtype=np.str_)
    label, predicted = rows["log_throughput_per_device"].to_numpy(), rows["log_p50"].to_numpy()
    for tier in TIERS:
        here = (tiers == tier) & np.isfinite(predicted)
        if here.any():
            axes.scatter(np.exp(label[here]), np.exp(predicted[here]), s=9, alpha=0.6, label=f"{tier} ({here.sum()})")
    if len(label):
        ends = np.exp([label.min(), label.max()])
        axes.plot(ends, ends, color="black", linewidth=0.8)
        for factor in (0.9, 1.1):
            axes.plot(ends, ends * factor, color="grey", linewidth=0.6, linestyle="--")
        axes.set_xscale("log")
        axes.set_yscale("log")
    axes.set_xlabel("measured, samples/s per device")
    axes.set_ylabel("predicted, samples/s per device; dashed: within 10%")
    axes.legend(fontsize=8)
    return figure


def plot_scores(scorecards: Mapping[str, Scorecard]) -> Figure:
    """Draw each predictor's share within 10% with its 95% interval, and within 20%."""
    figure, axes = _figure("share of attempts within 10% (interval by job) and within 20%")
    for place, card in enumerate(scorecards.values()):
        low, high = card.interval_within_10
        axes.bar(place - 0.18, card.within_10, width=0.34, color="tab:blue", label="within 10%" if place == 0 else None)
        axes.bar(place + 0.18, card.within_20, width=0.34, color="tab:cyan", label="within 20%" if place == 0 else None)
        if np.isfinite(low):
            axes.vlines(place - 0.18, low, high, color="black")
    axes.set_xticks(range(len(scorecards)), [f"{name}\nn={card.n}" for name, card in scorecards.items()])
    axes.set_ylim(0, 1)
    axes.legend(fontsize=8)
    return figure


def plot_importance(importance: Mapping[str, float]) -> Figure:
    """Draw the features that gave most of the booster's gain."""
    figure, axes = _figure("share of the gain by feature")
    shown = list(importance.items())[:_SHOWN_FEATURES][::-1]
    axes.barh([name for name, _ in shown], [share for _, share in shown], color="tab:blue")
    axes.tick_params(axis="y", labelsize=7)
    return figure


def _figure(title: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, fontsize=10)
    return figure, axes
