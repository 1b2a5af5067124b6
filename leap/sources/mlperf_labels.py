"""How many samples an MLPerf Training run trained on, from what its log counted; and whether what it reports agrees.

What lives here: the meaning of each benchmark's counters. What does not: parsing (`mlperf_log.py`), files (`mlperf.py`).

A counter's meaning differs from benchmark to benchmark, and in places from one submitter to the next; each rule below says what
was seen in the published rounds v1.0 to v5.0. All rules use running totals (epochs done, samples done), never sums over
intervals, so that a thinned log gives the same answer as a whole one.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Final, NamedTuple

from leap.sources.mlperf_log import RunLog, as_number

# Samples in one epoch, from the rules of the benchmark (github.com/mlcommons/training_policies). A log's own `train_samples` is
# taken instead where it is within 2% of this: submitters drop or fill the last batch.
RESNET_IMAGES: Final = 1_281_167  # ImageNet
COCO_IMAGES: Final = 117_266  # COCO 2017 less images without boxes
OPEN_IMAGES: Final = 1_170_301  # the subset of Open Images for RetinaNet; most logs of it count batches instead
LIBRISPEECH_UTTERANCES: Final = 278_528  # LibriSpeech up to 16.7 s
KITS19_VOLUMES: Final = 168
CRITEO_ROWS: Final = 4_195_197_692
IGBH_NODES: Final = 94_605_581
GPT3_SEQUENCE: Final = 2048.0
MINIGO_GAMES: Final = 8192.0  # self-play games in a generation

# An evaluation that stands for the whole run must come this late in it. Closed submissions of one round stop their clock up to
# 11% after it; where evaluations were lost from a log the gap is wider.
LATE: Final = 0.88

# Reported rates are of training steps, the derived one is of the whole run with start-up and evaluation in it. On 1,000 devices
# those take up to 45% of a run, so a reported rate may be up to this many times the derived one. It may never be much below.
MAX_OVERHEAD: Final = 2.0

# Above these an `epoch_num` counts samples: no run of BERT has 1,000 epochs, none of U-Net has 20,000 or as few volumes.
_BERT_EPOCHS: Final = 1_000
_UNET_EPOCHS: Final = 20_000


class Samples(NamedTuple):
    """How many samples were trained on, and from which counter that is known."""

    number: float
    how: str


class Reported(NamedTuple):
    """The middle of the throughputs that a log reports, and what turns it into samples/s where it may be another unit."""

    value: float
    per_device: bool = False
    factor: float = 1.0


Rule = Callable[[RunLog], Samples | None]


def model_type(benchmark: str, log: RunLog) -> str:
    """Return the one name of a benchmark's model over all rounds.

    From v2.0 to v4.1 `ssd` is RetinaNet on Open Images, called `retinanet` in v5.0; before that it is SSD on COCO, told by the
    number of training images. `gnn` of v4.0 and v4.1 is the R-GAT of v5.0.
    """
    if benchmark == "ssd" and not any(_is_near(size, COCO_IMAGES) for size in log.numbers("train_samples")):
        return "retinanet"
    return {"gnn": "rgat"}.get(benchmark, benchmark)


def samples_trained(model: str, log: RunLog) -> Samples | None:
    """Return the samples that a run of `model` trained on between run_start and run_stop, or None where its log has no counter.

    A benchmark without a rule of its own is taken to log running totals of `samples_count`, as new ones do, or else epochs.
    """
    found = _RULES.get(model, _unknown)(log)
    return found if found is not None and found.number > 0 else None


def reported_throughput(model: str, log: RunLog) -> Reported | None:
    """Return what the log reports: samples/s of the job, but tokens/s for GPT-3 and per device in most logs of RetinaNet.

    None where it reports nothing to compare with: Minigo reports running averages of a rate that grows, also after run_stop.
    """
    if not log.reported or model == "minigo":
        return None
    value = median(log.reported)
    if model == "gpt3":
        return Reported(value, factor=1 / _sequence_length(log))
    return Reported(value, per_device=model == "retinanet")


def disagreement(reported: Reported, derived: float, num_devices: int, limit: float) -> float | None:
    """Return how many times the derived throughput (samples/s of the job) is reported, or None where the two agree.

    They agree where the reported one is at most `limit` (a share) below and at most `MAX_OVERHEAD` times the derived one.
    """
    ratio = reported.value * reported.factor / derived
    ratios = [ratio, ratio * num_devices] if reported.per_device else [ratio]
    return None if any(1 - limit <= each <= MAX_OVERHEAD for each in ratios) else ratio


def _is_near(value: float, size: float) -> bool:
    return abs(value / size - 1) <= 0.02


def _epoch_size(log: RunLog, size: float) -> float:
    logged = log.numbers("train_samples")
    return logged[-1] if logged and _is_near(logged[-1], size) else size


def _sequence_length(log: RunLog) -> float:
    logged = as_number(log.settings.get("max_sequence_length")) or as_number(log.settings.get("sequence_length"))
    return logged if logged is not None and logged > 0 else GPT3_SEQUENCE


def _evaluated(log: RunLog, name: str) -> list[float]:
    """Return the running totals at the evaluations, or none where the newest is too early to stand for the whole run."""
    times = [event.time_ms for event in log.counters.get("eval_accuracy", ()) if event.time_ms is not None]
    if log.start is None or log.stop is None or log.start.time_ms is None or log.stop.time_ms is None or not times:
        return []
    if max(times) - log.start.time_ms < LATE * (log.stop.time_ms - log.start.time_ms):
        return []
    return log.numbers("eval_accuracy", name)


def _epochs_evaluated(log: RunLog) -> float | None:
    """Count the epochs done at the newest evaluation, also where the logger counts from 0."""
    evaluated = _evaluated(log, "epoch_num")
    if not evaluated:
        return None
    first_epoch, first_count = log.numbers("block_start", "first_epoch_num"), log.numbers("block_start", "epoch_count")
    from_zero = bool(first_epoch and first_count and first_epoch[0] == 0 and evaluated[0] == first_count[0] - 1)
    return max(evaluated) + from_zero


def _epochs_stopped(log: RunLog) -> float | None:
    stopped = log.numbers("epoch_stop", "epoch_num")
    return max(stopped) - min(stopped) + 1 if stopped else None


def _epochs(size: float) -> Rule:
    """Make a rule for benchmarks that count whole epochs; those that stopped count before those that were evaluated."""

    def rule(log: RunLog) -> Samples | None:
        epochs = _epochs_stopped(log) or _epochs_evaluated(log)
        return None if epochs is None else Samples(epochs * _epoch_size(log, size), "epochs x size")

    return rule


def _evaluated_epochs(size: float) -> Rule:
    """Make a rule for logs whose last epoch stops early: RetinaNet evaluates beside the next epoch and cuts that short."""

    def rule(log: RunLog) -> Samples | None:
        epochs = _epochs_evaluated(log)
        return None if epochs is None else Samples(epochs * _epoch_size(log, size), "evaluated epochs x size")

    return rule


def _unet3d(log: RunLog) -> Samples | None:
    # An epoch is filled up to whole batches: 192 or 240 volumes go through in place of 168. From v3.1 on most logs count
    # volumes.
    counted = _epochs_evaluated(log)
    if counted is None or counted > _UNET_EPOCHS:
        return None if counted is None else Samples(counted, "evaluated samples")
    size = log.numbers("samples_per_epoch")
    return Samples(counted * (size[-1] if size else KITS19_VOLUMES), "epochs x samples_per_epoch")


def _bert(log: RunLog) -> Samples | None:
    # Most logs count samples in `epoch_num`; in NVIDIA's older logger it is always 1, and `train_samples`, written at the end,
    # is the total. A run that starts from a later checkpoint trained on what came after it.
    totals = _evaluated(log, "train_samples_since_beginning")
    if totals:
        return Samples(max(totals) - min(log.numbers("block_start", "train_samples_since_beginning"), default=0.0), "totals")
    epochs = log.numbers("eval_accuracy", "epoch_num")
    if epochs and max(epochs) > _BERT_EPOCHS:
        totals = _evaluated(log, "epoch_num")
        return Samples(max(totals) - _resumed_at(totals), "evaluated samples") if totals else None
    totals = _logged_totals(log)
    return Samples(totals[-1], "train_samples") if totals else None


def _logged_totals(log: RunLog) -> list[float]:
    """Return what `train_samples` said after run_start: before it, it can only be the size of the data or a plan."""
    begun = log.start.line if log.start is not None else 0
    numbers = (as_number(event.value) for event in log.counters.get("train_samples", ()) if event.line > begun)
    return [number for number in numbers if number is not None]


def _resumed_at(totals: list[float]) -> float:
    """Return where a running total began: 0, or one interval before its first value where that is far above the interval."""
    if len(totals) < 2:
        return 0.0
    interval = totals[1] - totals[0]
    return totals[0] - interval if interval > 0 and totals[0] > 10 * interval else 0.0


def _dlrm(log: RunLog) -> Samples | None:
    # `epoch_num` is the share of the one epoch, from 0 or from 1. `train_samples` is the size in some logs and the running
    # total in others; where it is not the size it is trusted, as the share assumes a batch of 55,296 in some logs.
    totals = _logged_totals(log)
    if totals and not _is_near(totals[-1], CRITEO_ROWS):
        return Samples(totals[-1], "train_samples")
    shares = _evaluated(log, "epoch_num")
    return Samples((max(shares) - (min(shares) >= 1)) * CRITEO_ROWS, "share of an epoch") if shares else None


def _share_of_epoch(size: float) -> Rule:
    def rule(log: RunLog) -> Samples | None:
        shares = _evaluated(log, "epoch_num")
        return Samples(max(shares) * _epoch_size(log, size), "share of an epoch") if shares else None

    return rule


def _gpt3(log: RunLog) -> Samples | None:
    # `epoch_num` counts tokens since the given checkpoint; a sample is a sequence.
    tokens = _evaluated(log, "epoch_num")
    return Samples(max(tokens) / _sequence_length(log), "tokens / sequence length") if tokens else None


def _samples_count(log: RunLog) -> Samples | None:
    if log.stop is not None and (count := as_number(log.stop.metadata.get("samples_count"))):
        return Samples(count, "samples_count")
    counts = _evaluated(log, "samples_count")
    return Samples(max(counts), "samples_count") if counts else None


def _unknown(log: RunLog) -> Samples | None:
    epochs, size = _epochs_stopped(log) or _epochs_evaluated(log), log.numbers("train_samples")
    return _samples_count(log) or (Samples(epochs * size[-1], "epochs x train_samples") if epochs and size else None)


def _stable_diffusion(log: RunLog) -> Samples | None:
    # Evaluation runs afterwards, and run_stop is dated back to the step whose checkpoint passed.
    batch = as_number(log.settings.get("global_batch_size"))
    if log.stop is not None and batch and (step := as_number(log.stop.metadata.get("step_num"))):
        return Samples(step * batch, "steps x batch")
    steps = log.numbers("eval_accuracy", "step_num")
    return Samples(max(steps) * batch, "steps x batch") if steps and batch else _samples_count(log)


def _minigo(log: RunLog) -> Samples | None:
    # The work of a generation is its games of self-play; the training set drawn from them is a by-product. Evaluation runs
    # afterwards: `eval_result` names the generation that passed, counted from 1, and run_stop is dated back to it.
    passed = [as_number(event.metadata.get("epoch_num")) for event in log.counters.get("eval_result", ())]
    generations = passed[-1] if passed and passed[-1] else _epochs_stopped(log)
    games = as_number(log.settings.get("min_selfplay_games_per_generation")) or MINIGO_GAMES
    return None if generations is None else Samples(generations * games, "generations x games")


_RULES: Final[dict[str, Rule]] = {
    "bert": _bert,
    "dlrm": _dlrm,
    "dlrm_dcnv2": _share_of_epoch(CRITEO_ROWS),
    "gpt3": _gpt3,
    "llama2_70b_lora": _samples_count,
    "llama31_405b": _samples_count,
    "maskrcnn": _epochs(COCO_IMAGES),
    "minigo": _minigo,
    "resnet": _epochs(RESNET_IMAGES),
    "retinanet": _evaluated_epochs(OPEN_IMAGES),
    "rgat": _share_of_epoch(IGBH_NODES),
    "rnnt": _epochs(LIBRISPEECH_UTTERANCES),
    "ssd": _epochs(COCO_IMAGES),
    "stable_diffusion": _stable_diffusion,
    "unet3d": _unet3d,
}
