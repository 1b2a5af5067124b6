"""MLPerf Training results as attempts: each run of each submission, from a checkout of a results repository or its archive.

What lives here: joining result logs and system descriptions into attempts and rejects. What does not: where they lie
(`mlperf_files.py`), the log format (`mlperf_log.py`), what counters mean (`mlperf_labels.py`), system descriptions
(`mlperf_systems.py`), field checks that all kinds of log share (`admission.py`), duplicates (`leap.store.warehouse`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Final, NamedTuple

import pyarrow as pa

from leap.contracts import READ_SCHEMA, REJECT_SCHEMA, Outcome, ThroughputScope, ThroughputUnit
from leap.params import IngestParams
from leap.sources import Progress, ReadBatch, SourceError, no_progress
from leap.sources.mlperf_files import (
    LAYOUT,
    READ_ERRORS,
    ResultPath,
    SystemPath,
    find_sources,
    round_of,
    stream_files,
)
from leap.sources.mlperf_labels import (
    Label,
    Reported,
    Samples,
    choose_label,
    model_type,
    readings,
    reported_throughput,
)
from leap.sources.mlperf_log import COUNTERS, LAUNCH_SETTINGS, Event, RunLog, as_number, as_text, read_log
from leap.sources.mlperf_systems import System, choose_framework, read_system

SOURCE: Final = "mlperf"

BATCH_RUNS: Final = 2000
_RUNS_BETWEEN_REPORTS: Final = 200
_RECORD_CHARACTERS: Final = 200
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_TASKS: Final = {
    "bert": "language_modelling",
    "dlrm": "recommendation",
    "dlrm_dcnv2": "recommendation",
    "flux1": "image_generation",
    "gpt3": "language_modelling",
    "llama2_70b_lora": "language_modelling",
    "llama31_405b": "language_modelling",
    "llama31_8b": "language_modelling",
    "maskrcnn": "object_detection",
    "minigo": "reinforcement_learning",
    "resnet": "image_classification",
    "retinanet": "object_detection",
    "rgat": "graph_learning",
    "rnnt": "speech_recognition",
    "ssd": "object_detection",
    "stable_diffusion": "image_generation",
    "unet3d": "image_segmentation",
}

# Settings that are no choice of the job (seeds, counters that some logs end with), that have a column of their own, or that
# follow from the hardware (batch per device).
_NO_CONFIG: Final = COUNTERS | LAUNCH_SETTINGS | {"", "cache_clear", "init_start", "init_stop", "seed"}


class Problem(NamedTuple):
    """Why a run is not trusted: a stable code, a sentence, and the line it stands in (0 = the file as a whole)."""

    reason: str
    detail: str
    line: int = 0


@dataclass(frozen=True, slots=True)
class _Run:
    """One result file, read: small, so that an archive's runs can wait for the systems that follow them."""

    file: str
    path: ResultPath
    model: str
    log: RunLog
    readings: tuple[Samples, ...]
    reported: Reported | None
    problem: Problem | None
    text: str


def read(paths: Sequence[Path], params: IngestParams, progress: Progress = no_progress) -> Iterator[ReadBatch]:
    """Read results repositories: checkouts, tar archives of them (xz, gzip, bzip2 or plain), or folders of several of either.

    Archives are streamed, one at a time; nothing is unpacked. ``slice`` is round/benchmark, ``file`` the path from the source's
    own name, ``line`` that of run_stop. Throughput is samples trained / (run_stop - run_start), of the whole job. Reasons of
    rejects: ``unreadable-archive`` (line 0; what was read before it is kept), ``no-results`` (a source among others),
    ``not-a-log``, ``no-run-start``, ``no-run-stop``, ``no-time``, ``no-system-description``, ``bad-system-description``,
    ``no-accelerator``, ``no-device-count``, ``no-samples``, ``label-disagrees`` (reported and derived throughput;
    ``params.max_label_disagreement``). ``progress`` is told each source's name with the number of sources, and within one the
    runs read.

    Raises SourceError where a path is missing or is no archive, a folder is empty, or the only source has no result in it.
    """
    if not paths:
        raise SourceError("no path was given; name a checkout of an MLPerf Training results repository or its archive")
    sources = [source for path in paths for source in find_sources(Path(path))]
    return _read_sources(sources, params, progress)


def _read_sources(sources: Sequence[Path], params: IngestParams, progress: Progress) -> Iterator[ReadBatch]:
    for number, source in enumerate(sources):
        progress(source.name, number, len(sources))
        yield from _read_source(source, params, progress, is_alone=len(sources) == 1)
    progress("MLPerf results", len(sources), len(sources))


