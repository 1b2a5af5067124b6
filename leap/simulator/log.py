"""The log of the simulated fleet: attempts in the shape of `ATTEMPT_SCHEMA`, as their teams would report them.

What lives here: names, spellings, units and scopes of what is logged. What does not: any of the law; the throughput comes in.
"""

from __future__ import annotations

from datetime import UTC, date, datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from leap.contracts import ATTEMPT_SCHEMA, SUBMISSION_SCHEMA, UTC_TIMESTAMP
from leap.simulator.jobs import SCOPES, UNITS, Jobs, Teams
from leap.simulator.law import FRAMEWORKS, NODE_DEVICES
from leap.simulator.models import FAMILIES, Floats, Ints, ModelTypes
from leap.simulator.runs import DAY_SECONDS, OUTCOMES, Attempts

NUM_CLUSTERS = 4
FEWEST_STEPS = 200  # counted in whole steps, fewer would say the throughput too roughly


def write_submissions(attempts: Attempts, jobs: Jobs, teams: Teams, models: ModelTypes) -> pa.Table:
    """Give what was asked for by each attempt, without hardware: `SUBMISSION_SCHEMA`."""
    job = attempts.job
    model = jobs.model[job]
    devices = attempts.num_devices.astype(np.float64)
    tensor_parallel = np.minimum(jobs.tensor_parallel[job], devices)
    columns = {
        "job_id": _take(jobs.ids, job),
        "team": _take(teams.names, jobs.team[job]),
        "model_type": _take(models.names, model),
        "task": _take([f.task for f in FAMILIES], models.family[model]),
        "framework": _take(list(FRAMEWORKS), jobs.framework[job]),
        "framework_version": _versions(attempts, jobs),
        "precision": _take(jobs.precision, job),
        "optimizer": _take(jobs.optimizer, job),
        "global_batch_size": pa.array((jobs.device_batch * jobs.accumulation)[job] * devices),
        "gradient_accumulation_steps": pa.array(jobs.accumulation[job].astype(np.float64)),
        "sequence_length": pa.array(jobs.sequence_length[job], from_pandas=True),
        "image_size": pa.array(jobs.image_size[job], from_pandas=True),
        "parameters_m": pa.array(models.parameters_m[model]),
        "data_parallel": pa.array(devices / tensor_parallel),
        "tensor_parallel": pa.array(tensor_parallel),
        "pipeline_parallel": pa.array(np.ones(len(job))),
    }
    return pa.table(columns, schema=SUBMISSION_SCHEMA)


def write_attempts(
    submissions: pa.Table,
    attempts: Attempts,
    jobs: Jobs,
    teams: Teams,
    throughput: Floats,
    spellings: list[list[str]],
    start: date,
) -> pa.Table:
    """Give the log: `ATTEMPT_SCHEMA`, with `throughput` (samples/s of the whole job) in each team's own unit and scope.

    `spellings` holds for each hardware type the names that its machines may report; a cluster reports one of them.
    """
    job = attempts.job
    team = jobs.team[job]
    cluster = (attempts.place * 7 + team) % NUM_CLUSTERS
    nodes = np.ceil(attempts.num_devices / NODE_DEVICES).astype(np.int64)
    unit = _units(teams.unit[team], jobs.sequence_length[job])
    # A step is one of the whole job.
    scope = np.where(unit == UNITS.index("steps/s"), SCOPES.index("job"), teams.scope[team])
    steady = np.round(attempts.ended - attempts.started - attempts.warmup_seconds, 3)
    step_seconds, start_step, end_step = _steps(submissions, throughput, steady, team, attempts.number)
    columns = {name: submissions[name] for name in SUBMISSION_SCHEMA.names}
    columns |= {
        "attempt_id": pc.binary_join_element_wise(
            "a",
            pc.utf8_lpad(pa.array(attempts.run).cast(pa.string()), 7, "0"),
            pa.array(attempts.number).cast(pa.string()),
            "-",
        ),
        "segment_number": pa.array(np.ones(len(job)), pa.int32()),
        "attempt_number": pa.array(attempts.number, pa.int32()),
        "submitted_at": _times(attempts.submitted, start),
        "started_at": _times(attempts.started, start),
        "ended_at": _times(attempts.ended, start),
        "known_at": _times(attempts.known, start),
        "outcome": _take([outcome.value for outcome in OUTCOMES], attempts.outcome),
        "cluster": _take([f"cluster-{number + 1}" for number in range(NUM_CLUSTERS)], cluster),
        "pool": pa.repeat("default", len(job)),
        "user": pc.binary_join_element_wise("u", pa.array(team * 3 + job % 3).cast(pa.string()), ""),
        "per_device_batch_size": pa.array(jobs.device_batch[job].astype(np.float64)),
        "num_nodes": pa.array(nodes, pa.int32()),
        "num_devices": pa.array(attempts.num_devices, pa.int32()),
        "config": _take(jobs.config, job),
        "hardware_name": _spell(spellings, attempts.place, cluster),
        "throughput": pa.array(_as_reported(throughput, submissions, unit, scope, attempts.num_devices, nodes)),
        "throughput_unit": _take(UNITS, unit),
        "throughput_scope": _take(SCOPES, scope),
        "steady_seconds": pa.array(steady),
        "warmup_seconds": pa.array(np.round(attempts.warmup_seconds, 3)),
        "step_seconds": step_seconds,
        "start_step": start_step,
        "end_step": end_step,
        "pinned": pa.array(jobs.is_pinned[job]),
        "eligible_hardware": _take(jobs.eligible_hardware, job),
        "ranking_id": pa.nulls(len(job), pa.string()),
        "arm": pa.nulls(len(job), pa.string()),
    }
    return pa.table([columns[name] for name in ATTEMPT_SCHEMA.names], schema=ATTEMPT_SCHEMA)


