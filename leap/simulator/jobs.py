"""Teams and jobs of the simulated fleet: what is asked for, how often, and where the old rule of the fleet puts it.

What lives here: the draw of teams and jobs, and the share of each hardware type in a job's attempts. What does not: single
attempts (`runs.py`), how fast they are (`law.py`).
"""

from __future__ import annotations

import json
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from leap.simulator.law import FRAMEWORKS
from leap.simulator.models import FAMILIES, Floats, Ints, ModelTypes, of_family

MAX_DEVICES = 64
HABITS = 3  # hardware types that a team is used to, first the usual one
UNITS = ("samples/s", "tokens/s", "steps/s")
SCOPES = ("job", "device", "node")

_FRAMEWORK_SHARES = (0.74, 0.10, 0.16)
_PRECISIONS = ("bf16", "fp16", "fp32", "fp8")
_PRECISION_SHARES = (0.58, 0.22, 0.14, 0.06)
_OPTIMIZERS = ("adamw", "sgd", "lamb", "adafactor")
_OPTIMIZER_SHARES = (0.62, 0.2, 0.1, 0.08)
_TEAM_NAMES = ("search", "ads", "speech", "vision", "maps", "feed", "video", "trust", "shop", "chat", "photos", "health")
_PURPOSES = ("nightly", "retrain", "ablation", "sweep", "finetune", "baseline")


class Teams(NamedTuple):
    """Teams, one per row of each array."""

    names: tuple[str, ...]
    framework: Ints  # index into FRAMEWORKS
    habits: Ints  # teams x HABITS, hardware types
    unit: Ints  # index into UNITS: how its jobs report throughput
    scope: Ints  # index into SCOPES


class Jobs(NamedTuple):
    """Jobs, one per row of each array; a job comes again under one name with one configuration."""

    ids: tuple[str, ...]
    model: Ints
    team: Ints
    framework: Ints
    version: Ints  # place among the framework's versions at the start
    upgrade_day: Floats  # from this day on the next version
    precision: tuple[str, ...]
    optimizer: tuple[str, ...]
    num_devices: Ints
    device_batch: Ints
    accumulation: Ints
    sequence_length: Floats  # NaN = none
    image_size: Floats  # NaN = none
    tensor_parallel: Ints
    config: tuple[str, ...]  # JSON objects
    is_pinned: npt.NDArray[np.bool_]
    eligible_hardware: tuple[str | None, ...]  # JSON arrays
    place_shares: Floats  # jobs x hardware types, rows add up to 1: the old rule
    first_day: Ints
    is_daily: npt.NDArray[np.bool_]
    popularity: Floats  # weights, by Zipf
    median_seconds: Floats


def draw_teams(rng: np.random.Generator, count: int, hardware: pa.Table, inventory: Floats) -> Teams:
    """Draw teams; each is used to types that its framework is at home on and that the fleet has many of."""
    names = tuple(f"{_TEAM_NAMES[at % len(_TEAM_NAMES)]}-{at // len(_TEAM_NAMES) + 1}" for at in range(count))
    framework = rng.choice(len(FRAMEWORKS), count, p=_FRAMEWORK_SHARES)
    is_tpu = np.array([vendor == "Google" for vendor in hardware["vendor"].to_pylist()])
    liking = np.array([0.3, 1.5, 6.0])[framework]
    weights = inventory * np.where(is_tpu, liking[:, None], 1.0)
    habits = np.argsort(-(np.log(weights) + rng.gumbel(size=weights.shape)), axis=1)[:, :HABITS]
    unit = rng.choice(len(UNITS), count, p=[0.6, 0.28, 0.12])
    scope = rng.choice(len(SCOPES), count, p=[0.64, 0.26, 0.10])
    return Teams(names, framework, habits, unit, scope)


def draw_jobs(
    rng: np.random.Generator, count: int, days: int, models: ModelTypes, teams: Teams, hardware: pa.Table, inventory: Floats
) -> Jobs:
    """Draw `count` jobs; each model type has one at least, and the later ones appear along the `days`."""
    model = _model_of_each(rng, count, len(models.names))
    family = models.family[model]
    team = rng.integers(len(teams.names), size=count)
    framework = np.where(rng.random(count) < 0.9, teams.framework[team], rng.choice(len(FRAMEWORKS), count, p=_FRAMEWORK_SHARES))
    num_versions = np.array([len(versions) for versions in FRAMEWORKS.values()])[framework]
    num_devices = _draw_num_devices(rng, models.parameters_m[model])
    sequence_length, image_size = _draw_sizes(rng, models, model)
    is_pinned = rng.random(count) < 0.1
    may_run = _draw_eligible(rng, count, hardware.num_rows, teams.habits[team, 0])
    return Jobs(
        ids=_job_ids(rng, teams, team, models, model),
        model=model,
        team=team,
        framework=framework,
        version=(rng.random(count) * (num_versions - 1)).astype(np.int64),
        upgrade_day=rng.random(count) * 3 * days,
        precision=_pick(rng, _PRECISIONS, _PRECISION_SHARES, count),
        optimizer=_pick(rng, _OPTIMIZERS, _OPTIMIZER_SHARES, count),
        num_devices=num_devices,
        device_batch=_draw_device_batch(rng, family),
        accumulation=rng.choice(np.array([1, 2, 4, 8]), count, p=[0.72, 0.14, 0.09, 0.05]),
        sequence_length=sequence_length,
        image_size=image_size,
        tensor_parallel=np.where(models.parameters_m[model] > 6000, np.minimum(num_devices, 4), 1),
        config=_draw_configs(rng, count),
        is_pinned=is_pinned,
        eligible_hardware=_name_eligible(may_run, hardware),
        place_shares=_place_shares(
            rng, teams.habits[team], is_pinned, may_run, inventory, models.parameters_m[model], num_devices, hardware
        ),
        first_day=_first_days(rng, count, days),
        is_daily=rng.random(count) < 0.5,
        popularity=np.asarray((rng.permutation(count) + 1.0) ** -0.9, np.float64),
        median_seconds=np.exp(rng.uniform(np.log(600), np.log(5 * 3600), count)),
    )