def _read_source(source: Path, params: IngestParams, progress: Progress, *, is_alone: bool) -> Iterator[ReadBatch]:
    """Read all of one source, then join: in a tar the systems may come after the results."""
    runs: list[_Run] = []
    systems: dict[SystemPath, System] = {}
    try:
        for file in stream_files(source):
            if isinstance(file.path, SystemPath):
                systems[file.path] = read_system(file.path.system, file.content.read())
                continue
            runs.append(_read_run(file.name, file.path, file.content))
            if len(runs) % _RUNS_BETWEEN_REPORTS == 0:
                progress(f"{source.name}: runs read", len(runs), 0)
    except READ_ERRORS as error:
        sentence = (
            f"the archive cannot be read to its end ({error or type(error).__name__}); {len(runs)} runs were read before that. "
            "Fetch it again, compare its size, and load it once more."
        )
        yield _batch([], [_reject_source(source, "unreadable-archive", sentence)])
    else:
        if not runs and is_alone:
            raise SourceError(f"{source}: no result file in it; expected {LAYOUT}")
        if not runs:
            yield _batch([], [_reject_source(source, "no-results", f"no result file in it; expected {LAYOUT}.")])
    for start in range(0, len(runs), BATCH_RUNS):
        yield _join(runs[start : start + BATCH_RUNS], systems, params)


def _reject_source(source: Path, reason: str, sentence: str) -> dict[str, object]:
    return {
        "source": SOURCE,
        "slice": round_of(source.name),
        "file": source.name,
        "line": 0,
        "reason": reason,
        "detail": f"{source.name}: {sentence}",
    }


def _read_run(name: str, path: ResultPath, content: IO[bytes]) -> _Run:
    first: list[bytes] = []
    log = read_log(_keep_first(content, first))
    model = model_type(path.benchmark, log, path.round)
    run = _Run(
        file=name,
        path=path,
        model=model,
        log=log,
        readings=readings(model, log),
        reported=reported_throughput(model, log),
        problem=_problem_of(log),
        text=b"".join(first).decode("utf-8", "replace")[:_RECORD_CHARACTERS],
    )
    log.counters, log.reported = {}, []  # what is needed of them is taken; the settings stay
    return run


def _keep_first(lines: Iterable[bytes], first: list[bytes]) -> Iterator[bytes]:
    for line in lines:
        if len(first) < 2:
            first.append(line[: 4 * _RECORD_CHARACTERS])
        yield line


def _problem_of(log: RunLog) -> Problem | None:
    if log.events == 0:
        return Problem("not-a-log", "there is no readable :::MLLOG line in it; fetch the file again or leave the run out")
    spoilt = f" ({log.bad_lines} unreadable :::MLLOG lines, the first is line {log.first_bad_line})" if log.bad_lines else ""
    if log.start is None:
        return Problem("no-run-start", f"the log has no run_start{spoilt}, so the run's time is not known")
    if log.stop is None:
        sentence = f"the log has no run_stop{spoilt}: the run was cut off, or the log is not whole"
        return Problem("no-run-stop", sentence, log.start.line)
    for name, event in (("run_start", log.start), ("run_stop", log.stop)):
        if _time_of(event) is None:
            return Problem("no-time", f"{name} has no usable time_ms, so the run's time is not known", event.line)
    return None


def _time_of(event: Event | None) -> datetime | None:
    if event is None or event.time_ms is None:
        return None
    try:
        return _EPOCH + timedelta(milliseconds=event.time_ms)
    except OverflowError:
        return None


def _join(runs: Sequence[_Run], systems: dict[SystemPath, System], params: IngestParams) -> ReadBatch:
    attempts: list[dict[str, object]] = []
    rejects: list[dict[str, object]] = []
    for run in runs:
        system = systems.get(run.path.at) or System(problem=_missing_system(run.path.at))
        label = _label_of(run, system, params)
        row = _attempt(run, system, label)
        problem = run.problem or _problem_with(run, system, label, row)
        if problem is None:
            attempts.append(row)
        else:
            rejects.append(_reject(run, row, problem))
    return _batch(attempts, rejects)


def _missing_system(path: SystemPath) -> tuple[str, str]:
    return (
        "no-system-description",
        f"there is no {path.submitter}/systems/{path.system}.json; add it, or load the whole archive",
    )


def _seconds(log: RunLog) -> float | None:
    started_at, ended_at = _time_of(log.start), _time_of(log.stop)
    return (ended_at - started_at).total_seconds() if started_at is not None and ended_at is not None else None


def _label_of(run: _Run, system: System, params: IngestParams) -> Label | None:
    seconds = _seconds(run.log)
    if seconds is None or seconds <= 0:
        return None
    reported = run.reported if system.num_devices is not None else None
    return choose_label(run.model, run.readings, reported, seconds, system.num_devices or 1, params.max_label_disagreement)


