"""How many samples an MLPerf Training run trained on, from what its log counted; and whether what it reports agrees.

What lives here: the meaning of each benchmark's counters. What does not: parsing (`mlperf_log.py`), files (`mlperf.py`).

A counter's meaning differs from benchmark to benchmark, and in places from one submitter to the next; each rule below says what
was seen in the published rounds v0.6 to v5.0. All rules use running totals (epochs done, samples done), never sums over
intervals, so that a thinned log gives the same answer as a whole one; a sum is taken only where a log has no total. Where what
a log reports contradicts its counters read one way and agrees with them read another, the other way is taken and said.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
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
WMT16_PAIRS: Final = 4_068_191  # WMT'16 English-German after byte pairs, for GNMT
WMT17_PAIRS: Final = 4_590_101  # WMT'17 English-German, for Transformer

_FIRST_RETINANET_ROUND: Final = (2, 0)
_ROUND = re.compile(r"v(\d+)\.(\d+)")

# An evaluation that stands for the whole run must come this late in it. Closed submissions of one round stop their clock up to
# 11% after it; where evaluations were lost from a log the gap is wider.
LATE: Final = 0.88

# Reported rates are of training steps, the derived one is of the whole run with start-up and evaluation in it. On 1,000 devices
# those take up to 45% of a run, so a reported rate may be up to this many times the derived one. It may never be much below.
MAX_OVERHEAD: Final = 2.0

# The same event of another rank or rewritten by a logger is this close to the first, as a share of the run.
_SAME_EVENT: Final = 0.002

# Above this an `epoch_num` of a benchmark without a rule counts samples.
_MOST_EPOCHS: Final = 1_000

# Above these an `epoch_num` counts samples: no run of BERT has 1,000 epochs, none of U-Net has 20,000 or as few volumes.
_BERT_EPOCHS: Final = 1_000
_UNET_EPOCHS: Final = 20_000


class Samples(NamedTuple):
    """How many samples were trained on, and from which counter that is known."""

    number: float
    how: str
    is_generic: bool = False  # by what any log may mean, not by the rule of a benchmark


class Reported(NamedTuple):
    """The middle and the least of the throughputs that a log reports, and what turns them into samples/s.

    ``least`` is None where it is not known: then it is the middle.
    """

    value: float
    per_device: bool = False
    factor: float = 1.0
    least: float | None = None


class Label(NamedTuple):
    """The reading that is taken; ``ratio`` is reported to derived where they disagree, ``rule`` names what overruled what."""

    samples: Samples
    ratio: float | None = None
    rule: str | None = None


Rule = Callable[[RunLog], Samples | None]


def model_type(benchmark: str, log: RunLog, round_name: str = "") -> str:
    """Return the one name of a benchmark's model over all rounds (`round_name` like `v3.0`).

    From v2.0 to v4.1 `ssd` is RetinaNet on Open Images, called `retinanet` in v5.0; before that it is SSD on COCO. Where the
    round is not known, the number of training images tells. `gnn` of v4.0 and v4.1 is the R-GAT of v5.0; `mask` of v0.5 is
    `maskrcnn`.
    """
    if benchmark == "ssd":
        number = _ROUND.fullmatch(round_name)
        if number is None:
            is_retinanet = not any(_is_near(size, COCO_IMAGES) for size in log.numbers("train_samples"))
        else:
            is_retinanet = (int(number[1]), int(number[2])) >= _FIRST_RETINANET_ROUND
        return "retinanet" if is_retinanet else "ssd"
    return {"gnn": "rgat", "mask": "maskrcnn", "mask_rcnn": "maskrcnn"}.get(benchmark, benchmark)


def samples_trained(model: str, log: RunLog) -> Samples | None:
    """Return the samples that a run of `model` trained on between run_start and run_stop, or None where its log has no counter.

    A benchmark without a rule of its own is taken to log `samples_count`, as new ones do, or else epochs.
    """
    found = readings(model, log)
    return found[0] if found and (model not in _RULES or not found[0].is_generic) else None


def readings(model: str, log: RunLog) -> tuple[Samples, ...]:
    """Return what a log's counters can mean, each number once, likeliest first: the rule of `model`, then what any log may say.

    A generic reading of a `model` that has a rule needs a report that agrees.
    """
    rule = _RULES.get(model)
    found = [rule(log)] if rule is not None else []
    found += _generic_readings(log)
    distinct: dict[float, Samples] = {}
    for each in found:
        if each is not None and each.number > 0:
            distinct.setdefault(each.number, each)
    return tuple(distinct.values())


def choose_label(
    model: str, found: Sequence[Samples], reported: Reported | None, seconds: float, num_devices: int, limit: float
) -> Label | None:
    """Choose among the readings of a run of `seconds` the first that agrees with what the log reports.

    Without a report the first is taken, if it is by the rule of `model` or the model has none. None where no reading is left; a
    label with a ``ratio`` (reported to derived) where a report disagrees with all of them. ``rule`` is ``other-reading`` where
    a report overruled the first reading, ``reports-vary`` where the middle report disagrees and the range of reports does not.
    """
    trusted = [each for each in found if model not in _RULES or not each.is_generic]
    if reported is None:
        return Label(trusted[0]) if trusted else None
    for each in found:
        if disagreement(reported, each.number / seconds, num_devices, limit) is None:
            steady = disagreement(reported._replace(least=None), each.number / seconds, num_devices, limit) is None
            first = not trusted or each is trusted[0]
            return Label(each, rule=None if first and steady else "reports-vary" if first else "other-reading")
    if not trusted:
        return None
    return Label(trusted[0], ratio=disagreement(reported, trusted[0].number / seconds, num_devices, limit))


def reported_throughput(model: str, log: RunLog) -> Reported | None:
    """Return what the log reports: samples/s of the job, but tokens/s for GPT-3 and per device in most logs of RetinaNet.

    None where it reports nothing to compare with: Minigo reports running averages of a rate that grows, also after run_stop.
    """
    if not log.reported or model == "minigo":
        return None
    factor = 1 / _sequence_length(log) if model == "gpt3" else 1.0
    return Reported(median(log.reported), per_device=model == "retinanet", factor=factor, least=min(log.reported))


def disagreement(reported: Reported, derived: float, num_devices: int, limit: float) -> float | None:
    """Return how many times the derived throughput (samples/s of the job) is reported, or None where the two agree.

    They agree where the middle report is at most `limit` (a share) below the derived one, and the least at most `MAX_OVERHEAD`
    times it: a run that stalled for a while is slower than most of its reports, but not than all.
    """
    ratio = reported.value * reported.factor / derived
    least = ratio if reported.least is None else reported.least * reported.factor / derived
    scales = (1, num_devices) if reported.per_device else (1,)
    return None if any(1 - limit <= scale * ratio and scale * least <= MAX_OVERHEAD for scale in scales) else ratio


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
    return max(evaluated) + from_zero + _numbered_twice(log)


def _marks(log: RunLog, name: str) -> list[tuple[float, float]]:
    """Return (ms since 1970, `name` of the metadata) of the evaluations up to run_stop by time, each once."""
    start, stop = (event.time_ms if event is not None else None for event in (log.start, log.stop))
    if start is None or stop is None:
        return []
    marks = sorted(
        (event.time_ms, number)
        for event in log.counters.get("eval_accuracy", ())
        if event.time_ms is not None and event.time_ms <= stop and (number := as_number(event.metadata.get(name))) is not None
    )
    nearest = _SAME_EVENT * (stop - start)
    return marks[:1] + [new for old, new in pairwise(marks) if new[1] != old[1] or new[0] - old[0] > nearest]


def _numbered_twice(log: RunLog) -> int:
    """Count the evaluations that carry the number of the one before, though another epoch's time lies between them.

    One logger numbers the first two epochs alike, and so all that follow one too low.
    """
    marks = _marks(log, "epoch_num")
    steps = [new[0] - old[0] for old, new in pairwise(marks) if new[1] == old[1] + 1]
    if not steps:
        return 0
    return sum(new[1] == old[1] and new[0] - old[0] > median(steps) / 2 for old, new in pairwise(marks))


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
    return next(_sample_counts(log), None)


def _sample_counts(log: RunLog) -> Iterator[Samples]:
    """Give the readings of `samples_count`, likeliest first.

    At evaluations it is a running total in most logs and the size of the last block in some, which then add up. At run_stop it
    is the total, or in some logs what was configured: what grew from evaluation to evaluation was trained on.
    """
    at_stop = as_number(log.stop.metadata.get("samples_count")) if log.stop is not None else None
    counts = [count for _, count in _marks(log, "samples_count")] if _evaluated(log, "samples_count") else []
    grows = len(counts) > 1 and all(new > old for old, new in pairwise(counts))
    if grows:
        yield Samples(counts[-1], "samples_count")
    if at_stop is not None:
        yield Samples(at_stop, "samples_count at run_stop" if grows else "samples_count")
    if not grows and len(counts) > 1 and all(new <= old for old, new in pairwise(counts)):
        yield Samples(sum(counts), "sum of samples_count")
    if not grows and counts:
        yield Samples(max(counts), "largest samples_count")


def _unknown(log: RunLog) -> Samples | None:
    epochs, size = _epochs_stopped(log) or _epochs_evaluated(log), log.numbers("train_samples")
    if epochs and epochs > _MOST_EPOCHS:
        return Samples(epochs, "epoch_num as samples")
    return Samples(epochs * size[-1], "epochs x train_samples") if epochs and size else None


def _steps(log: RunLog) -> Samples | None:
    batch = as_number(log.settings.get("global_batch_size"))
    at_stop = as_number(log.stop.metadata.get("step_num")) if log.stop is not None else None
    steps = [at_stop] if at_stop else _evaluated(log, "step_num")
    return Samples(max(steps) * batch, "step_num x batch") if steps and batch else None


def _generic_readings(log: RunLog) -> Iterator[Samples | None]:
    """Give what the counters of any log may mean, likeliest first."""
    for found in (*_sample_counts(log), _unknown(log), _steps(log)):
        yield found._replace(is_generic=True) if found is not None else None


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
    "gnmt": _epochs(WMT16_PAIRS),
    "maskrcnn": _epochs(COCO_IMAGES),
    "minigo": _minigo,
    "resnet": _epochs(RESNET_IMAGES),
    "retinanet": _evaluated_epochs(OPEN_IMAGES),
    "rgat": _share_of_epoch(IGBH_NODES),
    "rnnt": _epochs(LIBRISPEECH_UTTERANCES),
    "ssd": _epochs(COCO_IMAGES),
    "transformer": _epochs(WMT17_PAIRS),
    "stable_diffusion": _stable_diffusion,
    "unet3d": _unet3d,
}
