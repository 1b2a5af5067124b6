"""Predictions x prices x eligibility -> ranked rows.

What lives here: how candidates of one job are ordered, which of them cannot be told apart, and what the aggregate keys say. What
does not: prediction (`leap.predictors`), who is eligible (dbt, `marts.fct_ranking_candidates`), writing (`leap.store.publisher`).
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from leap.contracts import RANKING_SCHEMA, RANKING_SCHEMA_VERSION, TIERS, ThroughputUnit, Tier
from leap.params import RankingParams
from leap.predictors import Floats, Prediction

Rows = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.int64]

NO_ANSWER = "neither the model type nor the hardware type is known to LEAP"
WEAKER_GUESS = "leads a measured type by less than its own uncertainty"


@dataclass(frozen=True)
class _Scored:
    """Candidates with what is predicted of them; arrays of shape (n,). `score` is ln(samples per dollar), NaN = unranked."""

    job: Codes
    hardware: Codes
    score: Floats
    score_p10: Floats
    score_p90: Floats
    is_measured: Rows


def rank(candidates: pa.Table, prediction: Prediction, params: RankingParams, *, model_version: str) -> pa.Table:
    """Rank the candidates of each job key by predicted throughput per dollar, and add the aggregate keys.

    Args:
        candidates: one row per job key and candidate, with the columns of `marts.fct_ranking_candidates`.
        prediction: the predictor's answer for each row, log samples/s per device.
        params: what counts as near-best.
        model_version: the registered version that made the prediction.

    Returns:
        `RANKING_SCHEMA` rows, without `generated_at` and `valid_until` (null: the publisher knows the time), for each job key,
        then for `model_type@devices`, `model_type` and `*`, sorted by key and rank.
    """
    own = rank_jobs(candidates, prediction, params, model_version=model_version)
    aggregates = _aggregates(candidates, own, params)
    # A job that is named like a model type keeps its own rows.
    aggregates = aggregates.filter(pc.invert(pc.is_in(aggregates["job_key"], value_set=pc.unique(own["job_key"]))))
    return with_ranking_ids(pa.concat_tables([own, aggregates]).sort_by(_ORDER))


_ORDER = [
    ("job_key", "ascending"),
    ("rank", "ascending"),
    ("hardware_type", "ascending"),
    ("num_devices", "ascending"),
    ("pool", "ascending"),
]


def rank_jobs(candidates: pa.Table, prediction: Prediction, params: RankingParams, *, model_version: str) -> pa.Table:
    """Rank the candidates of each job key; as `rank`, without aggregate keys, in the order of the input."""
    count = candidates.num_rows
    devices = candidates["num_devices"].to_numpy()
    price = candidates["usd_per_device_hour"].to_numpy()
    answered = np.isfinite(prediction.p50)
    eligible = np.asarray(candidates["eligible"].to_numpy(), dtype=bool) & answered
    # Throughput per dollar: samples/s per device over dollars per device and second. Devices cancel.
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        cost = np.log(price / 3600)
        per_usd = np.exp(prediction.p50 - cost)
    ranked = eligible & np.isfinite(cost) & np.isfinite(per_usd)
    scored = _Scored(
        job=_codes(candidates["job_key"]),
        hardware=_codes(candidates["hardware_type"]),
        score=np.where(ranked, prediction.p50 - cost, np.nan),
        score_p10=prediction.p10 - cost,
        score_p90=prediction.p90 - cost,
        is_measured=prediction.tier == Tier.MEASURED.value,
    )
    effective = _effective_score(scored)
    position, best = _positions(scored, effective)
    relative = np.minimum(np.exp(scored.score - scored.score[best]), 1.0)
    near = ranked & (
        (relative >= 1 - params.near_best_share)
        | ((scored.score_p90 >= scored.score[best]) & (scored.score_p10[best] <= scored.score))
    )
    reasons = np.asarray(candidates["reason"].to_numpy(zero_copy_only=False), dtype=object)
    reasons = np.where(eligible | (reasons != ""), reasons, NO_ANSWER)
    notes = np.asarray(pc.fill_null(candidates["price_note"], "").to_numpy(zero_copy_only=False), dtype=object)
    reasons = np.where(ranked, notes, reasons)
    is_lowered = ranked & (effective < scored.score)
    reasons = np.where(is_lowered, np.where(notes != "", notes + "; ", "") + WEAKER_GUESS, reasons)

    def where(mask: Rows, values: Floats) -> pa.Array:
        return pa.array(np.where(mask, values, 0.0), mask=~mask)

    return pa.table(
        {
            "schema_version": pa.array(np.full(count, RANKING_SCHEMA_VERSION), pa.int32()),
            "ranking_id": pa.array([""] * count, pa.string()),
            "generated_at": pa.nulls(count, RANKING_SCHEMA.field("generated_at").type),
            "valid_until": pa.nulls(count, RANKING_SCHEMA.field("valid_until").type),
            "job_key": candidates["job_key"],
            "hardware_type": candidates["hardware_type"],
            "num_devices": pc.cast(candidates["num_devices"], pa.int32()),
            "pool": candidates["pool"],
            "rank": pa.array(position, pa.int32(), mask=~ranked),
            "throughput": where(answered, np.exp(prediction.p50) * devices),
            "throughput_p10": where(answered, np.exp(prediction.p10) * devices),
            "throughput_p90": where(answered, np.exp(prediction.p90) * devices),
            "throughput_unit": pa.array(np.full(count, ThroughputUnit.SAMPLES.value), pa.string(), mask=~answered),
            "usd_per_device_hour": where(np.isfinite(cost), price),
            "price_version": candidates["price_version"],
            "throughput_per_usd": where(ranked, per_usd),
            "relative_to_best": where(ranked, relative),
            "is_near_best": near,
            "eligible": eligible,
            "reason": pa.array(reasons, pa.string()),
            "tier": pa.array(prediction.tier.tolist(), pa.string()),
            "model_version": pa.array([model_version] * count, pa.string()),
        },
        schema=_nullable(RANKING_SCHEMA),
    )


def _effective_score(scored: _Scored) -> Floats:
    """Lower a weaker guess to just below the measured rows that it beats by less than its own uncertainty.

    Measured rows of a job are few (the types it ran on), so they are compared one rank of them at a time, all jobs at once.
    """
    effective = scored.score.copy()
    measured = np.flatnonzero(scored.is_measured & np.isfinite(scored.score))
    if not len(measured):
        return effective
    order = measured[np.lexsort((-scored.score[measured], scored.job[measured]))]
    job = scored.job[order]
    place = np.arange(len(order)) - np.searchsorted(job, job, side="left")
    # A lead is doubtful as far as the guess may fall short of its p50.
    uncertainty = scored.score - scored.score_p10
    guess = ~scored.is_measured & np.isfinite(scored.score)
    for nth in range(int(place.max()) + 1):
        rows = order[place == nth]
        bar = np.full(int(scored.job.max()) + 1, np.nan)
        bar[scored.job[rows]] = scored.score[rows]
        lead = scored.score - bar[scored.job]
        lowered = guess & (lead > 0) & (lead < uncertainty)
        effective = np.where(lowered, np.minimum(effective, bar[scored.job]), effective)
    return effective


def _positions(scored: _Scored, effective: Floats) -> tuple[Codes, Codes]:
    """Give each row's place within its job (1 = best) and the row number of its job's best; ties by hardware type."""
    unranked = ~np.isfinite(effective)
    order = np.lexsort(
        (
            scored.hardware,
            -np.nan_to_num(scored.score),
            ~scored.is_measured,
            -np.where(unranked, 0.0, effective),
            unranked,
            scored.job,
        )
    )
    job = scored.job[order]
    first = np.searchsorted(job, job, side="left")
    position = np.empty(len(order), dtype=np.int64)
    best = np.empty(len(order), dtype=np.int64)
    position[order] = np.arange(len(order)) - first + 1
    best[order] = order[first] if len(order) else first
    return position, best


def _aggregates(candidates: pa.Table, own: pa.Table, params: RankingParams) -> pa.Table:
    """Give the rows of the aggregate keys: per hardware type and pool the geometric mean over jobs of relative_to_best."""
    ranked = pc.is_valid(own["rank"])
    devices = pc.cast(own["num_devices"], pa.string())
    model = candidates["model_type"]
    tier_rank = pc.index_in(own["tier"], value_set=pa.array(TIERS))
    base = pa.table(
        {
            "hardware_type": own["hardware_type"],
            "pool": own["pool"],
            "log_relative": pc.ln(own["relative_to_best"]),
            "tier_rank": tier_rank,
            "model_version": own["model_version"],
            "price_version": own["price_version"],
        }
    )
    keys = {
        "model@devices": (pc.binary_join_element_wise(model, devices, "@"), own["num_devices"]),
        "model": (model, pa.nulls(own.num_rows, pa.int32())),
        "all": (pa.array(["*"] * own.num_rows, pa.string()), pa.nulls(own.num_rows, pa.int32())),
    }
    tables = [
        _aggregate(base.append_column("job_key", key).append_column("num_devices", count).filter(ranked), params)
        for key, count in keys.values()
    ]
    return pa.concat_tables(tables)


def _aggregate(rows: pa.Table, params: RankingParams) -> pa.Table:
    groups = (
        rows.group_by(["job_key", "hardware_type", "pool", "num_devices"], use_threads=False)
        .aggregate(
            [
                ("log_relative", "mean"),
                ("log_relative", "count"),
                ("tier_rank", "max"),
                ("model_version", "max"),
                ("price_version", "max"),
            ]
        )
        .sort_by([("job_key", "ascending"), ("hardware_type", "ascending"), ("pool", "ascending")])
    )
    count = groups.num_rows
    job, hardware = _codes(groups["job_key"]), _codes(groups["hardware_type"])
    # Rounded, so that the order in which jobs were added up cannot decide a tie.
    score = np.round(groups["log_relative_mean"].to_numpy(), 12)
    nothing = np.zeros(count, dtype=bool)
    scored = _Scored(job, hardware, score, score, score, nothing)
    position, best = _positions(scored, score)
    relative = np.exp(score - score[best])
    reasons = pc.binary_join_element_wise("geometric mean over ", pc.cast(groups["log_relative_count"], pa.string()), " jobs", "")
    empty = pa.nulls(count, pa.float64())
    return pa.table(
        {
            "schema_version": pa.array(np.full(count, RANKING_SCHEMA_VERSION), pa.int32()),
            "ranking_id": pa.array([""] * count, pa.string()),
            "generated_at": pa.nulls(count, RANKING_SCHEMA.field("generated_at").type),
            "valid_until": pa.nulls(count, RANKING_SCHEMA.field("valid_until").type),
            "job_key": groups["job_key"],
            "hardware_type": groups["hardware_type"],
            "num_devices": groups["num_devices"],
            "pool": groups["pool"],
            "rank": pa.array(position, pa.int32()),
            "throughput": empty,
            "throughput_p10": empty,
            "throughput_p90": empty,
            "throughput_unit": pa.nulls(count, pa.string()),
            "usd_per_device_hour": empty,
            "price_version": groups["price_version_max"],
            "throughput_per_usd": empty,
            "relative_to_best": relative,
            "is_near_best": relative >= 1 - params.near_best_share,
            "eligible": np.ones(count, dtype=bool),
            "reason": reasons,
            "tier": pc.take(pa.array(TIERS), groups["tier_rank_max"]),
            "model_version": groups["model_version_max"],
        },
        schema=_nullable(RANKING_SCHEMA),
    )


def with_ranking_ids(rows: pa.Table) -> pa.Table:
    """Fill `ranking_id`: the receipt of a row, from its key and its content, the same for the same ranking."""
    hashed = [name for name in RANKING_SCHEMA.names if name not in ("ranking_id", "generated_at", "valid_until")]
    text = pc.binary_join_element_wise(
        *(pc.fill_null(pc.cast(rows[name], pa.string()), "") for name in hashed), "\x1f"
    ).to_pylist()
    ids = pa.array([sha256(row.encode()).hexdigest()[:16] for row in text], pa.string())
    return rows.set_column(rows.column_names.index("ranking_id"), "ranking_id", ids)


def _codes(column: pa.ChunkedArray) -> Codes:
    """Number names in sorted order, so that codes compare as names do."""
    names = np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.str_)
    return np.asarray(np.unique(names, return_inverse=True)[1], dtype=np.int64)


def _nullable(schema: pa.Schema) -> pa.Schema:
    """Drop not-null marks while rows are still being filled."""
    return pa.schema([field.with_nullable(True) for field in schema])
