"""Which of the attempts that were read may be learned from: field checks that all kinds of log share, and resolved hardware.

What lives here: one list of rules, applied to whole tables; the first rule that a record breaks names its reason. What does
not: how a spelling of hardware is resolved (`leap.hardware.names`), what a label is where the record contradicts itself
(`labels.py`), duplicates and storage (`leap.store.warehouse`), and any conversion: a throughput that is trusted stays as it came.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from leap.contracts import (
    READ_SCHEMA,
    REJECT_SCHEMA,
    UTC_TIMESTAMP,
    Outcome,
    ThroughputScope,
    ThroughputUnit,
)
from leap.params import IngestParams
from leap.sources.jsonl import render
from leap.sources.labels import LABEL_COLUMNS, LabelProblem, settle

ADMITTED_SCHEMA = pa.schema([*READ_SCHEMA, pa.field("hardware_type", pa.string()), *LABEL_COLUMNS])

# A time outside of these is a mistake of units or an empty value written as zero.
EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)
LATEST = datetime(2100, 1, 1, tzinfo=UTC)
# By so much the clock of a log may be ahead of this machine's.
CLOCK_TOLERANCE = timedelta(hours=1)

# Outside of these a number is a mistake, and one such label or size would outweigh all others in sums and logarithms.
_LEAST_THROUGHPUT, _MOST_THROUGHPUT = 1e-9, 1e15
_LEAST_SIZE, _MOST_SIZE = 1e-6, 1e15
_MOST_DEVICES = 10_000_000

# Names that make the keys of history and of the ranking; the keys join them with U+001F.
_NAMES = (
    "attempt_id",
    "job_id",
    "team",
    "model_type",
    "task",
    "framework",
    "framework_version",
    "precision",
    "optimizer",
    "pool",
)
_NO_NAME = r"[\x00\x1f]"
_ALL_JOBS = "*"

# Where given, these must be within the limits of sizes: they are counts and sizes, and later steps take their logarithm.
_POSITIVE = (
    "global_batch_size",
    "per_device_batch_size",
    "gradient_accumulation_steps",
    "sequence_length",
    "image_size",
    "parameters_m",
    "data_parallel",
    "tensor_parallel",
    "pipeline_parallel",
)


class Admission(NamedTuple):
    """Each attempt stands in exactly one: ``kept`` (`ADMITTED_SCHEMA`) or ``rejects`` (`REJECT_SCHEMA`)."""

    kept: pa.Table
    rejects: pa.Table


class _Rule(NamedTuple):
    """A reason, which rows break it, and the sentence for each of the rows handed in."""

    reason: str
    breaks: Callable[[pa.Table], pa.ChunkedArray]
    detail: Callable[[pa.Table], pa.ChunkedArray]


def admit(attempts: pa.Table, hardware: pa.Table, params: IngestParams, received_at: datetime) -> Admission:
    """Part `attempts` (`READ_SCHEMA`) into those that may be learned from and those that go to quarantine.

    `hardware` gives for each distinct spelling of ``hardware_name`` its ``hardware_type`` (null where it is not known) and the
    ``reason`` it is not known. `received_at` (UTC) is when the log arrived: nothing in it can have ended later. Kept rows keep
    their order, have ``segment_number`` 1 where none was given, and end in ``hardware_type`` and `LABEL_COLUMNS`. Reasons, in the
    order they are tried: ``missing-field``, ``bad-name``, ``unknown-outcome``, ``not-finished``, ``bad-device-count``,
    ``unknown-hardware``, ``bad-time``, ``bad-throughput``, ``unknown-unit``, ``unknown-scope``, ``bad-value``,
    ``unconvertible-unit``, ``too-short``, ``scope-disagrees``, ``unit-disagrees``, ``label-disagrees``. A reject's ``record`` is
    the attempt as a line of JSON.
    """
    # A log with many bad lines is read in many pieces, and each step would go over every piece.
    received = _with_hardware(attempts.combine_chunks(), hardware)
    rows = settle(received, params.max_label_disagreement)
    rules = tuple(_rules(params, received_at))
    broken = _first_broken(rows, rules)
    kept = rows.filter(pc.is_null(broken)).select(ADMITTED_SCHEMA.names).cast(ADMITTED_SCHEMA)
    return Admission(kept, _rejects(rows, received, broken, rules))


def _with_hardware(attempts: pa.Table, hardware: pa.Table) -> pa.Table:
    """Add what the resolver says, in the rows' own order (a join of tables would not keep it)."""
    names = hardware["hardware_name"].combine_chunks()
    at = pc.index_in(attempts["hardware_name"], value_set=names, skip_nulls=True)
    segment = attempts.schema.get_field_index("segment_number")
    return (
        attempts.set_column(segment, "segment_number", pc.fill_null(attempts["segment_number"], 1))
        .append_column("hardware_type", hardware["hardware_type"].take(at))
        .append_column("unknown_because", pc.fill_null(hardware["reason"].take(at), "its spelling was not looked up"))
    )


