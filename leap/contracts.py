"""The typed records at LEAP's borders: submissions, candidates, attempts, rejects, rankings.

What lives here: field names, types, units, the Arrow schemas that readers and the warehouse exchange, and the version of
each contract. What does not: how anything is read, computed, stored or drawn.

Every time is UTC. Columns end in their unit; where several units may share a column, a ``_unit`` column stands beside it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

ATTEMPT_SCHEMA_VERSION: Final = 1
RANKING_SCHEMA_VERSION: Final = 1

UTC_TIMESTAMP = pa.timestamp("us", tz="UTC")

Name = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]


class Outcome(StrEnum):
    """How an attempt ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    RUNNING = "running"


class ThroughputUnit(StrEnum):
    """What a throughput counts per second."""

    SAMPLES = "samples/s"
    TOKENS = "tokens/s"
    STEPS = "steps/s"


class ThroughputScope(StrEnum):
    """What a throughput is measured over."""

    JOB = "job"
    NODE = "node"
    DEVICE = "device"


class Tier(StrEnum):
    """How much a prediction rests on measurement, strongest first."""

    MEASURED = "measured"
    LEARNED = "learned"
    FAMILY = "family"
    ANALYTIC = "analytic"
    NONE = "none"


TIERS: tuple[str, ...] = tuple(tier.value for tier in Tier)


