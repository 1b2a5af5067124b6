"""`leap backtest --hold-out`.

What lives here: reading the dataset, and the tables for eyes. What does not: the option itself (`backtest.py`), what is hidden
and how it is scored (`leap.evaluation.holdout`).
"""

import json as json_format
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pipelines.commands.tables import wide_console
from pipelines.settings import Settings, SettingsError

if TYPE_CHECKING:
    import pyarrow as pa

    from leap.evaluation.holdout import Comparison, HoldOut, TypeScore

KINDS = ("hardware", "model", "vendor")
REGIMES = ("type-unseen", "pair-unseen")


def hold_out(
    kind: str,
    *,
    dataset: str | None = None,
    params: Path | None = None,
    regime: str | None = None,
    only: Sequence[str] = (),
    json: bool = False,
) -> None:
    """Hide each type of `kind` in turn, predict what was hidden, and print how LEAP and the simple answers did.

    `regime` is one of `REGIMES`, all that the kind allows by default; `only` names the types to hide. The nights that
    are kept for the final score are not looked at.
    """
    if kind not in KINDS:
        raise SettingsError(f"--hold-out {kind}: hides one of {', '.join(KINDS)}")
    if regime is not None and (regime not in REGIMES or (kind == "model" and regime == "pair-unseen")):
        raise SettingsError(f"--regime {regime}: is one of {', '.join(REGIMES)}, and a model is hidden whole")
    settings = Settings.from_environment()
    settings.enter()
    import numpy as np

    from leap.evaluation.history import end_before_final
    from leap.evaluation.holdout import Kind, Regime
    from leap.evaluation.holdout import hold_out as run
    from leap.params import load_params
    from leap.store.datasets import open_dataset
    from leap.store.examples import load_history
    from leap.store.state import rebuild_state

    chosen = load_params(settings.params, params)
    opened = open_dataset(settings.home / "datasets", dataset)
    before = end_before_final(load_history(opened, chosen)) + np.timedelta64(1, "D")
    statement = opened.state_statement()

    def rebuild(examples: "pa.Table") -> "pa.Table":
        return rebuild_state(examples, statement)

    regimes = [regime] if regime else [name for name in REGIMES if kind != "model" or name == "type-unseen"]
    outcomes = [
        run(
            opened.table("training_examples"),
            rebuild,
            chosen,
            Kind(kind),
            Regime(name),
            before=before,
            only=only,
            progress=_say,
        )
        for name in regimes
    ]
    if json:
        typer.echo(json_format.dumps({"dataset_id": opened.id, "hold_outs": [one.to_json() for one in outcomes]}, indent=2))
    else:
        typer.echo("\n\n".join(as_text(one, opened.id) for one in outcomes))


def _say(name: str, done: int, total: int) -> None:
    typer.echo(f"hidden {name}: {done} of {total}" if name else f"{done} of {total} done", err=True)


def as_text(outcome: "HoldOut", dataset_id: str) -> str:
    """Draw an outcome: one line per type and predictor, the whole, and LEAP's differences from the simple answers."""
    from rich.table import Table

    what = {
        "type-unseen": f"each {outcome.kind.value} wholly hidden",
        "pair-unseen": f"each {outcome.kind.value} hidden with one model at a time, known from the others",
    }[outcome.regime.value]
    table = Table(
        title=f"Hold-out: {what}; nights before {outcome.before}",
        caption=f"dataset {dataset_id}; {outcome.trainings} trainings; no answer counts as wrong; order: share of pairs of types",
    )
    for name in (
        "hidden",
        "attempts",
        "jobs",
        "predictor",
        "answered",
        "within 10%",
        "within 20%",
        "median error",
        "order",
        "p10-p90 holds",
    ):
        table.add_column(name, justify="left" if name in ("hidden", "predictor") else "right")
    for one in (*outcome.types, outcome.overall):
        for row in _rows(one):
            table.add_row(*row, style="bold" if one is outcome.overall else None)
    console = wide_console()
    with console.capture() as capture:
        console.print(table)
        for here, there in zip(outcome.differences, outcome.where_answered, strict=True):
            console.print(f"LEAP less {here.against}, paired by job: {_compared(here)}")
            if there.n < here.n:
                console.print(f"  where {here.against} answers: {_compared(there)}")
    return capture.get().rstrip("\n")


def _rows(one: "TypeScore") -> list[tuple[str, ...]]:
    rows = []
    for place, (name, card) in enumerate(one.scorecards.items()):
        first = (one.name, str(card.n), str(card.jobs)) if place == 0 else ("", "", "")
        shares = (card.answered, card.within_10, card.within_20, card.median_ape, one.order[name], card.coverage)
        rows.append((*first, name, *map(_share, shares)))
    return rows


def _compared(one: "Comparison") -> str:
    ten, twenty = (
        f"{100 * each.value:+.1f} ({100 * each.low:+.1f} to {100 * each.high:+.1f})" for each in (one.within_10, one.within_20)
    )
    return f"{ten} points within 10%, {twenty} within 20%, {one.n} attempts"


def _share(value: float) -> str:
    return "-" if value != value else f"{value:.1%}"
