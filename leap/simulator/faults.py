"""Faults of a log: what goes wrong with one record, and for which reason a reader must not trust it.

What lives here: the catalogue of faults, each with the records it can befall and what it does to them. What does not: how many
records it befalls and where they arrive (`dirt.py`). The reasons are written down here by hand, from the documented rules: a
truth that asked the rules of ingestion themselves could not find them wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from leap.contracts import ATTEMPT_SCHEMA, ThroughputScope, ThroughputUnit
from leap.simulator.models import Floats

Rows = npt.NDArray[np.bool_]
_HOUR_US = 3_600_000_000
_CUT_AT = 60  # bytes that are left of a line that was cut: the attempt's name is among them
# Two factors nearer than this could be taken for each other; a factor below the second is hardly one.
_APART, _CLEAR = 1.25, 1.5


class Kind(StrEnum):
    """Kinds of dirt."""

    DUPLICATE = "duplicate"
    LATE = "late"
    CORRECTED = "corrected"
    WRONG_UNIT = "wrong-unit"
    WRONG_SCOPE = "wrong-scope"
    UNKNOWN_HARDWARE = "unknown-hardware"
    IMPOSSIBLE = "impossible-value"
    MISSING = "missing-field"
    WRONG_TYPE = "wrong-type"
    NOT_JSON = "not-json"
    NOT_UTF8 = "not-utf8"
    NO_OFFSET = "time-without-offset"
    TRUNCATED = "truncated-file"


class Facts(NamedTuple):
    """What decides which faults can befall a record; arrays with one value per attempt."""

    unit: npt.NDArray[np.str_]
    scope: npt.NDArray[np.str_]
    num_devices: Floats
    num_nodes: Floats
    batch: Floats
    tokens: Floats  # NaN = no sequence
    has_steps: Rows  # logs seconds a step, so that a wrong figure can be told from a right one


class Fault(NamedTuple):
    """One thing that goes wrong: `change` is done to records, then `spoil` to their lines (strings in, strings or bytes out)."""

    kind: Kind
    what: str
    reason: str
    change: Callable[[pa.Table], pa.Table] = lambda rows: rows
    spoil: Callable[[pa.ChunkedArray], pa.ChunkedArray] = lambda lines: lines
    befalls: Callable[[Facts], Rows] = lambda facts: np.ones(len(facts.unit), np.bool_)


def facts_of(attempts: pa.Table) -> Facts:
    """Take out of attempts (`ATTEMPT_SCHEMA`) what faults depend on."""

    def text(name: str) -> npt.NDArray[np.str_]:
        return np.asarray(attempts[name].to_numpy(), np.str_)

    def number(name: str) -> Floats:
        return np.asarray(attempts[name].to_numpy(), np.float64)

    return Facts(
        unit=text("throughput_unit"),
        scope=text("throughput_scope"),
        num_devices=number("num_devices"),
        num_nodes=number("num_nodes"),
        batch=number("global_batch_size"),
        tokens=number("sequence_length"),
        has_steps=np.asarray(attempts["step_seconds"].is_valid().to_numpy(), np.bool_),
    )


def _put(name: str, value: Any) -> Callable[[pa.Table], pa.Table]:
    """Give one column one value, null for None."""
    field = ATTEMPT_SCHEMA.field(name)
    scalar = pa.scalar(value, field.type)
    return lambda rows: _with(rows, name, pa.repeat(scalar, rows.num_rows))


def _with(rows: pa.Table, name: str, values: pa.Array | pa.ChunkedArray) -> pa.Table:
    at = ATTEMPT_SCHEMA.get_field_index(name)
    return rows.set_column(at, ATTEMPT_SCHEMA.field(at), values)


def _write(pattern: str, replacement: str) -> Callable[[pa.ChunkedArray], pa.ChunkedArray]:
    """Write a part of each line otherwise, by a regular expression; a backslash and digit stand for a group."""
    return lambda lines: pc.replace_substring_regex(lines, pattern, replacement)


def _cut(lines: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.utf8_slice_codeunits(lines, 0, _CUT_AT)


def _insert_bad_byte(lines: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.binary_replace_slice(lines.cast(pa.binary()), start=2, stop=2, replacement=b"\xff")


def _end_before_start(rows: pa.Table) -> pa.Table:
    ended = pc.subtract(rows["started_at"].cast(pa.int64()), _HOUR_US).cast(rows.schema.field("ended_at").type)
    return _with(rows, "ended_at", ended)


def _tokens_as_samples(rows: pa.Table) -> pa.Table:
    samples = pc.equal(rows["throughput_unit"], ThroughputUnit.SAMPLES.value)
    tokens = pc.multiply(rows["throughput"], rows["sequence_length"])
    return _put("throughput_unit", ThroughputUnit.SAMPLES)(
        _with(rows, "throughput", pc.if_else(samples, tokens, rows["throughput"]))
    )


def _steps_as_samples(rows: pa.Table) -> pa.Table:
    samples = pc.equal(rows["throughput_unit"], ThroughputUnit.SAMPLES.value)
    steps = pc.divide(rows["throughput"], rows["global_batch_size"])
    return _put("throughput_unit", ThroughputUnit.SAMPLES)(
        _with(rows, "throughput", pc.if_else(samples, steps, rows["throughput"]))
    )


def _device_as_job(rows: pa.Table) -> pa.Table:
    whole = pc.equal(rows["throughput_scope"], ThroughputScope.JOB.value)
    share = pc.divide(rows["throughput"], rows["num_devices"].cast(pa.float64()))
    return _put("throughput_scope", ThroughputScope.JOB)(_with(rows, "throughput", pc.if_else(whole, share, rows["throughput"])))


def _differs_by(facts: Facts, factor: Floats) -> Rows:
    """Tell where steps show a figure that is wrong by this factor, which is not also the number of devices or nodes."""
    apart = [np.abs(np.log(factor / other)) > np.log(_APART) for other in (facts.num_devices, facts.num_nodes)]
    return np.asarray(facts.has_steps & (factor > _CLEAR) & apart[0] & apart[1], np.bool_)


def _is_many(facts: Facts) -> Rows:
    return np.asarray(facts.has_steps & (facts.num_devices > 1), np.bool_)


def _missing(name: str, reason: str = "missing-field") -> Fault:
    return Fault(Kind.MISSING, f"no {name}", reason, _put(name, None))


def _impossible(name: str, value: Any, reason: str) -> Fault:
    return Fault(Kind.IMPOSSIBLE, f"{name} {value}", reason, _put(name, value))


_THROUGHPUT = r'"throughput":[^,}]+'

FAULTS: tuple[Fault, ...] = (
    Fault(Kind.WRONG_UNIT, "GFLOP/s", "unknown-unit", _put("throughput_unit", "GFLOP/s")),
    Fault(Kind.WRONG_UNIT, "items", "unknown-unit", _put("throughput_unit", "items")),
    Fault(Kind.WRONG_UNIT, "no unit", "missing-field", _put("throughput_unit", None)),
    Fault(
        Kind.WRONG_UNIT,
        "tokens called samples",
        "unit-disagrees",
        _tokens_as_samples,
        befalls=lambda facts: _differs_by(facts, facts.tokens) & np.isin(facts.unit, ("samples/s", "tokens/s")),
    ),
    Fault(
        Kind.WRONG_UNIT,
        "steps called samples",
        "unit-disagrees",
        _steps_as_samples,
        befalls=lambda facts: _differs_by(facts, facts.batch) & np.isin(facts.unit, ("samples/s", "steps/s")),
    ),
    Fault(
        Kind.WRONG_SCOPE,
        "a device's figure called the job's",
        "scope-disagrees",
        _device_as_job,
        befalls=lambda facts: _is_many(facts) & np.isin(facts.scope, ("job", "device")),
    ),
    Fault(
        Kind.WRONG_SCOPE,
        "the job's figure called a device's",
        "scope-disagrees",
        _put("throughput_scope", ThroughputScope.DEVICE),
        befalls=lambda facts: _is_many(facts) & (facts.scope == "job") & (facts.unit != "steps/s"),
    ),
    Fault(Kind.WRONG_SCOPE, "gpu", "unknown-scope", _put("throughput_scope", "gpu")),
    Fault(Kind.WRONG_SCOPE, "no scope", "missing-field", _put("throughput_scope", None)),
    *(
        Fault(Kind.UNKNOWN_HARDWARE, name, "unknown-hardware", _put("hardware_name", name))
        for name in ("Photon Q9 128GB", "gpu-large", "accelerator")
    ),
    _impossible("throughput", 0.0, "bad-throughput"),
    _impossible("throughput", -5.0, "bad-throughput"),
    _impossible("throughput", 1e300, "bad-throughput"),
    Fault(Kind.IMPOSSIBLE, "throughput NaN", "not-json", spoil=_write(_THROUGHPUT, '"throughput":NaN')),
    Fault(Kind.IMPOSSIBLE, "throughput Infinity", "not-json", spoil=_write(_THROUGHPUT, '"throughput":Infinity')),
    Fault(Kind.IMPOSSIBLE, "throughput 1e999", "wrong-type", spoil=_write(_THROUGHPUT, '"throughput":1e999')),
    Fault(Kind.IMPOSSIBLE, "end before start", "bad-time", _end_before_start),
    _impossible("started_at", datetime(1970, 1, 1, tzinfo=UTC), "bad-time"),
    _impossible("ended_at", datetime(2099, 1, 1, tzinfo=UTC), "bad-time"),
    _impossible("num_devices", 0, "bad-device-count"),
    _impossible("num_devices", -4, "bad-device-count"),
    _impossible("global_batch_size", -8.0, "bad-value"),
    *(_missing(name) for name in ("attempt_id", "model_type", "started_at", "outcome", "num_devices", "hardware_name")),
    _missing("ended_at", "not-finished"),
    _missing("throughput", "bad-throughput")._replace(befalls=lambda facts: ~facts.has_steps),
    Fault(Kind.WRONG_TYPE, "devices as words", "wrong-type", spoil=_write(r'"num_devices":(\d+)', r'"num_devices":"\1 GPUs"')),
    Fault(Kind.WRONG_TYPE, "half a device", "wrong-type", spoil=_write(r'"num_devices":(\d+)', r'"num_devices":\1.5')),
    Fault(Kind.WRONG_TYPE, "throughput as text", "wrong-type", spoil=_write(r'"throughput":([^,}]+)', r'"throughput":"\1"')),
    Fault(Kind.WRONG_TYPE, "time as a number", "wrong-type", spoil=_write(r'"started_at":"[^"]*"', '"started_at":1772355600')),
    Fault(Kind.WRONG_TYPE, "yes for true", "wrong-type", spoil=_write(r'"pinned":(true|false)', '"pinned":"yes"')),
    Fault(Kind.NOT_JSON, "cut line", "not-json", spoil=_cut),
    Fault(Kind.NOT_JSON, "other quotes", "not-json", spoil=_write('"', "'")),
    Fault(Kind.NOT_UTF8, "a byte of Latin-1", "not-utf8", spoil=_insert_bad_byte),
    Fault(Kind.NO_OFFSET, "started_at", "bad-time", spoil=_write(r'("started_at":"[^"]*)Z"', r'\1"')),
    Fault(Kind.NO_OFFSET, "ended_at", "bad-time", spoil=_write(r'("ended_at":"[^"]*)Z"', r'\1"')),
)
