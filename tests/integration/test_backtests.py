"""`leap backtest`: goes on where it was interrupted, trains nothing twice, and tells MLflow by predictor and night."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import mlflow
import numpy as np
import pyarrow as pa
import pytest

from leap.evaluation.history import choose_nights, end_before_final
from leap.evaluation.retrain import answers_by_night
from leap.predictors.catalogue import make
from leap.store.backtests import KeptPredictions
from leap.store.examples import load_history
from leap.store.home import Home
from leap.store.registry import Registry, RegistryError, load_registry_config

if TYPE_CHECKING:
    from leap.predictors import Examples, Predictor
    from tests.integration.conftest import SimulatedNight

NAMES = ("leap", "lookup", "last_value")


@pytest.fixture(scope="module")
def home(simulated_night: SimulatedNight, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home of its own, with MLflow's database."""
    root = tmp_path_factory.mktemp("backtests") / "home"
    shutil.copytree(simulated_night.home, root)
    registry(root, repository).prepare()
    return root


def registry(home: Path, repository: Path) -> Registry:
    place = Home(home)
    config = load_registry_config(repository / "mlflow" / "registry.yaml")
    return Registry(f"sqlite:///{place.mlflow_database}", place.mlflow_artifacts, config)


def leap(home: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).with_name("leap"), "backtest", *arguments],
        env={**os.environ, "LEAP_HOME": str(home)},
        check=False,
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def outcome(home: Path, simulated_night: SimulatedNight) -> dict[str, object]:
    """A backtest of two nights, as JSON."""
    options = ("--nights", "2", "--predictors", ",".join(NAMES), "--params", simulated_night.overlay, "--json")
    done = leap(home, *options)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr
    told: dict[str, object] = json.loads(done.stdout)
    return told


def test_every_figure_is_told_for_every_predictor(outcome: dict[str, dict[str, dict[str, float]]]) -> None:
    assert list(outcome["predictors"]) == list(NAMES)
    assert set(outcome["over"]["leap"]) == {"lookup", "last_value"}
    assert set(outcome["over"]["last_value"]) == {"lookup"}
    for name in NAMES:
        assert outcome["choices"][name]["pairs"] > 0
        assert 0 <= outcome["choices"][name]["pairwise"] <= 1
        assert outcome["choices"][name]["regret"] >= 0
        assert outcome["mean_ape"][name] >= outcome["predictors"][name]["median_ape"] / 2
        assert outcome["counted_once"][name]["n"] <= outcome["predictors"][name]["n"]
    # history of the same day knows the job's earlier attempts: it cannot be blind where the night before was not
    assert 0 < outcome["same_day"]["within_10"] <= 1


def test_mlflow_has_a_run_per_predictor_and_night(home: Path, outcome: dict[str, dict[str, dict[str, float]]]) -> None:
    mlflow.set_tracking_uri(f"sqlite:///{Home(home).mlflow_database}")
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("leap-backtests")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id], max_results=1000)
    below: dict[str | None, list[mlflow.entities.Run]] = {}
    for run in runs:
        below.setdefault(run.data.tags.get("mlflow.parentRunId"), []).append(run)
    (parent,) = below[None]
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert parent.data.tags["look"] == "none"
    # the page lists the newest first: the backtest and its predictors, then the nights
    newest = sorted(runs, key=lambda run: -run.info.start_time)
    assert [run.info.run_name for run in newest[: 1 + len(NAMES)]] == [parent.info.run_name, *NAMES]
    predictors = {run.data.tags["predictor"]: run for run in below[parent.info.run_id]}
    assert set(predictors) == set(NAMES)
    for name, run in predictors.items():
        assert run.data.metrics["within_10"] == pytest.approx(outcome["predictors"][name]["within_10"])
        nights = below[run.info.run_id]
        assert {night.data.tags["night"] for night in nights} == set(outcome["nights"])
        series = client.get_metric_history(run.info.run_id, "by_night/within_10")
        assert [point.step for point in series] == [0, 1]
    files = {file.path for file in client.list_artifacts(parent.info.run_id, "plots")}
    assert {"plots/accuracy_by_night.png", "plots/calibration.png", "plots/slices_hardware_type.png"} <= files


