"""A night's dataset for the benchmarks: one that is there, or that of a small simulated fleet, ingested and built by dbt."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from leap.hardware.catalog import read_catalog
from leap.params import Params, load_params
from leap.simulator.fleet import FleetConfig, simulate
from leap.simulator.write import write_jsonl
from leap.store.datasets import Dataset, open_dataset
from leap.store.home import Home
from leap.store.ingest import ingest
from leap.store.night import export_night
from leap.store.prices import load_prices
from leap.store.warehouse import connect

REPOSITORY = Path(__file__).resolve().parent.parent
START = date(2026, 3, 1)


def parse_arguments(description: str | None) -> argparse.Namespace:
    """Read the options that these benchmarks share."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", type=Path, help="a dataset's folder, datasets/<id> in a home, in place of the simulated one")
    parser.add_argument(
        "--cut", type=date.fromisoformat, help="what was known at the cut of this night; by default the dataset's"
    )
    parser.add_argument("--days", type=int, default=10, help="days of the simulated fleet")
    parser.add_argument("--per-day", type=int, default=500, help="its attempts a day")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def params() -> Params:
    """Give the params that the repository ships."""
    return load_params(REPOSITORY / "params.yaml")


def night_dataset(options: argparse.Namespace, folder: Path) -> Dataset:
    """Give the dataset that the options name, else make one in `folder`."""
    if options.dataset:
        return open_dataset(options.dataset.parent, options.dataset.name)
    seeds = REPOSITORY / "dbt_project" / "seeds"
    types = ("A100-80GB-SXM4", "H100-80GB-SXM5", "H200-SXM", "L40S", "MI300X", "A30")
    fleet = FleetConfig(
        hardware=read_catalog(seeds / "hardware_types.csv").table,
        hardware_types=types,
        start=START,
        days=options.days,
        attempts_per_day=options.per_day,
        num_model_types=30,
        num_jobs=300,
        num_teams=8,
    )
    night = START + timedelta(days=options.days)
    write_jsonl(simulate(fleet), folder / "logs")
    home = Home(folder / "home")
    for made in (home.datasets, home.work):
        made.mkdir(parents=True)
    with connect(home.warehouse) as connection:
        now = datetime.combine(night, datetime.min.time(), UTC)
        ingest(connection, "jsonl", [folder / "logs"], seeds=seeds, params=params().ingest, received_at=now, load_id="load")
        load_prices(connection, [seeds / "prices.csv"], seeds=seeds, max_jump=3, approved=[], received_at=now, load_id="prices")
    _build_marts(home, night)
    with connect(home.warehouse) as connection:
        return export_night(connection, home, night)


def _build_marts(home: Home, night: date) -> None:
    levels = {level: list(columns) for level, columns in params().features.state_levels.items()}
    variables = {
        "cut": night.isoformat(), "state_levels": levels, "active_days": 400, "hardware_seen_days": 1200, "price_list": "list",
    }  # fmt: skip
    project = REPOSITORY / "dbt_project"
    done = subprocess.run(
        [
            str(Path(sys.executable).parent / "dbt"), "build", "--exclude-resource-type", "unit_test", "test",
            "--project-dir", str(project), "--vars", json.dumps(variables),
        ],
        env=os.environ
        | {
            "DBT_PROFILES_DIR": str(project),
            "DBT_TARGET_PATH": str(home.work / "dbt"),
            "DBT_LOG_PATH": str(home.root / "logs"),
            "LEAP_WAREHOUSE": str(home.warehouse),
        },
        check=False,
        capture_output=True,
        text=True,
    )  # fmt: skip
    if done.returncode:
        sys.exit(done.stdout)
