"""`leap demo`."""

import csv
import json
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import typer

from pipelines.commands.rank import rank
from pipelines.commands.simulate import write_fleet
from pipelines.settings import Settings, Source

_DAYS, _ATTEMPTS_PER_DAY, _SEED = 14, 1500, 20260
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

    prepare_home(settings)
    logs = settings.home / "demo" / "logs"
    count = write_fleet(settings, logs, days=_DAYS, attempts_per_day=_ATTEMPTS_PER_DAY, seed=_SEED, start=_START)
    typer.echo(f"simulated {count} attempts of {_DAYS} days: {logs}", err=True)
    result = run_night(settings, None, [Source("jsonl", logs)])
    if result.exit_code:
        from pipelines.commands.nightly import as_text

        typer.echo(as_text(result))
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
    """Choose the job that ran most often, and make up one of its model type that asks for more than anybody has."""
    import pyarrow.compute as pc

    from leap.store.datasets import open_dataset

    dataset = open_dataset(settings.home / "datasets")
    attempts = dataset.table("attempts", columns=["job_id", "model_type", "num_devices", "global_batch_size", "framework"])
    ranked = dataset.table("ranking_candidates", columns=["job_key"])["job_key"].unique()
    counts = attempts.filter(pc.is_in(attempts["job_id"], value_set=ranked)).group_by("job_id").aggregate([([], "count_all")])
    known = counts.sort_by([("count_all", "descending"), ("job_id", "ascending")])["job_id"][0].as_py()
    like = attempts.filter(pc.equal(attempts["job_id"], known)).slice(0, 1).to_pylist()[0]
    of_model = attempts.filter(pc.equal(attempts["model_type"], like["model_type"]))
    widest = pc.max(of_model["num_devices"]).as_py()
    return known, {
        "model_type": like["model_type"],
        "num_devices": int(widest * 2),
        "global_batch_size": like["global_batch_size"] * 2 if like["global_batch_size"] else None,
        "framework": like["framework"],
        "team": "a-new-team",
    }


def _closing(settings: Settings, known: str, submission: Path) -> str:
    from leap.serving.reader import SnapshotReader

    manifest = SnapshotReader(settings.home / "published").manifest()
    home = shlex.quote(str(settings.home))
    assumed = ", ".join(_assumed_prices(settings))
    return "\n".join(
        [
            "",
            "Prices are list prices of public clouds; for these types there is none, and the figure is an assumption "
            f"(dbt_project/seeds/prices.csv says which): {assumed}.",
            "",
            f"The snapshot:  {settings.home / 'published' / 'snapshots' / manifest.snapshot_id}",
            f"Ask it again:  LEAP_HOME={home} leap rank --job {shlex.quote(known)}",
            f"               LEAP_HOME={home} leap rank --submission {shlex.quote(str(submission))} --json",
            f"See the night: LEAP_HOME={home} leap ui   (Dagster and MLflow, on this machine only; or `make ui`)",
        ]
    )


def _assumed_prices(settings: Settings) -> list[str]:
    from leap.simulator.fleet import DEFAULT_HARDWARE_TYPES

    with (settings.dbt_project / "seeds" / "prices.csv").open(encoding="utf-8", newline="") as file:
        assumed = {row["hardware_type"] for row in csv.DictReader(file) if row["is_assumption"].lower() == "true"}
    return sorted(assumed & set(DEFAULT_HARDWARE_TYPES))
