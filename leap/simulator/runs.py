"""Attempts of the simulated fleet: when each run is submitted, where it is placed, how it ends, what its clock and counter say.

What lives here: arrival, retries, outcomes, times and the noise of a measurement. What does not: what a job asks for
(`jobs.py`), the throughput without noise (`law.py`), the shape of the log (`log.py`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from leap.contracts import Outcome
from leap.simulator.jobs import MAX_DEVICES, Jobs
from leap.simulator.models import Floats, Ints

DAY_SECONDS = 86400.0
MAX_ATTEMPTS = 4

OUTCOMES = (Outcome.SUCCEEDED, Outcome.FAILED, Outcome.CANCELLED, Outcome.PREEMPTED)
_FAILED, _CANCELLED, _PREEMPTED = 1, 2, 3
_FAILED_SHARE, _CANCELLED_SHARE = 0.075, 0.04
_PREEMPTED_SHARES = (0.005, 0.12)  # of a hardware type's attempts
_RETRY_SHARE = 0.7  # of what failed or was preempted
_MEAN_ATTEMPTS = 1.1  # per run, so that the number of runs gives the number of attempts asked for


class Attempts(NamedTuple):
    """Attempts, one per row of each array; times are seconds since the first day began."""

    run: Ints
    number: Ints  # 1 = the run's first attempt
    job: Ints
    place: Ints  # hardware type
    num_devices: Ints
    outcome: Ints  # index into OUTCOMES
    submitted: Floats
    started: Floats
    ended: Floats
    known: Floats
    warmup_seconds: Floats


class _Runs(NamedTuple):
    job: Ints
    submitted: Floats
    num_devices: Ints


def draw_attempts(rng: np.random.Generator, jobs: Jobs, days: int, attempts_per_day: float) -> Attempts:
    """Draw the attempts of `days` days, in the order in which they become known; what is known later is left out."""
    runs = _draw_runs(rng, jobs, days, attempts_per_day)
    least, most = _PREEMPTED_SHARES
    preempted_shares = np.asarray(rng.uniform(least, most, jobs.place_shares.shape[1]), np.float64)
    rounds = [_draw_round(rng, jobs, runs, preempted_shares, None)]
    while rounds[-1].number[0] < MAX_ATTEMPTS:
        last = rounds[-1]
        is_retried = np.isin(last.outcome, (_FAILED, _PREEMPTED)) & (rng.random(len(last.run)) < _RETRY_SHARE)
        if not is_retried.any():
            break
        rounds.append(_draw_round(rng, jobs, runs, preempted_shares, _select(last, is_retried)))
    attempts = Attempts(*(np.concatenate(columns) for columns in zip(*rounds, strict=True)))
    attempts = _select(attempts, attempts.known < days * DAY_SECONDS)
    return _select(attempts, np.lexsort((attempts.number, attempts.run, attempts.known)))


def measure(rng: np.random.Generator, throughput: Floats, steady_seconds: Floats) -> Floats:
    """Give what a counter shows of a true throughput, in its unit: noise, wider where time was short, and some stragglers."""
    spread = np.hypot(0.012, 0.04 / np.sqrt(np.maximum(steady_seconds, 1.0) / 60))
    slowed = np.where(rng.random(len(throughput)) < 0.025, rng.uniform(0.6, 0.95, len(throughput)), 1.0)
    return np.asarray(throughput * np.exp(spread * rng.standard_normal(len(throughput))) * slowed, np.float64)


def _draw_runs(rng: np.random.Generator, jobs: Jobs, days: int, attempts_per_day: float) -> _Runs:
    job, day = _draw_days(rng, jobs, days, attempts_per_day)
    hour = np.where(jobs.is_daily, rng.uniform(0, 24, len(jobs.ids)), np.nan)[job]
    at_any_time = _draw_hours(rng, len(job))
    hours = np.where(np.isnan(hour), at_any_time, np.mod(hour + rng.normal(0, 0.5, len(job)), 24))
    # Now and then a run asks for half or twice the devices.
    factor = rng.choice(np.array([0.5, 1.0, 2.0]), len(job), p=[0.04, 0.92, 0.04])
    num_devices = np.clip(jobs.num_devices[job] * factor, 1, MAX_DEVICES).astype(np.int64)
    return _Runs(job, (day + hours / 24) * DAY_SECONDS, num_devices)


def _draw_days(rng: np.random.Generator, jobs: Jobs, days: int, attempts_per_day: float) -> tuple[Ints, Ints]:
    """Give job and day of each run: a daily job runs once a day at least, any job on the day it appears."""
    day = np.arange(days)
    is_active = day >= jobs.first_day[:, None]
    floor = np.where(jobs.is_daily, 1.0, 0.15)
    wanted = attempts_per_day * days / _MEAN_ATTEMPTS
    least = float((floor[:, None] * is_active).sum())
    scale = max(wanted - least, 0.0) / float((jobs.popularity[:, None] * is_active).sum())
    rate = (floor * min(1.0, wanted / least) + jobs.popularity * scale)[:, None] * is_active
    counts = np.floor(rate + rng.random(rate.shape)).astype(np.int64)
    first = (np.arange(len(jobs.ids)), jobs.first_day)
    counts[first] = np.maximum(counts[first], 1)
    job, on = np.divmod(np.repeat(np.arange(counts.size), counts.ravel()), days)
    return job, on


def _draw_hours(rng: np.random.Generator, count: int) -> Floats:
    """Draw hours of the day, twice as many in working hours as at night."""
    weights = 1.0 + 0.5 * np.cos((np.arange(24) - 14) / 24 * 2 * np.pi)
    return np.asarray(rng.choice(24, count, p=weights / weights.sum()) + rng.random(count), np.float64)


def _draw_round(rng: np.random.Generator, jobs: Jobs, runs: _Runs, preempted_shares: Floats, before: Attempts | None) -> Attempts:
    """Draw the first attempt of each run, or the next one of the attempts `before`."""
    run = np.arange(len(runs.job)) if before is None else before.run
    job = runs.job[run]
    place = _draw_places(rng, jobs.place_shares, job)
    if before is not None:
        place = np.where(rng.random(len(run)) < 0.7, before.place, place)
    submitted = runs.submitted if before is None else before.ended + rng.uniform(5, 120, len(run))
    started = submitted + rng.lognormal(np.log(90), 1.5, len(run))
    outcome = _draw_outcomes(rng, preempted_shares[place])
    whole = jobs.median_seconds[job] * rng.lognormal(0, 0.35, len(run)) + 60
    seconds = whole * _share_done(rng, outcome)
    warmup = np.minimum(rng.lognormal(np.log(70), 0.6, len(run)), 0.8 * seconds)
    ended = started + np.maximum(seconds, 1.0)
    return Attempts(
        run=run,
        number=np.full(len(run), 1 if before is None else before.number[0] + 1, np.int64),
        job=job,
        place=place,
        num_devices=runs.num_devices[run],
        outcome=outcome,
        submitted=submitted,
        started=started,
        ended=ended,
        known=ended + _reporting_delay(rng, len(run)),
        warmup_seconds=warmup,
    )


def _draw_places(rng: np.random.Generator, shares: Floats, job: Ints) -> Ints:
    limits = np.cumsum(shares, axis=1)
    limits[:, -1] = 1.0
    return np.asarray((rng.random(len(job))[:, None] >= limits[job]).sum(axis=1), np.int64)


def _draw_outcomes(rng: np.random.Generator, preempted_share: Floats) -> Ints:
    drawn = rng.random(len(preempted_share))
    is_failed = drawn < _FAILED_SHARE
    is_cancelled = ~is_failed & (drawn < _FAILED_SHARE + _CANCELLED_SHARE)
    is_preempted = drawn > 1 - preempted_share
    return np.select([is_failed, is_cancelled, is_preempted], [_FAILED, _CANCELLED, _PREEMPTED], 0).astype(np.int64)


def _share_done(rng: np.random.Generator, outcome: Ints) -> Floats:
    """Give the share of its time that an attempt got through: failures come early, the rest at any time."""
    early = rng.beta(0.5, 1.5, len(outcome))
    any_time = rng.uniform(0.02, 1.0, len(outcome))
    return np.select([outcome == _FAILED, outcome > _FAILED], [early, any_time], 1.0)


def _reporting_delay(rng: np.random.Generator, count: int) -> Floats:
    is_late = rng.random(count) < 0.01
    return np.where(is_late, rng.uniform(0.1, 2.0, count) * DAY_SECONDS, rng.lognormal(np.log(150), 0.7, count))


def _select(attempts: Attempts, rows: npt.NDArray[np.bool_] | Ints) -> Attempts:
    columns: list[Any] = [column[rows] for column in attempts]
    return Attempts(*columns)