def _first_broken(rows: pa.Table, rules: Sequence[_Rule]) -> pa.ChunkedArray:
    """Give the number of the first rule that each row breaks, null where it breaks none."""
    broken = pa.chunked_array([pa.nulls(rows.num_rows, pa.int32())])
    for number, rule in reversed(list(enumerate(rules))):
        broken = pc.if_else(pc.fill_null(rule.breaks(rows), False), pa.scalar(number, pa.int32()), broken)
    return broken


def _rejects(rows: pa.Table, received: pa.Table, broken: pa.ChunkedArray, rules: Sequence[_Rule]) -> pa.Table:
    """Give the rejects in the rows' own order; sentences are made for them alone, records of what was received."""
    if broken.null_count == len(broken):  # also of no rows: Arrow finds no indices in a column without chunks
        return REJECT_SCHEMA.empty_table()
    all_at = pc.indices_nonzero(pc.is_valid(broken))
    rejected, records, broken = rows.take(all_at), render(received.take(all_at)), broken.take(all_at)
    numbers = pc.unique(broken).to_pylist()
    at = [pc.indices_nonzero(pc.equal(broken, number)) for number in numbers]
    tables = [
        _rejects_of(rejected.take(of_rule), records.take(of_rule), rules[number])
        for number, of_rule in zip(numbers, at, strict=True)
    ]
    return pa.concat_tables(tables).take(pc.sort_indices(pa.concat_arrays(at)))


def _rejects_of(rows: pa.Table, records: pa.ChunkedArray, rule: _Rule) -> pa.Table:
    where = pc.binary_join_element_wise(rows["file"], ", line ", rows["line"].cast(pa.string()), ": ", "")
    made = {
        "reason": pa.repeat(rule.reason, rows.num_rows),
        "detail": pc.binary_join_element_wise(where, rule.detail(rows), ""),
        "record": records,
    }
    return pa.table([made[name] if name in made else rows[name] for name in REJECT_SCHEMA.names], schema=REJECT_SCHEMA)


def _rules(params: IngestParams, received_at: datetime) -> Iterator[_Rule]:
    yield from map(_missing, ("attempt_id", "model_type", "started_at", "outcome"))
    yield from _name_rules()
    yield _not_among("unknown-outcome", "outcome", Outcome)
    yield _Rule(
        "not-finished",
        lambda rows: pc.or_kleene(pc.is_null(rows["ended_at"]), pc.equal(rows["outcome"], Outcome.RUNNING.value)),
        _say("outcome is ", "{outcome}", " and ended_at is ", "{ended_at}", "; load the record that tells how it ended."),
    )
    yield _missing("num_devices")
    for name in ("num_devices", "num_nodes"):
        sentence = _say(f"{name} is ", f"{{{name}}}", f"; it must be 1 or more, at most {_MOST_DEVICES:,}.")
        yield _Rule("bad-device-count", _is_no_count(name), sentence)
    yield _missing("hardware_name")
    yield _Rule(
        "unknown-hardware",
        lambda rows: pc.is_null(rows["hardware_type"]),
        _say("hardware_name: ", "{unknown_because}", "."),
    )
    yield from _time_rules(received_at)
    yield from _throughput_rules()
    yield from _step_rules()
    yield _Rule(
        "too-short",
        lambda rows: pc.invert(pc.greater_equal(_measured_seconds(rows), params.min_steady_seconds)),
        lambda rows: pc.binary_join_element_wise(
            "throughput was measured over ",
            _measured_seconds(rows).cast(pa.string()),
            f" s; attempts with at least {params.min_steady_seconds:g} s are learned from (ingest.min_steady_seconds).",
            "",
        ),
    )
    for problem in LabelProblem:
        yield _Rule(problem.value, _is(problem.value, "label_problem"), _say("{label_detail}"))


