"""Why an attempt was predicted as it was: what its night's cut knew, what the model made of it, what else was near.

What lives here: finding the attempt, the model of its cut, and the parts of its answer. What does not: reading datasets and
printing (`pipelines`).

Throughputs are samples/s; those of history and neighbours are per device, since they come from other device counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from leap.evaluation.history import History, Rows
from leap.evaluation.retrain import default_predictors, fit_with_intervals
from leap.features import PRIOR_LEVELS, Floats
from leap.params import Params
from leap.predictors.gbdt import GbdtPredictor, base

DRIVERS = 12
NEIGHBOURS = 10
_LISTED = 10


class NoSuchAttemptError(ValueError):
    """No attempt, or more than one, is meant; the message lists those that come near."""


class NothingKnownError(ValueError):
    """At the attempt's cut there was nothing to learn from, so no model to explain."""


@dataclass(frozen=True)
class KnownLevel:
    """What one level of history knew at the cut: runs, newest and median throughput per device, days since the newest ended."""

    level: str
    key: str
    count: int
    last: float | None
    median: float | None
    age_days: float | None
    is_prior: bool


@dataclass(frozen=True)
class Driver:
    """What one feature added to the answer: `log` in log units, `factor` = exp(log)."""

    feature: str
    value: str
    log: float
    factor: float


@dataclass(frozen=True)
class Neighbour:
    """An attempt of the same model type that the cut knew; `off` is how far its throughput per device is from the label."""

    attempt_id: str
    job: str
    hardware_type: str
    num_devices: float
    global_batch_size: float | None
    night: str
    throughput_per_device: float
    off: float


@dataclass(frozen=True)
class Explanation:
    """The answer for one attempt, and what it is made of.

    ``start * common_factor * the factors of all drivers * rest_factor = p50``, per device; `label`, `p10`, `p50`, `p90` are of
    the whole job. `start` is what the trees correct, `share` how much of their correction is taken (within the factors already);
    `prior` is the most specific history. `error` is p50 / label - 1, None where there is no answer.
    """

    attempt_id: str
    job: str
    model_type: str
    hardware_type: str
    num_devices: float
    cut: str
    trained_on: int
    label: float
    p10: float | None
    p50: float | None
    p90: float | None
    error: float | None
    is_within_interval: bool
    tier: str
    prior: float | None
    prior_level: str | None
    start: float | None
    start_from: str
    share: float
    common_factor: float
    levels: tuple[KnownLevel, ...]
    drivers: tuple[Driver, ...]
    rest_count: int
    rest_factor: float
    neighbours: tuple[Neighbour, ...]

    def to_json(self) -> dict[str, Any]:
        """Give the explanation as JSON values."""
        return asdict(self)


def find_attempt(examples: pa.Table, text: str) -> int:
    """Give the row of the newest label of the one attempt whose id is `text`, begins with it or contains it.

    An attempt in segments is found by its first. Raises NoSuchAttemptError, which lists the attempts that come near.
    """
    newest = examples["is_newest"]
    if "segment_number" in examples.column_names:
        newest = pc.and_(newest, pc.equal(examples["segment_number"], pc.min(examples["segment_number"])))
    rows = np.flatnonzero(np.asarray(pc.fill_null(newest, False).to_numpy(), dtype=bool))
    ids = examples["attempt_id"].take(pa.array(rows))
    for match in (pc.equal(ids, text), pc.starts_with(ids, text), pc.match_substring(ids, text, ignore_case=True)):
        found = rows[np.asarray(match.to_numpy(), dtype=bool)]
        if len(found) == 1:
            return int(found[0])
        if len(found):
            raise NoSuchAttemptError(
                f"{len(found)} attempts match {text!r}; name one{' of them, as' if len(found) > _LISTED else ''}:\n"
                f"{_listed(examples, found[_spread(len(found))])}"
            )
    near = rows[_nearest_names(ids, text)]
    raise NoSuchAttemptError(f"no attempt matches {text!r}; the nearest of {len(rows)} are:\n{_listed(examples, near)}")


