"""Scores a job that no published row covers, from the bundle that a snapshot carries.

What lives here: loading a bundle (text and Parquet, no pickle) and ranking its candidates for one submission or predicting for
many. What does not: finding the snapshot (`reader.py`), the arithmetic (`leap.features`, `leap.predictors`, `leap.ranking`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from leap.contracts import CANDIDATE_SCHEMA, HARDWARE_SCHEMA, SUBMISSION_SCHEMA, JobSubmission
from leap.features import State, assemble
from leap.gaussian_process import GaussianProcess
from leap.params import RankingParams
from leap.predictors.gbdt import GbdtPredictor
from leap.ranking import rank_jobs, with_ranking_ids

BUNDLE_FILES = ("booster.txt", "encoder.json", "model.json", "state.parquet", "process.parquet", "candidates.parquet")
NOT_OFFERED = "not in the job's eligible list"
UNKNOWN_JOB_KEY = "submission"

# What a ranking can hold, and what the keys of history can be made of; a log is held to the same (`leap.sources.admission`).
_MOST_DEVICES = 10_000_000
_MOST_SIZE = 1e15

# What the bundle says of each place where a job could run: the candidate's description and its price.
OFFER_COLUMNS = (
    *(name for name in CANDIDATE_SCHEMA.names if name != "num_devices"),
    "usd_per_device_hour",
    "price_version",
    "price_note",
)


class SubmissionError(ValueError):
    """A submission asks for what no job can have; the message names field, value and limit."""


@dataclass(frozen=True)
class BundleFacts:
    """What `model.json` says of a bundle beside the model itself."""

    model_version: str
    cut: np.datetime64  # the date of the night whose history the bundle carries
    ranking: RankingParams
    levels: dict[str, tuple[str, ...]]

    def to_json(self) -> dict[str, Any]:
        """Give the facts as JSON values."""
        return {
            "model_version": self.model_version,
            "cut": str(self.cut),
            "ranking": self.ranking.model_dump(mode="json"),
            "levels": {level: list(columns) for level, columns in self.levels.items()},
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> BundleFacts:
        """Read what `to_json` gave."""
        return cls(
            model_version=values["model_version"],
            cut=np.datetime64(values["cut"], "D"),
            ranking=RankingParams.model_validate(values["ranking"]),
            levels={level: tuple(columns) for level, columns in values["levels"].items()},
        )


def write_bundle(
    folder: Path, predictor: GbdtPredictor, state: pa.Table, process: pa.Table, offers: pa.Table, facts: BundleFacts
) -> None:
    """Write a bundle into an existing folder.

    `state` has the columns of `marts.state_current`, `process` those of `GaussianProcess.at` the cut, `offers` `OFFER_COLUMNS`:
    one row per hardware type and pool.
    """
    predictor.save(folder)
    (folder / "model.json").write_text(json.dumps(facts.to_json(), indent=1, sort_keys=True), encoding="utf-8")
    pq.write_table(state, folder / "state.parquet", compression="zstd")
    pq.write_table(process, folder / "process.parquet", compression="zstd")
    pq.write_table(offers.select(list(OFFER_COLUMNS)), folder / "candidates.parquet", compression="zstd")


@dataclass(frozen=True)
class Scorer:
    """A loaded bundle. Immutable: a new snapshot is a new scorer."""

    predictor: GbdtPredictor
    state: State
    offers: pa.Table
    facts: BundleFacts

    @classmethod
    def load(cls, folder: Path) -> Scorer:
        """Load the bundle in `folder`; FileNotFoundError or ValueError where it is not whole."""
        facts = BundleFacts.from_json(json.loads((folder / "model.json").read_text(encoding="utf-8")))
        return cls(
            predictor=GbdtPredictor.load(folder),
            state=State.from_table(
                pq.read_table(folder / "state.parquet"),
                facts.levels,
                GaussianProcess.from_table(pq.read_table(folder / "process.parquet")),
            ),
            offers=pq.read_table(folder / "candidates.parquet"),
            facts=facts,
        )

    def features(self, submissions: pa.Table, candidates: pa.Table) -> pa.Table:
        """Assemble the features of n pairs at the bundle's cut.

        `submissions` has any of the columns of `SUBMISSION_SCHEMA`; `candidates` has `hardware_type`, `num_devices` and `pool`.
        Hardware is described by the bundle; a type that it does not offer stays undescribed.
        """
        return assemble(
            _conform(submissions, SUBMISSION_SCHEMA),
            self._describe(candidates),
            self.state,
            np.full(submissions.num_rows, self.facts.cut),
        )

    def predict(self, submissions: pa.Table, candidates: pa.Table) -> pa.Table:
        """Predict n pairs: `throughput_p10`, `throughput`, `throughput_p90` (samples/s, whole job; null = no answer), `tier`."""
        features = self.features(submissions, candidates)
        prediction = self.predictor.predict(features)
        devices = features["num_devices"].to_numpy()
        answered = np.isfinite(prediction.p50)

        def whole_job(log_per_device: np.ndarray[Any, np.dtype[np.float64]]) -> pa.Array:
            return pa.array(np.where(answered, np.exp(log_per_device) * devices, 0.0), mask=~answered)

        return pa.table(
            {
                "throughput_p10": whole_job(prediction.p10),
                "throughput": whole_job(prediction.p50),
                "throughput_p90": whole_job(prediction.p90),
                "tier": pa.array(prediction.tier.tolist(), pa.string()),
            }
        )

    def rank(self, submission: JobSubmission) -> pa.Table:
        """Rank every offered candidate for one submission: `RANKING_SCHEMA` rows, best first.

        `generated_at` and `valid_until` are null: they are those of the snapshot that the bundle came with.
        Raises SubmissionError where a number of the submission is beyond all jobs.
        """
        _check_sizes(submission)
        candidates = self._offered_to(submission)
        prediction = self.predictor.predict(self.features_of(submission))
        allowed, reason = self._eligibility(submission)
        job_key = pa.array([submission.job_id or UNKNOWN_JOB_KEY] * candidates.num_rows, pa.string())
        table = candidates.append_column("job_key", job_key).append_column("eligible", allowed).append_column("reason", reason)
        rows = rank_jobs(table, prediction, self.facts.ranking, model_version=self.facts.model_version)
        return with_ranking_ids(rows.sort_by([("rank", "ascending"), ("hardware_type", "ascending"), ("pool", "ascending")]))

    def features_of(self, submission: JobSubmission) -> pa.Table:
        """Assemble the features of one submission on every candidate, in the order of `offers`."""
        count = self.offers.num_rows
        values = submission.model_dump(mode="json")
        submissions = pa.table({field.name: pa.array([values[field.name]] * count, field.type) for field in SUBMISSION_SCHEMA})
        return assemble(submissions, self._offered_to(submission), self.state, np.full(count, self.facts.cut))

    def _offered_to(self, submission: JobSubmission) -> pa.Table:
        return self.offers.append_column("num_devices", pa.array([float(submission.num_devices)] * self.offers.num_rows))

    def _eligibility(self, submission: JobSubmission) -> tuple[pa.Array, pa.Array]:
        priced = pc.fill_null(pc.greater(self.offers["usd_per_device_hour"], 0), False)
        if submission.eligible_hardware is None:
            listed = pa.array([True] * self.offers.num_rows)
        else:
            listed = pc.is_in(self.offers["hardware_type"], value_set=pa.array(submission.eligible_hardware, pa.string()))
        reason = pc.if_else(pc.invert(listed), NOT_OFFERED, pc.if_else(pc.invert(priced), "no price", ""))
        return pc.and_(priced, listed), reason

    def _describe(self, candidates: pa.Table) -> pa.Table:
        """Add the description of each hardware type, keeping the order of the rows."""
        first = pc.index_in(candidates["hardware_type"], value_set=self._types)
        described = self._catalog.take(first)
        columns = {name: described[name] for name in HARDWARE_SCHEMA.names if name != "hardware_type"}
        devices = pc.cast(candidates["num_devices"], pa.float64())
        return pa.table(
            {"num_devices": devices, "pool": candidates["pool"], "hardware_type": candidates["hardware_type"], **columns}
        )

    @property
    def _types(self) -> pa.Array:
        return pa.array(sorted(set(self.offers["hardware_type"].to_pylist())), pa.string())

    @property
    def _catalog(self) -> pa.Table:
        first = pc.index_in(self._types, value_set=self.offers["hardware_type"].combine_chunks())
        return self.offers.take(first)


def _check_sizes(submission: JobSubmission) -> None:
    for name, value in submission:
        most = _MOST_DEVICES if name == "num_devices" else _MOST_SIZE
        if isinstance(value, int | float) and value > most:
            raise SubmissionError(f"{name} is {value:g}; it must be at most {most:g}")


def _conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Give the table the schema's columns: those it lacks are unknown, numbers become doubles."""
    return pa.table(
        {
            field.name: table[field.name].cast(field.type)
            if field.name in table.column_names
            else pa.nulls(table.num_rows, field.type)
            for field in schema
        }
    )