def _name_rules() -> Iterator[_Rule]:
    for name in _NAMES:
        yield _Rule(
            "bad-name",
            _holds_separator(name),
            _say(f"{name} holds the control character U+0000 or U+001F, which no name of LEAP may hold; write it without."),
        )
    for name in ("job_id", "model_type"):
        yield _Rule(
            "bad-name",
            _is_text(name, _ALL_JOBS),
            _say(f"{name} is {_ALL_JOBS}, the ranking's key of all jobs together; name it otherwise."),
        )


def _time_rules(received_at: datetime) -> Iterator[_Rule]:
    for name in ("submitted_at", "started_at", "ended_at", "known_at"):
        yield _Rule(
            "bad-time",
            _is_implausible(name),
            _say(f"{name} is ", f"{{{name}}}", f"; times from {EARLIEST.year} up to {LATEST.year} are taken."),
        )
    for name in ("ended_at", "known_at"):
        yield _Rule(
            "bad-time",
            _is_after(name, received_at + CLOCK_TOLERANCE),
            _say(
                f"{name} is ",
                f"{{{name}}}",
                f", but the log was received at {received_at:%Y-%m-%d %H:%M:%S}Z; check the clock or the zone of the log.",
            ),
        )
    yield _Rule(
        "bad-time",
        lambda rows: pc.less_equal(rows["ended_at"], rows["started_at"]),
        _say("ended_at ", "{ended_at}", " is not after started_at ", "{started_at}", "; check the clock or the zone of the log."),
    )
    # Such an attempt would be known at the cut of its own night.
    yield _Rule(
        "bad-time",
        lambda rows: pc.greater(rows["submitted_at"], rows["ended_at"]),
        _say("submitted_at ", "{submitted_at}", " is after ended_at ", "{ended_at}", "; check the clock or the zone of the log."),
    )


def _throughput_rules() -> Iterator[_Rule]:
    yield _Rule(
        "bad-throughput",
        lambda rows: pc.invert(pc.fill_null(_is_within(rows["throughput"], _LEAST_THROUGHPUT, _MOST_THROUGHPUT), False)),
        _say(
            *("throughput is ", "{throughput}"),
            f"; it must be a number above 0, from {_LEAST_THROUGHPUT:g} to {_MOST_THROUGHPUT:g}.",
        ),
    )
    yield _missing("throughput_unit")
    yield _not_among("unknown-unit", "throughput_unit", ThroughputUnit)
    yield _missing("throughput_scope")
    yield _not_among("unknown-scope", "throughput_scope", ThroughputScope)
    for name in _POSITIVE:
        yield _Rule(
            "bad-value",
            _is_no_size(name),
            _say(
                f"{name} is ",
                f"{{{name}}}",
                f"; it must be a number above 0, from {_LEAST_SIZE:g} to {_MOST_SIZE:g}, or left out.",
            ),
        )
    yield _Rule(
        "bad-value",
        lambda rows: pc.invert(pc.and_(pc.is_finite(rows["warmup_seconds"]), pc.greater_equal(rows["warmup_seconds"], 0))),
        _say("warmup_seconds is ", "{warmup_seconds}", "; it must be a finite number from 0 up, or left out."),
    )
    yield _needs("unconvertible-unit", "throughput_unit", ThroughputUnit.TOKENS, "sequence_length")
    yield _needs("unconvertible-unit", "throughput_unit", ThroughputUnit.STEPS, "global_batch_size")
    yield _needs("missing-field", "throughput_scope", ThroughputScope.NODE, "num_nodes")


def _step_rules() -> Iterator[_Rule]:
    yield _Rule(
        "bad-value",
        lambda rows: pc.invert(_is_within(rows["step_seconds"], _LEAST_SIZE, _MOST_SIZE)),
        _say("step_seconds is ", "{step_seconds}", "; it must be a number of seconds above 0, or left out."),
    )
    for name in ("start_step", "end_step"):
        sentence = _say(f"{name} is ", f"{{{name}}}", "; it must be a count of steps from 0 up, or left out.")
        yield _Rule("bad-value", _is_no_step(name), sentence)
    yield _Rule(
        "bad-value",
        lambda rows: pc.less_equal(rows["end_step"], rows["start_step"]),
        _say("end_step ", "{end_step}", " is not after start_step ", "{start_step}", "; both count the steps of the job."),
    )
    yield _Rule(
        "unconvertible-unit",
        lambda rows: pc.and_(
            _is(ThroughputUnit.STEPS.value, "throughput_unit")(rows),
            pc.not_equal(rows["throughput_scope"], ThroughputScope.JOB.value),
        ),
        _say(
            "throughput is in steps/s of a ",
            "{throughput_scope}",
            "; a step is one of the whole job: write throughput_scope job.",
        ),
    )


