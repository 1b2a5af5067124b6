"""`leap demo`."""

import csv
import json
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import typer

from pipelines.commands.nightly import as_text
from pipelines.commands.rank import rank
from pipelines.commands.simulate import write_fleet
from pipelines.settings import Settings, SettingsError, Source

_DAYS, _ATTEMPTS_PER_DAY, _SEED = 14, 1500, 20260
_FEW_TYPES = 8
_START = datetime(2026, 3, 1, tzinfo=UTC)


def demo() -> None:
    """Run a whole night on a small simulated fleet, and show what a scheduler would get.

    14 days of attempts of more than 200 model types on more than 24 hardware types of several vendors; about two minutes. The
    logs, the warehouse and the published ranking stay in LEAP_HOME, so that `leap ui` shows the night.

    Examples:

        LEAP_HOME=var/demo leap demo
    """
    settings = Settings.from_environment()
    settings.enter()
    from pipelines.nightly import run_night
    from pipelines.prepare import prepare_home

    logs = settings.home / "demo" / "logs"
    if (settings.home / "warehouse.duckdb").exists() and not logs.is_dir():
        raise SettingsError(f"{settings.home} holds a fleet of its own; name an empty folder, as in LEAP_HOME=var/demo leap demo")
    prepare_home(settings)
    count = write_fleet(settings, logs, days=_DAYS, attempts_per_day=_ATTEMPTS_PER_DAY, seed=_SEED, start=_START)
    typer.echo(f"simulated {count} attempts of {_DAYS} days: {logs}", err=True)
    result = run_night(settings, None, [Source("jsonl", logs)])
    typer.echo(as_text(result))
    if result.exit_code:
        raise typer.Exit(result.exit_code)
    known, unseen = _choose(settings)
    submission = settings.home / "demo" / "submission.json"
    submission.write_text(json.dumps(unseen, indent=1), encoding="utf-8")
    typer.echo(f"\nA job that has run before, {known}:\n")
    rank(job=known, submission=None, published=None, json=False)
    typer.echo(f"\nA job never seen, {json.dumps(unseen)}:\n")
    rank(job=None, submission=submission, published=None, json=False)
    typer.echo(_closing(settings, known, submission))


def _choose(settings: Settings) -> tuple[str, dict[str, Any]]:
    """Choose a job that ran often on a few hardware types, and make up one of its model type that nobody has submitted."""
    import pyarrow.compute as pc

    from leap.store.datasets import open_dataset

    dataset = open_dataset(settings.home / "datasets")
    columns = ["job_id", "model_type", "num_devices", "global_batch_size", "framework", "hardware_type"]
    attempts = dataset.table("attempts", columns=columns)
    ranked = dataset.table("ranking_candidates", columns=["job_key"])["job_key"].unique()
    known = attempts.filter(pc.is_in(attempts["job_id"], value_set=ranked))
    counts = known.group_by("job_id").aggregate([([], "count_all"), ("hardware_type", "count_distinct")])
    counts = counts.filter(pc.less_equal(counts["hardware_type_count_distinct"], _FEW_TYPES))
    job = counts.sort_by([("count_all", "descending"), ("job_id", "ascending")])["job_id"][0].as_py()
    like = attempts.filter(pc.equal(attempts["job_id"], job)).slice(0, 1).to_pylist()[0]
    of_model = attempts.filter(pc.equal(attempts["model_type"], like["model_type"]))
    return job, {
        "model_type": like["model_type"],
        "num_devices": int(pc.max(of_model["num_devices"]).as_py() * 2),
        "global_batch_size": like["global_batch_size"] * 2 if like["global_batch_size"] else None,
        "framework": like["framework"],
        "team": "a-new-team",
    }


def _closing(settings: Settings, known: str, submission: Path) -> str:
    from leap.serving.reader import SnapshotReader

    manifest = SnapshotReader(settings.home / "published").manifest()
    leap = f"LEAP_HOME={shlex.quote(_short(settings.home))} {shlex.quote(_short(Path(sys.argv[0])))}"
    assumed = ", ".join(_assumed_prices(settings))
    return "\n".join(
        [
            "",
            "Prices are list prices of public clouds; for these types there is none, and the figure is an assumption "
            f"(dbt_project/seeds/prices.csv says which): {assumed}.",
            "",
            f"The snapshot:  {_short(settings.home / 'published' / 'snapshots' / manifest.snapshot_id)}",
            f"Ask it again:  {leap} rank --job {shlex.quote(known)}",
            f"               {leap} rank --submission {shlex.quote(_short(submission))} --json",
            f"See the night: {leap} ui   (Dagster and MLflow, on this machine only)",
        ]
    )


def _short(path: Path) -> str:
    """Write a path from where the person stands, if it lies below."""
    path = path.absolute()
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _assumed_prices(settings: Settings) -> list[str]:
    from leap.simulator.fleet import DEFAULT_HARDWARE_TYPES

    with (settings.dbt_project / "seeds" / "prices.csv").open(encoding="utf-8", newline="") as file:
        assumed = {row["hardware_type"] for row in csv.DictReader(file) if row["is_assumption"].lower() == "true"}
    return sorted(assumed & set(DEFAULT_HARDWARE_TYPES))
