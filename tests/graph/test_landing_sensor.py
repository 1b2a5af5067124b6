"""Logs that land in a folder of LEAP_SOURCES are read into the raw tables by a run of the job `ingest`, once per content."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import dagster as dg
import duckdb

from pipelines.definitions import build_defs
from pipelines.jobs import INGEST_JOB
from pipelines.prepare import prepare_home
from pipelines.settings import Settings, Source

RECORD = {
    "attempt_id": "a-1",
    "started_at": "2026-03-01T10:00:00Z",
    "ended_at": "2026-03-01T11:00:00Z",
    "outcome": "succeeded",
    "model_type": "bert",
    "num_devices": 8,
    "hardware_name": "NVIDIA H100-SXM5-80GB",
    "throughput": 100.0,
    "throughput_unit": "samples/s",
    "throughput_scope": "job",
}


def land(folder: Path, name: str, *attempts: str) -> None:
    path = folder / name
    path.write_text("".join(json.dumps({**RECORD, "attempt_id": attempt}) + "\n" for attempt in attempts))
    os.utime(path, (1_900_000_000, 1_700_000_000))


def test_what_lands_is_read_once(settings: Settings, tmp_path: Path) -> None:
    landing = tmp_path / "landing"
    landing.mkdir()
    ours = replace(settings, home=tmp_path / "home", sources=(Source("jsonl", landing),))
    shutil.copytree(settings.manifest.parent, ours.manifest.parent)
    prepare_home(ours)
    defs = build_defs(ours)
    sensor = defs.get_sensor_def("landed_logs")
    assert sensor.default_status == dg.DefaultSensorStatus.RUNNING
    assert build_defs(settings).get_sensor_def("landed_logs").default_status == dg.DefaultSensorStatus.STOPPED

    cursor: str | None = None
    read: list[int] = []
    for names in (("first.jsonl", "a-1", "a-2"), ("copy.jsonl", "a-1", "a-2"), ("next.jsonl", "a-3"), None):
        if names is not None:
            land(landing, *names)
        with dg.DagsterInstance.ephemeral() as instance:
            said = sensor.evaluate_tick(dg.build_sensor_context(instance=instance, cursor=cursor, definitions=defs))
            cursor = said.cursor
            for request in said.run_requests:
                done = defs.resolve_job_def(INGEST_JOB.name).execute_in_process(run_config=request.run_config, instance=instance)
                assert done.success
        with duckdb.connect(ours.home / "warehouse.duckdb") as connection:
            read.append(connection.execute("select sum(records_read) from raw.loads where source = 'jsonl'").fetchall()[0][0])

    assert read == [2, 2, 3, 3]
    with duckdb.connect(ours.home / "warehouse.duckdb") as connection:
        assert connection.execute("select attempt_id from raw.job_attempts order by 1").fetchall() == [
            ("a-1",),
            ("a-2",),
            ("a-3",),
        ]
