"""A load end to end: impossible throughput goes to quarantine, and jobs far from those like them are named."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pytest

from leap.params import IngestParams
from leap.store import warehouse
from leap.store.ingest import OffGroup, ingest, off_group, off_group_text

SEEDS = Path(__file__).parents[2] / "dbt_project" / "seeds"
PARAMS = IngestParams(max_label_disagreement=0.05, min_steady_seconds=5)
ARRIVED = datetime(2024, 6, 1, tzinfo=UTC)
START_MS = int(datetime(2024, 5, 4, 10, tzinfo=UTC).timestamp() * 1000)
SYSTEM = {"number_of_nodes": 1, "accelerators_per_node": 8, "accelerator_model_name": "NVIDIA H100-SXM5-80GB"}


def bert(samples: float, seconds: float) -> str:
    """Make the log of a run that trained on so many samples."""
    events: list[tuple[str, float, dict[str, Any]]] = [
        ("run_start", 0, {}),
        ("eval_accuracy", seconds / 2, {"epoch_num": samples / 2}),
        ("eval_accuracy", seconds, {"epoch_num": samples}),
        ("run_stop", seconds, {"status": "success"}),
    ]
    return "\n".join(
        ":::MLLOG " + json.dumps({"key": key, "time_ms": START_MS + 1000 * second, "value": None, "metadata": metadata})
        for key, second, metadata in events
    )


def load(con: duckdb.DuckDBPyConnection, root: Path, load_id: str, **rates: float) -> None:
    """Load a checkout of one submitter per rate (samples/s), two runs each."""
    root = root / "training_results_v4.0"
    for submitter, rate in rates.items():
        for name, content in (
            (f"systems/{submitter}.json", json.dumps(SYSTEM)),
            *((f"results/{submitter}/bert/result_{run}.txt", bert(rate * (300 + run), 300 + run)) for run in range(2)),
        ):
            path = root / submitter / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
    ingest(con, "mlperf", [root], seeds=SEEDS, params=PARAMS, received_at=ARRIVED, load_id=load_id)


def test_a_throughput_beyond_the_roofline_is_quarantined(tmp_path: Path) -> None:
    with warehouse.connect(tmp_path / "warehouse.duckdb") as con:
        load(con, tmp_path, "one", fine=10_000, impossible=10_000 * 8)

        kept = con.execute("select distinct team from raw.job_attempts").fetchall()
        quarantined = con.execute("select reason, count(*), min(detail) from raw.quarantine group by reason").fetchall()

    assert kept == [("fine",)]
    ((reason, count, detail),) = quarantined
    assert (reason, count) == ("beyond-roofline", 2)
    assert "its throughput of 80000 samples/s needs at least 29088 TFLOP/s, and 8 x H100-80GB-SXM5 give at most " in detail


def test_jobs_far_from_those_like_them_are_named_and_kept(tmp_path: Path) -> None:
    with warehouse.connect(tmp_path / "warehouse.duckdb") as con:
        load(con, tmp_path / "first", "first", a=4_000, b=4_400)
        assert off_group(con, ["first"]) == []

        load(con, tmp_path / "then", "then", c=1_000, d=4_200, e=9_000)
        found = off_group(con, ["then"])

        assert off_group(con, ["first"]) == off_group(con, []) == []
        assert con.execute("select count(*) from raw.job_attempts").fetchall() == [(10,)]
    assert [(each.job, each.attempts) for each in found] == [("c/c/bert/v4.0", 2), ("e/e/bert/v4.0", 2)]
    assert [each.factor for each in found] == [pytest.approx(1_000 / 4_200), pytest.approx(9_000 / 4_200)]
    assert off_group_text(found).splitlines()[1] == "  c/c/bert/v4.0: 0.24 times, 2 attempts"


def test_many_far_jobs_are_cut_to_the_farthest() -> None:
    found = [OffGroup(f"job-{number}", 1, 3.0) for number in range(25)]

    assert off_group_text(found).splitlines()[-1] == "  and 5 more"
    assert off_group_text([]) == ""
