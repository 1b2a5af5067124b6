"""The law: what its parts do to throughput, and that it has no noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from leap.contracts import HARDWARE_SCHEMA, SUBMISSION_SCHEMA
from leap.simulator.fleet import FleetConfig, FleetLog, simulate

HARDWARE = pa.Table.from_pylist(
    [
        {
            "hardware_type": name,
            "vendor": vendor,
            "family": vendor,
            "memory_bytes": memory_gb * 1e9,
            "memory_bandwidth_gbps": bandwidth,
            "peak_bf16_tflops": peak,
            "peak_fp8_tflops": fp8,
            "peak_fp32_tflops": peak / 15,
            "interconnect_gbps": link,
            "release_year": year,
        }
        for name, vendor, memory_gb, bandwidth, peak, fp8, link, year in [
            ("volta", "NVIDIA", 32, 900.0, 125.0, None, 300.0, 2017),
            ("hopper", "NVIDIA", 80, 3350.0, 989.0, 1979.0, 900.0, 2022),
            ("instinct", "AMD", 192, 5300.0, 1307.0, 2615.0, 896.0, 2023),
        ]
    ],
    HARDWARE_SCHEMA,
)


@pytest.fixture(scope="module")
def fleet() -> FleetLog:
    return simulate(
        FleetConfig(
            hardware=HARDWARE,
            hardware_types=("volta", "hopper", "instinct"),
            days=2,
            attempts_per_day=200,
            num_model_types=60,
            num_jobs=80,
            num_teams=4,
        )
    )


@pytest.fixture(scope="module")
def models(fleet: FleetLog) -> dict[str, dict[str, Any]]:
    """One submission of each model type, without its job's own effect."""
    rows = fleet.attempts.select(SUBMISSION_SCHEMA.names).to_pylist()
    return {row["model_type"]: {**row, "job_id": None, "precision": "fp16", "tensor_parallel": 1.0} for row in rows}


def throughput(fleet: FleetLog, rows: list[dict[str, Any]], place: str, num_devices: float = 8) -> npt.NDArray[np.float64]:
    candidates = pa.table({"hardware_type": [place] * len(rows), "num_devices": [num_devices] * len(rows)})
    return fleet.truth(pa.Table.from_pylist(rows, SUBMISSION_SCHEMA), candidates)


def changed(models: dict[str, dict[str, Any]], **change: Any) -> list[dict[str, Any]]:
    return [{**row, **change} for row in models.values()]


def test_the_truth_has_no_noise_and_does_not_depend_on_the_rows_beside(fleet: FleetLog, models: dict[str, Any]) -> None:
    rows = changed(models)
    together = throughput(fleet, rows, "instinct")
    alone = [throughput(fleet, [row], "instinct")[0] for row in rows]
    np.testing.assert_array_equal(together, alone)


def test_what_the_fleet_does_not_have_is_nan(fleet: FleetLog, models: dict[str, Any]) -> None:
    row = next(iter(models.values()))
    assert np.isnan(throughput(fleet, [{**row, "model_type": "unheard-of"}], "volta")[0])
    assert np.isnan(throughput(fleet, [row], "T1000")[0])
    assert throughput(fleet, [{**row, "framework": None, "framework_version": None, "team": None}], "volta")[0] > 0


def test_a_submission_with_nothing_but_its_model_type_has_a_throughput(fleet: FleetLog, models: dict[str, Any]) -> None:
    bare = [{"model_type": name} for name in models]
    assert np.all(throughput(fleet, bare, "hopper") > 0)


def test_a_job_has_an_effect_of_its_own_on_all_hardware(fleet: FleetLog) -> None:
    rows = fleet.attempts.select(SUBMISSION_SCHEMA.names).slice(0, 50).to_pylist()
    strangers = [{**row, "job_id": "stranger"} for row in rows]
    ratios = [np.log(throughput(fleet, rows, place) / throughput(fleet, strangers, place)) for place in ("volta", "hopper")]
    assert 0 < np.abs(ratios[0]).max() < 0.4
    assert np.corrcoef(ratios[0], ratios[1])[0, 1] > 0.5


def test_more_devices_give_more_of_the_whole_and_less_of_each(fleet: FleetLog, models: dict[str, Any]) -> None:
    # given the same batch per device on 1 and on 16 devices
    one = throughput(fleet, changed(models, global_batch_size=16.0, parameters_m=20.0), "hopper", 1)
    many = throughput(fleet, changed(models, global_batch_size=256.0, parameters_m=20.0), "hopper", 16)
    assert np.all(many > one)
    assert np.all(many / 16 < one)


def test_a_larger_batch_saturates(fleet: FleetLog, models: dict[str, Any]) -> None:
    small, middle, large = (
        throughput(fleet, changed(models, global_batch_size=float(batch)), "hopper") for batch in (8, 64, 512)
    )
    assert np.all(small < middle)
    assert np.all(middle < large)
    assert np.all(large / middle < middle / small)


def test_longer_sequences_give_fewer_samples(fleet: FleetLog, models: dict[str, Any]) -> None:
    with_tokens = {name: row for name, row in models.items() if row["sequence_length"] is not None}
    short, long = (throughput(fleet, changed(with_tokens, sequence_length=float(size)), "hopper") for size in (256, 4096))
    assert len(with_tokens) > 10
    assert np.all(short > long)


def test_precision_meets_the_hardware(fleet: FleetLog, models: dict[str, Any]) -> None:
    by = {
        (place, precision): throughput(fleet, changed(models, precision=precision, global_batch_size=4096.0), place)
        for place in ("volta", "hopper")
        for precision in ("fp16", "bf16", "fp8", "fp32")
    }
    # 8 bits are faster where the hardware has them
    assert np.all(by["hopper", "fp8"] > by["hopper", "fp16"])
    np.testing.assert_array_equal(by["volta", "fp8"], by["volta", "fp16"])
    # brain floats are slow on hardware from before them
    assert np.all(by["volta", "bf16"] < by["volta", "fp16"])
    np.testing.assert_array_equal(by["hopper", "bf16"], by["hopper", "fp16"])
    assert np.all(by["hopper", "fp32"] < by["hopper", "fp16"])


def test_a_model_that_does_not_fit_is_slowed(fleet: FleetLog, models: dict[str, Any]) -> None:
    # given more training state than one small device holds, and a batch that keeps launches out of it
    row = next(row for row in models.values() if row["task"] == "language_modelling")
    fits, bursts = (
        throughput(fleet, [{**row, "parameters_m": size, "global_batch_size": 64.0}], "volta", 1)[0] for size in (1000.0, 8000.0)
    )
    assert bursts < 0.4 * fits


def test_later_versions_of_a_framework_are_faster_on_the_whole(fleet: FleetLog, models: dict[str, Any]) -> None:
    first, last = (
        throughput(fleet, changed(models, framework="pytorch", framework_version=version, global_batch_size=4096.0), "hopper")
        for version in ("2.7.1", "2.10.0")
    )
    assert np.median(last / first) == pytest.approx(1.09, abs=0.12)
