"""Parsing MLPerf logs: events out of any line that holds one, settings only from before training, nothing raised on content."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leap.sources.mlperf_log import MARKER, RunLog, as_number, as_text, read_log


def line(key: str, value: Any = None, time_ms: Any = 1_000, **metadata: Any) -> bytes:
    return MARKER + b" " + json.dumps({"time_ms": time_ms, "key": key, "value": value, "metadata": metadata}).encode()


def test_an_event_is_found_behind_rank_labels_progress_bars_and_bytes_that_are_no_text() -> None:
    # given: the same kind of line as it comes from several ranks, with what stood on the terminal before it
    lines = [
        b"0: " + line("global_batch_size", 256),
        b" 37%|###7      | 3/8 [00:01\xff\xfe" + line("run_start", time_ms=2_000),
        line("eval_accuracy", 0.5, 3_000, epoch_num=1) + line("run_stop", None, 4_000, status="success"),
    ]

    log = read_log(lines)

    assert log.settings == {"global_batch_size": 256}
    assert log.start is not None
    assert log.stop is not None
    assert (log.start.line, log.start.time_ms) == (2, 2_000)
    assert (log.stop.line, log.stop.time_ms, log.stop.metadata["status"]) == (3, 4_000, "success")
    assert log.numbers("eval_accuracy", "epoch_num") == [1]
    assert (log.events, log.bad_lines) == (4, 0)


def test_a_damaged_line_is_counted_and_the_rest_is_read() -> None:
    lines = [b":::MLLOG {'time_ms': 1", MARKER + b' {"key": "seed", "value": nullLambda}', line("run_start"), line("run_stop")]

    log = read_log(lines)

    assert (log.bad_lines, log.first_bad_line, log.events) == (2, 1, 2)


def test_the_lines_of_round_v06_are_events_too() -> None:
    lines = [
        b':::MLL 1558641107.826 global_batch_size: {"value": 512, "metadata": {"lineno": 5}}',
        b'0: :::MLL 1558641496.914 run_start: {"value": null, "metadata": {}}',
        b':::MLL 1558641569.641 eval_accuracy: {"metadata": {"epoch_num": 1}, "value": 19.25}',
        b':::MLL 1558641769.629 run_stop: {"value": null, "metadata": {"status": "success"}}',
        b':::MLL never run_stop: {"value": null}',
        b':::MLL 1558641769.7 run_stop: {"value": nul',
    ]

    log = read_log(lines)

    assert log.settings == {"global_batch_size": 512}
    assert log.start is not None
    assert log.stop is not None
    assert log.start.time_ms == pytest.approx(1558641496914, abs=0.01)
    assert log.stop.time_ms == pytest.approx(1558641769629, abs=0.01)
    assert log.stop.metadata["status"] == "success"
    assert log.numbers("eval_accuracy", "epoch_num") == [1]
    assert (log.events, log.bad_lines, log.first_bad_line) == (4, 2, 5)


def test_repeats_of_other_ranks_change_nothing() -> None:
    once = [line("run_start", time_ms=5), line("run_stop", None, 9, status="success")]
    late = [line("run_start", time_ms=6), line("run_stop", None, 10, status="aborted")]

    assert read_log([*once, *late]).start == read_log(once).start
    assert read_log([*once, *late]).stop == read_log(once).stop


def test_a_repeat_that_has_the_time_stands_in_for_one_that_has_none() -> None:
    log = read_log([line("run_start", time_ms=None), line("run_start", time_ms=7)])

    assert log.start is not None
    assert (log.start.time_ms, log.start.line) == (7, 2)


def test_settings_are_those_before_run_start_and_launch_arguments_up_to_the_first_block() -> None:
    # given: a loss scale and an accumulation count that turn up while the run goes on
    lines = [
        line("opt_base_learning_rate", 0.1),
        line("opt_base_learning_rate", 0.2),
        line("run_start"),
        line("global_batch_size", 56),
        line("opt_weight_decay", 0.5),
        line("block_start", first_epoch_num=1, epoch_count=20),
        line("gradient_accumulation_steps", 4),
        line("run_stop"),
    ]

    assert read_log(lines).settings == {"opt_base_learning_rate": 0.1, "global_batch_size": 56}


def test_numbers_end_at_run_stop() -> None:
    # given: a run whose stop was dated back to the step that passed
    lines = [
        line("run_start", time_ms=1_000),
        line("block_stop", None, 2_000, samples_count=10),
        line("block_stop", None, 9_000, samples_count=20),
        line("run_stop", None, 5_000),
    ]

    assert read_log(lines).numbers("block_stop", "samples_count") == [10]


def test_throughput_is_read_alone_and_inside_tracked_stats() -> None:
    lines = [
        line("run_start"),
        line("throughput", 10.0),
        line("tracked_stats", {"throughput": "20.5", "loss": 1.0}),
        line("tracked_stats", {"loss": 1.0}),
        line("tracked_stats", {"throughput": "n/a"}),
    ]

    assert read_log(lines).reported == [10.0, 20.5]


@pytest.mark.parametrize(
    ("value", "number"),
    [
        *((3, 3.0), ("8", 8.0), (" 8 ", 8.0), ("1.5", 1.5), ("2x8", None), ("", None), (None, None), (True, None), ([1], None)),
        *((float("nan"), None), ("inf", None), (10**400, None)),
    ],
)
def test_a_number_is_finite_and_may_be_spelled_as_text(value: object, number: float | None) -> None:
    assert as_number(value) == number


def test_text_can_always_be_stored() -> None:
    assert as_text(json.loads('"A100 \\ud800"')) == "A100 ?"


@given(
    st.lists(
        st.binary(max_size=80) | st.binary(max_size=40).map(lambda noise: MARKER + b' {"key": "run_stop"' + noise), max_size=8
    )
)
def test_no_content_raises(lines: list[bytes]) -> None:
    assert isinstance(read_log(lines), RunLog)


@given(noise=st.binary(max_size=60).filter(lambda noise: MARKER not in noise and b"\n" not in noise))
def test_what_stands_before_the_marker_never_matters(noise: bytes) -> None:
    event = line("run_start", time_ms=42)

    assert read_log([noise + event]).start == read_log([event]).start