class _Record(BaseModel):
    """A frozen record in which a field that is not named here is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class JobSubmission(_Record):
    """What is asked for when a job is submitted, with no hardware in it.

    ``num_devices`` is how many devices the job asks for, of whatever type it gets. ``eligible_hardware`` names the hardware
    types the job may run on; ``None`` means any.
    """

    model_type: Name
    num_devices: Annotated[int, Field(gt=0)]
    job_id: Name | None = None
    team: str | None = None
    task: str | None = None
    framework: str | None = None
    framework_version: str | None = None
    precision: str | None = None
    optimizer: str | None = None
    global_batch_size: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    gradient_accumulation_steps: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    sequence_length: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    image_size: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    parameters_m: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    data_parallel: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    tensor_parallel: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    pipeline_parallel: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    eligible_hardware: tuple[Name, ...] | None = None


# The columns of a submission as tables carry them, in order. Numbers are doubles so that "unknown" is one thing: null.
SUBMISSION_SCHEMA = pa.schema(
    [
        pa.field("job_id", pa.string()),
        pa.field("team", pa.string()),
        pa.field("model_type", pa.string()),
        pa.field("task", pa.string()),
        pa.field("framework", pa.string()),
        pa.field("framework_version", pa.string()),
        pa.field("precision", pa.string()),
        pa.field("optimizer", pa.string()),
        pa.field("global_batch_size", pa.float64()),
        pa.field("gradient_accumulation_steps", pa.float64()),
        pa.field("sequence_length", pa.float64()),
        pa.field("image_size", pa.float64()),
        pa.field("parameters_m", pa.float64()),
        pa.field("data_parallel", pa.float64()),
        pa.field("tensor_parallel", pa.float64()),
        pa.field("pipeline_parallel", pa.float64()),
    ]
)

# What the catalogue says of a hardware type; a row of the seed `hardware_types` and of the mart `dim_hardware_type`.
HARDWARE_SCHEMA = pa.schema(
    [
        pa.field("hardware_type", pa.string(), nullable=False),
        pa.field("vendor", pa.string(), nullable=False),
        pa.field("family", pa.string(), nullable=False),
        pa.field("form_factor", pa.string()),
        pa.field("memory_bytes", pa.float64()),
        pa.field("memory_bandwidth_gbps", pa.float64()),
        pa.field("peak_bf16_tflops", pa.float64()),
        pa.field("peak_fp8_tflops", pa.float64()),
        pa.field("peak_fp32_tflops", pa.float64()),
        pa.field("interconnect_gbps", pa.float64()),
        pa.field("tdp_watts", pa.float64()),
        pa.field("release_year", pa.int32()),
    ]
)

# A candidate: where a submission could run. The hardware columns describe `hardware_type`.
CANDIDATE_SCHEMA = pa.schema([pa.field("num_devices", pa.float64()), pa.field("pool", pa.string()), *HARDWARE_SCHEMA])


class Candidate(_Record):
    """A place where a submission could run: hardware type, device count and pool, described by the catalogue."""

    hardware_type: Name
    num_devices: Annotated[int, Field(gt=0)]
    pool: str = "default"


# The canonical attempt: one row per attempt and constant segment. Readers yield record batches of exactly this schema.
ATTEMPT_SCHEMA = pa.schema(
    [
        pa.field("attempt_id", pa.string()),
        pa.field("segment_number", pa.int32()),  # 1 where the attempt never changed hardware or device count
        pa.field("job_id", pa.string()),
        pa.field("attempt_number", pa.int32()),
        pa.field("submitted_at", UTC_TIMESTAMP),
        pa.field("started_at", UTC_TIMESTAMP),
        pa.field("ended_at", UTC_TIMESTAMP),
        pa.field("known_at", UTC_TIMESTAMP),  # null = the source does not say; the warehouse then uses received_at
        pa.field("outcome", pa.string()),
        pa.field("cluster", pa.string()),
        pa.field("pool", pa.string()),
        pa.field("team", pa.string()),
        pa.field("user", pa.string()),
        pa.field("model_type", pa.string()),
        pa.field("task", pa.string()),
        pa.field("framework", pa.string()),
        pa.field("framework_version", pa.string()),
        pa.field("precision", pa.string()),
        pa.field("global_batch_size", pa.float64()),
        pa.field("per_device_batch_size", pa.float64()),
        pa.field("gradient_accumulation_steps", pa.float64()),
        pa.field("sequence_length", pa.float64()),
        pa.field("image_size", pa.float64()),
        pa.field("parameters_m", pa.float64()),
        pa.field("optimizer", pa.string()),
        pa.field("data_parallel", pa.float64()),
        pa.field("tensor_parallel", pa.float64()),
        pa.field("pipeline_parallel", pa.float64()),
        pa.field("num_nodes", pa.int32()),
        pa.field("num_devices", pa.int32()),
        pa.field("config", pa.string()),  # JSON object: any other submission-time setting
        pa.field("hardware_name", pa.string()),
        pa.field("throughput", pa.float64()),
        pa.field("throughput_unit", pa.string()),
        pa.field("throughput_scope", pa.string()),
        pa.field("steady_seconds", pa.float64()),
        pa.field("warmup_seconds", pa.float64()),
        # A second measure of the throughput; a step is one of the whole job. `start_step` and `end_step` are the job's step
        # counter where the steady time begins and ends: a resumed attempt starts at its checkpoint's.
        pa.field("step_seconds", pa.float64()),
        pa.field("start_step", pa.float64()),
        pa.field("end_step", pa.float64()),
        pa.field("pinned", pa.bool_()),
        pa.field("eligible_hardware", pa.string()),  # JSON array of hardware types; null = any
        pa.field("ranking_id", pa.string()),
        pa.field("arm", pa.string()),
    ]
)

# A published or measured figure without job or time of its own. It may tell of hardware that the fleet has not used; it is never
# counted as an attempt.
MEASUREMENT_SCHEMA = pa.schema(
    [
        pa.field("model_type", pa.string()),
        pa.field("task", pa.string()),
        pa.field("hardware_name", pa.string()),
        pa.field("num_devices", pa.int32()),
        pa.field("num_nodes", pa.int32()),
        pa.field("per_device_batch_size", pa.float64()),
        pa.field("global_batch_size", pa.float64()),
        pa.field("precision", pa.string()),
        pa.field("framework", pa.string()),
        pa.field("optimizer", pa.string()),
        pa.field("sequence_length", pa.float64()),
        pa.field("image_size", pa.float64()),
        pa.field("parameters_m", pa.float64()),
        pa.field("throughput", pa.float64()),
        pa.field("throughput_unit", pa.string()),
        pa.field("throughput_scope", pa.string()),
        pa.field("utilisation", pa.float64()),  # share of the peak rate, as the publisher states it
        pa.field("measured_on", pa.date32()),  # null = not stated
        pa.field("publisher", pa.string()),
        pa.field("notes", pa.string()),
    ]
)

# A price of one device: what it is of, the days on which it holds, and when it became known.
PRICE_SCHEMA = pa.schema(
    [
        pa.field("hardware_type", pa.string(), nullable=False),
        pa.field("pool", pa.string(), nullable=False),
        pa.field("price_list", pa.string(), nullable=False),
        pa.field("usd_per_device_hour", pa.float64(), nullable=False),
        pa.field("price_as_listed", pa.float64(), nullable=False),
        pa.field("currency", pa.string(), nullable=False),
        pa.field("valid_from", pa.date32(), nullable=False),
        pa.field("valid_to", pa.date32()),  # the first day on which it no longer holds; null = until the next one
        pa.field("published_by", pa.string()),
        pa.field("is_assumption", pa.bool_(), nullable=False),
        pa.field("note", pa.string()),
    ]
)

# Where a record came from. `slice` is what counts are reconciled by: round/benchmark for MLPerf, the file for other logs.
PROVENANCE_SCHEMA = pa.schema(
    [
        pa.field("source", pa.string(), nullable=False),  # the kind of log: mlperf, jsonl, csv, parquet
        pa.field("slice", pa.string(), nullable=False),
        pa.field("file", pa.string(), nullable=False),
        pa.field("line", pa.int64(), nullable=False),  # 1-based; 0 = the file as a whole
    ]
)

READ_SCHEMA = pa.schema([*PROVENANCE_SCHEMA, *ATTEMPT_SCHEMA])
MEASUREMENT_READ_SCHEMA = pa.schema([*PROVENANCE_SCHEMA, *MEASUREMENT_SCHEMA])

# A record that is not trusted. The first block after provenance is what is known of it, so that an evaluation can count it.
REJECT_SCHEMA = pa.schema(
    [
        *PROVENANCE_SCHEMA,
        pa.field("attempt_id", pa.string()),
        pa.field("job_id", pa.string()),
        pa.field("model_type", pa.string()),
        pa.field("hardware_name", pa.string()),
        pa.field("num_devices", pa.int32()),
        pa.field("started_at", UTC_TIMESTAMP),
        pa.field("ended_at", UTC_TIMESTAMP),
        pa.field("outcome", pa.string()),
        pa.field("reason", pa.string(), nullable=False),  # a short stable code, kebab-case: `unknown-hardware`
        pa.field("detail", pa.string(), nullable=False),  # a sentence: what happened, where, what to do next
        pa.field("record", pa.string()),  # the record itself, as JSON or as text
    ]
)


class RankingRow(_Record):
    """One row of the published ranking: a candidate for a job key. Throughput is of the whole job."""

    schema_version: Literal[1] = RANKING_SCHEMA_VERSION
    ranking_id: str
    generated_at: str
    valid_until: str
    job_key: str
    hardware_type: str
    num_devices: int | None
    pool: str
    rank: int | None
    throughput: float | None
    throughput_p10: float | None
    throughput_p90: float | None
    throughput_unit: str | None
    usd_per_device_hour: float | None
    price_version: str | None
    throughput_per_usd: float | None
    relative_to_best: float | None
    is_near_best: bool
    eligible: bool
    reason: str
    tier: Tier
    model_version: str


# `job_key` is the job's own name, else `model_type@devices`, else `model_type`, else `*`. Aggregate keys carry
# `relative_to_best` and leave throughput, cost and (where they span device counts) `num_devices` empty.
RANKING_SCHEMA = pa.schema(
    [
        pa.field("schema_version", pa.int32(), nullable=False),
        pa.field("ranking_id", pa.string(), nullable=False),
        pa.field("generated_at", UTC_TIMESTAMP, nullable=False),
        pa.field("valid_until", UTC_TIMESTAMP, nullable=False),
        pa.field("job_key", pa.string(), nullable=False),
        pa.field("hardware_type", pa.string(), nullable=False),
        pa.field("num_devices", pa.int32()),
        pa.field("pool", pa.string(), nullable=False),
        pa.field("rank", pa.int32()),
        pa.field("throughput", pa.float64()),  # samples/s of the whole job
        pa.field("throughput_p10", pa.float64()),
        pa.field("throughput_p90", pa.float64()),
        pa.field("throughput_unit", pa.string()),
        pa.field("usd_per_device_hour", pa.float64()),
        pa.field("price_version", pa.string()),
        pa.field("throughput_per_usd", pa.float64()),  # samples per US dollar
        pa.field("relative_to_best", pa.float64()),
        pa.field("is_near_best", pa.bool_(), nullable=False),
        pa.field("eligible", pa.bool_(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("tier", pa.string(), nullable=False),
        pa.field("model_version", pa.string(), nullable=False),
    ]
)
