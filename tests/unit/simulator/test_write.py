"""The writer: files by UTC day that the reader reads back as they were."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from leap.contracts import ATTEMPT_SCHEMA, HARDWARE_SCHEMA
from leap.params import IngestParams
from leap.simulator.fleet import FleetConfig, FleetLog, simulate
from leap.simulator.write import write_jsonl
from leap.sources import jsonl

PARAMS = IngestParams(max_label_disagreement=0.05, min_steady_seconds=20)


def small_fleet() -> FleetLog:
    rows = [
        {
            "hardware_type": f"t{number}",
            "vendor": "V",
            "family": "F",
            "peak_bf16_tflops": 100.0 * number,
            "memory_bandwidth_gbps": 900.0,
        }
        for number in (1, 2, 3)
    ]
    return simulate(
        FleetConfig(
            hardware=pa.Table.from_pylist(rows, HARDWARE_SCHEMA),
            hardware_types=("t1", "t2", "t3"),
            days=3,
            attempts_per_day=100,
            num_model_types=10,
            num_jobs=20,
            num_teams=3,
        )
    )


def test_the_log_is_read_back_as_it_was(tmp_path: Path) -> None:
    # given a log written by day
    log = small_fleet()
    paths = write_jsonl(log, tmp_path / "new" / "folder")
    # when the folder is read
    batches = list(jsonl.read([tmp_path / "new" / "folder"], PARAMS))
    # then the attempts are the same, in the same order, and nothing is rejected
    attempts = pa.concat_tables([batch.attempts for batch in batches]).select(ATTEMPT_SCHEMA.names)
    assert [path.name for path in paths] == [f"attempts-2026-03-0{day}.jsonl" for day in (1, 2, 3)]
    assert sum(batch.rejects.num_rows for batch in batches) == 0
    assert attempts.equals(log.attempts)


def test_each_file_holds_what_became_known_on_its_day(tmp_path: Path) -> None:
    for path in write_jsonl(small_fleet(), tmp_path):
        (batch,) = jsonl.read([path], PARAMS)
        days = pc.unique(pc.strftime(batch.attempts["known_at"], format="%Y-%m-%d")).to_pylist()
        assert [f"attempts-{day}.jsonl" for day in days] == [path.name]


def test_writing_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    first = {path.name: path.read_bytes() for path in write_jsonl(small_fleet(), tmp_path)}
    second = {path.name: path.read_bytes() for path in write_jsonl(small_fleet(), tmp_path)}
    assert first == second
