"""The canonical log as JSON lines, CSV or Parquet is one log: the same table, and in a second format nothing new."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from leap.hardware.catalog import read_catalog
from leap.params import load_params
from leap.simulator.fleet import FleetConfig, simulate
from leap.sources import csv, jsonl, parquet
from leap.store.ingest import ingest
from leap.store.warehouse import connect

ARRIVED = datetime(2026, 3, 10, tzinfo=UTC)
# What differs: where a record stood, and the pseudonym, which is made by a key of the home.
PLACE = 'source, slice, file, line, load_id, "user"'


def lines_of(attempts: pa.Table) -> bytes:
    return "".join(f"{line}\n" for line in jsonl.render(attempts).to_pylist()).encode()


FORMATS: dict[str, Callable[[pa.Table], bytes]] = {"jsonl": lines_of, "csv": csv.render, "parquet": parquet.render}


@pytest.fixture
def logs(tmp_path: Path, repository: Path) -> Path:
    """Write the log of a small fleet in each format."""
    fleet = FleetConfig(
        hardware=read_catalog(repository / "dbt_project" / "seeds" / "hardware_types.csv").table,
        hardware_types=("A100-80GB-SXM4", "H100-80GB-SXM5", "L40S"),
        start=date(2026, 3, 1),
        days=3,
        attempts_per_day=80,
        num_model_types=8,
        num_jobs=20,
        num_teams=3,
    )
    attempts = simulate(fleet).attempts
    for kind, render in FORMATS.items():
        (tmp_path / f"log.{kind}").write_bytes(render(attempts))
    return tmp_path


def test_each_format_gives_the_same_table_and_a_second_one_nothing_new(logs: Path, tmp_path: Path, repository: Path) -> None:
    params, seeds = load_params(repository / "params.yaml").ingest, repository / "dbt_project" / "seeds"
    tables = {}
    for kind in FORMATS:
        with connect(tmp_path / f"{kind}.duckdb") as connection:
            # when each format is loaded into a warehouse of its own
            (count,) = ingest(
                connection, kind, [logs / f"log.{kind}"], seeds=seeds, params=params, received_at=ARRIVED, load_id="1"
            )
            assert count.kept > 100
            assert count.records_read == count.kept + count.quarantined + count.duplicates
            tables[kind] = connection.execute(f"SELECT * EXCLUDE ({PLACE}) FROM raw.job_attempts ORDER BY ALL").fetchall()
            # and another format after it
            other = "csv" if kind != "csv" else "parquet"
            (again,) = ingest(
                connection, other, [logs / f"log.{other}"], seeds=seeds, params=params, received_at=ARRIVED, load_id="2"
            )
            # then it has no attempt that is new; what is not trusted stands once per kind of log
            assert (again.kept, again.duplicates, again.quarantined) == (0, count.kept, count.quarantined)
    # then all hold the same, hashes too
    assert tables["csv"] == tables["jsonl"]
    assert tables["parquet"] == tables["jsonl"]
