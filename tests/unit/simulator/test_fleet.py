"""The simulated fleet: one seed, one log; the log looks as promised and reports the truth with little noise."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from leap.contracts import ATTEMPT_SCHEMA, HARDWARE_SCHEMA
from leap.hardware.catalog import read_catalog
from leap.hardware.names import HardwareResolver, read_aliases
from leap.params import IngestParams
from leap.simulator.fleet import DEFAULT_HARDWARE_TYPES, FleetConfig, FleetError, FleetLog, simulate
from leap.sources.admission import admit

START = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def hardware(repository: Path) -> pa.Table:
    return read_catalog(repository / "dbt_project" / "seeds" / "hardware_types.csv").table


@pytest.fixture(scope="module")
def aliases(repository: Path) -> pa.Table:
    return read_aliases(repository / "dbt_project" / "seeds" / "hardware_aliases.csv")


@pytest.fixture(scope="module")
def log(hardware: pa.Table, aliases: pa.Table) -> FleetLog:
    return simulate(FleetConfig(hardware=hardware, aliases=aliases))


def distinct(column: pa.ChunkedArray | pa.Array) -> set[Any]:
    return set(pc.unique(column).to_pylist())


def truth_of_log(log: FleetLog) -> npt.NDArray[np.float64]:
    candidates = pa.table({"hardware_type": log.hardware_type, "num_devices": log.attempts["num_devices"]})
    return log.truth(log.attempts, candidates)


def test_the_default_fleet_is_as_large_as_the_demo_promises(log: FleetLog) -> None:
    attempts = log.attempts
    assert attempts.schema == ATTEMPT_SCHEMA
    assert 14 * 1400 < attempts.num_rows < 14 * 1600
    assert len(distinct(log.hardware_type)) >= 24
    assert len(distinct(attempts["model_type"])) >= 200
    assert len(distinct(attempts["attempt_id"])) == attempts.num_rows


def test_the_same_configuration_gives_the_same_log_and_another_seed_another(hardware: pa.Table) -> None:
    config = FleetConfig(hardware=hardware, days=2, attempts_per_day=200, num_model_types=20, num_jobs=40)
    assert simulate(config).attempts.equals(simulate(config).attempts)
    assert not simulate(config).attempts.equals(simulate(dataclasses.replace(config, seed=1)).attempts)


def test_times_are_in_order_and_within_the_days(log: FleetLog) -> None:
    submitted, started, ended, known = (
        log.attempts[name].to_numpy() for name in ("submitted_at", "started_at", "ended_at", "known_at")
    )
    assert np.all(submitted < started)
    assert np.all(started < ended)
    assert np.all(ended < known)
    assert np.all(np.diff(known) >= np.timedelta64(0))
    assert pc.min(log.attempts["submitted_at"]).as_py() >= START
    assert START + timedelta(days=13) < pc.max(log.attempts["known_at"]).as_py() < START + timedelta(days=14)


def test_jobs_come_again_with_one_configuration_and_new_ones_appear(log: FleetLog) -> None:
    # given the attempts of each job
    jobs = log.attempts.select(["job_id", "model_type", "team", "config", "submitted_at"]).group_by("job_id")
    table = jobs.aggregate(
        [("model_type", "count_distinct"), ("config", "count_distinct"), ("submitted_at", "min"), ("team", "count")]
    )
    # then a job has one model type and configuration, and most come many times
    assert distinct(table["model_type_count_distinct"]) == {1}
    assert distinct(table["config_count_distinct"]) == {1}
    assert np.median(table["team_count"].to_numpy()) >= 10
    # and every later day has jobs and model types that were not there before
    first_days = {time.date() for time in table["submitted_at_min"].to_pylist()}
    assert len(first_days) >= 12
    models = log.attempts.group_by("model_type").aggregate([("submitted_at", "min")])
    assert len({time.date() for time in models["submitted_at_min"].to_pylist()}) >= 8


def test_every_outcome_occurs_and_what_failed_is_tried_again(log: FleetLog) -> None:
    shares = {
        row["values"]: row["counts"] / log.attempts.num_rows for row in pc.value_counts(log.attempts["outcome"]).to_pylist()
    }
    assert 0.75 < shares["succeeded"] < 0.9
    assert all(shares[outcome] > 0.02 for outcome in ("failed", "cancelled", "preempted"))
    assert distinct(log.attempts["attempt_number"]) == {1, 2, 3, 4}


def test_what_is_logged_is_the_truth_with_little_noise(log: FleetLog) -> None:
    # given the logged throughput, turned into samples/s of the whole job by its unit and scope
    columns = {
        name: log.attempts[name].to_numpy()
        for name in ("throughput", "sequence_length", "global_batch_size", "num_devices", "num_nodes")
    }
    unit, scope = (np.array(log.attempts[name].to_pylist()) for name in ("throughput_unit", "throughput_scope"))
    per_unit = np.select(
        [unit == "tokens/s", unit == "steps/s"], [1 / columns["sequence_length"], columns["global_batch_size"]], 1.0
    )
    per_scope = np.select([scope == "device", scope == "node"], [columns["num_devices"], columns["num_nodes"]], 1)
    # when it is compared with the truth
    error = np.log(columns["throughput"] * per_unit * per_scope / truth_of_log(log))
    # then it is off by some per cent at most, but for a few stragglers
    assert abs(np.median(error)) < 0.002
    assert np.quantile(np.abs(error), 0.5) < 0.02
    assert 0.01 < np.mean(error < -0.1) < 0.05
    assert set(unit) == {"samples/s", "tokens/s", "steps/s"}
    assert set(scope) == {"job", "device", "node"}


def test_a_team_reports_in_one_scope(log: FleetLog) -> None:
    scopes = log.attempts.group_by("team").aggregate([("throughput_scope", "count_distinct")])
    assert distinct(scopes["throughput_scope_count_distinct"]) == {1}


def test_most_of_the_log_is_admitted(log: FleetLog, hardware: pa.Table, aliases: pa.Table) -> None:
    # given a resolver of the fleet's spellings, more of them than hardware types
    spellings = distinct(log.attempts["hardware_name"])
    resolver = HardwareResolver.from_aliases(aliases, hardware["hardware_type"].to_pylist())
    read = log.attempts
    for place, (name, value) in enumerate((("source", "sim"), ("slice", "s"), ("file", "f"))):
        read = read.add_column(place, pa.field(name, pa.string(), nullable=False), pa.repeat(value, read.num_rows))
    read = read.add_column(3, pa.field("line", pa.int64(), nullable=False), pa.array(np.arange(read.num_rows)))
    # when the log is admitted
    params = IngestParams(max_label_disagreement=0.05, min_steady_seconds=20)
    kept, rejects = admit(read, resolver.resolve(sorted(spellings)), params, START + timedelta(days=60))
    # then the hardware is found as it was, and only what ended at once is left out
    assert len(spellings) > len(distinct(log.hardware_type))
    assert kept["hardware_type"].to_pylist() == log.hardware_type.take(kept["line"]).to_pylist()
    assert distinct(rejects["reason"]) == {"too-short"}
    assert rejects.num_rows < 0.04 * read.num_rows


def test_jobs_with_a_list_of_hardware_run_on_it_alone(log: FleetLog) -> None:
    lists = log.attempts["eligible_hardware"].to_pylist()
    named = [(place, json.loads(names)) for place, names in zip(log.hardware_type.to_pylist(), lists, strict=True) if names]
    assert len(named) > 100
    assert all(place in names for place, names in named)


def test_hardware_was_not_chosen_by_speed(log: FleetLog) -> None:
    # given each attempt's truth on its own type and on every other
    rows = log.attempts.slice(0, 500)
    own = truth_of_log(log)[:500]
    best = np.max([on_type(log, rows, name) for name in DEFAULT_HARDWARE_TYPES], axis=0)
    # then the old rule leaves much to gain
    assert np.median(own / best) < 0.6
    assert np.all(own <= best * (1 + 1e-12))


def on_type(log: FleetLog, submissions: pa.Table, name: str) -> npt.NDArray[np.float64]:
    return log.truth(
        submissions,
        pa.table({"hardware_type": pa.repeat(name, submissions.num_rows), "num_devices": submissions["num_devices"]}),
    )


def test_a_hardware_type_that_is_not_described_is_an_error(hardware: pa.Table) -> None:
    with pytest.raises(FleetError, match="does not describe X9000; add a row"):
        simulate(FleetConfig(hardware=hardware, hardware_types=("T4", "A40", "X9000")))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_jobs": 10}, "10 jobs cannot use 220"),
        ({"days": 0}, "days is 0"),
        ({"hardware_types": ("T4",)}, "1 hardware types"),
    ],
)
def test_an_impossible_fleet_is_an_error(hardware: pa.Table, change: dict[str, Any], message: str) -> None:
    with pytest.raises(FleetError, match=message):
        simulate(dataclasses.replace(FleetConfig(hardware=hardware), **change))


def test_a_small_fleet_of_other_hardware_can_be_had() -> None:
    # given three made-up types, one with nothing known but its name
    rows = [
        {
            "hardware_type": "slow",
            "vendor": "NVIDIA",
            "family": "Old",
            "peak_bf16_tflops": 50.0,
            "memory_bandwidth_gbps": 300.0,
        },
        {"hardware_type": "fast", "vendor": "AMD", "family": "New", "peak_bf16_tflops": 900.0, "memory_bandwidth_gbps": 5000.0},
        {"hardware_type": "bare", "vendor": "Other", "family": "None", "peak_fp32_tflops": 20.0},
    ]
    config = FleetConfig(
        hardware=pa.Table.from_pylist(rows, HARDWARE_SCHEMA),
        hardware_types=("slow", "fast", "bare"),
        start=date(2025, 12, 30),
        days=3,
        attempts_per_day=50,
        num_model_types=8,
        num_jobs=12,
        num_teams=3,
    )
    # when it is simulated
    log = simulate(config)
    # then a type without aliases is logged by its own name, and every throughput is a number
    assert distinct(log.attempts["hardware_name"]) == {"slow", "fast", "bare"}
    assert np.all(np.isfinite(truth_of_log(log)))
    assert np.median(on_type(log, log.attempts, "fast") / on_type(log, log.attempts, "slow")) > 3
