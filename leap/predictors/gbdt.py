"""LEAP's own predictor: gradient-boosted trees that correct what a Gaussian process makes of all history.

What lives here: encoding of assembled features, training, intervals by tier, and the model as text (`booster.txt`,
`encoder.json`). What does not: which facts are features (`leap.features`), scoring rules and gates (`leap.evaluation`,
`leap.promotion`).

The target is the log of throughput per device less the base: the mean of the process, or the prior where there is no process.
Values of history enter relative to the base too, so that the trees learn *when to trust which history* instead of the magnitude
of each job. Where the exact model type, hardware type and device count were seen before, the correction is taken whole; elsewhere
a share of it, as the trees have then little to go by. Categories are numbered by the encoder; one that
training never saw is missing, never another's number.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import lightgbm as lgb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from leap.contracts import TIERS, Tier
from leap.features import Levels, feature_names, level_feature_names
from leap.params import ModelParams
from leap.predictors import Examples, Floats, Prediction

ENCODER_VERSION = 2
MIN_TIER_RESIDUALS = 30  # a tier with fewer held-out errors borrows its interval from another
ENOUGH_TIER_RESIDUALS = 300  # the newest so many held-out errors of a tier tell its interval; older ones are left out
CALIBRATION_FOLDS = (1, 4, 16)  # held-out errors are of the newest nights, of so many times as many, and so on
WIDENING = 1.5
# The trees minimise squares, which a few runs that are off by a multiple would rule: a deviation counts up to this, in logs.
LARGEST_DEVIATION = 0.2
# A tier that no held-out error speaks for is not trusted to be better than this many standard deviations of the process.
UNKNOWN_HALF_WIDTH = 2.0


@dataclass(frozen=True)
class Encoder:
    """Turns assembled features into the matrix that one booster was trained on: fixed order, numbered categories."""

    numeric: tuple[str, ...]
    categorical: tuple[str, ...]
    relative: tuple[str, ...]  # numeric features taken relative to the base
    categories: Mapping[str, tuple[str, ...]]

    @classmethod
    def fit(cls, features: pa.Table, levels: Levels) -> Encoder:
        """Learn the categories of `features`, in sorted order so that the same data gives the same numbers."""
        numeric, categorical = feature_names(levels)
        relative = tuple(name for level in levels for name in level_feature_names(level) if name.endswith(("_last", "_median")))
        relative = (*relative, "prior")
        categories = {
            name: tuple(sorted(value for value in pc.unique(features[name]).to_pylist() if value is not None))
            for name in categorical
        }
        return cls(numeric, categorical, relative, categories)

    def only(self, numeric: Sequence[str], categorical: Sequence[str]) -> Encoder:
        """Keep some columns."""
        return Encoder(
            tuple(numeric),
            tuple(categorical),
            tuple(name for name in self.relative if name in numeric),
            {name: self.categories[name] for name in categorical},
        )

    @property
    def names(self) -> list[str]:
        """The names of the matrix' columns."""
        return [*self.numeric, *self.categorical]

    def transform(self, features: pa.Table) -> Floats:
        """Give the matrix, shape (n, len(names)), whatever the order of the table's columns; NaN = unknown."""
        level = base(features)
        # Column by column in memory, as the features come: writing across the rows costs several times as much.
        matrix = np.empty((features.num_rows, len(self.numeric) + len(self.categorical)), dtype=np.float64, order="F")
        relative = frozenset(self.relative)
        for position, name in enumerate(self.numeric):
            values = features[name].to_numpy()
            matrix[:, position] = values - level if name in relative else values
        for position, name in enumerate(self.categorical, start=len(self.numeric)):
            codes = pc.index_in(features[name], value_set=pa.array(self.categories[name], pa.string()), skip_nulls=True)
            matrix[:, position] = pc.cast(codes, pa.float64()).to_numpy()
        return matrix

    def to_json(self) -> dict[str, Any]:
        """Give the encoder as JSON values."""
        return {
            "version": ENCODER_VERSION,
            "numeric": list(self.numeric),
            "categorical": list(self.categorical),
            "relative": list(self.relative),
            "categories": {name: list(values) for name, values in self.categories.items()},
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Encoder:
        """Read what `to_json` gave; ValueError where the version is unknown."""
        if values.get("version") != ENCODER_VERSION:
            raise ValueError(
                f"encoder version {values.get('version')!r} is not {ENCODER_VERSION}; retrain, or use the LEAP that wrote it"
            )
        return cls(
            tuple(values["numeric"]),
            tuple(values["categorical"]),
            tuple(values["relative"]),
            {name: tuple(known) for name, known in values["categories"].items()},
        )


class GbdtPredictor:
    """LightGBM on the log throughput per device, relative to the prior of the row's own history."""

    name = "leap"

    def __init__(self, params: ModelParams, levels: Levels, interval: float, seed: int) -> None:
        self._params = params
        self._levels = {level: tuple(columns) for level, columns in levels.items()}
        self._interval = interval
        self._seed = seed
        self.encoder: Encoder | None = None
        self.booster: lgb.Booster | None = None
        self.half_widths: dict[str, tuple[float, float]] = {}

    def fit(self, examples: Examples) -> Self:
        """Train on the examples that have a base; the others tell nothing about when to trust history.

        Attempts that were alike count once, see `condensed`.
        """
        examples = examples.take(np.isfinite(base(examples.features)) & np.isfinite(examples.target))
        if not len(examples.target):
            raise ValueError("no example has any history before its own night; LEAP needs two nights with attempts at least")
        self.encoder = Encoder.fit(examples.features, self._levels)
        matrix = self.encoder.transform(examples.features)
        residual = np.clip(examples.target - base(examples.features), -LARGEST_DEVIATION, LARGEST_DEVIATION)
        rows, residual, weight = condensed(matrix, residual, examples.age_days, self._params.half_life_days)
        data = lgb.Dataset(
            matrix[rows],
            label=residual,
            weight=weight,
            feature_name=self.encoder.names,
            categorical_feature=list(self.encoder.categorical),
            params={"verbosity": -1, "max_bin": 255},
        )
        self.booster = lgb.train(self._booster_params(len(rows)), data, num_boost_round=self._params.num_boost_round)
        return self

    def calibrate(self, examples: Examples, nights: int) -> Self:
        """Take the interval of each tier from errors that were made before their labels were known.

        The newest `nights` of the examples are predicted by a twin that learned from the older ones; so are the nights before
        them, by older twins, for the tiers that the newest tell too little of.
        """
        ages = np.unique(examples.age_days)
        errors: list[Floats] = []
        scales: list[Floats] = []
        tiers: list[npt.NDArray[np.str_]] = []
        newest = 0
        for fold in CALIBRATION_FOLDS:
            oldest = min(nights * fold, len(ages) // 2)
            if oldest <= newest:
                break
            held_out = (examples.age_days >= ages[newest]) & (examples.age_days < ages[oldest])
            before = examples.take(examples.age_days >= ages[oldest])
            if not (np.isfinite(base(before.features)) & np.isfinite(before.target)).any():
                break
            twin = GbdtPredictor(self._params, self._levels, self._interval, self._seed).fit(before)
            asked = examples.take(held_out)
            answer = twin.predict(asked.features)
            # Newest first, so that a tier's interval is of its newest errors.
            order = np.argsort(asked.age_days, kind="stable")
            errors.append((asked.target - answer.p50)[order])
            scales.append(_scale(asked.features)[order])
            tiers.append(answer.tier[order])
            newest = oldest
        if errors:
            self.half_widths = calibrate_half_widths(
                np.concatenate(errors) / np.concatenate(scales), np.concatenate(tiers), self._interval
            )
        return self

    def predict(self, features: pa.Table) -> Prediction:
        """Predict n rows; NaN and tier `none` where nothing is known of model type and hardware."""
        level, correction = self.base_and_correction(features)
        none = TIERS.index(Tier.NONE.value)
        place = pc.fill_null(pc.index_in(features["tier"], value_set=pa.array(TIERS)), none).to_numpy()
        place = np.where(np.isfinite(level), place, none)
        p50 = np.where(place != none, level + correction, np.nan)
        scale = _scale(features)
        low, high = (np.array([self._half_width(name)[side] for name in TIERS])[place] * scale for side in (0, 1))
        return Prediction(p50 - low, p50, p50 + high, np.array(TIERS)[place])

    def base_and_correction(self, features: pa.Table) -> tuple[Floats, Floats]:
        """Give the two parts of p50, in natural logs, shape (n,): what the trees start from, and what they add."""
        if self.booster is None or self.encoder is None:
            raise ValueError("predict before fit: train the model, or load one with GbdtPredictor.load")
        level = base(features)
        if not features.num_rows:
            return level, np.empty(0)
        correction = self.booster.predict(self.encoder.transform(features), num_threads=self._params.num_threads)
        return level, np.asarray(correction, dtype=np.float64) * self.share_of_correction(features)

    def share_of_correction(self, features: pa.Table) -> Floats:
        """Give the share of the trees' correction that is taken, shape (n,): 1 where the configuration was seen before."""
        seen = np.nan_to_num(features["exact_log_count"].to_numpy()) > 0
        whole = seen | ~np.isfinite(features["process_mean"].to_numpy())
        return np.where(whole, 1.0, self._params.new_configuration_share)

    def feature_importance(self) -> dict[str, float]:
        """Give each feature's share of the total gain, largest first."""
        if self.booster is None or self.encoder is None:
            raise ValueError("no model yet: fit or load first")
        gain = self.booster.feature_importance(importance_type="gain")
        total = float(gain.sum()) or 1.0
        order = np.argsort(-gain, kind="stable")
        return {self.encoder.names[index]: float(gain[index]) / total for index in order}

    @property
    def fingerprint(self) -> str:
        """Identify the model by what it is: the hash of booster, encoder and intervals."""
        digest = hashlib.sha256()
        for text in self._texts().values():
            digest.update(text.encode())
        return digest.hexdigest()

    def save(self, folder: Path) -> None:
        """Write `booster.txt` and `encoder.json` into an existing folder."""
        for name, text in self._texts().items():
            (folder / name).write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> GbdtPredictor:
        """Read what `save` wrote; ValueError where a file is not of this version or does not fit the other."""
        values = json.loads((folder / "encoder.json").read_text(encoding="utf-8"))
        predictor = cls(ModelParams.model_validate(values["params"]), values["levels"], values["interval"], values["seed"])
        predictor.encoder = Encoder.from_json(values["encoder"])
        predictor.half_widths = {tier: (low, high) for tier, (low, high) in values["half_widths"].items()}
        predictor.booster = lgb.Booster(model_str=(folder / "booster.txt").read_text(encoding="utf-8"))
        if predictor.booster.feature_name() != predictor.encoder.names:
            raise ValueError(f"{folder}: booster.txt and encoder.json name different features; they are not of one model")
        return predictor

    def _texts(self) -> dict[str, str]:
        if self.booster is None or self.encoder is None:
            raise ValueError("no model yet: fit or load first")
        encoder = {
            "encoder": self.encoder.to_json(),
            "params": self._params.model_dump(mode="json"),
            "levels": {level: list(columns) for level, columns in self._levels.items()},
            "interval": self._interval,
            "seed": self._seed,
            "half_widths": {tier: list(widths) for tier, widths in self.half_widths.items()},
        }
        return {"booster.txt": self.booster.model_to_string(), "encoder.json": json.dumps(encoder, indent=1, sort_keys=True)}

    def _booster_params(self, examples: int) -> dict[str, Any]:
        params = self._params
        # LightGBM fails where the share of a few examples is less than one.
        bagging_fraction = params.bagging_fraction if examples * params.bagging_fraction >= 1 else 1.0
        return {
            "objective": "regression",
            "learning_rate": params.learning_rate,
            "num_leaves": params.num_leaves,
            "min_data_in_leaf": params.min_data_in_leaf,
            "feature_fraction": params.feature_fraction,
            "bagging_fraction": bagging_fraction,
            "bagging_freq": 1,
            "lambda_l2": params.lambda_l2,
            "num_threads": params.num_threads,
            "seed": self._seed,
            "deterministic": True,
            "force_row_wise": True,
            "verbosity": -1,
        }

    def _half_width(self, tier: str) -> tuple[float, float]:
        return self.half_widths.get(tier, (UNKNOWN_HALF_WIDTH, UNKNOWN_HALF_WIDTH))


def base(features: pa.Table) -> Floats:
    """Give what the trees correct, shape (n,): the mean of the process, else the prior; NaN where nothing was known."""
    mean = features["process_mean"].to_numpy()
    return np.asarray(np.where(np.isfinite(mean), mean, features["prior"].to_numpy()))


def _scale(features: pa.Table) -> Floats:
    """Give by how much the errors of a row are expected to be larger than another's of the same tier, shape (n,)."""
    deviation = features["process_sd"].to_numpy()
    return np.asarray(np.where(np.isfinite(deviation), np.maximum(deviation, 0.02), 0.1))


def condensed(
    matrix: Floats, target: Floats, age_days: Floats, half_life_days: float
) -> tuple[npt.NDArray[np.int64], Floats, Floats]:
    """Let examples that were alike in all that was known, shape (n, columns), count once.

    Returns the first row of each group, the middle one of its targets, and its weight: the root of its size, as the repeats of
    one job tell less than as many jobs, halved with each `half_life_days` of age.
    """
    first, group, count = _alike([*matrix.T, age_days])
    return first, _medians(target, group, count), np.sqrt(count) * np.exp2(-age_days[first] / half_life_days)


def _alike(columns: Sequence[Floats]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Group equal rows of columns of shape (n,): the first row of each group in order, the group of each row, each size."""
    factors = np.random.default_rng(0).integers(1, 2**63, size=len(columns), dtype=np.uint64) | np.uint64(1)
    keys = np.zeros(len(columns[0]), dtype=np.uint64)
    with np.errstate(over="ignore"):
        for column, factor in zip(columns, factors, strict=True):
            bits = np.ascontiguousarray(column).view(np.uint64)
            mixed = (bits ^ (bits >> np.uint64(29))) * factor
            keys += mixed ^ (mixed >> np.uint64(32))
    _, first, group, count = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return first[order], place[group.ravel()], count[order]


def _medians(values: Floats, group: npt.NDArray[np.int64], count: npt.NDArray[np.int64]) -> Floats:
    """Give the median of each group's values, shape (groups,)."""
    ordered = values[np.lexsort((values, group))]
    start = np.concatenate([[0], np.cumsum(count)[:-1]])
    return np.asarray((ordered[start + (count - 1) // 2] + ordered[start + count // 2]) / 2)


def calibrate_half_widths(
    error: Floats, tier: npt.NDArray[np.str_], interval: float, tiers: Sequence[str] = TIERS
) -> dict[str, tuple[float, float]]:
    """Give how far below and above p50 each tier's labels fell, so that `interval` of them lie between.

    `error` is label less prediction in units of each row's scale, newest first, shape (n,), NaN = no answer. A tier with too few
    errors takes the widths of the next stronger tier that has them, widened, since it rests on less; else those of the next
    weaker one. Split conformal prediction (Lei et al. 2018), signed, by tier.
    """
    tail = (1 - interval) / 2
    measured: dict[int, tuple[float, float]] = {}
    for place, name in enumerate(tiers):
        errors = error[(tier == name) & np.isfinite(error)][:ENOUGH_TIER_RESIDUALS]
        if len(errors) >= MIN_TIER_RESIDUALS:
            rank = min(1.0, (1 - tail) * (len(errors) + 1) / len(errors))
            low, high = float(np.quantile(-errors, rank)), float(np.quantile(errors, rank))
            measured[place] = (max(low, 0.0), max(high, 0.0))

    def widths(place: int) -> tuple[float, float]:
        if place in measured:
            return measured[place]
        stronger = [known for known in measured if known < place]
        if stronger:
            low, high = measured[max(stronger)]
            widening = WIDENING ** (place - max(stronger))
            return low * widening, high * widening
        return measured[min(measured)] if measured else (UNKNOWN_HALF_WIDTH, UNKNOWN_HALF_WIDTH)

    return {name: widths(place) for place, name in enumerate(tiers)}
