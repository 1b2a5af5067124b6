"""What is hidden is hidden: its labels change no answer, and what a model knows of a type is what the rest tells."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from leap.evaluation.holdout import LEAP, PEAK, RATIO, HoldOut, Kind, Regime, history_without, hold_out
from leap.evaluation.retrain import default_predictors, fit_with_intervals
from leap.predictors import Prediction
from leap.predictors.gbdt import GbdtPredictor
from pipelines.commands.holdout import as_text

if TYPE_CHECKING:
    from tests.integration.conftest import SimulatedNight

HIDDEN, BEFORE, CUT = "MI300X", np.datetime64("2026-03-10"), np.datetime64("2026-03-08")


def run(night: SimulatedNight, examples: pa.Table, kind: Kind, regime: Regime, only: str, first_nights: int = 7) -> HoldOut:
    return hold_out(examples, night.rebuild, night.params, kind, regime, before=BEFORE, first_nights=first_nights, only=[only])


@pytest.fixture(scope="module")
def examples(simulated_night: SimulatedNight) -> pa.Table:
    return simulated_night.dataset.table("training_examples")


def of_type(examples: pa.Table) -> np.ndarray:
    return np.asarray(pc.equal(examples["hardware_type"], HIDDEN).to_numpy(), dtype=bool)


def answer_without(night: SimulatedNight, examples: pa.Table) -> tuple[Prediction, pa.Table]:
    """Predict the hidden type's runs of the night of the cut by a model that was trained without the type."""
    history = history_without(examples, of_type(examples), night.rebuild, night.params)
    model = fit_with_intervals(default_predictors(night.params)[0](), history, CUT, night.params)
    assert isinstance(model, GbdtPredictor)
    assert model.encoder is not None
    assert HIDDEN not in model.encoder.categories["hardware_type"]
    asked = history.features.filter(pa.array(of_type(examples) & (history.night == CUT)))
    return model.predict(asked), asked


def test_no_label_of_what_is_hidden_changes_an_answer(simulated_night: SimulatedNight, examples: pa.Table) -> None:
    # given the hidden type is a thousand times as fast
    labels = examples["log_throughput_per_device"].to_numpy() + np.where(of_type(examples), np.log(1000), 0.0)
    place = examples.column_names.index("log_throughput_per_device")
    faster = examples.set_column(place, "log_throughput_per_device", pa.array(labels))
    # then nobody knows
    (ours, _), (theirs, _) = (answer_without(simulated_night, table) for table in (examples, faster))
    assert len(ours.p50) > 5
    for part in ("p10", "p50", "p90", "tier"):
        np.testing.assert_array_equal(getattr(ours, part), getattr(theirs, part))


def test_hardware_that_training_never_saw_is_answered_by_a_weaker_tier(
    simulated_night: SimulatedNight, examples: pa.Table
) -> None:
    # LightGBM#1936: an unknown category must not get another one's number and be called learned
    answer, asked = answer_without(simulated_night, examples)
    assert set(answer.tier) <= {"family", "analytic"}
    assert np.isfinite(answer.p50).all()
    # and no history of the type is left in its features, but the model type's own is there
    for level in ("exact", "model_hardware", "hardware"):
        assert not np.isfinite(asked[f"{level}_last"].to_numpy()).any()
    assert np.isfinite(asked["model_last"].to_numpy()).any()


def test_a_hidden_type_is_scored_beside_the_peak_rate(simulated_night: SimulatedNight, examples: pa.Table) -> None:
    outcome = run(simulated_night, examples, Kind.HARDWARE, Regime.TYPE, HIDDEN)
    night = examples["night"].to_numpy().astype("datetime64[D]")
    counted = of_type(examples) & (night >= CUT) & (night < BEFORE) & examples["is_newest"].to_numpy()
    counted &= examples["outcome"].to_numpy(zero_copy_only=False) == "succeeded"
    assert [one.name for one in outcome.types] == [HIDDEN]
    assert list(outcome.overall.scorecards) == [LEAP, PEAK]
    assert {card.n for card in outcome.overall.scorecards.values()} == {int(counted.sum())}
    assert outcome.trainings == 1
    (difference,) = outcome.differences
    ours, theirs = (outcome.overall.scorecards[name] for name in (LEAP, PEAK))
    for name in ("within_10", "within_20"):
        part = getattr(difference, name)
        assert part.value == pytest.approx(getattr(ours, name) - getattr(theirs, name))
        assert part.low <= part.value <= part.high
    text = as_text(outcome, "the-dataset")
    assert "each hardware wholly hidden; nights before 2026-03-10" in text
    assert "LEAP less peak rate, paired by job:" in text
    assert outcome.to_json()["types"][0]["scorecards"][PEAK]["coverage"] is None


def test_a_hidden_pair_is_scored_beside_both_answers_with_the_type_known(
    simulated_night: SimulatedNight, examples: pa.Table
) -> None:
    # given the three model types that ran on it most: enough to tell
    counts = pc.value_counts(examples["model_type"].filter(pa.array(of_type(examples)))).to_pylist()
    most = [one["values"] for one in sorted(counts, key=lambda one: -one["counts"])[:3]]
    some = examples.filter(pc.is_in(examples["model_type"], value_set=pa.array(most)))
    outcome = run(simulated_night, some, Kind.HARDWARE, Regime.PAIR, HIDDEN, first_nights=4)
    assert list(outcome.overall.scorecards) == [LEAP, PEAK, RATIO]
    # the type is known from the other models, so the ratio of types answers
    assert outcome.overall.scorecards[RATIO].answered > 0.5
    assert outcome.trainings >= 2
    assert [one.against for one in outcome.differences] == [PEAK, RATIO]


@pytest.mark.parametrize(("kind", "only"), [(Kind.VENDOR, "AMD"), (Kind.MODEL, None)])
def test_vendors_and_models_are_hidden_too(
    simulated_night: SimulatedNight, examples: pa.Table, kind: Kind, only: str | None
) -> None:
    counts = pc.value_counts(examples["model_type"]).to_pylist()
    name = only or max(counts, key=lambda one: one["counts"])["values"]
    outcome = run(simulated_night, examples, kind, Regime.TYPE, name)
    assert [one.name for one in outcome.types] == [name]
    assert list(outcome.overall.scorecards) == ([LEAP, PEAK] if kind is Kind.VENDOR else [LEAP])
    assert outcome.overall.scorecards[LEAP].answered > 0.9


def test_a_model_is_hidden_whole(simulated_night: SimulatedNight, examples: pa.Table) -> None:
    with pytest.raises(ValueError, match="a model is hidden whole"):
        run(simulated_night, examples, Kind.MODEL, Regime.PAIR, "any")


def test_the_command_chooses_its_nights_itself(simulated_night: SimulatedNight) -> None:
    # given the command's own choice of nights: half of ten are kept for the final score, half of the rest learned from
    command = (
        "from pathlib import Path; from pipelines.commands.holdout import hold_out; "
        f"hold_out('vendor', params=Path({str(simulated_night.overlay)!r}), regime='type-unseen', only=['AMD'], json=True)"
    )

    done = subprocess.run(
        [sys.executable, "-c", command],
        env={**os.environ, "LEAP_HOME": str(simulated_night.home)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["dataset_id"] == simulated_night.dataset.id
    (outcome,) = told["hold_outs"]
    assert (outcome["hidden"], outcome["regime"], outcome["before"]) == ("vendor", "type-unseen", "2026-03-06")
    assert [one["name"] for one in outcome["types"]] == ["AMD"]
