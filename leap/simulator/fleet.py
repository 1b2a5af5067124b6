"""A whole simulated fleet: from a configuration and a seed to a log, with the truth beside it.

What lives here: the configuration and the order in which the parts are drawn. What does not: the parts themselves, and files
(`write.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from leap.simulator.jobs import draw_jobs, draw_teams
from leap.simulator.law import Law, draw_effects
from leap.simulator.log import write_attempts, write_submissions
from leap.simulator.models import Floats, draw_model_types
from leap.simulator.runs import draw_attempts, measure

DEFAULT_HARDWARE_TYPES: tuple[str, ...] = (
    "V100-16GB-SXM2",
    "V100-32GB-SXM2",
    "T4",
    "RTX2080Ti",
    "RTX3090",
    "RTX4090",
    "RTXA6000",
    "A10G",
    "A30",
    "A40",
    "L4",
    "L40S",
    "A100-40GB-PCIe",
    "A100-40GB-SXM4",
    "A100-80GB-SXM4",
    "H100-80GB-PCIe",
    "H100-80GB-SXM5",
    "H200-SXM",
    "B200",
    "MI210",
    "MI250X",
    "MI300X",
    "TPUv4",
    "TPUv5e",
    "TPUv5p",
    "Gaudi2",
    "Gaudi3",
    "Trainium1",
    "Ascend910B",
)


class FleetError(ValueError):
    """The configuration of a fleet is not possible; the message says what to change."""


@dataclass(frozen=True)
class FleetConfig:
    """What a fleet is made of.

    ``hardware`` (`HARDWARE_SCHEMA`) describes at least ``hardware_types``. ``aliases`` (columns ``spelling`` and
    ``hardware_type``) gives the names that machines report; without them a machine reports the type's own name.
    """

    hardware: pa.Table
    aliases: pa.Table | None = None
    hardware_types: tuple[str, ...] = DEFAULT_HARDWARE_TYPES
    seed: int = 20260
    start: date = date(2026, 3, 1)
    days: int = 14
    attempts_per_day: float = 1500
    num_model_types: int = 220
    num_jobs: int = 600
    num_teams: int = 24


@dataclass(frozen=True)
class FleetLog:
    """What a fleet logged (``attempts``, `ATTEMPT_SCHEMA`, in the order it became known) and what no log tells.

    ``hardware_type`` is the type each attempt really ran on, one per row of ``attempts``.
    """

    attempts: pa.Table
    hardware_type: pa.Array
    _law: Law = field(repr=False)

    def truth(self, submissions: pa.Table, candidates: pa.Table) -> Floats:
        """Give the throughput without noise, samples/s of the whole job, one for each row.

        Row by row, a submission runs on a candidate: `submissions` has the columns of `SUBMISSION_SCHEMA`; of `candidates`
        only ``hardware_type`` and ``num_devices`` are looked at. NaN where the fleet has no such model type or hardware type.
        """
        return self._law.throughput(submissions, candidates)


def simulate(config: FleetConfig) -> FleetLog:
    """Draw a fleet and the log of its days; the same configuration gives the same log.

    Raises FleetError where a hardware type is not described or a count is not possible.
    """
    _check(config)
    hardware = _describe(config)
    # One stream per part, so that a change of one part leaves the others as they were.
    for_models, for_teams, for_jobs, for_law, for_attempts, for_noise = np.random.default_rng(config.seed).spawn(6)
    inventory = np.asarray(for_teams.lognormal(0.0, 0.5, hardware.num_rows), np.float64)
    models = draw_model_types(for_models, config.num_model_types)
    teams = draw_teams(for_teams, config.num_teams, hardware, inventory)
    jobs = draw_jobs(for_jobs, config.num_jobs, config.days, models, teams, hardware, inventory)
    law = Law(models, jobs.ids, hardware, draw_effects(for_law, models, config.num_jobs, hardware))
    attempts = draw_attempts(for_attempts, jobs, config.days, config.attempts_per_day)
    submissions = write_submissions(attempts, jobs, teams, models)
    hardware_type = hardware["hardware_type"].combine_chunks().take(pa.array(attempts.place))
    candidates = pa.table({"hardware_type": hardware_type, "num_devices": attempts.num_devices})
    steady_seconds = attempts.ended - attempts.started - attempts.warmup_seconds
    measured = measure(for_noise, law.throughput(submissions, candidates), steady_seconds)
    spellings = _spellings(hardware, config.aliases)
    log = write_attempts(submissions, attempts, jobs, teams, measured, spellings, config.start)
    return FleetLog(log, hardware_type, law)


def _check(config: FleetConfig) -> None:
    if config.num_jobs < config.num_model_types:
        raise FleetError(
            f"{config.num_jobs} jobs cannot use {config.num_model_types} model types; raise num_jobs or lower num_model_types."
        )
    counts = ("days", "attempts_per_day", "num_model_types", "num_teams")
    for name in counts:
        if not getattr(config, name) >= 1:
            raise FleetError(f"{name} is {getattr(config, name)}; a fleet needs 1 or more.")
    if len(config.hardware_types) < 3:
        raise FleetError(f"{len(config.hardware_types)} hardware types were named; a fleet needs 3 or more.")


def _describe(config: FleetConfig) -> pa.Table:
    """Give the rows of the catalogue for the fleet's types, in the order of `hardware_types`."""
    at = pc.index_in(pa.array(config.hardware_types, pa.string()), value_set=config.hardware["hardware_type"].combine_chunks())
    missing = [name for name, row in zip(config.hardware_types, at.to_pylist(), strict=True) if row is None]
    if missing:
        raise FleetError(f"The hardware catalogue does not describe {', '.join(missing)}; add a row each, or name other types.")
    return config.hardware.take(at)


def _spellings(hardware: pa.Table, aliases: pa.Table | None) -> list[list[str]]:
    names: dict[str, list[str]] = {name: [] for name in hardware["hardware_type"].to_pylist()}
    rows = [] if aliases is None else zip(aliases["spelling"].to_pylist(), aliases["hardware_type"].to_pylist(), strict=True)
    for spelling, hardware_type in rows:
        if hardware_type in names:
            names[hardware_type].append(spelling)
    return [spelled or [name] for name, spelled in names.items()]
