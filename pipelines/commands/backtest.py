"""`leap backtest`."""

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.commands.backtest_report import as_json, as_text, by_night, night_figures, run_figures
from pipelines.settings import Settings

if TYPE_CHECKING:
    from leap.evaluation.backtest import BacktestResult
    from leap.params import Params
    from leap.predictors import Predictor
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
    predictors: Annotated[
        str,
        typer.Option(metavar="NAMES", help="Which to compare, with commas: `all`, or some of the names that --help ends with."),
    ] = "leap,lookup",
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Train again where an earlier run has kept what a predictor answered.")
    ] = False,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="champion",
            help="Score the model of --params as `challenger`, beside that of params.yaml.",
            show_default=False,
        ),
    ] = None,
    mlflow: Annotated[
        bool, typer.Option(help="Log the outcome to MLflow: a run per predictor and night below one of the backtest.")
    ] = True,
    hold_out: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="Hide everything about each hardware, model or vendor in turn, and predict what was hidden.",
            show_default=False,
        ),
    ] = None,
    regime: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="With --hold-out: type-unseen (all of it is hidden) or pair-unseen (with one model at a time). Default: both.",
            show_default=False,
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="TYPE", help="With --hold-out: hide this type alone; may be repeated.", show_default=False),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the scores as one JSON object.")] = False,
) -> None:
    """Score LEAP's model, the lookup table and other predictors on past nights, each retrained every night on what its cut knew.

    Every attempt that started in the window and succeeded counts: one without an answer is wrong, and so is one whose record is
    in quarantine. Reads the immutable dataset that a night has exported, so that it can run while a night does.

    The last 30 nights that have runs (half of them, where there are fewer than 60) are for the final score of a model: they are
    left out unless --final is given, and every look at them is noted. A model that was chosen by looking at them has no honest
    score left.

    What each predictor answers is kept in $LEAP_HOME/backtests: a run that was interrupted goes on where it was, and one that
    was finished is only scored again. The outcome is logged to MLflow's experiment `leap-backtests`.

    Predictors: leap, lookup (the table that LEAP replaces), last_value, process (the Gaussian process that LEAP's trees correct),
    ridge, neighbours, completion (of the matrix of jobs and hardware), forest, xgboost, submitted_fields (LightGBM without any
    history), stack. Some need the extra `compare`.

    Exit codes: 0 scores. 1 nothing to score. 2 wrong usage.

    Examples:

        leap backtest --nights 30 --json

        leap backtest --skip-first 60 --predictors all

        leap backtest --nights 10 --end 2024-05-10 --params small_trees.yaml --against champion

        leap backtest --final

        leap backtest --hold-out hardware --regime type-unseen --only H200-SXM
    """
    if hold_out is not None:
        from pipelines.commands.holdout import hold_out as run_hold_out

        run_hold_out(hold_out, dataset=dataset, params=params, regime=regime, only=only or (), json=json)
        return
    if regime or only:
        raise typer.BadParameter("--regime and --only say what --hold-out hides: give --hold-out hardware, model or vendor too")
    if against not in (None, "champion"):
        raise typer.BadParameter(f"--against {against}: a challenger is scored against `champion`, the model of params.yaml")
    if against and params is None:
        raise typer.BadParameter("--against champion needs --params FILE: what the challenger does otherwise")
    if final and (end or skip_first is not None):
        raise typer.BadParameter("--final has its own nights: leave out --end and --skip-first")
    names = _names(predictors)
    settings = Settings.from_environment()
    settings.enter()
    import numpy as np

    from assets.resources import ProjectResource
    from leap.evaluation.backtest import scored
    from leap.evaluation.history import choose_nights, end_before_final
    from leap.evaluation.retrain import answers_by_night
    from leap.params import load_params
    from leap.store.backtests import KeptPredictions
    from leap.store.datasets import open_dataset
    from leap.store.examples import load_history
    from leap.store.looks import record_look

    overlaid = load_params(settings.params, params)
    chosen = load_params(settings.params, None) if against else overlaid
    makers = _makers(names, chosen)
    opened = open_dataset(settings.home / "datasets", dataset)
    history = load_history(opened, chosen)
    limit = end_before_final(history)
    last = np.datetime64(end.replace(tzinfo=UTC).date(), "D") if end else None
    if last is not None and last > limit:
        raise typer.BadParameter(
            f"--end {last} lies in the nights kept for the final score, which begin after {limit}; "
            f"give --end {limit} or earlier, or --final to open them"
        )
    if final:
        which = choose_nights(history, int((history.scored_nights() > limit).sum()), None, 0)
    else:
        which = choose_nights(history, None if skip_first is not None else nights, last or limit, skip_first or 0)
    kept = settings.home / "backtests"
    answers = answers_by_night(
        history, chosen, which, makers, progress=_Progress(), memory=KeptPredictions(kept, opened.id, chosen, forget=fresh)
    )
    if against:
        memory = KeptPredictions(kept, opened.id, overlaid, forget=fresh)
        theirs = load_history(opened, overlaid)
        made = answers_by_night(theirs, overlaid, which, _makers(["leap"], overlaid), progress=_Progress(), memory=memory)
        answers[CHALLENGER] = made["leap"]
    result = scored(history, which, answers, chosen.seed, _prices(opened))
    typer.echo(as_json(result, opened) if json else as_text(result, opened))
    look = None
    code = ProjectResource(root=str(settings.root)).code_version()
    if final:
        look = record_look(settings.root / "docs" / "experiments.md", result, opened.id, code, datetime.now(UTC))
        typer.echo(f"look {look} at these nights, noted in docs/experiments.md", err=True)
    if mlflow:
        _log(settings, result, opened, overlaid, code, look)


