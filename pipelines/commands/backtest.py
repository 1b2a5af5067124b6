"""`leap backtest`."""

import json as json_format
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.commands.tables import wide_console
from pipelines.settings import Settings

if TYPE_CHECKING:
    from leap.evaluation.backtest import BacktestResult
    from leap.evaluation.metrics import Scorecard
    from leap.store.datasets import Dataset


def backtest(
    nights: Annotated[int, typer.Option(min=1, help="How many nights that have runs.")] = 30,
    end: Annotated[
        datetime | None,
        typer.Option(
            formats=["%Y-%m-%d"],
            metavar="DATE",
            help="The last night, a UTC day. Default: the newest before the last 30 that have runs.",
            show_default=False,
        ),
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(metavar="ID", help="The dataset of a night. Default: the newest.", show_default=False)
    ] = None,
    params: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            metavar="FILE",
            help="A YAML file with some of the keys of params.yaml, laid over it.",
            show_default=False,
        ),
    ] = None,
    skip_first: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="N", help="All nights but the N first that have runs, instead of --nights.", show_default=False
        ),
    ] = None,
    final: Annotated[
        bool,
        typer.Option("--final", help="Score the last 30 nights that have runs, and note the look in docs/experiments.md."),
    ] = False,
    hold_out: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="Hide everything about each hardware, model or vendor in turn, and predict what was hidden.",
            show_default=False,
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the scores as one JSON object.")] = False,
) -> None:
    """Score LEAP's model and the lookup table on past nights, each retrained every night on what its cut knew.

    Every attempt that started in the window and succeeded counts: one without an answer is wrong, and so is one whose record is
    in quarantine. Reads the immutable dataset that a night has exported, so that it can run while a night does.

    The last 30 nights that have runs (half of them, where there are fewer than 60) are for the final score of a model: they are
    left out unless --final is given, and every look at them is noted. A model that was chosen by looking at them has no honest
    score left.

    Exit codes: 0 scores. 1 nothing to score. 2 wrong usage.

    Examples:

        leap backtest --nights 30 --json

        leap backtest --nights 10 --end 2024-05-10 --params small_trees.yaml

        leap backtest --skip-first 60

        leap backtest --final

        leap backtest --hold-out hardware
    """
    if hold_out is not None:
        from pipelines.commands.holdout import hold_out as run_hold_out

        run_hold_out(hold_out, dataset=dataset, params=params, json=json)
        return
    settings = Settings.from_environment()
    settings.enter()
    import numpy as np

    from leap.evaluation.backtest import backtest as run
    from leap.evaluation.backtest import end_before_final
    from leap.params import load_params
    from leap.store.datasets import open_dataset
    from leap.store.looks import record_look

    chosen = load_params(settings.params, params)
    opened = open_dataset(settings.home / "datasets", dataset)
    from leap.store.night import load_history

    history = load_history(opened, chosen)
    limit = end_before_final(history)
    last = np.datetime64(end.replace(tzinfo=UTC).date(), "D") if end else None
    if final and (end or skip_first is not None):
        raise typer.BadParameter("--final has its own nights: leave out --end and --skip-first")
    if last is not None and last > limit:
        raise typer.BadParameter(
            f"--end {last} lies in the nights kept for the final score, which begin after {limit}; "
            f"give --end {limit} or earlier, or --final to open them"
        )
    if final:
        held_back = int((history.scored_nights() > limit).sum())
        result = run(history, chosen, nights=held_back, end=None, progress=_say)
    else:
        of_all = skip_first is not None
        result = run(
            history, chosen, nights=None if of_all else nights, end=last or limit, skip_first=skip_first or 0, progress=_say
        )
    typer.echo(_as_json(result, opened) if json else _as_text(result, opened))
    if final:
        from assets.resources import ProjectResource

        code = ProjectResource(root=str(settings.root)).code_version()
        look = record_look(settings.root / "docs" / "experiments.md", result, opened.id, code, datetime.now(UTC))
        typer.echo(f"look {look} at these nights, noted in docs/experiments.md", err=True)


def _say(night: Any, done: int, total: int) -> None:
    typer.echo(f"night {night}: {done} of {total}", err=True)


def _as_json(result: "BacktestResult", dataset: "Dataset") -> str:
    outcome = {
        "dataset_id": dataset.id,
        "nights": [str(night) for night in result.nights],
        "predictors": {name: card.to_json() for name, card in result.scorecards.items()},
        "over_lookup": {name: asdict(difference) for name, difference in result.over_lookup.items()},
        "slices": [asdict(each) for each in result.slices],
        "by_night": {
            name: [{"night": str(night), "n": card.n, "within_10": card.to_json()["within_10"]} for night, card in pairs]
            for name, pairs in _by_night(result).items()
        },
    }
    return json_format.dumps(outcome, indent=2)


def _by_night(result: "BacktestResult") -> "dict[str, list[tuple[Any, Scorecard]]]":
    return {name: list(zip(result.nights, cards, strict=True)) for name, cards in result.by_night.items()}


def _as_text(result: "BacktestResult", dataset: "Dataset") -> str:
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
        "p10-p90 holds",
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
            f"{card.coverage:.1%}",
        )
        for tier, part in card.tiers.items():
            figures = ("", f"{part.within_10:.1%}", "", f"{part.within_20:.1%}", "", f"{part.coverage:.1%}")
            table.add_row(f"  {tier}", str(part.n), "", *figures, style="dim")
    console = wide_console()
    with console.capture() as capture:
        console.print(table)
        for name, difference in result.over_lookup.items():
            console.print(
                f"{name} less lookup, paired by job: {difference.value:+.1%} ({difference.low:+.1%} to {difference.high:+.1%})"
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
    return capture.get().rstrip("\n")
