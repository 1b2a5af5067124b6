"""A label is what its steps say: of the whole job, in samples, at steady state. Values of reported faults."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from leap.contracts import READ_SCHEMA
from leap.params import IngestParams
from leap.sources.admission import admit
from leap.sources.labels import whole_job

PARAMS = IngestParams(max_label_disagreement=0.05, min_steady_seconds=20)
START = datetime(2026, 3, 1, tzinfo=UTC)
HARDWARE = pa.table({"hardware_name": ["H100"], "hardware_type": ["H100-80GB-SXM5"], "reason": pa.nulls(1, pa.string())})
GOOD: dict[str, Any] = {
    "source": "jsonl",
    "slice": "log.jsonl",
    "file": "log.jsonl",
    "line": 1,
    "attempt_id": "a",
    "started_at": START,
    "ended_at": START + timedelta(hours=1),
    "outcome": "succeeded",
    "model_type": "bert",
    "global_batch_size": 32.0,
    "num_nodes": 1,
    "num_devices": 8,
    "hardware_name": "H100",
    "throughput": 320.0,
    "throughput_unit": "samples/s",
    "throughput_scope": "job",
    "steady_seconds": 100.0,
    "start_step": 0.0,
    "end_step": 1000.0,
}


def settled(**changes: Any) -> dict[str, Any]:
    """Admit one attempt; give what was kept of it, or its reason and detail."""
    admission = admit(pa.Table.from_pylist([GOOD | changes], READ_SCHEMA), HARDWARE, PARAMS, START + timedelta(days=1))
    kept, rejects = admission.kept.to_pylist(), admission.rejects.to_pylist()
    assert len(kept) + len(rejects) == 1
    return (kept or rejects)[0]


def label(**changes: Any) -> tuple[float, str, str, str | None, float | None]:
    row = settled(**changes)
    return tuple(
        row[name] for name in ("throughput", "throughput_unit", "throughput_scope", "label_rule", "throughput_as_logged")
    )


def test_a_figure_that_agrees_with_its_steps_stays_as_logged() -> None:
    assert label(throughput=325.0) == (325.0, "samples/s", "job", None, None)
    assert label(throughput=10.0, throughput_unit="steps/s") == (10.0, "steps/s", "job", None, None)
    # and one that nothing is known about besides
    assert label(throughput=7.0, start_step=None) == (7.0, "samples/s", "job", None, None)
    assert label(throughput=7.0, global_batch_size=None) == (7.0, "samples/s", "job", None, None)


def test_a_counter_that_went_on_after_a_resume_is_not_believed() -> None:
    # given: trouble 27: resumed at step 9,000, counter 10,000, 1,000 steps in 100 s, logged as 100 steps/s
    resumed = {"start_step": 9000.0, "end_step": 10_000.0}

    assert label(throughput=100.0, throughput_unit="steps/s", **resumed) == (
        320.0,
        "samples/s",
        "job",
        "counter-not-reset",
        100.0,
    )
    # 10 steps/s of 32 samples
    assert label(throughput=320.0, **resumed) == (320.0, "samples/s", "job", None, None)


def test_a_figure_per_device_that_is_of_the_job_is_flagged() -> None:
    # given: trouble 28: 8 devices, 4 x 4096 tokens each, 1.93 s a step, 68,000 tokens/s "per device"
    wrong = settled(
        throughput=68_000.0, throughput_unit="tokens/s", throughput_scope="device", sequence_length=4096.0, step_seconds=1.93,
        start_step=None, end_step=None,
    )  # fmt: skip

    assert wrong["reason"] == "scope-disagrees"
    assert "throughput says 132.812 samples/s of the job, its steps say 16.5803, a factor of 8.01" in wrong["detail"]
    assert '"throughput":68000' in wrong["record"]
    # said rightly it is a label
    right = {"throughput_unit": "tokens/s", "sequence_length": 4096.0, "step_seconds": 1.93, "start_step": None}
    assert label(throughput=68_000.0, **right) == (68_000.0, "tokens/s", "job", None, None)
    # the other way round, and by nodes
    assert settled(throughput=40.0)["reason"] == "scope-disagrees"
    assert settled(throughput=80.0, num_nodes=4, num_devices=32)["reason"] == "scope-disagrees"


def test_warm_up_is_not_part_of_a_label() -> None:
    # given: trouble 30: 180 s of compiling, then 60 s at 100 samples/s, logged as 6,000 samples in 240 s
    slow = {
        "ended_at": START + timedelta(seconds=240),
        "steady_seconds": 60.0,
        "warmup_seconds": 180.0,
        "end_step": 6000 / 32,
        "throughput": 25.0,
    }

    assert label(**slow) == (100.0, "samples/s", "job", "warm-up-counted", 25.0)
    assert label(**slow | {"throughput": None}) == (100.0, "samples/s", "job", "from-step-counters", None)
    # without steps nothing contradicts a figure; a steady time that is too short to tell is known as such
    assert settled(**slow | {"steady_seconds": 15.0, "end_step": 1500 / 32, "throughput": 100.0})["reason"] == "too-short"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"throughput": None}, (320.0, "from-step-counters")),
        ({"throughput": None, "end_step": None, "step_seconds": 0.1}, (320.0, "from-step-seconds")),
        ({"throughput": None, "throughput_unit": None, "throughput_scope": None}, (320.0, "from-step-counters")),
    ],
)
def test_a_label_that_was_not_logged_comes_from_the_steps(changes: dict[str, Any], expected: tuple[float, str]) -> None:
    made = settled(**changes)
    assert (made["throughput"], made["label_rule"]) == expected
    assert (made["throughput_unit"], made["throughput_scope"], made["throughput_as_logged"]) == ("samples/s", "job", None)


@pytest.mark.parametrize(
    ("changes", "reason", "said"),
    [
        ({"throughput": 10.0}, "unit-disagrees", "a factor of 0.03125"),  # steps/s
        ({"throughput": 320.0 * 512, "sequence_length": 512.0}, "unit-disagrees", "a factor of 512"),  # tokens/s
        (
            {"throughput": 320.0 * 32 * 512, "sequence_length": 512.0},
            "unit-disagrees",
            "a factor of 1.638e+04",
        ),  # steps as tokens
        ({"throughput": 500.0}, "label-disagrees", "a factor of 1.562; nothing in the record explains the factor"),
        ({"step_seconds": 0.2}, "label-disagrees", "step counters say 320 samples/s of the job and step_seconds says 160"),
        ({"throughput": 0.0}, "bad-throughput", "throughput is 0"),  # a figure that cannot be is no missing one
        ({"end_step": 0.0}, "bad-value", "end_step 0 is not after start_step 0"),
        ({"start_step": -1.0}, "bad-value", "start_step is -1"),
        ({"step_seconds": 0.0}, "bad-value", "step_seconds is 0"),
        ({"step_seconds": float("nan")}, "bad-value", "step_seconds is nan"),
        ({"throughput_unit": "steps/s", "throughput_scope": "device"}, "unconvertible-unit", "steps/s of a device"),
    ],
)
def test_what_contradicts_itself_is_told(changes: dict[str, Any], reason: str, said: str) -> None:
    wrong = settled(**changes)
    assert wrong["reason"] == reason
    assert said in wrong["detail"]


def test_the_whole_job_in_samples_is_one_number_for_one_run() -> None:
    same = [
        {},
        {"throughput": 40.0, "throughput_scope": "device"},
        {"throughput": 160.0, "throughput_scope": "node", "num_nodes": 2},
        {"throughput": 320.0 * 512, "throughput_unit": "tokens/s", "sequence_length": 512.0},
        {"throughput": 10.0, "throughput_unit": "steps/s"},
    ]
    rows = pa.Table.from_pylist([GOOD | change for change in same], READ_SCHEMA)

    assert whole_job(rows).tolist() == [320.0] * len(same)
