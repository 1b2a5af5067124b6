"""Admission: the first broken rule names the reason, and each attempt stands in exactly one table."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leap.contracts import ATTEMPT_SCHEMA, READ_SCHEMA, REJECT_SCHEMA
from leap.params import IngestParams
from leap.sources import jsonl
from leap.sources.admission import ADMITTED_SCHEMA, admit

PARAMS = IngestParams(max_label_disagreement=0.05, min_steady_seconds=20)
START = datetime(2026, 3, 1, tzinfo=UTC)
RECEIVED = START + timedelta(days=2)
HARDWARE = pa.table(
    {
        "hardware_name": ["NVIDIA A100-SXM4-80GB", "Tesla T4", "mystery"],
        "hardware_type": ["A100-80GB-SXM4", "T4", None],
        "reason": [None, None, "'mystery' is unknown; add a line that says what it is"],
    }
)
GOOD: dict[str, Any] = {
    "source": "jsonl",
    "slice": "log.jsonl",
    "file": "logs/log.jsonl",
    "line": 12,
    "attempt_id": "a1",
    "segment_number": 2,
    "job_id": "nightly",
    "submitted_at": START - timedelta(minutes=5),
    "started_at": START,
    "ended_at": START + timedelta(hours=1),
    "known_at": START + timedelta(hours=2),
    "outcome": "succeeded",
    "model_type": "bert",
    "global_batch_size": 64.0,
    "sequence_length": 512.0,
    "num_nodes": 1,
    "num_devices": 8,
    "config": '{"rate":0.1}',
    "hardware_name": "NVIDIA A100-SXM4-80GB",
    "throughput": 100.0,
    "throughput_unit": "samples/s",
    "throughput_scope": "job",
    "steady_seconds": 3000.0,
    "warmup_seconds": 60.0,
}


def table(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist([{**GOOD, **row} for row in rows], READ_SCHEMA)


def test_a_good_attempt_is_kept_as_it_came_with_its_hardware_type() -> None:
    attempts = table({}, {"hardware_name": "Tesla T4", "attempt_id": "a2"})
    kept, rejects = admit(attempts, HARDWARE, PARAMS, RECEIVED)
    assert kept.schema == ADMITTED_SCHEMA
    assert rejects.schema == REJECT_SCHEMA
    assert rejects.num_rows == 0
    assert kept.select(attempts.column_names).equals(attempts)
    assert kept["hardware_type"].to_pylist() == ["A100-80GB-SXM4", "T4"]


def test_a_missing_segment_number_is_one_and_a_missing_job_stays_missing() -> None:
    kept, _ = admit(table({"segment_number": None, "job_id": None}), HARDWARE, PARAMS, RECEIVED)
    assert (kept["segment_number"].to_pylist(), kept["job_id"].to_pylist()) == ([1], [None])


@pytest.mark.parametrize(
    ("change", "reason", "shown"),
    [
        ({"attempt_id": None}, "missing-field", "attempt_id is empty"),
        ({"attempt_id": "  "}, "missing-field", "attempt_id is empty"),
        ({"model_type": ""}, "missing-field", "model_type is empty"),
        ({"started_at": None}, "missing-field", "started_at is empty"),
        ({"model_type": "bert\x1fT4"}, "bad-name", "model_type holds the control character"),
        ({"job_id": "nightly\x00"}, "bad-name", "job_id holds the control character"),
        ({"job_id": " * "}, "bad-name", "job_id is *, the ranking's key of all jobs together"),
        ({"model_type": "*"}, "bad-name", "model_type is *"),
        ({"outcome": None}, "missing-field", "outcome is empty"),
        ({"outcome": "COMPLETED"}, "unknown-outcome", "outcome is COMPLETED; it must be one of succeeded, failed"),
        ({"outcome": "running"}, "not-finished", "outcome is running"),
        ({"ended_at": None}, "not-finished", "ended_at is empty"),
        ({"num_devices": None}, "missing-field", "num_devices is empty"),
        ({"num_devices": 0}, "bad-device-count", "num_devices is 0"),
        ({"num_devices": -4}, "bad-device-count", "num_devices is -4"),
        ({"num_devices": 1_000_000_000}, "bad-device-count", "num_devices is 1000000000; it must be 1 or more, at most"),
        ({"num_nodes": 0}, "bad-device-count", "num_nodes is 0"),
        ({"hardware_name": None}, "missing-field", "hardware_name is empty"),
        ({"hardware_name": "mystery"}, "unknown-hardware", "'mystery' is unknown; add a line"),
        ({"hardware_name": "never looked up"}, "unknown-hardware", "was not looked up"),
        ({"started_at": datetime(1970, 1, 1, tzinfo=UTC)}, "bad-time", "started_at is 1970-01-01"),
        ({"submitted_at": datetime(1970, 1, 1, tzinfo=UTC)}, "bad-time", "submitted_at is 1970-01-01"),
        ({"known_at": datetime(2200, 1, 1, tzinfo=UTC)}, "bad-time", "known_at is 2200-01-01"),
        ({"known_at": datetime(2099, 1, 1, tzinfo=UTC)}, "bad-time", "known_at is 2099-01-01 00:00:00.000000Z, but the log was"),
        ({"ended_at": RECEIVED + timedelta(hours=2)}, "bad-time", "was received at 2026-03-03 00:00:00Z; check the clock"),
        ({"ended_at": datetime(9999, 12, 31, tzinfo=UTC)}, "bad-time", "ended_at is 9999-12-31"),
        ({"ended_at": START}, "bad-time", "is not after started_at 2026-03-01"),
        ({"ended_at": START - timedelta(days=1)}, "bad-time", "ended_at 2026-02-28"),
        ({"submitted_at": START + timedelta(days=1)}, "bad-time", "submitted_at 2026-03-02"),
        ({"throughput": None}, "bad-throughput", "throughput is empty"),
        ({"throughput": 0.0}, "bad-throughput", "throughput is 0"),
        ({"throughput": -5.0}, "bad-throughput", "throughput is -5"),
        ({"throughput": math.nan}, "bad-throughput", "throughput is nan"),
        ({"throughput": math.inf}, "bad-throughput", "throughput is inf"),
        ({"throughput": 1e308}, "bad-throughput", "throughput is 1e+308; it must be a number above 0, from 1e-09 to 1e+15"),
        ({"throughput": 5e-324}, "bad-throughput", "throughput is 5e-324"),
        ({"throughput_unit": None}, "missing-field", "throughput_unit is empty"),
        ({"throughput_unit": "images/s"}, "unknown-unit", "throughput_unit is images/s; it must be one of samples/s"),
        ({"throughput_scope": None}, "missing-field", "throughput_scope is empty"),
        ({"throughput_scope": "rack"}, "unknown-scope", "throughput_scope is rack; it must be one of job, node"),
        ({"global_batch_size": 0.0}, "bad-value", "global_batch_size is 0"),
        ({"global_batch_size": 1e300}, "bad-value", "global_batch_size is 1e+300; it must be a number above 0, from 1e-06"),
        ({"sequence_length": 1e-300}, "bad-value", "sequence_length is 1e-300"),
        ({"parameters_m": math.nan}, "bad-value", "parameters_m is nan"),
        ({"sequence_length": -1.0, "throughput_unit": "tokens/s"}, "bad-value", "sequence_length is -1"),
        ({"warmup_seconds": -1.0}, "bad-value", "warmup_seconds is -1"),
        (
            {"throughput_unit": "tokens/s", "sequence_length": None},
            "unconvertible-unit",
            "tokens/s and sequence_length is empty",
        ),
        ({"throughput_unit": "steps/s", "global_batch_size": None}, "unconvertible-unit", "steps/s and global_batch_size is"),
        ({"throughput_scope": "node", "num_nodes": None}, "missing-field", "node and num_nodes is empty"),
        ({"steady_seconds": 19.5}, "too-short", "over 19.5 s; attempts with at least 20 s"),
        ({"steady_seconds": math.nan}, "too-short", "over nan s"),
        ({"steady_seconds": None, "warmup_seconds": 3590.0}, "too-short", "over 10 s"),
    ],
)
def test_what_breaks_a_rule_is_a_reject_that_shows_the_value(change: dict[str, Any], reason: str, shown: str) -> None:
    # given one attempt that breaks one rule, among good ones
    kept, rejects = admit(table({}, change, {}), HARDWARE, PARAMS, RECEIVED)
    # then it alone is rejected, with code, place and sentence
    assert kept.num_rows == 2
    (reject,) = rejects.to_pylist()
    assert reject["reason"] == reason
    assert reject["detail"].startswith("logs/log.jsonl, line 12: ")
    assert shown in reject["detail"]


@pytest.mark.parametrize(
    "change",
    [
        {"throughput_unit": "tokens/s"},
        {"throughput_unit": "steps/s"},
        {"throughput_scope": "node"},
        {"throughput_scope": "device", "num_nodes": None},
        {"steady_seconds": None},
        {"steady_seconds": None, "warmup_seconds": None},
        {"steady_seconds": 20.0},
        {"submitted_at": None, "known_at": None},
        {"global_batch_size": None, "sequence_length": None},
        {"outcome": "preempted"},
        {"outcome": "failed"},
        {"outcome": "cancelled"},
        {"known_at": RECEIVED + timedelta(minutes=5)},
        {"job_id": "crazy|name\nof two lines", "model_type": "😀 {{ 1/0 }} '; drop table x; --"},
    ],
)
def test_what_can_be_learned_from_is_kept(change: dict[str, Any]) -> None:
    kept, rejects = admit(table(change), HARDWARE, PARAMS, RECEIVED)
    assert (kept.num_rows, rejects.num_rows) == (1, 0)


def test_the_first_broken_rule_names_the_reason() -> None:
    everything = {"attempt_id": None, "outcome": "running", "num_devices": 0, "hardware_name": "mystery", "throughput": -1.0}
    fixed_in_turn = [{key: everything[key] for key in list(everything)[at:]} for at in range(len(everything))]
    _, rejects = admit(table(*fixed_in_turn), HARDWARE, PARAMS, RECEIVED)
    assert rejects["reason"].to_pylist() == [
        "missing-field",
        "not-finished",
        "bad-device-count",
        "unknown-hardware",
        "bad-throughput",
    ]


def test_one_bad_throughput_among_many_good_costs_no_good_one() -> None:
    # given the good rows and three that would wreck a logarithm
    rows = [{"attempt_id": f"a{number}"} for number in range(300)]
    bad = [{"attempt_id": f"b{number}", "throughput": value} for number, value in enumerate((0.0, -5.0, None))]
    kept, rejects = admit(table(*rows[:100], *bad, *rows[100:]), HARDWARE, PARAMS, RECEIVED)
    assert kept["attempt_id"].to_pylist() == [row["attempt_id"] for row in rows]
    assert rejects["attempt_id"].to_pylist() == ["b0", "b1", "b2"]


def test_a_reject_keeps_what_is_known_and_its_record_can_be_read_again(tmp_path: Path) -> None:
    # given a rejected attempt
    attempts = table({"throughput": -5.0, "eligible_hardware": '["T4"]', "pinned": True})
    _, rejects = admit(attempts, HARDWARE, PARAMS, RECEIVED)
    (reject,) = rejects.to_pylist()
    assert (reject["attempt_id"], reject["job_id"], reject["num_devices"], reject["started_at"]) == ("a1", "nightly", 8, START)
    assert json.loads(reject["record"])["config"] == {"rate": 0.1}
    # when its record is read as a line of its own
    path = tmp_path / "again.jsonl"
    path.write_text(reject["record"])
    (batch,) = jsonl.read([path], PARAMS)
    # then it is the same attempt
    assert batch.attempts.select(ATTEMPT_SCHEMA.names).equals(attempts.select(ATTEMPT_SCHEMA.names))


def test_no_attempts_and_no_hardware_give_empty_tables() -> None:
    kept, rejects = admit(READ_SCHEMA.empty_table(), HARDWARE.slice(0, 0), PARAMS, RECEIVED)
    assert (kept.schema, kept.num_rows) == (ADMITTED_SCHEMA, 0)
    assert (rejects.schema, rejects.num_rows) == (REJECT_SCHEMA, 0)


CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "attempt_id": st.sampled_from([None, "", "a"]),
        "segment_number": st.sampled_from([None, 1, 3]),
        "outcome": st.sampled_from([None, "running", "failed", "succeeded", "odd"]),
        "started_at": st.sampled_from([None, START, datetime(1970, 1, 1, tzinfo=UTC)]),
        "ended_at": st.sampled_from([None, START, START + timedelta(seconds=5), START + timedelta(hours=3)]),
        "num_devices": st.sampled_from([None, -1, 0, 1, 8]),
        "num_nodes": st.sampled_from([None, 0, 1]),
        "hardware_name": st.sampled_from([None, "mystery", "Tesla T4", "x"]),
        "throughput": st.one_of(st.none(), st.floats()),
        "throughput_unit": st.sampled_from([None, "samples/s", "tokens/s", "steps/s", "x"]),
        "throughput_scope": st.sampled_from([None, "job", "node", "device", "x"]),
        "global_batch_size": st.one_of(st.none(), st.floats()),
        "sequence_length": st.one_of(st.none(), st.floats()),
        "steady_seconds": st.one_of(st.none(), st.floats()),
        "warmup_seconds": st.one_of(st.none(), st.floats()),
    },
)


@given(changes=st.lists(CHANGES, max_size=8))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_kept_and_rejects_are_what_was_read(changes: list[dict[str, Any]]) -> None:
    # given attempts of any kind, each on a line of its own
    attempts = table(*({**change, "line": line} for line, change in enumerate(changes)))
    # when they are admitted
    kept, rejects = admit(attempts, HARDWARE, PARAMS, RECEIVED)
    # then each line is in one table, in order
    lines = [*kept["line"].to_pylist(), *rejects["line"].to_pylist()]
    assert sorted(lines) == list(range(len(changes)))
    assert kept["line"].to_pylist() == sorted(kept["line"].to_pylist())
    assert rejects["line"].to_pylist() == sorted(rejects["line"].to_pylist())
    # and what is kept has a label, a time, a device count and a hardware type
    for row in kept.to_pylist():
        assert math.isfinite(row["throughput"])
        assert row["throughput"] > 0
        assert row["ended_at"] > row["started_at"]
        assert row["num_devices"] >= 1
        assert row["hardware_type"] is not None
        assert row["throughput_unit"] != "tokens/s" or row["sequence_length"] > 0
        assert row["throughput_unit"] != "steps/s" or row["global_batch_size"] > 0
        assert row["throughput_scope"] != "node" or row["num_nodes"] >= 1
