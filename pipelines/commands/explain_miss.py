"""`leap explain-miss`."""

import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.commands.tables import wide_console
from pipelines.settings import Settings

if TYPE_CHECKING:
    from leap.evaluation.explain import Explanation

# What it takes to find an attempt by a part of its name.
_NAMED = ["attempt_id", "segment_number", "is_newest", "model_type", "hardware_type", "num_devices", "night"]


def explain_miss(
    attempt: Annotated[str, typer.Argument(help="The attempt's id, its beginning or any part of it.", show_default=False)],
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
    json: Annotated[bool, typer.Option("--json", help="Print the explanation as one JSON object.")] = False,
) -> None:
    """Explain how an attempt was predicted: what its cut knew, which history was used, which features drove the answer.

    LEAP's model is trained anew at the cut of the attempt's own night on what was known there, as the backtest does. Then come
    the nearest attempts that were known, so that a person sees what would have been better.

    Exit codes: 0 an explanation. 1 no such attempt, several, or nothing known at its cut. 2 wrong usage.

    Examples:

        leap explain-miss v2.1/NVIDIA/dgxh100_preview/rnnt/result_3

        leap explain-miss dgxh100_preview/rnnt/result_3 --dataset 2025-05-15-38890336008d --json
    """
    settings = Settings.from_environment()
    settings.enter()
    from leap.evaluation.explain import explain
    from leap.evaluation.history import end_before_final
    from leap.params import load_params
    from leap.store.datasets import open_dataset
    from leap.store.examples import load_history, read_examples

    chosen = load_params(settings.params, params)
    opened = open_dataset(settings.home / "datasets", dataset)
    whole = opened.table("training_examples", _NAMED)
    attempt = whole["attempt_id"][_find(whole, opened, attempt)].as_py()
    examples = read_examples(opened, chosen, also=[attempt])
    row = _find(examples, opened, attempt)
    history = load_history(opened, chosen, also=[attempt])
    explanation = explain(examples, history, row, chosen)
    is_final = history.night[row] > end_before_final(history)
    note = "a look at the nights that are kept for the final score: change nothing because of it" if is_final else None
    if json:
        outcome = {"dataset_id": opened.id, **explanation.to_json(), "note": note}
        typer.echo(json_format.dumps(outcome, indent=2))
    else:
        typer.echo(_as_text(explanation, opened.id) + (f"\n\n{note}" if note else ""))


def _find(examples: Any, dataset: Any, text: str) -> int:
    """Find the attempt; one that is only in quarantine is told from one that is not there."""
    from leap.evaluation.explain import NoSuchAttemptError, find_attempt

    try:
        return find_attempt(examples, text)
    except NoSuchAttemptError:
        rejected = dataset.table("quarantine", ["attempt_id", "reason", "detail"], filters=[("attempt_id", "==", text)])
        if rejected.num_rows:
            one = rejected.slice(0, 1).to_pylist()[0]
            raise NoSuchAttemptError(
                f"attempt {text} is in quarantine, {one['reason']}: {one['detail']}; it has no label, and counts as wrong"
            ) from None
        raise


def _as_text(told: "Explanation", dataset_id: str) -> str:
    from rich.table import Table

    console = wide_console()
    with console.capture() as capture:
        console.print(
            f"{told.attempt_id}\n{told.model_type} on {told.num_devices:.0f} {told.hardware_type}, job {told.job}\n"
            f"cut {told.cut} 00:00 UTC, {told.trained_on} attempts known and trained on; dataset {dataset_id}\n"
        )
        console.print(_answer(told))
        known = Table(title="History known at the cut, samples/s per device", title_justify="left")
        for name in ("level", "of", "attempts", "last", "median", "age in days", ""):
            known.add_column(name, justify="left" if name in ("level", "of", "") else "right")
        for level in told.levels:
            figures = (_number(level.last), _number(level.median), _number(level.age_days, 1))
            known.add_row(level.level, level.key, str(level.count), *figures, "the prior" if level.is_prior else "")
        console.print(known)
        drivers = Table(title="What made the answer, largest first", title_justify="left")
        for name in ("feature", "value", "log", "factor"):
            drivers.add_column(name, justify="left" if name == "feature" else "right")
        drivers.add_row(told.start_from, "", "", f"{_number(told.start)} samples/s per device")
        drivers.add_row("all attempts alike", "", "", f"{told.common_factor:.3f}")
        for driver in told.drivers:
            drivers.add_row(driver.feature, driver.value, f"{driver.log:+.4f}", f"{driver.factor:.3f}")
        drivers.add_row(f"{told.rest_count} other features", "", "", f"{told.rest_factor:.3f}")
        per_device = None if told.p50 is None else told.p50 / told.num_devices
        drivers.add_row("= prediction", "", "", f"{_number(per_device)} samples/s per device")
        console.print(drivers)
        near = Table(title=f"The nearest attempts of {told.model_type} known at the cut", title_justify="left")
        for name in ("attempt", "hardware", "devices", "batch", "night", "samples/s per device", "against the label"):
            near.add_column(name, justify="left" if name in ("attempt", "hardware") else "right", overflow="fold")
        for one in told.neighbours:
            near.add_row(
                one.attempt_id,
                one.hardware_type,
                f"{one.num_devices:.0f}",
                _number(one.global_batch_size),
                one.night,
                _number(one.throughput_per_device),
                f"{one.off:+.1%}",
            )
        console.print(near if told.neighbours else f"No attempt of {told.model_type} was known at the cut.")
    return capture.get().rstrip("\n")


def _answer(told: "Explanation") -> str:
    label = f"label       {_number(told.label)} samples/s"
    if told.p50 is None:
        return f"{label}\nprediction  none (tier {told.tier}): counts as wrong\n"
    inside = "holds the label" if told.is_within_interval else "misses the label"
    return "\n".join(
        [
            label,
            f"prediction  {_number(told.p50)} samples/s, off by {told.error:+.1%} (tier {told.tier})",
            f"p10 to p90  {_number(told.p10)} to {_number(told.p90)} samples/s, {inside}",
            f"starts from {told.start_from}, {_number(told.start)} per device, takes {told.share:.0%} of the correction below",
            f"most specific history: {told.prior_level or 'none'}, {_number(told.prior)} per device\n",
        ]
    )


def _number(value: float | None, digits: int | None = None) -> str:
    if value is None:
        return "-"
    return f"{value:,.{digits}f}" if digits is not None else f"{value:,.5g}"
