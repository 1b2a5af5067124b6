"""Samples trained, from each benchmark's own counters; and what is a contradiction between reported and derived throughput."""

from __future__ import annotations

import json
from typing import Any

import pytest

from leap.sources.mlperf_labels import (
    Label,
    Reported,
    Samples,
    choose_label,
    disagreement,
    model_type,
    readings,
    reported_throughput,
    samples_trained,
)
from leap.sources.mlperf_log import MARKER, RunLog, read_log

Event = tuple[str, float, Any, dict[str, Any]]
DURATION_S = 1_000.0


def at(second: float, key: str, value: Any = None, **metadata: Any) -> Event:
    """Make an event so many seconds after run_start; before it where negative."""
    return key, second, value, metadata


def log_of(*events: Event, stop: dict[str, Any] | None = None) -> RunLog:
    """Make a log of 1,000 s with these events, in their order."""
    before = [event for event in events if event[1] < 0]
    after = [event for event in events if event[1] >= 0]
    whole = [*before, at(0, "run_start"), *after, at(DURATION_S, "run_stop", None, **(stop or {"status": "success"}))]
    return read_log(
        MARKER + json.dumps({"time_ms": 1e12 + 1000 * second, "key": key, "value": value, "metadata": metadata}).encode()
        for key, second, value, metadata in whole
    )


def trained(model: str, *events: Event, stop: dict[str, Any] | None = None) -> float | None:
    samples = samples_trained(model, log_of(*events, stop=stop))
    return samples.number if samples is not None else None


def test_resnet_counts_epochs_of_imagenet() -> None:
    events = [at(-1, "train_samples", 1_281_167), at(1, "epoch_stop", epoch_num=1), at(900, "epoch_stop", epoch_num=35)]

    assert trained("resnet", *events) == 35 * 1_281_167


def test_epochs_counted_from_zero_are_one_more() -> None:
    # given: blocks of four epochs that begin at 0, evaluated after epochs 3, 7, ... 35
    events = [
        at(0, "block_start", first_epoch_num=0, epoch_count=4),
        at(100, "eval_accuracy", 0.3, epoch_num=3),
        at(999, "eval_accuracy", 0.76, epoch_num=35),
    ]

    assert trained("resnet", *events) == 36 * 1_281_167


def test_epochs_are_not_counted_from_zero_where_the_first_evaluation_says_otherwise() -> None:
    events = [
        at(0, "block_start", first_epoch_num=0, epoch_count=1),
        at(100, "eval_accuracy", 0.3, epoch_num=1),
        at(999, "eval_accuracy", 0.76, epoch_num=27),
    ]

    assert trained("resnet", *events) == 27 * 1_281_167


def test_an_implausible_size_of_the_data_gives_way_to_the_benchmarks() -> None:
    events = [at(-1, "train_samples", 160_000), at(0, "epoch_stop", epoch_num=1), at(900, "epoch_stop", epoch_num=2)]

    assert trained("resnet", *events) == 2 * 1_281_167


def test_retinanet_counts_evaluated_epochs_and_ignores_that_its_train_samples_are_batches() -> None:
    # given: evaluation runs beside the fifth epoch, which is then cut short and logged as stopped
    events = [at(0, "train_samples", 4572)]
    for epoch in range(1, 5):
        events += [
            at(240.0 * epoch, "epoch_stop", epoch_num=epoch - 1),
            at(240.0 * epoch + 5, "eval_accuracy", 0.3, epoch_num=epoch),
        ]
    events += [at(990, "epoch_stop", epoch_num=4)]

    assert trained("retinanet", *events) == 4 * 1_170_301


def test_unet_counts_filled_epochs_and_in_newer_logs_volumes() -> None:
    padded = [at(0, "samples_per_epoch", 192), at(990, "eval_accuracy", 0.9, epoch_num=3120)]
    volumes = [at(0, "samples_per_epoch", 168), at(990, "eval_accuracy", 0.9, epoch_num=241_920)]

    assert trained("unet3d", *padded) == 3120 * 192
    assert trained("unet3d", *volumes) == 241_920