def explain(examples: pa.Table, history: History, row: int, params: Params) -> Explanation:
    """Explain the answer for a row of `examples` by a model trained at the row's own cut on what was known there.

    `history` is of the same rows. Raises NothingKnownError where nothing was.
    """
    cut = history.night[row]
    known = history.known_at(cut, params.model.training_window_days)
    if not np.isfinite(base(history.features)[known]).any():
        raise NothingKnownError(
            f"nothing to learn from was known at the cut of {cut}: {int(known.sum())} attempts, none with history of its own"
        )
    model = fit_with_intervals(default_predictors(params)[0](), history, cut, params)
    assert isinstance(model, GbdtPredictor)
    asked = history.features.slice(row, 1)
    answer = model.predict(asked)
    devices = float(asked["num_devices"][0].as_py())
    label, p10, p50, p90 = (float(value[0]) for value in (history.target[[row]], answer.p10, answer.p50, answer.p90))
    names, parts, common = contributions(model, asked)
    order = np.argsort(-np.abs(parts), kind="stable")
    shown, rest = order[:DRIVERS], order[DRIVERS:]
    prior = float(asked["prior"][0].as_py())
    level = asked["prior_level"][0].as_py()
    prior_level = PRIOR_LEVELS[int(level)][0] if np.isfinite(level) else None
    is_answered = bool(np.isfinite(p50))
    return Explanation(
        attempt_id=str(history.attempt_id[row].as_py()),
        job=str(history.job[row]),
        model_type=str(asked["model_type"][0].as_py()),
        hardware_type=str(asked["hardware_type"][0].as_py()),
        num_devices=devices,
        cut=str(cut),
        trained_on=int(known.sum()),
        label=float(np.exp(label)) * devices,
        **{name: _rate(value, devices) for name, value in (("p10", p10), ("p50", p50), ("p90", p90))},
        error=float(np.expm1(p50 - label)) if is_answered else None,
        is_within_interval=is_answered and p10 <= label <= p90,
        tier=str(answer.tier[0]),
        prior=_rate(prior),
        prior_level=prior_level,
        start=_rate(float(base(asked)[0])),
        start_from="the Gaussian process" if np.isfinite(asked["process_mean"][0].as_py()) else "the prior",
        share=float(model.share_of_correction(asked)[0]),
        common_factor=float(np.exp(common)),
        levels=_levels(examples, asked, row, prior_level, params),
        drivers=tuple(
            Driver(names[place], _shown(asked[names[place]][0].as_py()), float(parts[place]), float(np.exp(parts[place])))
            for place in shown
        ),
        rest_count=len(rest),
        rest_factor=float(np.exp(parts[rest].sum())),
        neighbours=_neighbours(examples, history, row, (history.visible_from <= cut) & (cut < history.visible_to)),
    )


def contributions(model: GbdtPredictor, features: pa.Table) -> tuple[list[str], Floats, float]:
    """Divide the answer for one row among the features: names, what each adds in log units, and what all attempts have in common.

    ``base + common + sum of the parts = p50``. Shapley values of the trees (Lundberg et al. 2020), as LightGBM computes them,
    times the share of the correction that is taken.
    """
    if model.booster is None or model.encoder is None:
        raise ValueError("no model yet: fit or load first")
    values = np.asarray(model.booster.predict(model.encoder.transform(features), pred_contrib=True), dtype=np.float64)[0]
    values = values * model.share_of_correction(features)[0]
    return model.encoder.names, values[:-1], float(values[-1])