def _is(value: str, name: str) -> Callable[[pa.Table], pa.ChunkedArray]:
    return lambda rows: pc.equal(rows[name], value)


def _missing(name: str) -> _Rule:
    def breaks(rows: pa.Table) -> pa.ChunkedArray:
        column = rows[name]
        if not pa.types.is_string(column.type):
            return pc.is_null(column)
        return pc.or_kleene(pc.is_null(column), pc.equal(pc.utf8_trim_whitespace(column), ""))

    return _Rule("missing-field", breaks, _say(f"{name} is empty; an attempt without it cannot be learned from."))


def _not_among(reason: str, name: str, known: type[StrEnum]) -> _Rule:
    values = [value.value for value in known]
    return _Rule(
        reason,
        lambda rows: pc.invert(pc.is_in(rows[name], value_set=pa.array(values))),
        _say(f"{name} is ", f"{{{name}}}", f"; it must be one of {', '.join(values)}."),
    )


def _needs(reason: str, name: str, value: str, needed: str) -> _Rule:
    return _Rule(
        reason,
        lambda rows: pc.and_(pc.equal(rows[name], value), pc.is_null(rows[needed])),
        _say(f"{name} is {value} and {needed} is empty; throughput cannot be turned into samples/s of the whole job."),
    )


def _is_no_count(name: str) -> Callable[[pa.Table], pa.ChunkedArray]:
    return lambda rows: pc.invert(_is_within(rows[name], 1, _MOST_DEVICES))


def _is_no_step(name: str) -> Callable[[pa.Table], pa.ChunkedArray]:
    return lambda rows: pc.invert(_is_within(rows[name], 0, _MOST_SIZE))


def _holds_separator(name: str) -> Callable[[pa.Table], pa.ChunkedArray]:
    return lambda rows: pc.match_substring_regex(rows[name], _NO_NAME)


def _is_text(name: str, text: str) -> Callable[[pa.Table], pa.ChunkedArray]:
    return lambda rows: pc.equal(pc.utf8_trim_whitespace(rows[name]), text)


def _is_after(name: str, time: datetime) -> Callable[[pa.Table], pa.ChunkedArray]:
    return lambda rows: pc.greater(rows[name], pa.scalar(time, UTC_TIMESTAMP))


def _is_implausible(name: str) -> Callable[[pa.Table], pa.ChunkedArray]:
    earliest, latest = (pa.scalar(time, UTC_TIMESTAMP) for time in (EARLIEST, LATEST))
    return lambda rows: pc.or_(pc.less(rows[name], earliest), pc.greater_equal(rows[name], latest))


def _is_within(column: pa.ChunkedArray, least: float, most: float) -> pa.ChunkedArray:
    """Tell which values lie from `least` to `most`; not a number lies nowhere."""
    return pc.and_(pc.greater_equal(column, least), pc.less_equal(column, most))


def _is_no_size(name: str) -> Callable[[pa.Table], pa.ChunkedArray]:
    return lambda rows: pc.invert(_is_within(rows[name], _LEAST_SIZE, _MOST_SIZE))


def _measured_seconds(rows: pa.Table) -> pa.ChunkedArray:
    """Give the steady time, or where it was not logged the whole time less warm-up."""
    microseconds = pc.subtract(rows["ended_at"], rows["started_at"]).cast(pa.int64())
    # not a safe cast: between implausible times lie more microseconds than a double can hold to the last one
    whole = pc.divide(microseconds.cast(pa.float64(), safe=False), 1e6)
    return pc.coalesce(rows["steady_seconds"], pc.subtract(whole, pc.fill_null(rows["warmup_seconds"], 0.0)))


def _say(*parts: str) -> Callable[[pa.Table], pa.ChunkedArray]:
    """Make a sentence of plain parts and of ``{column}`` parts that stand for the row's value."""

    def detail(rows: pa.Table) -> pa.ChunkedArray:
        texts = [rows[part[1:-1]].cast(pa.string()) if part.startswith("{") else part for part in parts]
        first = pa.repeat("", rows.num_rows)  # makes the sentence as long as the rows where all parts are plain
        return pc.binary_join_element_wise(first, *texts, "", null_handling="replace", null_replacement="empty")

    return detail
