"""Small histories for unit tests, written the way `marts.state_history` is."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from leap.contracts import CANDIDATE_SCHEMA, SUBMISSION_SCHEMA, UTC_TIMESTAMP

LEVELS = {
    "job_hardware": ("job_id", "hardware_type", "num_devices"),
    "configuration": ("model_type", "hardware_type", "num_devices", "global_batch_size"),
    "exact": ("model_type", "hardware_type", "num_devices"),
    "model_hardware": ("model_type", "hardware_type"),
    "model_family": ("model_type", "family"),
    "model": ("model_type",),
    "hardware": ("hardware_type",),
}

STATE_SCHEMA = pa.schema(
    [
        pa.field("level", pa.string()),
        pa.field("key", pa.string()),
        pa.field("night", pa.date32()),
        pa.field("evidence_count", pa.int64()),
        pa.field("last_log_throughput", pa.float64()),
        pa.field("median_log_throughput", pa.float64()),
        pa.field("spread_log_throughput", pa.float64()),
        pa.field("mean_log_peak", pa.float64()),
        pa.field("mean_log_devices", pa.float64()),
        pa.field("mean_log_batch", pa.float64()),
        pa.field("last_ended_at", UTC_TIMESTAMP),
    ]
)


@pytest.fixture
def levels() -> dict[str, tuple[str, ...]]:
    """A short list of levels, with all that tiers and the lookup table are read from."""
    return dict(LEVELS)


@pytest.fixture
def state_table() -> Callable[..., pa.Table]:
    """Make a state table from (level, key parts, night, median[, count]) rows."""

    def make(rows: Sequence[tuple[Any, ...]], log_peak: float | None = None) -> pa.Table:
        records = []
        for level, parts, night, median, *rest in rows:
            count = rest[0] if rest else 1
            day = dt.date.fromisoformat(night)
            records.append(
                {
                    "level": level,
                    "key": "\x1f".join(parts),
                    "night": day,
                    "evidence_count": count,
                    "last_log_throughput": median,
                    "median_log_throughput": median,
                    "spread_log_throughput": 0.0,
                    "mean_log_peak": log_peak,
                    "mean_log_devices": 0.0,
                    "mean_log_batch": None,
                    "last_ended_at": dt.datetime.combine(day, dt.time(0), dt.UTC) - dt.timedelta(hours=12),
                }
            )
        return pa.Table.from_pylist(records, schema=STATE_SCHEMA)

    return make


@pytest.fixture
def submissions() -> Callable[..., pa.Table]:
    """Make submissions from dictionaries of the fields that matter; the rest is unknown."""

    def make(*rows: dict[str, Any]) -> pa.Table:
        return pa.Table.from_pylist(list(rows), schema=SUBMISSION_SCHEMA)

    return make


@pytest.fixture
def candidates() -> Callable[..., pa.Table]:
    """Make candidates from dictionaries of the fields that matter."""

    def make(*rows: dict[str, Any]) -> pa.Table:
        known = {"num_devices": 8.0, "pool": "default", "vendor": "NVIDIA", "family": "Hopper", "peak_bf16_tflops": 989.0}
        nullable = pa.schema([field.with_nullable(True) for field in CANDIDATE_SCHEMA])
        return pa.Table.from_pylist([known | row for row in rows], schema=nullable)

    return make