# What the model of --params is called beside the champion's.
CHALLENGER = "challenger"


def _names(predictors: str) -> list[str]:
    from leap.predictors.catalogue import NAMES

    names = list(NAMES) if predictors.strip() == "all" else [name.strip() for name in predictors.split(",") if name.strip()]
    unknown = [name for name in names if name not in NAMES]
    if unknown or not names:
        what = f"no predictor {', '.join(unknown)}" if unknown else "no predictor is named"
        raise typer.BadParameter(f"--predictors: {what}; there are {', '.join(NAMES)}, and `all`")
    return list(dict.fromkeys(names))


def _makers(names: "Sequence[str]", params: "Params") -> "list[Callable[[], Predictor]]":
    from leap.predictors.catalogue import MissingExtraError, make

    def maker(name: str) -> "Callable[[], Predictor]":
        return lambda: make(name, params)

    try:
        for name in names:
            make(name, params)
    except MissingExtraError as error:
        raise typer.BadParameter(str(error)) from None
    return [maker(name) for name in names]


def _prices(dataset: "Dataset") -> dict[str, float]:
    """Give the dataset's price of each hardware type, in USD per device and hour: the lowest over pools."""
    import pyarrow.compute as pc

    offers = dataset.table("ranking_candidates", columns=["hardware_type", "usd_per_device_hour"])
    offers = offers.filter(pc.is_valid(offers["usd_per_device_hour"]))
    lowest = offers.group_by("hardware_type").aggregate([("usd_per_device_hour", "min")])
    return dict(zip(lowest["hardware_type"].to_pylist(), lowest["usd_per_device_hour_min"].to_pylist(), strict=True))


def _log(settings: Settings, result: "BacktestResult", dataset: "Dataset", params: "Params", code: str, look: int | None) -> None:
    """Log the outcome to MLflow; where that fails, the outcome stands and a warning says so."""
    from assets.resources import open_registry
    from leap.evaluation.plots import plot_by_night, plot_calibration, plot_slices
    from leap.store.home import Home
    from leap.store.registry import RegistryError

    figures = {
        "accuracy_by_night": plot_by_night(result),
        "calibration": plot_calibration(result.scorecards, params.validation.interval),
        **{f"slices_{axis}": plot_slices(result.slices, axis) for axis in ("hardware_type", "model_type", "tier")},
    }
    span = f"{result.nights[0]} to {result.nights[-1]}"
    tags = {"nights": span, "dataset_id": dataset.id, "code_version": code, "look": str(look or "none")}
    try:
        open_registry(Home(settings.home), settings.root / "mlflow" / "registry.yaml").log_backtest(
            span,
            tags=tags,
            params=params.model_dump(mode="json"),
            scores={name: run_figures(result, name) for name in result.scorecards},
            by_night={
                name: {str(night): night_figures(card) for night, card in pairs} for name, pairs in by_night(result).items()
            },
            plots=figures,
            report=as_json(result, dataset),
        )
    except (RegistryError, OSError) as error:
        typer.echo(f"warning: the backtest was not logged to MLflow: {error}", err=True)


class _Progress:
    """Says on stderr which night is next, and how long the rest will take."""

    def __init__(self) -> None:
        self._begun = time.monotonic()

    def __call__(self, night: Any, done: int, total: int) -> None:
        spent = time.monotonic() - self._begun
        rest = f", about {spent / done * (total - done):.0f} s left" if done and done < total else ""
        typer.echo(f"night {night}: {done} of {total}{rest}", err=True)