def test_bert_counts_samples_in_either_of_two_places() -> None:
    newer = [
        at(-1, "train_samples", 4_000_000),
        at(500, "eval_accuracy", 0.6, epoch_num=150_000),
        at(990, "eval_accuracy", 0.7, epoch_num=2_250_000),
    ]
    older = [at(500, "eval_accuracy", 0.6, epoch_num=1), at(999, "train_samples", 3_150_080)]

    assert trained("bert", *newer) == 2_250_000
    assert trained("bert", *older) == 3_150_080


def test_a_planned_total_is_no_label() -> None:
    # given: train_samples from before run_start, which no training can have counted
    assert trained("bert", at(-1, "train_samples", 4_000_000), at(500, "eval_accuracy", 0.6, epoch_num=1)) is None


def test_a_resumed_run_counts_from_its_checkpoint() -> None:
    # given: a running total that begins far above its own interval
    totals = [at(900.0 + each, "eval_accuracy", 0.75, epoch_num=126_000_000 + each * 400_000) for each in (1, 2, 3)]
    named = [
        at(0, "block_start", train_samples_since_beginning=99_500_000),
        at(990, "eval_accuracy", 0.75, epoch_num=1, train_samples_since_beginning=111_500_000),
    ]

    assert trained("bert", *totals) == 1_200_000
    assert trained("bert", *named) == 12_000_000


def test_a_log_that_lost_its_last_evaluations_gives_no_label() -> None:
    events = [at(100, "eval_accuracy", 0.7, epoch_num=150_000), at(600, "eval_accuracy", 0.7, epoch_num=900_000)]

    assert trained("bert", *events) is None


def test_dlrm_trusts_a_total_that_is_not_the_size_of_the_data() -> None:
    # given: a batch of 27,648, where the logged share still assumes 55,296
    total = [at(990, "eval_accuracy", 0.8, epoch_num=1.899905), at(995, "train_samples", 1_887_667_200)]
    size = [
        at(-1, "train_samples", 4_195_197_692),
        at(500, "eval_accuracy", 0.8, epoch_num=1.05),
        at(990, "eval_accuracy", 0.8, epoch_num=1.7),
    ]

    assert trained("dlrm", *total) == 1_887_667_200
    assert trained("dlrm", *size) == pytest.approx(0.7 * 4_195_197_692)


def test_shares_of_an_epoch_are_of_rows_and_of_nodes() -> None:
    evaluated = at(995, "eval_accuracy", 0.8, epoch_num=0.75)

    assert trained("dlrm_dcnv2", evaluated) == 0.75 * 4_195_197_692
    assert trained("rgat", evaluated, at(0, "train_samples", 94_605_581)) == 0.75 * 94_605_581


def test_gpt3_counts_tokens_and_a_sample_is_a_sequence() -> None:
    assert (
        trained("gpt3", at(-1, "max_sequence_length", 2048), at(999, "eval_accuracy", 2.69, epoch_num=1_207_959_552)) == 589_824
    )


def test_samples_count_is_the_running_total_at_run_stop() -> None:
    # given: block_start counts only its own block in some logs
    events = [at(0, "block_start", samples_count=384), at(990, "eval_accuracy", 0.92, samples_count=3072)]

    assert trained("llama2_70b_lora", *events, stop={"status": "success", "samples_count": 3072}) == 3072
    assert trained("llama2_70b_lora", *events) == 3072
    assert trained("a_benchmark_of_a_later_round", *events) == 3072


def test_a_benchmark_of_a_later_round_may_count_epochs() -> None:
    events = [at(-1, "train_samples", 5_000), at(0, "epoch_stop", epoch_num=1), at(900, "epoch_stop", epoch_num=4)]

    assert trained("a_benchmark_of_a_later_round", *events) == 20_000


def test_stable_diffusion_counts_up_to_the_step_that_passed() -> None:
    # given: training went on to 3.4 million samples while the step that passed was found afterwards
    events = [
        at(-1, "global_batch_size", 512),
        at(990, "block_stop", samples_count=2_560_000),
        at(1500, "block_stop", samples_count=3_430_400),
    ]

    assert trained("stable_diffusion", *events, stop={"status": "success", "step_num": 5000}) == 2_560_000
    assert (
        trained("stable_diffusion", at(-1, "global_batch_size", 512), at(1_000, "eval_accuracy", 80.0, step_num=5000))
        == 2_560_000
    )