def _levels(examples: pa.Table, asked: pa.Table, row: int, prior_level: str | None, params: Params) -> tuple[KnownLevel, ...]:
    def fact(level: str, name: str) -> float:
        return float(asked[f"{level}_{name}"][0].as_py())

    def key(columns: Sequence[str]) -> str:
        return ", ".join(_shown(examples[column][row].as_py()) for column in columns)

    return tuple(
        KnownLevel(
            level=level,
            key=key(columns),
            count=0 if np.isnan(fact(level, "log_count")) else round(float(np.expm1(fact(level, "log_count")))),
            last=_rate(fact(level, "last")),
            median=_rate(fact(level, "median")),
            age_days=fact(level, "age_days") if np.isfinite(fact(level, "age_days")) else None,
            is_prior=level == prior_level,
        )
        for level, columns in params.features.state_levels.items()
    )


def _neighbours(examples: pa.Table, history: History, row: int, known: Rows) -> tuple[Neighbour, ...]:
    """Choose the nearest known runs of the same model, one per job, hardware type and device count, the newest of each.

    Near is: the same hardware type, else the ratio of peak rates; then the ratios of device counts and of batches.
    """
    features = history.features
    model = pc.equal(features["model_type"], features["model_type"][row])
    rows = np.flatnonzero(known & np.asarray(pc.fill_null(model, False).to_numpy(), dtype=bool))
    hardware = features["hardware_type"].to_numpy(zero_copy_only=False)
    distance = np.where(hardware[rows] == hardware[row], 0.0, 0.5)
    # An unknown figure is as far as a factor of two.
    for name, weight in (("log_peak_tflops", 1.0), ("log_num_devices", 0.5), ("log_global_batch_size", 0.25)):
        values = features[name].to_numpy()
        distance += weight * np.nan_to_num(np.abs(values[rows] - values[row]), nan=np.log(2))
    order = np.lexsort((-history.night[rows].astype(np.int64), np.round(distance, 9)))
    batches = examples["global_batch_size"]
    chosen: dict[tuple[str, str, float], int] = {}
    for place in rows[order].tolist():
        chosen.setdefault((str(history.job[place]), str(hardware[place]), float(features["num_devices"][place].as_py())), place)
        if len(chosen) == NEIGHBOURS:
            break
    return tuple(
        Neighbour(
            attempt_id=str(history.attempt_id[place].as_py()),
            job=job,
            hardware_type=of_hardware,
            num_devices=devices,
            global_batch_size=batches[place].as_py(),
            night=str(history.night[place]),
            throughput_per_device=float(np.exp(history.target[place])),
            off=float(np.expm1(history.target[place] - history.target[row])),
        )
        for (job, of_hardware, devices), place in chosen.items()
    )


def _listed(examples: pa.Table, rows: npt.NDArray[np.int64]) -> str:
    some = examples.select(["attempt_id", "model_type", "hardware_type", "num_devices", "night"]).take(pa.array(rows[:_LISTED]))
    return "\n".join(
        f"  {one['attempt_id']}  ({one['model_type']} on {one['num_devices']:.0f} {one['hardware_type']}, {one['night']})"
        for one in some.to_pylist()
    )


def _spread(count: int) -> npt.NDArray[np.int64]:
    """Choose `_LISTED` places of `count`, evenly: neighbours are attempts of one job."""
    return np.unique(np.linspace(0, count - 1, _LISTED).astype(np.int64))


def _nearest_names(ids: pa.ChunkedArray, text: str) -> npt.NDArray[np.int64]:
    """Choose names by how many of the parts of `text` (between / : - _ or blanks) they hold; at most `_LISTED` of the best."""
    parts = [part for part in pc.split_pattern_regex(pa.scalar(text.lower()), r"[/:\-_\s]+").as_py() if part]
    lower = pc.utf8_lower(ids)
    score = np.zeros(len(ids))
    for part in parts:
        score += np.asarray(pc.match_substring(lower, part).to_numpy(), dtype=np.float64)
    best = np.flatnonzero(score == score.max()) if len(score) else np.empty(0, dtype=np.int64)
    return best[_spread(len(best))] if len(best) else best


def _rate(log: float, devices: float = 1.0) -> float | None:
    return float(np.exp(log)) * devices if np.isfinite(log) else None


def _shown(value: Any) -> str:
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return "unknown"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
