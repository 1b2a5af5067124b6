"""`leap simulate`."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from pipelines.settings import Settings


def simulate(
    out: Annotated[Path, typer.Option(file_okay=False, metavar="FOLDER", help="Where the logs go.", show_default=False)],
    days: Annotated[int, typer.Option(min=1, help="How many UTC days.")] = 14,
    attempts_per_day: Annotated[int, typer.Option(min=1, help="About how many attempts a day.")] = 1500,
    seed: Annotated[int, typer.Option(help="The same seed gives the same log.")] = 20260,
    start: Annotated[datetime, typer.Option(formats=["%Y-%m-%d"], metavar="DATE", help="The first day.")] = datetime(
        2026, 3, 1, tzinfo=UTC
    ),
) -> None:
    """Write the job logs of a simulated fleet as JSON lines, one file a day.

    Hardware types are real ones, of several vendors; what runs how fast is drawn from a law that the logs do not tell.

    Examples:

        leap simulate --out logs

        leap simulate --days 30 --attempts-per-day 5000 --seed 7 --out logs && leap nightly --source jsonl=logs
    """
    settings = Settings.from_environment()
    log = write_fleet(settings, out, days=days, attempts_per_day=attempts_per_day, seed=seed, start=start)
    typer.echo(f"{log} attempts of {days} days in {out}")


def write_fleet(settings: Settings, out: Path, *, days: int, attempts_per_day: int, seed: int, start: datetime) -> int:
    """Simulate a fleet on the hardware of the seeds and write its logs; returns the number of attempts."""
    from leap.hardware.catalog import read_catalog
    from leap.hardware.names import read_aliases
    from leap.simulator.fleet import FleetConfig
    from leap.simulator.fleet import simulate as draw
    from leap.simulator.write import write_jsonl

    seeds = settings.dbt_project / "seeds"
    config = FleetConfig(
        hardware=read_catalog(seeds / "hardware_types.csv").table,
        aliases=read_aliases(seeds / "hardware_aliases.csv"),
        seed=seed,
        start=start.date(),
        days=days,
        attempts_per_day=attempts_per_day,
    )
    log = draw(config)
    write_jsonl(log, out)
    return int(log.attempts.num_rows)