def test_minigo_counts_games_of_the_generations_that_it_took() -> None:
    evaluated = [at(-1, "min_selfplay_games_per_generation", 8192), at(3_000, "eval_result", 0.53, epoch_num=44)]
    stopped = [at(80, "epoch_stop", epoch_num=18), at(1_000, "epoch_stop", epoch_num=55), at(2_000, "epoch_stop", epoch_num=71)]

    assert trained("minigo", *evaluated, *stopped) == 44 * 8192
    assert trained("minigo", *stopped) == 38 * 8192


@pytest.mark.parametrize(
    "model", ["resnet", "bert", "unet3d", "dlrm", "gpt3", "llama2_70b_lora", "stable_diffusion", "minigo", "rgat"]
)
def test_a_log_without_counters_gives_no_label(model: str) -> None:
    assert trained(model) is None


def test_one_model_has_one_name_over_all_rounds() -> None:
    assert model_type("ssd", log_of(at(0, "train_samples", 117_266))) == "ssd"
    assert model_type("ssd", log_of(at(0, "train_samples", 4572))) == "retinanet"
    assert model_type("ssd", log_of(), "v0.7") == model_type("ssd", log_of(), "v1.1") == "ssd"
    assert (
        model_type("ssd", log_of(at(0, "train_samples", 117_266)), "v2.0") == model_type("ssd", log_of(), "v10.1") == "retinanet"
    )
    assert model_type("gnn", log_of()) == "rgat"
    assert model_type("mask", log_of()) == "maskrcnn"
    assert model_type("bert", log_of()) == "bert"


@pytest.mark.parametrize(
    ("reported", "ratio"),
    [
        (Reported(100.0), None),
        (Reported(96.0), None),  # within the limit
        (Reported(94.0), 0.94),  # steps cannot be slower than the run they are part of
        (Reported(160.0), None),  # evaluation and start-up take their time
        (Reported(210.0), 2.1),
        (Reported(12.6), 0.126),
        (Reported(12.6, per_device=True), None),
        (Reported(1260.0, per_device=True), 12.6),
        (Reported(204_800.0, factor=1 / 2048), None),
        (Reported(210.0, least=30.0), None),  # it stalled for a while
        (Reported(210.0, least=201.0), 2.1),
        (Reported(94.0, least=30.0), 0.94),
    ],
)
def test_reported_throughput_contradicts_the_derived_by_a_factor_that_nothing_explains(
    reported: Reported, ratio: float | None
) -> None:
    found = disagreement(reported, 100.0, num_devices=8, limit=0.05)

    assert found == (None if ratio is None else pytest.approx(ratio))


def test_reported_throughput_is_the_middle_of_the_reports_in_the_benchmarks_own_unit() -> None:
    reports = [at(each, "tracked_stats", {"throughput": each}) for each in (10.0, 30.0, 500.0)]

    assert reported_throughput("resnet", log_of(*reports)) == Reported(30.0, least=10.0)
    assert reported_throughput("retinanet", log_of(*reports)) == Reported(30.0, per_device=True, least=10.0)
    assert reported_throughput("gpt3", log_of(*reports)) == Reported(30.0, factor=1 / 2048, least=10.0)
    assert reported_throughput("minigo", log_of(*reports)) is None
    assert reported_throughput("resnet", log_of()) is None


def evaluations(name: str, *values: float) -> list[Event]:
    """Make evaluations over the whole run, the last at its end, with these values of `name`."""
    return [at(DURATION_S * (each + 1) / len(values), "eval_accuracy", 0.5, **{name: value}) for each, value in enumerate(values)]


def test_samples_count_is_a_running_total_where_it_grows_and_adds_up_where_it_does_not() -> None:
    batch = at(-1, "global_batch_size", 8)

    assert trained("a_new_one", batch, *evaluations("samples_count", 384, 768, 1152)) == 1152
    assert trained("a_new_one", batch, *evaluations("samples_count", 384, 384, 384)) == 1152
    assert trained("a_new_one", batch, *evaluations("samples_count", 1536, 384, 384)) == 2304


