"""One meaning for a label: samples per second of the whole job at steady state, held against what steps and times say.

What lives here: the second measure of a throughput (step counters, seconds a step), and what follows where the two disagree.
What does not: which fields an attempt must have (`admission.py`), labels of MLPerf (`mlperf_labels.py`).

Only what stands in the record decides, so that the order in which records come changes nothing. A logged figure and a measured
one that differ by a factor that has a name were mistaken for each other: of the whole job and of a device, samples and tokens.
Such a record is not trusted. Where the logged figure is a known mistake in time, the measured one is right and is taken: a
counter that went on after a resume, or warm-up counted in.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from leap.contracts import ThroughputScope, ThroughputUnit

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.bool_]

# How the label of an attempt came about, where it is not the figure that was logged.
LABEL_COLUMNS: Final = (
    pa.field("label_rule", pa.string()),  # null = the figure as logged
    pa.field("throughput_as_logged", pa.float64()),  # what the rule replaced, in the unit and scope logged; null = nothing
)


class LabelRule(StrEnum):
    """Why a label is not the figure that was logged."""

    FROM_COUNTERS = "from-step-counters"  # none was logged
    FROM_STEP_SECONDS = "from-step-seconds"  # none was logged
    COUNTER_NOT_RESET = "counter-not-reset"  # steps since the job's first attempt over the seconds of this one
    WARMUP_COUNTED = "warm-up-counted"  # steady steps over the whole time


class LabelProblem(StrEnum):
    """Why a label that was logged is not trusted."""

    SCOPE = "scope-disagrees"
    UNIT = "unit-disagrees"
    OTHER = "label-disagrees"


def whole_job(attempts: pa.Table) -> Floats:
    """Give the logged throughput in samples/s of the whole job, shape (n,); NaN where it cannot be told.

    `int_attempts_throughput_converted` does the same in SQL; a step is a step of the whole job in whatever scope.
    """
    unit, scope = (_text(attempts, name) for name in ("throughput_unit", "throughput_scope"))
    per_unit = np.select(
        [unit == ThroughputUnit.SAMPLES, unit == ThroughputUnit.TOKENS, unit == ThroughputUnit.STEPS],
        [np.ones(len(unit)), 1 / _positive(_number(attempts, "sequence_length")), _number(attempts, "global_batch_size")],
        np.nan,
    )
    per_scope = np.select(
        [scope == ThroughputScope.JOB, scope == ThroughputScope.NODE, scope == ThroughputScope.DEVICE],
        [np.ones(len(unit)), _number(attempts, "num_nodes"), _number(attempts, "num_devices")],
        np.nan,
    )
    return _number(attempts, "throughput") * per_unit * per_scope


def measured(attempts: pa.Table) -> tuple[Floats, Floats]:
    """Give samples/s of the whole job by step counters and by seconds a step, each of shape (n,); NaN where not logged."""
    batch, seconds = _number(attempts, "global_batch_size"), _number(attempts, "steady_seconds")
    steps = _number(attempts, "end_step") - _number(attempts, "start_step")
    by_counters = steps / _positive(seconds) * batch
    by_step = batch / _positive(_number(attempts, "step_seconds"))
    return _positive(by_counters), _positive(by_step)


def settle(attempts: pa.Table, most: float) -> pa.Table:
    """Add `LABEL_COLUMNS`, and what is wrong with a label: ``label_problem`` (`LabelProblem`), ``label_detail``; null = nothing.

    `most` is the share by which the logged figure may differ from the measured one. Where a rule makes or replaces a label, the
    throughput becomes samples/s of the whole job.
    """
    logged, by_counters, by_step = whole_job(attempts), *measured(attempts)
    truth = np.where(np.isfinite(by_counters), by_counters, by_step)
    is_logged = np.asarray(attempts["throughput"].is_valid().to_numpy(), dtype=bool)
    compared = np.isfinite(truth) & np.isfinite(logged) & (logged > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(compared, logged / truth, 1.0)
        also = np.where(np.isfinite(by_counters) & np.isfinite(by_step), by_step / by_counters, 1.0)

    def near(factor: Floats) -> Rows:
        """Tell where the two differ by this factor, either way; a factor near one explains nothing."""
        with np.errstate(divide="ignore", invalid="ignore"):
            apart = np.minimum(np.abs(ratio / factor - 1), np.abs(ratio * factor - 1))
        return np.asarray((factor > 1 + 2 * most) & (apart <= most))

    differs = compared & (np.abs(ratio - 1) > most)
    scope = near(_number(attempts, "num_devices")) | near(_number(attempts, "num_nodes"))
    batch, tokens = _number(attempts, "global_batch_size"), _number(attempts, "sequence_length")
    with np.errstate(over="ignore"):
        unit = near(batch) | near(tokens) | near(batch * tokens)
    steps, end = _number(attempts, "end_step") - _number(attempts, "start_step"), _number(attempts, "end_step")
    steady, warmup = _number(attempts, "steady_seconds"), _number(attempts, "warmup_seconds")
    with np.errstate(divide="ignore", invalid="ignore"):
        resumed = np.isfinite(by_counters) & (np.abs(ratio / (end / steps) - 1) <= most)
        slowed = np.isfinite(warmup) & (warmup > 0) & (np.abs(ratio * (steady + warmup) / steady - 1) <= most)

    problem = np.select(
        [np.abs(also - 1) > most, differs & scope, differs & unit, differs & (resumed | slowed), differs],
        [LabelProblem.OTHER, LabelProblem.SCOPE, LabelProblem.UNIT, "", LabelProblem.OTHER],
        "",
    )
    rule = np.select(
        [
            ~is_logged & np.isfinite(by_counters),
            ~is_logged & np.isfinite(by_step),
            differs & (problem == "") & resumed,
            differs & (problem == "") & slowed,
        ],
        list(LabelRule),
        "",
    )
    ruled = rule != ""
    columns = {
        "throughput": pc.if_else(pa.array(ruled), pa.array(truth), attempts["throughput"]),
        "throughput_unit": _instead(ruled, ThroughputUnit.SAMPLES.value, attempts["throughput_unit"]),
        "throughput_scope": _instead(ruled, ThroughputScope.JOB.value, attempts["throughput_scope"]),
        "label_rule": _text_or_null(rule),
        "throughput_as_logged": pc.if_else(pa.array(ruled & is_logged), attempts["throughput"], pa.scalar(None, pa.float64())),
        "label_problem": _text_or_null(problem),
        "label_detail": _details(problem, logged, truth, by_step, also, most),
    }
    for name, values in columns.items():
        at = attempts.column_names.index(name) if name in attempts.column_names else None
        attempts = (
            attempts.append_column(name, values) if at is None else attempts.set_column(at, attempts.schema.field(at), values)
        )
    return attempts


_WHY = {
    LabelProblem.SCOPE: "the factor is the number of devices or nodes: throughput_scope does not say what was measured",
    LabelProblem.UNIT: "the factor is the batch, the sequence length or both: throughput_unit does not say what was counted",
    LabelProblem.OTHER: "nothing in the record explains the factor",
}


def _details(
    problem: npt.NDArray[np.str_], logged: Floats, truth: Floats, by_step: Floats, also: Floats, most: float
) -> pa.Array:
    """Say what disagrees, for the few rows where something does."""
    details: list[str | None] = [None] * len(problem)
    for row in np.flatnonzero(problem != ""):
        if abs(also[row] - 1) > most:
            details[row] = (
                f"step counters say {truth[row]:g} samples/s of the job and step_seconds says {by_step[row]:g}; "
                "correct the one that is wrong."
            )
        else:
            details[row] = (
                f"throughput says {logged[row]:g} samples/s of the job, its steps say {truth[row]:g}, a factor of "
                f"{logged[row] / truth[row]:.4g}; {_WHY[LabelProblem(str(problem[row]))]}."
            )
    return pa.array(details, pa.string())


def _instead(rows: Rows, value: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.if_else(pa.array(rows), pa.scalar(value), column)


def _text_or_null(values: npt.NDArray[np.str_]) -> pa.Array:
    return pa.array(values.tolist(), pa.string(), mask=values == "") if len(values) else pa.array([], pa.string())


def _positive(values: Floats) -> Floats:
    return np.where(np.isfinite(values) & (values > 0), values, np.nan)


def _number(attempts: pa.Table, name: str) -> Floats:
    return np.asarray(attempts[name].cast(pa.float64()).to_numpy(), dtype=np.float64)


def _text(attempts: pa.Table, name: str) -> npt.NDArray[np.str_]:
    return np.asarray(pc.fill_null(attempts[name], "").to_numpy(), dtype=np.str_)
