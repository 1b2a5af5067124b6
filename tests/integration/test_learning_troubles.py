"""Troubles that pipelines of this kind have had with what they learn from, on a real night of 3,000 attempts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from leap.evaluation.history import History
from leap.evaluation.retrain import default_predictors, fit_with_intervals
from leap.store.datasets import Dataset
from leap.store.examples import load_history
from leap.training import train

if TYPE_CHECKING:
    from tests.integration.conftest import SimulatedNight

CUT = np.datetime64("2026-03-11")
PARTS = ("p10", "p50", "p90")


def learned(dataset: Dataset, night: SimulatedNight) -> tuple[str, dict[str, object]]:
    """Give the fingerprint of the night's model, and the scores."""
    result = train(load_history(dataset, night.params), night.params, CUT, None)
    return result.challenger.fingerprint, {name: card.to_json() for name, card in result.scorecards.items()}


def test_a_zero_a_negative_and_a_missing_throughput_among_3000_change_nothing(
    simulated_night: SimulatedNight, build_night: Callable[[Path, Path], SimulatedNight], tmp_path: Path
) -> None:
    # given a log of 3,000 good attempts, and the same with three that report no throughput
    logs = tmp_path / "logs"
    shutil.copytree(simulated_night.logs, logs)
    (first, *_) = (logs / "attempts-2026-03-02.jsonl").read_text().splitlines()
    bad = [
        {**json.loads(first), "attempt_id": f"bad-{value}", "outcome": "succeeded", "throughput": value}
        for value in (0, -5, None)
    ]
    (logs / "bad.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in bad))
    # when the night is built of each
    spoilt = build_night(tmp_path, logs).dataset
    clean = simulated_night.dataset
    # then three more are in quarantine, and what is learned and scored is the same to the last bit
    assert clean.manifest.tables["training_examples"].rows >= 3000
    reasons = [row for row in spoilt.table("quarantine").to_pylist() if str(row["attempt_id"]).startswith("bad-")]
    assert sorted((row["attempt_id"], row["reason"]) for row in reasons) == [
        ("bad--5", "bad-throughput"),
        ("bad-0", "bad-throughput"),
        ("bad-None", "bad-throughput"),
    ]
    assert spoilt.manifest.tables["quarantine"].rows == clean.manifest.tables["quarantine"].rows + 3
    assert spoilt.table("training_examples").equals(clean.table("training_examples"))
    assert learned(spoilt, simulated_night) == learned(clean, simulated_night)


def history_with_own(history: History) -> np.ndarray:
    return np.isfinite(history.features["job_hardware_last"].to_numpy())


def test_a_job_without_history_in_a_model_that_saw_only_jobs_with_history_is_of_another_tier(
    simulated_night: SimulatedNight,
) -> None:
    # LightGBM#6139: what training never saw missing is taken as 0, without a word
    history = load_history(simulated_night.dataset, simulated_night.params)
    own = history_with_own(history)
    known = history.known_at(CUT, simulated_night.params.model.training_window_days)
    model = default_predictors(simulated_night.params)[0]().fit(history.examples(known & own, CUT))
    with_history, without = (model.predict(history.features.filter(pa.array(known & rows))) for rows in (own, ~own))
    assert len(without.p50) > 50
    assert set(with_history.tier) == {"measured"}
    assert "measured" not in set(without.tier)


def test_shuffled_columns_give_the_same_predictions(simulated_night: SimulatedNight) -> None:
    # LightGBM#4102: columns are taken by position, without a word
    history = load_history(simulated_night.dataset, simulated_night.params)
    cut = np.datetime64("2026-03-10")
    model = fit_with_intervals(default_predictors(simulated_night.params)[0](), history, cut, simulated_night.params)
    features = history.features.filter(pa.array(history.night == cut))
    names = np.random.default_rng(1).permutation(features.column_names).tolist()
    assert names != features.column_names
    ours, theirs = model.predict(features), model.predict(features.select(names))
    for part in PARTS:
        np.testing.assert_array_equal(getattr(ours, part), getattr(theirs, part))
