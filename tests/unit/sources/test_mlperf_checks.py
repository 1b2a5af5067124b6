"""A throughput that no hardware reaches is moved to the rejects with both figures; all others stay as they are."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from leap.contracts import HARDWARE_SCHEMA, REJECT_SCHEMA
from leap.sources.admission import ADMITTED_SCHEMA, Admission
from leap.sources.mlperf_checks import MOST_UTILISATION, TRAINING_OPERATIONS, hold_to_roofline

A100 = {"hardware_type": "A100", "vendor": "NVIDIA", "family": "Ampere", "peak_bf16_tflops": 312.0}
H100 = {"hardware_type": "H100", "vendor": "NVIDIA", "family": "Hopper", "peak_bf16_tflops": 989.0, "peak_fp8_tflops": 1979.0}
UNKNOWN = {"hardware_type": "Prototype", "vendor": "Acme", "family": "Acme"}
CATALOG = pa.Table.from_pylist([A100, H100, UNKNOWN], HARDWARE_SCHEMA)

RUN = {
    "source": "mlperf",
    "slice": "v3.0/resnet",
    "file": "training_results_v3.0/Acme/results/dgx/resnet/result_0.txt",
    "line": 14,
    "attempt_id": "v3.0/Acme/dgx/resnet/result_0",
    "model_type": "resnet",
    "hardware_name": "NVIDIA A100",
    "hardware_type": "A100",
    "num_devices": 8,
    "throughput": 24_000.0,
    "started_at": datetime(2023, 5, 4, tzinfo=UTC),
    "outcome": "succeeded",
}


def admission(*changes: dict[str, Any]) -> Admission:
    return Admission(pa.Table.from_pylist([RUN | each for each in changes], ADMITTED_SCHEMA), REJECT_SCHEMA.empty_table())


def test_a_possible_throughput_changes_nothing() -> None:
    given = admission({}, {"hardware_type": "H100", "throughput": 56_000.0})

    assert hold_to_roofline(given, CATALOG) == given


def test_an_impossible_throughput_is_rejected_with_both_figures_and_the_rest_keeps_its_order() -> None:
    given = admission({"attempt_id": "a"}, {"attempt_id": "b", "throughput": 24_000.0 * 16}, {"attempt_id": "c"})

    kept, rejects = hold_to_roofline(given, CATALOG)

    assert kept["attempt_id"].to_pylist() == ["a", "c"]
    (reject,) = rejects.to_pylist()
    assert (reject["attempt_id"], reject["reason"], reject["outcome"]) == ("b", "beyond-roofline", "succeeded")
    needed, limit = 384_000 * TRAINING_OPERATIONS["resnet"] / 1e12, 8 * 2 * 312 * MOST_UTILISATION
    assert f"needs at least {needed:.0f} TFLOP/s, and 8 x A100 give at most {limit:.0f};" in reject["detail"]
    assert reject["detail"].startswith(f"{RUN['file']}, line 14: ")
    assert '"throughput":384000' in reject["record"]


@pytest.mark.parametrize(
    ("change", "is_kept"),
    [
        ({"hardware_type": "H100", "throughput": 0.79 * 8 * 1979e12 / TRAINING_OPERATIONS["resnet"]}, True),
        ({"hardware_type": "H100", "throughput": 0.81 * 8 * 1979e12 / TRAINING_OPERATIONS["resnet"]}, False),
        ({"hardware_type": "A100", "throughput": 0.79 * 8 * 624e12 / TRAINING_OPERATIONS["resnet"]}, True),
        ({"hardware_type": "A100", "throughput": 0.81 * 8 * 624e12 / TRAINING_OPERATIONS["resnet"]}, False),
        ({"num_devices": 128, "throughput": 384_000.0}, True),
        ({"throughput": 1e12, "source": "jsonl"}, True),  # another fleet's `resnet` may be any
        ({"throughput": 1e12, "hardware_type": "Prototype"}, True),
        ({"throughput": 1e12, "hardware_type": "of the fleet's own"}, True),
        ({"throughput": 1e12, "model_type": "dlrm"}, True),
    ],
)
def test_the_limit_is_a_share_of_the_highest_rate_and_what_is_not_known_limits_nothing(
    change: dict[str, Any], is_kept: bool
) -> None:
    kept, rejects = hold_to_roofline(admission({}, change), CATALOG)

    assert (kept.num_rows, rejects.num_rows) == ((2, 0) if is_kept else (1, 1))


def test_nothing_admitted_is_nothing_rejected() -> None:
    assert hold_to_roofline(admission(), CATALOG) == admission()