def _model_of_each(rng: np.random.Generator, count: int, num_models: int) -> Ints:
    weights = (rng.permutation(num_models) + 1.0) ** -0.7
    more = rng.choice(num_models, max(count - num_models, 0), p=weights / weights.sum())
    return np.concatenate([np.arange(num_models), more])[:count].astype(np.int64)


def _first_days(rng: np.random.Generator, count: int, days: int) -> Ints:
    """Give the day each job first runs: most are there at the start, a quarter appear later."""
    later = rng.random(count) < 0.25
    return np.where(later, rng.integers(0, days, count), 0).astype(np.int64)


def _draw_num_devices(rng: np.random.Generator, parameters_m: Floats) -> Ints:
    centre = 1.2 + 0.55 * np.log(np.maximum(parameters_m, 30) / 30)
    exponent = np.clip(np.round(centre + 1.2 * rng.standard_normal(len(parameters_m))), 0, np.log2(MAX_DEVICES))
    return (2**exponent).astype(np.int64)


def _draw_device_batch(rng: np.random.Generator, family: Ints) -> Ints:
    widest = max(len(f.device_batches) for f in FAMILIES)
    table = np.array([[f.device_batches[min(at, len(f.device_batches) - 1)] for at in range(widest)] for f in FAMILIES])
    return table[family, rng.integers(widest, size=len(family))].astype(np.int64)


def _draw_sizes(rng: np.random.Generator, models: ModelTypes, model: Ints) -> tuple[Floats, Floats]:
    """Give sequence length and image size; one job in eight takes half of its model type's usual sequence."""
    family = models.family[model]
    has_sequence = of_family([float(f.has_sequence) for f in FAMILIES], family) > 0
    has_image = of_family([float(f.has_image) for f in FAMILIES], family) > 0
    size = models.size[model] * np.where((rng.random(len(model)) < 0.125) & has_sequence, 0.5, 1.0)
    return np.where(has_sequence, size, np.nan), np.where(has_image, size, np.nan)


def _draw_configs(rng: np.random.Generator, count: int) -> tuple[str, ...]:
    rates = rng.choice(np.array([1e-4, 3e-4, 1e-3, 0.1]), count)
    workers = rng.choice(np.array([4, 8, 16]), count)
    checkpointing = rng.random(count) < 0.3
    return tuple(
        json.dumps({"activation_checkpointing": kept, "data_workers": number, "learning_rate": rate}, separators=(",", ":"))
        for kept, number, rate in zip(checkpointing.tolist(), workers.tolist(), rates.tolist(), strict=True)
    )


def _job_ids(rng: np.random.Generator, teams: Teams, team: Ints, models: ModelTypes, model: Ints) -> tuple[str, ...]:
    purpose = rng.integers(len(_PURPOSES), size=len(team))
    return tuple(
        f"{teams.names[of_team]}/{models.names[of_model]}-{_PURPOSES[of_purpose]}-{number}"
        for number, (of_team, of_model, of_purpose) in enumerate(
            zip(team.tolist(), model.tolist(), purpose.tolist(), strict=True)
        )
    )


def _draw_eligible(rng: np.random.Generator, count: int, num_types: int, habit: Ints) -> npt.NDArray[np.bool_]:
    """Say which hardware types each job may run on: for one job in twelve a third of them, with the team's usual one."""
    may_run = rng.random((count, num_types)) < 1 / 3
    may_run[np.arange(count), habit] = True
    return may_run | (rng.random(count) >= 1 / 12)[:, None]


def _name_eligible(may_run: npt.NDArray[np.bool_], hardware: pa.Table) -> tuple[str | None, ...]:
    names = np.array(hardware["hardware_type"].to_pylist(), object)
    return tuple(None if row.all() else json.dumps(names[row].tolist(), separators=(",", ":")) for row in may_run)


def _place_shares(
    rng: np.random.Generator,
    habits: Ints,
    is_pinned: npt.NDArray[np.bool_],
    may_run: npt.NDArray[np.bool_],
    inventory: Floats,
    parameters_m: Floats,
    num_devices: Ints,
    hardware: pa.Table,
) -> Floats:
    """Give the old rule: a job's usual type, now and then another that the team is used to, else what is free.

    Types on which the state of training would not fit are taken far more seldom; how fast a type is plays no part.
    """
    jobs = np.arange(len(habits))
    usual = habits[jobs, rng.choice(HABITS, len(habits), p=[0.6, 0.25, 0.15])]
    shares = 0.22 * np.broadcast_to(inventory / inventory.sum(), may_run.shape).copy()
    np.add.at(shares, (np.repeat(jobs, HABITS), habits.ravel()), 0.13 / HABITS)
    shares[jobs, usual] += np.where(is_pinned, 30.0, 0.65)
    memory = np.array(hardware["memory_bytes"].fill_null(32e9).to_pylist(), np.float64)
    is_full = 16e6 * parameters_m[:, None] > num_devices[:, None] * memory
    shares = np.where(may_run, shares * np.where(is_full, 0.02, 1.0), 0.0)
    return np.asarray(shares / shares.sum(axis=1, keepdims=True), np.float64)


def _pick(rng: np.random.Generator, names: tuple[str, ...], shares: tuple[float, ...], count: int) -> tuple[str, ...]:
    return tuple(names[at] for at in rng.choice(len(names), count, p=shares).tolist())
