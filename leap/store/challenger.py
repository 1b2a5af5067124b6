"""The challenger's way from training to the registry, and the champion's way back from the published snapshot.

What lives here: bundles, the run that MLflow is told of, and the rows that the warehouse keeps of a score. What does not:
training (`leap.training`), deciding (`leap.promotion`).
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from leap.evaluation.metrics import Scorecard
from leap.evaluation.plots import plot_importance, plot_predicted_over_label, plot_scores
from leap.gaussian_process import GaussianProcess
from leap.params import Params
from leap.promotion import Verdict
from leap.serving.reader import SnapshotReader
from leap.serving.scorer import OFFER_COLUMNS, BundleFacts, Scorer, write_bundle
from leap.serving.snapshot import SnapshotError
from leap.store.datasets import Dataset
from leap.store.examples import read_examples
from leap.store.home import Home
from leap.store.model_tables import PREDICTIONS_SCHEMA, SCORECARDS_SCHEMA, VERDICTS_SCHEMA
from leap.store.night import NightFolder
from leap.store.registry import RegisteredModel, Registry, input_columns
from leap.training import Champion, TrainingResult

_LOG = logging.getLogger(__name__)

BUNDLE = "challenger"
_EXAMPLE_ROWS = 5
_METRIC_DIGITS = 4  # MLflow's UI shows all that it is given; model.scorecards has the rest
# In the order in which MLflow's UI offers them to compare; it shows names with the same beginning in one section.
_METRICS = ("within_10", "within_20", "answered", "coverage", "median_ape", "median_width", "n", "jobs")


def params_hash(params: Params) -> str:
    """Identify the parameters by their values."""
    return hashlib.sha256(json.dumps(params.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()[:12]


def load_champion(home: Home, columns: Sequence[str]) -> Champion | None:
    """Load the champion from the published bundle; None where there is none to compare with.

    That is where nothing is published, where the snapshot is damaged or another release of LEAP wrote it (publishing mends both),
    and where the champion asks for other features than `columns`, those of the night's training matrix.
    """
    try:
        scorer = Scorer.load(SnapshotReader(home.published).bundle())
    except (SnapshotError, ValueError, KeyError, OSError) as problem:
        _LOG.warning("no champion to compare with: %s", problem)
        return None
    encoder = scorer.predictor.encoder
    if encoder is None or not set(encoder.names) <= set(columns):
        return None
    return Champion(scorer.predictor, scorer.facts.cut)


def write_challenger(folder: NightFolder, result: TrainingResult, dataset: Dataset, params: Params) -> Path:
    """Write the challenger's bundle, named by its fingerprint until the registry gives it a version; returns the folder."""
    candidates = dataset.table("ranking_candidates", columns=[*OFFER_COLUMNS])
    offers = candidates.group_by(list(OFFER_COLUMNS), use_threads=False).aggregate([])
    bundle = folder.empty(BUNDLE)
    facts = BundleFacts(
        model_version=result.challenger.fingerprint[:12],
        cut=np.datetime64(dataset.manifest.night, "D"),
        ranking=params.ranking,
        levels=dict(params.features.state_levels),
    )
    offers = offers.sort_by([("hardware_type", "ascending"), ("pool", "ascending")])
    process = GaussianProcess.from_examples(read_examples(dataset, params)).at(facts.cut)
    write_bundle(bundle, result.challenger, dataset.table("state_current"), process, offers, facts)
    return bundle


