"""A night's dataset of a small simulated fleet: ingested and built as a night does it, without training.

The log has corrections that become known a day and more later, and attempts that cross midnight.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from leap.hardware.catalog import read_catalog
from leap.params import Params, load_params
from leap.simulator.fleet import FleetConfig, simulate
from leap.simulator.write import write_jsonl
from leap.store.datasets import Dataset
from leap.store.home import Home
from leap.store.ingest import ingest
from leap.store.night import export_night
from leap.store.prices import load_prices
from leap.store.state import rebuild_state
from leap.store.warehouse import connect

START, DAYS, ATTEMPTS_PER_DAY = date(2026, 3, 1), 10, 300
NIGHT = START + timedelta(days=DAYS)
TYPES = ("A100-80GB-SXM4", "H100-80GB-SXM5", "H200-SXM", "L40S", "MI300X", "A30")
CORRECTED_EVERY = 25


@dataclass(frozen=True)
class SimulatedNight:
    """The home, its one dataset, the logs it was built from, params with few trees, and how history is built from examples."""

    home: Path
    dataset: Dataset
    logs: Path
    params: Params
    overlay: Path
    rebuild: Callable[[pa.Table], pa.Table]


@pytest.fixture(scope="session")
def build_night(repository: Path) -> Callable[[Path, Path], SimulatedNight]:
    """Build the night of some logs in a new folder."""

    def build(root: Path, logs: Path) -> SimulatedNight:
        overlay = root / "few_trees.yaml"
        overlay.write_text("model: {num_boost_round: 40}\n", encoding="utf-8")
        params = load_params(repository / "params.yaml", overlay)
        home = Home(root / "home")
        for folder in (home.datasets, home.work):
            folder.mkdir(parents=True)
        with connect(home.warehouse) as connection:
            seeds, now = repository / "dbt_project" / "seeds", datetime(2026, 4, 1, tzinfo=UTC)
            ingest(connection, "jsonl", [logs], seeds=seeds, params=params.ingest, received_at=now, load_id="load")
            load_prices(
                connection, [seeds / "prices.csv"], seeds=seeds, max_jump=3, approved=[], received_at=now, load_id="prices"
            )
        _build_marts(repository / "dbt_project", home, params)
        with connect(home.warehouse) as connection:
            dataset = export_night(connection, home, NIGHT)
        return SimulatedNight(
            home.root, dataset, logs, params, overlay, lambda examples: rebuild_state(examples, dataset.state_statement())
        )

    return build


@pytest.fixture(scope="session")
def simulated_night(
    tmp_path_factory: pytest.TempPathFactory, repository: Path, build_night: Callable[[Path, Path], SimulatedNight]
) -> SimulatedNight:
    """The night after ten days of some 3,000 attempts."""
    root = tmp_path_factory.mktemp("simulated-night")
    fleet = FleetConfig(
        hardware=read_catalog(repository / "dbt_project" / "seeds" / "hardware_types.csv").table,
        hardware_types=TYPES,
        start=START,
        days=DAYS,
        attempts_per_day=ATTEMPTS_PER_DAY,
        num_model_types=12,
        num_jobs=60,
        num_teams=4,
    )
    write_jsonl(simulate(fleet), root / "logs")
    _write_corrections(root / "logs")
    return build_night(root, root / "logs")


def _write_corrections(logs: Path) -> None:
    """Correct some of the attempts of each day, by a factor that is easy to see, 30 hours after they were known."""
    corrections = []
    for path in sorted(logs.glob("attempts-*.jsonl"))[:-2]:
        for line in path.read_text(encoding="utf-8").splitlines()[::CORRECTED_EVERY]:
            record: dict[str, Any] = json.loads(line)
            if record.get("throughput"):
                known = datetime.fromisoformat(record["known_at"]) + timedelta(hours=30)
                unmeasured = dict.fromkeys(("step_seconds", "start_step", "end_step"))  # they would contradict it
                corrections.append(
                    {**record, **unmeasured, "throughput": 1.5 * record["throughput"], "known_at": known.isoformat()}
                )
    (logs / "corrections.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in corrections), encoding="utf-8")


def _build_marts(project: Path, home: Home, params: Params) -> None:
    """Build the marts as a night does."""
    variables = {
        "cut": NIGHT.isoformat(),
        "state_levels": {level: list(columns) for level, columns in params.features.state_levels.items()},
        "active_days": params.ranking.active_days,
        "hardware_seen_days": params.ranking.hardware_seen_days,
        "price_list": params.ranking.price_list,
    }
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
    assert done.returncode == 0, done.stdout
