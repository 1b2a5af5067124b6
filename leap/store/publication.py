"""The steps behind the gates: score every candidate, publish the ranking, record what became live.

What lives here: the order of the steps and what each hands on. What does not: ranking (`leap.ranking`), how a snapshot is written
(`publisher.py`), how a promotion is kept (`control.py`).
"""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from leap.contracts import CANDIDATE_SCHEMA, SUBMISSION_SCHEMA
from leap.params import Params, PublishParams
from leap.ranking import rank
from leap.serving.reader import SnapshotReader
from leap.serving.scorer import Scorer
from leap.serving.snapshot import Manifest
from leap.store.challenger import BUNDLE, params_hash
from leap.store.control import Control, Promotion
from leap.store.datasets import Dataset
from leap.store.home import Home
from leap.store.model_tables import PROMOTIONS_SCHEMA
from leap.store.night import NightFolder
from leap.store.publisher import SnapshotFacts, publish
from leap.store.registry import Registry


class NothingToRankError(RuntimeError):
    """No job key is active at the cut, so that there is nothing to publish."""


class NotPromotedError(RuntimeError):
    """What is to be published is not of a challenger that passed the gates; the message says what it is of."""


def score_candidates(folder: NightFolder, dataset: Dataset) -> pa.Table:
    """Score and rank every candidate of the night's dataset with the challenger's bundle, as serving would.

    Returns `RANKING_SCHEMA` rows, aggregate keys included, without the two times of publishing. Raises NotPromotedError,
    NothingToRankError.
    """
    _require_promoted(folder)
    candidates = dataset.table("ranking_candidates")
    if not candidates.num_rows:
        raise NothingToRankError(
            f"no job had an attempt in the nights before {dataset.manifest.night} that params.yaml counts as active "
            "(ranking.active_days), or none of them has a job_id: nothing to rank. Give newer logs, an earlier night with "
            "--as-of, or logs that name their jobs"
        )
    scorer = Scorer.load(folder.path / BUNDLE)
    features = scorer.features(candidates.select(SUBMISSION_SCHEMA.names), candidates.select(CANDIDATE_SCHEMA.names))
    prediction = scorer.predictor.predict(features)
    return rank(candidates, prediction, scorer.facts.ranking, model_version=scorer.facts.model_version)


def coverage(rows: pa.Table) -> pa.Table:
    """Count ranked and unranked rows by tier, over the jobs' own keys."""
    own = rows.filter(pc.or_(pc.is_valid(rows["throughput"]), pc.invert(rows["eligible"])))
    flags = pa.table({"tier": own["tier"], "ranked": pc.cast(pc.is_valid(own["rank"]), pa.int64())})
    counts = flags.group_by("tier", use_threads=False).aggregate([("ranked", "sum"), ("ranked", "count")])
    return pa.table(
        {
            "tier": counts["tier"],
            "candidates": counts["ranked_count"],
            "ranked": counts["ranked_sum"],
        }
    ).sort_by("tier")


def first_choices(rows: pa.Table) -> pa.Table:
    """Count for each hardware type the jobs' own keys that it is ranked first for, most first."""
    first = rows.filter(pc.and_(pc.is_valid(rows["throughput"]), pc.equal(rows["rank"], 1)))
    counts = first.group_by("hardware_type", use_threads=False).aggregate([("job_key", "count")])
    counts = counts.sort_by([("job_key_count", "descending"), ("hardware_type", "ascending")])
    return counts.select(["hardware_type", "job_key_count"]).rename_columns(["hardware_type", "job_keys"])


def publish_night(
    home: Home, folder: NightFolder, params: PublishParams, *, night: date, code_version: str, generated_at: datetime
) -> Manifest:
    """Publish the ranking that the night has scored, with the bundle that scored it. Raises NotPromotedError, PublishError."""
    _require_promoted(folder)
    rows = folder.read_table("rankings")
    challenger = folder.read_facts("challenger")
    made_by = pc.unique(rows["model_version"]).to_pylist()
    if made_by != [challenger["model_version"]]:
        raise NotPromotedError(
            f"the night's ranking is of model version {', '.join(made_by)}, its challenger is {challenger['model_version']}: an "
            "earlier run of the night left it. Run model/rankings again, or the whole night"
        )
    versions = pc.unique(rows["price_version"].drop_null()).to_pylist()
    facts = SnapshotFacts(
        night=night,
        model_version=challenger["model_version"],
        fingerprint=challenger["fingerprint"],
        price_version=",".join(sorted(versions)),
        dataset_id=folder.read_facts("dataset")["id"],
        code_version=code_version,
        coverage={row["tier"]: {"candidates": row["candidates"], "ranked": row["ranked"]} for row in coverage(rows).to_pylist()},
    )
    return publish(home.published, home.history, rows, folder.path / BUNDLE, facts, generated_at=generated_at, params=params)


def _require_promoted(folder: NightFolder) -> None:
    """Refuse to go on with a challenger that the gates have not passed: each step can be started by hand."""
    verdict, challenger = folder.read_facts("verdict"), folder.read_facts("challenger")
    if verdict["fingerprint"] != challenger["fingerprint"]:
        raise NotPromotedError("the night's verdict is on another challenger; run model/verdicts again, or the whole night")
    if not verdict["promoted"]:
        raise NotPromotedError(f"{verdict['reason']}; nothing is published")


def promote(home: Home, folder: NightFolder, registry: Registry, params: Params, *, promoted_at: datetime) -> None:
    """Record the published model as live where it was not, and let the registry's alias name it.

    The snapshot is the truth; log and alias follow it, also where an earlier night died between the two.
    """
    manifest = SnapshotReader(home.published).manifest()
    control = Control(home.control)
    live = control.live_promotion()
    if live is None or live.fingerprint != manifest.fingerprint:
        verdict: dict[str, Any] = folder.read_facts("verdict")
        control.record_promotion(
            Promotion(
                promoted_at=promoted_at,
                night=manifest.night,
                model_version=manifest.model_version,
                fingerprint=manifest.fingerprint,
                dataset_id=manifest.dataset_id,
                code_version=manifest.code_version,
                params_hash=params_hash(params),
                price_version=manifest.price_version,
                snapshot_id=manifest.snapshot_id,
                verdict=verdict,
                reason=verdict["reason"],
            )
        )
    registry.set_alias(registry.config.aliases.champion, manifest.model_version)


def promotion_table(home: Home, limit: int = 1000) -> pa.Table:
    """Give the newest promotions as rows, for the copy in the warehouse."""
    return pa.Table.from_pylist(
        [
            {
                "promoted_at": promotion.promoted_at,
                "night": promotion.night,
                "model_version": promotion.model_version,
                "fingerprint": promotion.fingerprint,
                "dataset_id": promotion.dataset_id,
                "code_version": promotion.code_version,
                "params_hash": promotion.params_hash,
                "price_version": promotion.price_version,
                "snapshot_id": promotion.snapshot_id,
                "reason": promotion.reason,
            }
            for promotion in Control(home.control).promotions(limit)
        ],
        schema=PROMOTIONS_SCHEMA,
    )