def _take(names: tuple[str | None, ...] | tuple[str, ...] | list[str], at: Ints) -> pa.Array:
    return pa.array(names, pa.string()).take(pa.array(at))


def _versions(attempts: Attempts, jobs: Jobs) -> pa.Array:
    """Give the framework's version: a job goes on to the next one from its day of upgrade."""
    job = attempts.job
    first = np.cumsum([0, *(len(versions) for versions in FRAMEWORKS.values())])[jobs.framework[job]]
    is_upgraded = attempts.submitted >= jobs.upgrade_day[job] * DAY_SECONDS
    names = [version for versions in FRAMEWORKS.values() for version in versions]
    return _take(names, first + jobs.version[job] + is_upgraded)


def _times(seconds: Floats, start: date) -> pa.Array:
    first = int(datetime(start.year, start.month, start.day, tzinfo=UTC).timestamp())
    return pa.array(np.round((first + seconds) * 1e3).astype(np.int64) * 1000, pa.int64()).cast(UTC_TIMESTAMP)


def _units(team_unit: Ints, sequence_length: Floats) -> Ints:
    """Give the team's unit; what has no tokens is counted in samples."""
    return np.where(np.isnan(sequence_length) & (team_unit == UNITS.index("tokens/s")), UNITS.index("samples/s"), team_unit)


def _as_reported(
    throughput: Floats, submissions: pa.Table, unit: Ints, scope: Ints, num_devices: Ints, num_nodes: Ints
) -> Floats:
    batch, tokens = (submissions[name].to_numpy() for name in ("global_batch_size", "sequence_length"))
    per_second = np.choose(unit, [throughput, throughput * tokens, throughput / batch])
    return np.asarray(per_second / np.choose(scope, [np.ones_like(num_devices), num_devices, num_nodes]), np.float64)


def _steps(
    submissions: pa.Table, throughput: Floats, steady_seconds: Floats, team: Ints, number: Ints
) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Give seconds a step, and the step counter at the begin and end of the steady time; null where the team does not log them.

    Teams in turn log both, seconds only, nothing. A later attempt of a run goes on where an earlier one left a checkpoint.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        seconds = submissions["global_batch_size"].to_numpy() / throughput
        steps = np.round(steady_seconds / seconds)
    known = np.isfinite(seconds) & (seconds > 0)
    timed, counted = known & (team % 3 != 2), known & (team % 3 == 0) & (steps >= FEWEST_STEPS)
    start = np.where(number > 1, (number - 1) * 5000.0, 0.0) + 10
    return (
        pa.array(seconds, mask=~timed),
        pa.array(start, mask=~counted),
        pa.array(start + steps, mask=~counted),
    )


def _spell(spellings: list[list[str]], place: Ints, cluster: npt.NDArray[np.int64]) -> pa.Array:
    table = [names[number % len(names)] for names in spellings for number in range(NUM_CLUSTERS)]
    return _take(table, place * NUM_CLUSTERS + cluster)
