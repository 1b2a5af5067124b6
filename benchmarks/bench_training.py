"""What training LEAP's predictor costs beside LightGBM alone: `GbdtPredictor.fit` against `lgb.train` on the ready matrix.

The bare side gets the matrix, labels and weights that the predictor's own booster was trained on, and its parameters. LEAP's
side also learns the categories, encodes the features and lets examples that were alike count once. Rounds alternate between the
two; the median decides. Both end with the same trees.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

import lightgbm as lgb
import numpy as np
import simulated

from leap.predictors.gbdt import LARGEST_DEVIATION, GbdtPredictor, base, condensed
from leap.store.examples import load_history


def main() -> None:
    """Run the rounds and print medians and their ratio."""
    options = simulated.parse_arguments(__doc__)
    params = simulated.params()
    with tempfile.TemporaryDirectory() as folder:
        dataset = simulated.night_dataset(options, Path(folder))
        history = load_history(dataset, params)
    cut = np.datetime64(options.cut or dataset.manifest.night)
    examples = history.examples(history.known_at(cut, params.model.training_window_days), cut)

    def fitted() -> GbdtPredictor:
        model = GbdtPredictor(params.model, params.features.state_levels, params.validation.interval, params.seed)
        return model.fit(examples)

    predictor = fitted()
    encoder, booster = predictor.encoder, predictor.booster
    assert encoder is not None
    assert booster is not None
    told = examples.take(np.isfinite(base(examples.features)) & np.isfinite(examples.target))
    matrix = encoder.transform(told.features)
    residual = np.clip(told.target - base(told.features), -LARGEST_DEVIATION, LARGEST_DEVIATION)
    rows, label, weight = condensed(matrix, residual, told.age_days, params.model.half_life_days)
    ready = matrix[rows]

    def bare() -> lgb.Booster:
        data = lgb.Dataset(
            ready,
            label=label,
            weight=weight,
            feature_name=encoder.names,
            categorical_feature=list(encoder.categorical),
            params={"verbosity": -1, "max_bin": 255},
        )
        return lgb.train(dict(booster.params), data, num_boost_round=params.model.num_boost_round)

    leap_seconds, bare_seconds = [], []
    for _ in range(options.rounds):
        start = perf_counter()
        trees = bare().model_to_string()
        bare_seconds.append(perf_counter() - start)
        start = perf_counter()
        same = fitted().booster
        leap_seconds.append(perf_counter() - start)
    assert same is not None
    figures = {
        "examples": len(told.target),
        "rows_trained_on": len(rows),
        "columns": ready.shape[1],
        "bare_s": median(bare_seconds),
        "leap_s": median(leap_seconds),
        "ratio": median(leap_seconds) / median(bare_seconds),
        "same_trees": trees == same.model_to_string(),
    }
    if options.json:
        print(json.dumps(figures, indent=1))
        return
    print(f"train on {len(told.target):,} examples ({len(rows):,} unlike), {ready.shape[1]} columns, median of {options.rounds}")
    print(f"  lgb.train on the ready matrix  {figures['bare_s'] * 1e3:7.0f} ms  1.00")
    print(f"  leap, fit                      {figures['leap_s'] * 1e3:7.0f} ms  {figures['ratio']:4.2f}")
    print(f"  the same trees: {'yes' if figures['same_trees'] else 'no'}")


if __name__ == "__main__":
    main()
