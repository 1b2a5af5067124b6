"""`leap nightly`."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.settings import Settings, Source

if TYPE_CHECKING:
    from pipelines.nightly import NightResult

_SHOWN_LINES = 6


def nightly(
    as_of: Annotated[
        datetime | None,
        typer.Option(
            "--as-of",
            formats=["%Y-%m-%d"],
            metavar="DATE",
            help="The night, a UTC day: only what ended and was known before its 00:00 counts. "
            "Default: the day of the newest known attempt.",
            show_default=False,
        ),
    ] = None,
    source: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND=PATH",
            help="Logs to ingest first; may be given again. Default: LEAP_SOURCES.",
            show_default=False,
        ),
    ] = None,
    params: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            metavar="FILE",
            help="A YAML file with some of the keys of params.yaml, laid over it for this night.",
            show_default=False,
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Run one night: ingest, features, training, validation, ranking, publish.

    The run is Dagster's job `nightly`: `leap ui` shows it with logs, tables and checks. Progress goes to the error stream, the
    result to the output.

    Exit codes: 0 the night went well. 1 a step failed. 2 wrong usage, or params.yaml is wrong. 3 a gate or blocking check held
    the night: champion and published table are as they were. 4 another night is running.

    Examples:

        leap nightly --source mlperf=/data/training_results_v4.0

        leap nightly --as-of 2024-06-12

        leap nightly --params strict.yaml --json
    """
    settings = Settings.from_environment()
    settings.enter()
    from pipelines.nightly import run_night

    sources = [Source.parse(text) for text in source or ()]
    result = run_night(settings, as_of.replace(tzinfo=UTC).date() if as_of else None, sources, params)
    typer.echo(_as_json(result) if json else as_text(result))
    raise typer.Exit(result.exit_code)


def _as_json(result: "NightResult") -> str:
    from dataclasses import asdict
    from json import dumps

    failures = [failure._asdict() for failure in result.failures]
    outcome = {"outcome": result.exit_code.name.lower(), **asdict(result), "failures": failures}
    return dumps(outcome, indent=2, default=str)


def as_text(result: "NightResult") -> str:
    """Say how the night went, and where to look where it did not."""
    night = f"night {result.night}" if result.night else "night"
    outcome = {0: "went well", 3: "was held: champion and published table are as they were"}.get(result.exit_code, "failed")
    lines = [f"{night} {outcome} ({result.seconds:.0f} s, run {result.run_id})"]
    # an asset whose metadata has a `summary` says with it what a person would want to know of the night
    summaries = [str(figures["summary"]) for figures in result.assets.values() if "summary" in figures]
    lines += [f"  {line}" for summary in summaries for line in summary.splitlines()]
    for failure in result.failures:
        lines.append(f"  {'held' if failure.held else 'failed'}: {failure.step}")
        said = [line for reason in failure.reasons for line in reason.splitlines() if line.strip()]
        lines += [f"    {line}" for line in (said if failure.held else said[:_SHOWN_LINES])]
    if made := [step for step in result.not_run if ": " not in step]:  # their checks go without saying
        lines.append(f"  not run: {', '.join(made)}")
    if result.exit_code:
        lines.append(f"  look at: `leap ui`, runs/{result.run_id}; or {result.log}")
    return "\n".join(lines)
