"""The tables of the schema ``model`` as Arrow schemas: what a night writes of the model it made.

What lives here: columns and types, so that a night without an answer or a promotion writes the same columns as any other.
What does not: what stands in them (`challenger.py`, `publication.py`) and what they mean (`glossary.yaml`).
"""

from __future__ import annotations

import pyarrow as pa

from leap.contracts import UTC_TIMESTAMP

SCORECARDS_SCHEMA = pa.schema(
    [
        pa.field("night", pa.date32(), nullable=False),
        pa.field("model_version", pa.string(), nullable=False),
        pa.field("predictor", pa.string(), nullable=False),
        pa.field("n", pa.int64(), nullable=False),
        pa.field("jobs", pa.int64(), nullable=False),
        pa.field("answered", pa.float64()),
        pa.field("within_10", pa.float64()),
        pa.field("within_20", pa.float64()),
        pa.field("median_ape", pa.float64()),
        pa.field("coverage", pa.float64()),
        pa.field("median_width", pa.float64()),
        pa.field("within_10_low", pa.float64()),
        pa.field("within_10_high", pa.float64()),
        pa.field("scored_from", pa.date32()),
    ]
)

PREDICTIONS_SCHEMA = pa.schema(
    [
        pa.field("predictor", pa.string(), nullable=False),
        pa.field("attempt_id", pa.string(), nullable=False),
        pa.field("attempt_night", pa.date32()),
        pa.field("job", pa.string()),
        pa.field("hardware_type", pa.string()),
        pa.field("tier", pa.string()),
        pa.field("log_throughput_per_device", pa.float64()),
        pa.field("log_p10", pa.float64()),
        pa.field("log_p50", pa.float64()),
        pa.field("log_p90", pa.float64()),
        pa.field("night", pa.date32(), nullable=False),
    ]
)

VERDICTS_SCHEMA = pa.schema(
    [
        pa.field("night", pa.date32(), nullable=False),
        pa.field("model_version", pa.string(), nullable=False),
        pa.field("is_promoted", pa.bool_(), nullable=False),
        pa.field("gate", pa.string(), nullable=False),
        pa.field("figure", pa.float64()),
        pa.field("gate_limit", pa.float64(), nullable=False),
        pa.field("has_passed", pa.bool_(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
    ]
)

PROMOTIONS_SCHEMA = pa.schema(
    [
        pa.field("promoted_at", UTC_TIMESTAMP, nullable=False),
        pa.field("night", pa.date32(), nullable=False),
        pa.field("model_version", pa.string(), nullable=False),
        pa.field("fingerprint", pa.string(), nullable=False),
        pa.field("dataset_id", pa.string(), nullable=False),
        pa.field("code_version", pa.string(), nullable=False),
        pa.field("params_hash", pa.string(), nullable=False),
        pa.field("price_version", pa.string(), nullable=False),
        pa.field("snapshot_id", pa.string()),
        pa.field("reason", pa.string(), nullable=False),
    ]
)
