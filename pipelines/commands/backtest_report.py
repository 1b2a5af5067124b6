"""What `leap backtest` shows: tables for eyes, JSON for programs, figures for MLflow.

What lives here: drawing a `BacktestResult`. What does not: running one (`backtest.py`).
"""

import json as json_format
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pipelines.commands.tables import wide_console

if TYPE_CHECKING:
    from rich.table import Table

    from leap.evaluation.backtest import BacktestResult
    from leap.evaluation.metrics import Scorecard
    from leap.store.datasets import Dataset


def as_json(result: "BacktestResult", dataset: "Dataset") -> str:
    """Give the whole outcome as JSON; NaN becomes null."""
    outcome = {
        "dataset_id": dataset.id,
        "nights": [str(night) for night in result.nights],
        "predictors": {name: card.to_json() for name, card in result.scorecards.items()},
        "over_lookup": {name: asdict(difference) for name, difference in result.over_lookup.items()},
        "over": {name: {other: asdict(each) for other, each in than.items()} for name, than in result.over.items()},
        "mean_ape": {name: value if value == value else None for name, value in result.mean_ape.items()},
        "choices": {name: choice.to_json() for name, choice in result.choices.items()},
        "counted_once": {name: asdict(share) for name, share in result.counted_once.items()},
        "same_day": asdict(result.same_day),
        "slices": [asdict(each) for each in result.slices],
        "by_night": {
            name: [{"night": str(night), "n": card.n, "within_10": card.to_json()["within_10"]} for night, card in pairs]
            for name, pairs in by_night(result).items()
        },
    }
    return json_format.dumps(outcome, indent=2)


def by_night(result: "BacktestResult") -> "dict[str, list[tuple[Any, Scorecard]]]":
    """Give each predictor's nights with their scorecards."""
    return {name: list(zip(result.nights, cards, strict=True)) for name, cards in result.by_night.items()}


def as_text(result: "BacktestResult", dataset: "Dataset") -> str:
    """Draw an outcome: scores by predictor and tier, choices among hardware types, and what is compared with what."""
    import numpy as np
    from rich.table import Table

    table = Table(
        title=f"{len(result.nights)} nights from {result.nights[0]} to {result.nights[-1]}, one retrain each",
        caption=f"dataset {dataset.id}; interval: 95% by bootstrap over jobs",
    )
    for name in (
        "predictor",
        "attempts",
        "jobs",
        "answered",
        "within 10%",
        "interval",
        "within 20%",
        "median error",
        "mean error",
        "p10-p90 holds",
        "width",
    ):
        table.add_column(name, justify="left" if name == "predictor" else "right")
    for name, card in result.scorecards.items():
        low, high = card.interval_within_10
        table.add_row(
            name,
            str(card.n),
            str(card.jobs),
            f"{card.answered:.1%}",
            f"{card.within_10:.1%}",
            f"{low:.1%} to {high:.1%}",
            f"{card.within_20:.1%}",
            f"{card.median_ape:.1%}",
            f"{result.mean_ape[name]:.1%}",
            f"{card.coverage:.1%}",
            f"{np.expm1(card.median_width):.0%}",
        )
        for tier, part in card.tiers.items():
            figures = ("", f"{part.within_10:.1%}", "", f"{part.within_20:.1%}", "", "", f"{part.coverage:.1%}", "")
            table.add_row(f"  {tier}", str(part.n), "", *figures, style="dim")
    console = wide_console()
    with console.capture() as capture:
        console.print(table)
        console.print(_choices(result))
        for name, others in result.over.items():
            for other, difference in others.items():
                console.print(
                    f"{name} less {other}, within 10%, paired by job: {difference.value:+.1%} "
                    f"({difference.low:+.1%} to {difference.high:+.1%})"
                )
        for each in result.slices:
            if each.axis == "exact history":
                known = "with" if each.value == "yes" else "without"
                console.print(
                    f"{each.predictor} {known} exact history: {each.within_10:.1%} within 10%, {each.within_20:.1%} within 20% "
                    f"(n = {each.n}, {each.jobs} jobs)"
                )
        for each in result.slices:
            if each.is_worse and each.over_lookup is not None:
                console.print(
                    f"{each.predictor} is worse than the table on {each.axis} {each.value}: {each.over_lookup.value:+.1%} "
                    f"({each.over_lookup.low:+.1%} to {each.over_lookup.high:+.1%}, n = {each.n}, {each.jobs} jobs)"
                )
        once = ", ".join(f"{name} {share.within_10:.1%}" for name, share in result.counted_once.items())
        console.print(
            f"each run once, whatever names it stands under: {once} ({next(iter(result.counted_once.values())).n} runs)"
        )
        console.print(
            "not a forecast, but how easy repeats are: the job's last run, also of the same day, else the table: "
            f"{result.same_day.within_10:.1%} within 10% ({result.same_day.n} attempts)"
        )
    return capture.get().rstrip("\n")


def _choices(result: "BacktestResult") -> "Table":
    from rich.table import Table

    first = next(iter(result.choices.values()))
    table = Table(
        title=f"choosing among hardware types: {first.groups} groups of the same model, devices and batch, {first.pairs} pairs",
        caption=f"regret: extra cost of the type chosen as cheapest, over the {first.priced} groups with all prices",
    )
    for name in ("predictor", "pairs in order", "fastest first", "rank correlation", "regret in cost"):
        table.add_column(name, justify="left" if name == "predictor" else "right")
    for name, choice in result.choices.items():
        figures = (f"{choice.pairwise:.1%}", f"{choice.top_1:.1%}", f"{choice.rank_correlation:.2f}", f"{choice.regret:.1%}")
        table.add_row(name, *("-" if figure.startswith("nan") else figure for figure in figures))
    return table


def run_figures(result: "BacktestResult", name: str) -> dict[str, float]:
    """Give what MLflow shows of a predictor over all nights."""
    card, choice = result.scorecards[name], result.choices[name]
    figures: dict[str, float] = {
        **{
            part: getattr(card, part) for part in ("within_10", "within_20", "answered", "median_ape", "coverage", "median_width")
        },
        "mean_ape": result.mean_ape[name],
        **{part: getattr(choice, part) for part in ("pairwise", "top_1", "rank_correlation", "regret")},
        "n": card.n,
        "jobs": card.jobs,
    }
    if name in result.over_lookup:
        figures["within_10_over_lookup"] = result.over_lookup[name].value
    return {key: value for key, value in figures.items() if value == value}


def night_figures(card: "Scorecard") -> dict[str, float]:
    """Give what MLflow shows of a predictor on one night."""
    parts = {part: getattr(card, part) for part in ("within_10", "within_20", "answered", "median_ape", "coverage", "n")}
    return {key: value for key, value in parts.items() if value == value}