def _problem_with(run: _Run, system: System, label: Label | None, row: dict[str, object]) -> Problem | None:
    line = run.log.stop.line if run.log.stop is not None else 0
    if system.problem is not None:
        return Problem(*system.problem)
    seconds = row["steady_seconds"]
    if label is None and isinstance(seconds, float) and seconds > 0:
        sentence = f"no counter of {run.model} tells how many samples were trained on by run_stop, or the newest is far before it"
        return Problem("no-samples", sentence, line)
    if label is None or label.ratio is None or run.reported is None:
        return None
    sentence = (
        f"it reports a throughput of {run.reported.value:.6g} (the middle of its reports), {label.ratio:.3g} times the "
        f"{row['throughput']:.6g} samples/s of {label.samples.number:.10g} samples ({label.samples.how}) in {seconds} s; "
        "neither is taken"
    )
    return Problem("label-disagrees", sentence, line)


def _attempt(run: _Run, system: System, label: Label | None) -> dict[str, object]:
    """Make the row of `READ_SCHEMA`, with what is known of the run; columns without a value are left out."""
    path, settings = run.path, run.log.settings
    started_at, ended_at = _time_of(run.log.start), _time_of(run.log.stop)
    seconds = _seconds(run.log)
    framework = choose_framework(system.frameworks, path.at.system, run.model)
    return {
        "source": SOURCE,
        "slice": path.slice,
        "file": run.file,
        "line": run.log.stop.line if run.log.stop is not None else 0,
        "attempt_id": path.attempt_id,
        "segment_number": 1,
        "job_id": path.job_id,
        "attempt_number": path.attempt_number,
        "started_at": started_at,
        "ended_at": ended_at,
        "known_at": ended_at,
        "outcome": _outcome(run.log),
        "cluster": SOURCE,
        "team": path.at.submitter.casefold(),  # some change their spelling from round to round
        "model_type": run.model,
        "task": _TASKS.get(run.model),
        "framework": framework.name if framework is not None else None,
        "framework_version": framework.version if framework is not None else None,
        "global_batch_size": _positive(settings.get("global_batch_size")),
        "gradient_accumulation_steps": _positive(settings.get("gradient_accumulation_steps")),
        "sequence_length": _positive(settings.get("max_sequence_length")) or _positive(settings.get("sequence_length")),
        "optimizer": _lower(settings.get("opt_name")),
        "num_nodes": system.num_nodes,
        "num_devices": system.num_devices,
        "config": _config(settings, system, label),
        "hardware_name": system.hardware_name,
        "throughput": label.samples.number / seconds if label is not None and seconds is not None else None,
        "throughput_unit": ThroughputUnit.SAMPLES.value,
        "throughput_scope": ThroughputScope.JOB.value,
        "steady_seconds": seconds,
        "warmup_seconds": 0.0,
    }


def _outcome(log: RunLog) -> str | None:
    if log.stop is None:
        return None
    said = log.stop.value if isinstance(log.stop.value, dict) else {}
    succeeded = log.stop.metadata.get("status", said.get("status")) == "success" or said.get("success") is True
    return (Outcome.SUCCEEDED if succeeded else Outcome.FAILED).value


def _config(settings: dict[str, object], system: System, label: Label | None) -> str:
    """Give the other settings that are plain values as JSON with sorted keys; `division` says whether the model is free.

    ``cuda_version`` and the like are of the software stack. ``label_rule`` is a note on the label, no setting: there where a
    rule of `choose_label` made it another.
    """
    chosen = {
        key: value
        for key, value in settings.items()
        if isinstance(value, bool | int | float | str)
        and not (isinstance(value, float) and not math.isfinite(value))
        and key not in _NO_CONFIG
        and not key.startswith("submission_")
    }
    if isinstance(division := settings.get("submission_division"), str):
        chosen["division"] = division
    chosen |= system.software
    if label is not None and label.rule is not None:
        chosen["label_rule"] = label.rule
    return json.dumps(chosen, sort_keys=True)


def _positive(value: object) -> float | None:
    number = as_number(value)
    return number if number is not None and number > 0 else None


def _lower(value: object) -> str | None:
    return as_text(value).strip().lower() or None if isinstance(value, str) else None


def _reject(run: _Run, row: dict[str, object], problem: Problem) -> dict[str, object]:
    known = {name: row.get(name) for name in REJECT_SCHEMA.names if name in row}
    record = run.text if problem.reason == "not-a-log" else json.dumps(_compact(row), default=str, sort_keys=True)
    where = f"{run.file}, line {problem.line}" if problem.line else run.file
    return {**known, "line": problem.line, "reason": problem.reason, "detail": f"{where}: {problem.detail}.", "record": record}


def _compact(row: dict[str, object]) -> dict[str, object]:
    left_out = {"source", "slice", "file", "line", "config"}
    return {name: value for name, value in row.items() if value is not None and name not in left_out}


def _batch(attempts: list[dict[str, object]], rejects: list[dict[str, object]]) -> ReadBatch:
    return ReadBatch(pa.Table.from_pylist(attempts, schema=READ_SCHEMA), pa.Table.from_pylist(rejects, schema=REJECT_SCHEMA))