@pytest.mark.slow
def test_the_same_backtest_again_trains_nothing_and_says_the_same(
    home: Path, simulated_night: SimulatedNight, outcome: dict[str, object]
) -> None:
    kept = {path: path.stat().st_mtime_ns for path in (home / "backtests").rglob("*.parquet")}
    assert len(kept) == 2 * len(NAMES)
    options = ("--nights", "2", "--predictors", ",".join(NAMES), "--params", simulated_night.overlay, "--json", "--no-mlflow")
    again = leap(home, *options)
    assert json.loads(again.stdout) == outcome
    assert {path: path.stat().st_mtime_ns for path in (home / "backtests").rglob("*.parquet")} == kept
    fresh = leap(home, *options, "--fresh")
    assert json.loads(fresh.stdout) == outcome
    assert all(path.stat().st_mtime_ns > then for path, then in kept.items())


class Interrupted(Exception):
    """Stands for Ctrl-C."""


def test_an_interrupted_run_goes_on_where_it_was(simulated_night: SimulatedNight, tmp_path: Path) -> None:
    params = simulated_night.params
    history = load_history(simulated_night.dataset, params)
    nights = choose_nights(history, 3, end_before_final(history), 0)
    fits: list[str] = []

    def counted() -> Predictor:
        predictor = make("lookup", params)
        fit = predictor.fit

        def counting(examples: Examples) -> Predictor:
            fits.append("fit")
            return fit(examples)

        predictor.fit = counting  # type: ignore[method-assign]
        return predictor

    def stop(_night: np.datetime64, done: int, _total: int) -> None:
        if done == 2:
            raise Interrupted

    memory = KeptPredictions(tmp_path, simulated_night.dataset.id, params)
    with pytest.raises(Interrupted):
        answers_by_night(history, params, nights, [counted], progress=stop, memory=memory)
    assert len(fits) == 2
    whole = answers_by_night(history, params, nights, [counted], memory=memory)
    assert len(fits) == 3
    straight = answers_by_night(history, params, nights, [counted])
    for ours, theirs in zip(whole["lookup"], straight["lookup"], strict=True):
        for part in ("p10", "p50", "p90", "tier"):
            np.testing.assert_array_equal(getattr(ours, part), getattr(theirs, part))


def test_what_is_kept_is_for_these_attempts_params_and_dataset_alone(simulated_night: SimulatedNight, tmp_path: Path) -> None:
    params, dataset = simulated_night.params, simulated_night.dataset.id
    night, attempts = np.datetime64("2026-03-05"), pa.chunked_array([["a", "b"]])
    answer = make("lookup", params).predict(load_history(simulated_night.dataset, params).features.slice(0, 2))
    memory = KeptPredictions(tmp_path, dataset, params)
    memory.keep("lookup", night, attempts, answer)
    other = params.model_copy(update={"seed": params.seed + 1})
    assert memory.recall("lookup", night, attempts) is not None
    assert memory.recall("lookup", night, pa.chunked_array([["a", "c"]])) is None
    assert memory.recall("lookup", np.datetime64("2026-03-06"), attempts) is None
    assert memory.recall("last_value", night, attempts) is None
    assert KeptPredictions(tmp_path, dataset, other).recall("lookup", night, attempts) is None
    assert KeptPredictions(tmp_path, "another", params).recall("lookup", night, attempts) is None
    assert KeptPredictions(tmp_path, dataset, params, forget=True).recall("lookup", night, attempts) is None


@pytest.mark.slow
def test_a_challenger_is_scored_beside_the_model_of_params_yaml(home: Path, simulated_night: SimulatedNight) -> None:
    options = ("--nights", "1", "--params", simulated_night.overlay, "--against", "champion", "--json", "--no-mlflow")
    done = leap(home, *options)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert list(told["predictors"]) == ["leap", "lookup", "challenger"]
    assert set(told["over"]["leap"]) == {"lookup", "challenger"}


@pytest.mark.slow
def test_without_mlflow_the_outcome_stands_with_a_warning(home: Path, simulated_night: SimulatedNight, tmp_path: Path) -> None:
    moved = tmp_path / "home"
    shutil.copytree(home, moved)
    Home(moved).mlflow_database.unlink()
    done = leap(moved, "--nights", "1", "--predictors", "lookup", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["predictors"]["lookup"]["n"] > 0
    assert "warning: the backtest was not logged to MLflow: there is no MLflow database" in done.stderr


def test_a_run_that_fails_midway_is_marked_failed(home: Path, repository: Path) -> None:
    with pytest.raises(RegistryError):
        registry(home, repository).log_backtest(
            "broken",
            tags={},
            params={},
            scores={"leap": {"not a valid name: \x00": 1.0}},
            by_night={},
            plots={},
            report="{}",
        )
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("leap-backtests")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id], "attributes.run_name = 'broken'")
    assert [run.info.status for run in runs] == ["FAILED"]
