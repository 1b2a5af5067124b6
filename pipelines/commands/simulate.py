"""`leap simulate`."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.settings import Settings, SettingsError

if TYPE_CHECKING:
    from leap.simulator.fleet import FleetLog
    from leap.simulator.write_dirty import Truth


def simulate(
    out: Annotated[Path, typer.Option(file_okay=False, metavar="FOLDER", help="Where the logs go.", show_default=False)],
    days: Annotated[int, typer.Option(min=1, help="How many UTC days.")] = 14,
    attempts_per_day: Annotated[int, typer.Option(min=1, help="About how many attempts a day.")] = 1500,
    seed: Annotated[int, typer.Option(help="The same seed gives the same log.")] = 20260,
    start: Annotated[datetime, typer.Option(formats=["%Y-%m-%d"], metavar="DATE", help="The first day.")] = datetime(
        2026, 3, 1, tzinfo=UTC
    ),
    dirty: Annotated[
        bool, typer.Option("--dirty", help="Write the same fleet's log with dirt: duplicates, late, wrong, broken, cut short.")
    ] = False,
    truth: Annotated[
        Path | None,
        typer.Option(
            file_okay=False,
            metavar="FOLDER",
            help="With --dirty: where the truth about it goes.  [default: the name of --out with -truth]",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write the job logs of a simulated fleet as JSON lines, one file a day.

    Hardware types are real ones, of several vendors; what runs how fast is drawn from a law that the logs do not tell.

    With --dirty, files also arrive twice, late and cut short; a file's name begins with the day it arrives on. The truth is
    kept apart: truth.json counts what a perfect ingestion makes of the log, attempts.parquet is what it keeps, dirt.parquet names
    every dirty line and what becomes of it.

    Examples:

        leap simulate --out logs

        leap simulate --days 30 --attempts-per-day 5000 --seed 7 --out logs && leap nightly --source jsonl=logs

        leap simulate --days 30 --attempts-per-day 300 --seed 7 --dirty --out logs && leap ingest jsonl logs
    """
    settings = Settings.from_environment()
    if truth is not None and not dirty:
        raise SettingsError("--truth goes with --dirty: a clean log needs no truth about its dirt")
    if dirty and any(out.glob("attempts-*.jsonl*")):
        raise SettingsError(f"{out} holds logs already, and the truth would not count them; name a folder without, or empty it")
    if not dirty:
        count = write_fleet(settings, out, days=days, attempts_per_day=attempts_per_day, seed=seed, start=start)
        typer.echo(f"{count} attempts of {days} days in {out}")
        return
    log = draw_fleet(settings, days=days, attempts_per_day=attempts_per_day, seed=seed, start=start)
    truth = truth or out.resolve().with_name(f"{out.resolve().name}-truth")
    written = write_dirt(settings, log, out, truth, days=days, seed=seed, start=start)
    typer.echo(
        f"{written.records_read} records of {days} days in {out}: {written.kept} to keep, {written.quarantined} to quarantine, "
        f"{written.duplicates} duplicates; which they are is in {truth}"
    )


def write_fleet(settings: Settings, out: Path, *, days: int, attempts_per_day: int, seed: int, start: datetime) -> int:
    """Simulate a fleet on the hardware of the seeds and write its logs; returns the number of attempts."""
    from leap.simulator.write import write_jsonl

    log = draw_fleet(settings, days=days, attempts_per_day=attempts_per_day, seed=seed, start=start)
    write_jsonl(log, out)
    return int(log.attempts.num_rows)


def draw_fleet(settings: Settings, *, days: int, attempts_per_day: int, seed: int, start: datetime) -> "FleetLog":
    """Simulate a fleet on the hardware of the seeds."""
    from leap.hardware.catalog import read_catalog
    from leap.hardware.names import read_aliases
    from leap.simulator.fleet import FleetConfig
    from leap.simulator.fleet import simulate as draw

    seeds = settings.dbt_project / "seeds"
    config = FleetConfig(
        hardware=read_catalog(seeds / "hardware_types.csv").table,
        aliases=read_aliases(seeds / "hardware_aliases.csv"),
        seed=seed,
        start=start.date(),
        days=days,
        attempts_per_day=attempts_per_day,
    )
    return draw(config)


def write_dirt(settings: Settings, log: "FleetLog", out: Path, truth: Path, *, days: int, seed: int, start: datetime) -> "Truth":
    """Write a fleet's log with dirt into `out` and the truth about it into `truth`; the same seed gives the same dirt."""
    import numpy as np

    from leap.params import load_params
    from leap.simulator.dirt import soil
    from leap.simulator.write_dirty import write_dirty

    for_records, for_files = np.random.default_rng(seed).spawn(2)
    soiled = soil(log.attempts, days, for_records, load_params(settings.params).ingest.min_steady_seconds)
    return write_dirty(soiled, start.date(), out, truth, for_files)