def log_challenger(
    registry: Registry,
    bundle: Path,
    result: TrainingResult,
    *,
    params: Params,
    dataset: Dataset,
    code_version: str,
) -> RegisteredModel:
    """Log the night's run, register the challenger, let the alias name it, and write its version into the bundle.

    The caller holds the night lock: what other runs MLflow takes to be under way are ended first.
    """
    registry.end_dead_runs()
    night = dataset.manifest.night
    scores = {name: card.to_json() for name, card in result.scorecards.items()}
    metrics = {
        f"{name}/{figure}": round(card[figure], _METRIC_DIGITS)
        for name, card in scores.items()
        for figure in _METRICS
        if card[figure] is not None
    }
    model = registry.log_challenger(
        bundle,
        params={**params.model_dump(mode="json"), "trained_on": result.trained_on, "scored_from": str(result.window_start)},
        metrics=metrics,
        plots={
            "predicted_over_label": plot_predicted_over_label(result.predictions, result.challenger.name),
            "scores": plot_scores(result.scorecards),
            "feature_gain": plot_importance(result.challenger.feature_importance()),
        },
        tags={
            "night": night.isoformat(),
            "fingerprint": _fingerprint(result, dataset, params),
            "code_version": code_version,
            "params_hash": params_hash(params),
        },
        dataset_id=dataset.id,
        dataset_digest=dataset.manifest.digest,
        dataset_path=dataset.folder,
        input_example=_input_example(dataset),
        note=_note(result, night),
    )
    registry.set_alias(registry.config.aliases.challenger, model.version)
    facts = BundleFacts.from_json(json.loads((bundle / "model.json").read_text(encoding="utf-8")))
    named = replace(facts, model_version=model.version)
    (bundle / "model.json").write_text(json.dumps(named.to_json(), indent=1, sort_keys=True), encoding="utf-8")
    return model


def scorecard_table(result: TrainingResult, night: date, model_version: str) -> pa.Table:
    """Give the scorecards as rows of `model.scorecards`, one per predictor."""
    rows: list[dict[str, Any]] = []
    for card in result.scorecards.values():
        values = card.to_json()
        values.pop("tiers")
        low, high = values.pop("interval_within_10")
        rows.append(
            {
                "night": night,
                "model_version": model_version,
                **values,
                "within_10_low": low,
                "within_10_high": high,
                "scored_from": result.window_start.astype(object),
            }
        )
    return pa.Table.from_pylist(rows, schema=SCORECARDS_SCHEMA)


def prediction_table(result: TrainingResult, night: date) -> pa.Table:
    """Give the window's predictions as rows of `model.predictions`, one per predictor and attempt."""
    rows = result.predictions
    return rows.append_column("night", pa.array([night] * rows.num_rows, pa.date32())).cast(PREDICTIONS_SCHEMA)


def verdict_table(verdict: Verdict, night: date, model_version: str) -> pa.Table:
    """Give the gates of a verdict as rows of `model.verdicts`, one per gate."""
    return pa.Table.from_pylist(
        [
            {
                "night": night,
                "model_version": model_version,
                "is_promoted": verdict.promoted,
                "gate": gate.name,
                "figure": gate.value,
                "gate_limit": gate.limit,
                "has_passed": gate.passed,
                "reason": gate.reason,
            }
            for gate in verdict.gates
        ],
        schema=VERDICTS_SCHEMA,
    )


def read_scorecards(folder: NightFolder) -> dict[str, Scorecard]:
    """Read the scorecards that training left."""
    return {name: Scorecard.from_json(values) for name, values in folder.read_facts("scorecards").items()}


def _fingerprint(result: TrainingResult, dataset: Dataset, params: Params) -> str:
    """Identify what a version holds: the model, the history that its bundle carries, and how it ranks."""
    ranking = params.ranking.model_dump_json()
    return hashlib.sha256(f"{result.challenger.fingerprint}:{dataset.id}:{ranking}".encode()).hexdigest()


def _note(result: TrainingResult, night: date) -> str:
    """Say in a sentence how good the challenger is."""
    cards = list(result.scorecards.values())
    shares = ", ".join(f"{card.predictor} {card.within_10:.1%}" for card in cards)
    return (
        f"{shares} within 10%, on {cards[0].n} attempts of {cards[0].jobs} jobs from {result.window_start} to the night {night}."
    )


def _input_example(dataset: Dataset) -> Any:
    candidates = dataset.table("ranking_candidates").slice(0, _EXAMPLE_ROWS)
    return candidates.select(list(input_columns())).to_pandas()