def test_a_repeat_of_another_rank_is_no_block_of_its_own() -> None:
    twice = [
        at(event[1] + 0.1 * rank, "eval_accuracy", 0.5, samples_count=384) for rank in (-1, 0) for event in evaluations("x", 1, 1)
    ]

    assert trained("a_new_one", *twice) == 768


def test_what_grew_from_evaluation_to_evaluation_was_trained_on_and_what_run_stop_says_was_configured() -> None:
    stop = {"status": "success", "samples_count": 1_200_000}

    assert trained("llama31_405b", *evaluations("samples_count", 46_080, 92_160), stop=stop) == 92_160
    assert trained("llama31_405b", *evaluations("samples_count", 46_080, 46_080), stop=stop) == 1_200_000
    assert trained("llama31_405b", at(300, "eval_accuracy", 0.5, samples_count=46_080), stop=stop) == 1_200_000


def test_a_benchmark_without_a_rule_may_count_epochs_samples_or_steps() -> None:
    size, batch = at(-1, "train_samples", 1_000), at(-1, "global_batch_size", 32)

    assert trained("a_new_one", size, *evaluations("epoch_num", 1, 2, 3)) == 3_000
    assert trained("a_new_one", size, *evaluations("epoch_num", 262_144, 524_288)) == 524_288
    assert trained("a_new_one", batch, *evaluations("step_num", 100, 200)) == 6_400
    assert trained("a_new_one", *evaluations("step_num", 100, 200)) is None


def test_a_first_epoch_that_is_numbered_twice_is_counted_twice() -> None:
    # given: a logger that calls the first two epochs 1, and a rank that repeats the last line
    repeat = at(DURATION_S - 0.5, "eval_accuracy", 0.5, epoch_num=3)

    assert trained("transformer", *evaluations("epoch_num", 1, 1, 2, 3), repeat) == 4 * 4_590_101
    assert trained("transformer", *evaluations("epoch_num", 1, 2, 3), repeat) == 3 * 4_590_101


BLOCKS = evaluations("samples_count", 384, 384, 384)


def chosen(model: str, *events: Event, reported: Reported | None) -> Label | None:
    return choose_label(model, readings(model, log_of(*events)), reported, DURATION_S, num_devices=8, limit=0.05)


def test_the_first_reading_is_taken_where_nothing_is_reported_or_the_report_agrees() -> None:
    expected = Samples(1152.0, "sum of samples_count", is_generic=True)

    assert chosen("a_new_one", *BLOCKS, reported=None) == Label(expected)
    assert chosen("a_new_one", *BLOCKS, reported=Reported(1.2, least=1.1)) == Label(expected)


def test_a_report_overrules_a_reading_that_it_contradicts_for_one_that_it_agrees_with() -> None:
    # given: counts that never grow, of a log whose own rate says that they are the total
    label = chosen("a_new_one", *BLOCKS, reported=Reported(0.4))

    assert label is not None
    assert (label.samples.number, label.rule, label.ratio) == (384.0, "other-reading", None)


def test_a_report_that_contradicts_all_readings_leaves_the_ratio() -> None:
    label = chosen("a_new_one", *BLOCKS, reported=Reported(0.01))

    assert label is not None
    assert (label.samples.number, label.rule) == (1152.0, None)
    assert label.ratio == pytest.approx(0.01 * DURATION_S / 1152)


def test_a_stall_is_said_where_the_middle_of_the_reports_does_not_know_of_it() -> None:
    label = chosen("a_new_one", *BLOCKS, reported=Reported(5.0, least=1.0))

    assert label is not None
    assert (label.samples.number, label.rule, label.ratio) == (1152.0, "reports-vary", None)


def test_a_benchmark_with_a_rule_takes_another_reading_only_where_a_report_agrees() -> None:
    # given: no epoch of ResNet, but samples
    events = evaluations("samples_count", 500_000, 1_000_000)

    assert chosen("resnet", *events, reported=None) is None
    assert chosen("resnet", *events, reported=Reported(90.0)) is None
    label = chosen("resnet", *events, reported=Reported(1_010.0))
    assert label is not None
    assert (label.samples.number, label.rule) == (1_000_000.0, None)
