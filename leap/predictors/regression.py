"""General learners on the encoded features: ridge regression, random forest, XGBoost; and LightGBM on the submitted fields alone.

Each of the first three corrects the same base as LEAP's own model, with the same weights of examples and the same share of the
correction on new configurations, so that what is compared is the learner. They minimise squares, which a few runs that are off by
a multiple would rule: a deviation counts up to `LARGEST_DEVIATION`. Without that each is two to three points worse.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import lightgbm as lgb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from leap.features import CANDIDATE_FEATURES, CATEGORICAL_FEATURES, SUBMISSION_FEATURES, Levels
from leap.params import ModelParams
from leap.predictors import Examples, Floats
from leap.predictors.gbdt import LARGEST_DEVIATION, Encoder, base, condensed
from leap.predictors.point import PointPredictor, learnable

# The settings below were chosen on past nights, each among a handful; docs/experiments.md has what was tried.
RIDGE_PENALTY = 100.0
FOREST = {"n_estimators": 20, "min_samples_leaf": 3, "max_features": 0.3}
FOREST_SAMPLES = 0.5  # share of the examples that each tree sees
XGBOOST = {"learning_rate": 0.05, "max_depth": 4, "min_child_weight": 4, "subsample": 0.8, "colsample_bytree": 0.6, "lambda": 1.0}
XGBOOST_ROUNDS = 100
SUBMITTED_ROUNDS = 400


class Correction(PointPredictor):
    """A learner that corrects the base of each row."""

    def __init__(self, interval: float, params: ModelParams, levels: Levels, seed: int) -> None:
        super().__init__(interval)
        self._params = params
        self._levels = levels
        self._seed = seed

    def learn(self, examples: Examples) -> None:
        """Learn the deviations of the examples from their base."""
        examples = learnable(examples)
        self._encoder = Encoder.fit(examples.features, self._levels)
        matrix = self._encoder.transform(examples.features)
        residual = examples.target - base(examples.features)
        rows, residual, weight = condensed(matrix, residual, examples.age_days, self._params.half_life_days)
        self.learn_residual(matrix[rows], np.clip(residual, -LARGEST_DEVIATION, LARGEST_DEVIATION), weight)

    def answer(self, features: pa.Table) -> Floats:
        """Give the base of each row and the correction; on a configuration never seen, a share of it."""
        level = base(features)
        if not features.num_rows:
            return level
        seen = np.nan_to_num(features["exact_log_count"].to_numpy()) > 0
        share = np.where(seen, 1.0, self._params.new_configuration_share)
        return np.asarray(level + share * self.residual(self._encoder.transform(features)))

    @abstractmethod
    def learn_residual(self, matrix: Floats, residual: Floats, weight: Floats) -> None:
        """Learn from the encoded matrix, shape (n, columns), NaN = unknown."""

    @abstractmethod
    def residual(self, matrix: Floats) -> Floats:
        """Give the correction of each row, shape (n,)."""


class Ridge(Correction):
    """Ridge regression on standardised numbers and one indicator per category; an unknown number tells nothing."""

    name = "ridge"

    def learn_residual(self, matrix: Floats, residual: Floats, weight: Floats) -> None:
        """Standardise and solve."""
        from sklearn.linear_model import Ridge as Regression

        numeric = len(self._encoder.numeric)
        with np.errstate(invalid="ignore"):
            known = np.isfinite(matrix[:, :numeric])
            count = np.maximum(known.sum(axis=0), 1)
            self._centre = np.where(known, matrix[:, :numeric], 0.0).sum(axis=0) / count
            spread = np.where(known, matrix[:, :numeric] - self._centre, 0.0)
        self._scale = np.sqrt((spread**2).sum(axis=0) / count)
        self._scale[self._scale < 1e-9] = 1.0
        self._model = Regression(alpha=RIDGE_PENALTY, solver="cholesky").fit(self._design(matrix), residual, sample_weight=weight)

    def residual(self, matrix: Floats) -> Floats:
        """Give the linear correction."""
        return np.asarray(self._model.predict(self._design(matrix)))

    def _design(self, matrix: Floats) -> Floats:
        numeric = len(self._encoder.numeric)
        # Beyond three deviations a line says nothing that was learned.
        numbers = np.clip(np.nan_to_num((matrix[:, :numeric] - self._centre) / self._scale), -3.0, 3.0)
        indicators = [
            (matrix[:, numeric + place, None] == np.arange(len(self._encoder.categories[name]))).astype(np.float64)
            for place, name in enumerate(self._encoder.categorical)
        ]
        return np.hstack([numbers, *indicators])


class RandomForest(Correction):
    """A random forest; categories are their numbers, as trees split them."""

    name = "forest"

    def learn_residual(self, matrix: Floats, residual: Floats, weight: Floats) -> None:
        """Grow the trees."""
        from sklearn.ensemble import RandomForestRegressor

        settings: dict[str, Any] = FOREST
        # A whole number: scikit-learn takes a share of the sum of the weights, which is no number of examples.
        samples = max(1, round(FOREST_SAMPLES * len(residual)))
        self._model = RandomForestRegressor(**settings, max_samples=samples, random_state=self._seed, n_jobs=1)
        self._model.fit(matrix.astype(np.float32), residual, sample_weight=weight)

    def residual(self, matrix: Floats) -> Floats:
        """Give the mean of the trees."""
        return np.asarray(self._model.predict(matrix.astype(np.float32)), dtype=np.float64)


class XGBoost(Correction):
    """XGBoost on squared errors, with categories as such."""

    name = "xgboost"

    def learn_residual(self, matrix: Floats, residual: Floats, weight: Floats) -> None:
        """Boost the trees."""
        import xgboost

        data = self._data(matrix, label=residual, weight=weight)
        settings = {
            "objective": "reg:squarederror",
            "tree_method": "hist",
            "nthread": 1,
            "seed": self._seed,
            "verbosity": 0,
            **XGBOOST,
        }
        self._model = xgboost.train(settings, data, num_boost_round=XGBOOST_ROUNDS)

    def residual(self, matrix: Floats) -> Floats:
        """Give the sum of the trees."""
        return np.asarray(self._model.predict(self._data(matrix)), dtype=np.float64)

    def _data(self, matrix: Floats, **parts: npt.NDArray[np.float64]) -> Any:
        import xgboost

        kinds = ["q"] * len(self._encoder.numeric) + ["c"] * len(self._encoder.categorical)
        return xgboost.DMatrix(matrix, feature_types=kinds, enable_categorical=True, nthread=1, **parts)


class SubmittedFields(PointPredictor):
    """LightGBM on what is submitted and on the specifications of the hardware, without any history."""

    name = "submitted_fields"

    def __init__(self, interval: float, params: ModelParams, seed: int) -> None:
        super().__init__(interval)
        self._params = params
        self._seed = seed

    def learn(self, examples: Examples) -> None:
        """Boost trees on the log throughput itself."""
        examples = examples.take(np.isfinite(examples.target))
        numeric = (*SUBMISSION_FEATURES, *CANDIDATE_FEATURES)
        self._encoder = Encoder.fit(examples.features, {}).only(numeric, CATEGORICAL_FEATURES)
        matrix = self._encoder.transform(examples.features)
        rows, target, weight = condensed(matrix, examples.target, examples.age_days, self._params.half_life_days)
        data = lgb.Dataset(
            matrix[rows],
            label=target,
            weight=weight,
            categorical_feature=[self._encoder.names.index(name) for name in self._encoder.categorical],
            params={"verbosity": -1},
        )
        settings = {
            "objective": "regression_l1",
            "learning_rate": 0.08,
            "num_leaves": 31,
            "min_data_in_leaf": self._params.min_data_in_leaf,
            "feature_fraction": self._params.feature_fraction,
            "num_threads": 1,
            "seed": self._seed,
            "deterministic": True,
            "force_row_wise": True,
            "verbosity": -1,
        }
        self._model = lgb.train(settings, data, num_boost_round=SUBMITTED_ROUNDS)

    def answer(self, features: pa.Table) -> Floats:
        """Give the sum of the trees; no answer where neither model type nor hardware is known."""
        if not features.num_rows:
            return np.empty(0)
        found = np.asarray(self._model.predict(self._encoder.transform(features), num_threads=1), dtype=np.float64)
        return np.where(np.isfinite(base(features)), found, np.nan)
