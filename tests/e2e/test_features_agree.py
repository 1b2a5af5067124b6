"""One feature row, whoever makes it, whenever: training, nightly scoring and `leap rank --submission`; a night today and one
that is run again when more is known."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from leap.contracts import CANDIDATE_SCHEMA, SUBMISSION_SCHEMA, JobSubmission
from leap.evaluation.history import History, training_matrix
from leap.features import PROCESS_FEATURES, State, feature_names
from leap.gaussian_process import GaussianProcess
from leap.params import load_params
from leap.serving.reader import SnapshotReader
from leap.serving.scorer import Scorer
from leap.store.datasets import Dataset
from leap.store.ingest import ingest
from leap.store.night import open_night
from leap.store.warehouse import connect, read
from leap.training import TrainingResult, train

if TYPE_CHECKING:
    from tests.e2e.conftest import GoodHome, Leap

NIGHT, EARLIER = date(2026, 3, 5), date(2026, 3, 4)
PAIR = (*SUBMISSION_SCHEMA.names, "hardware_type", "num_devices", "pool")


@pytest.fixture(scope="module")
def dataset(good: GoodHome) -> Dataset:
    return open_night(good.leap.layout, NIGHT)


@pytest.fixture(scope="module")
def scorer(good: GoodHome) -> Scorer:
    return Scorer.load(SnapshotReader(good.leap.layout.published).bundle())


@pytest.fixture(scope="module")
def pairs(dataset: Dataset) -> pa.Table:
    """Attempts that started on the night and are ranked for it: the job as it ran, where it ran.

    The job as it is ranked may differ in a field that changed since (the release of its framework): such attempts are left out.
    """
    examples = dataset.table("training_examples", filters=pc.field("night") == NIGHT)
    examples = examples.append_column("example", pa.array(range(examples.num_rows)))
    candidates = dataset.table("ranking_candidates")
    candidates = candidates.append_column("candidate", pa.array(range(candidates.num_rows)))
    left, right = (_keyed(table, name) for table, name in ((examples, "example"), (candidates, "candidate")))
    joined = left.join(right, "key", join_type="inner").sort_by("example")
    assert joined.num_rows > 10
    assert len(joined["example"].unique()) == joined.num_rows
    return pa.table(
        {
            "example": examples.take(joined["example"]).to_struct_array(),
            "candidate": candidates.take(joined["candidate"]).to_struct_array(),
        }
    )


def _keyed(table: pa.Table, name: str) -> pa.Table:
    keys = [json.dumps([row[column] for column in PAIR]) for row in table.select(list(PAIR)).to_pylist()]
    return pa.table({"key": keys, name: table[name]})


def flat(column: pa.ChunkedArray) -> pa.Table:
    return pa.Table.from_struct_array(column)


@pytest.fixture(scope="module")
def in_training(pairs: pa.Table, dataset: Dataset, scorer: Scorer) -> pa.Table:
    process = GaussianProcess.from_examples(dataset.table("training_examples"))
    state = State.from_table(dataset.table("state_history"), scorer.facts.levels, process)
    return training_matrix(flat(pairs["example"]), state)


def test_nightly_scoring_makes_the_rows_of_training(pairs: pa.Table, in_training: pa.Table, scorer: Scorer) -> None:
    candidates = flat(pairs["candidate"])

    scored = scorer.features(candidates.select(SUBMISSION_SCHEMA.names), candidates.select(CANDIDATE_SCHEMA.names))

    assert differences(scored, in_training) == {}
    assert knows_history(scored) > 10


def test_the_scorer_makes_the_rows_of_training_from_a_submission_in_json(
    pairs: pa.Table, in_training: pa.Table, scorer: Scorer
) -> None:
    made = []
    for row in flat(pairs["candidate"]).to_pylist():
        features = scorer.features_of(JobSubmission.model_validate_json(submission(row)))
        here = pc.and_(
            pc.equal(scorer.offers["hardware_type"], row["hardware_type"]), pc.equal(scorer.offers["pool"], row["pool"])
        )
        made.append(features.filter(here))

    assert differences(pa.concat_tables(made), in_training) == {}


def test_the_command_answers_with_the_prediction_for_that_row(
    pairs: pa.Table, in_training: pa.Table, scorer: Scorer, good: GoodHome, tmp_path: Path
) -> None:
    row = flat(pairs["candidate"]).slice(0, 1).to_pylist()[0]
    path = tmp_path / "job.json"
    path.write_text(submission(row))

    answer = good.leap("rank", "--submission", path, "--json").json()

    (found,) = [
        ranked
        for ranked in answer["rankings"]
        if (ranked["hardware_type"], ranked["pool"]) == (row["hardware_type"], row["pool"])
    ]
    prediction = scorer.predictor.predict(in_training.slice(0, 1))
    assert found["throughput"] == pytest.approx(float(np.exp(prediction.p50[0]) * row["num_devices"]), rel=1e-5)
    assert found["tier"] == prediction.tier[0]


def submission(row: dict[str, Any]) -> str:
    """Write the submission of a ranked job as a scheduler would."""
    known = {name: row[name] for name in SUBMISSION_SCHEMA.names if row[name] is not None}
    return json.dumps({**known, "num_devices": int(row["num_devices"])})


def differences(made: pa.Table, expected: pa.Table) -> dict[str, Any]:
    """Give the columns, of those that a model or a tier is made from, in which the rows differ; NaN is NaN."""
    names = [*dict.fromkeys(name for kind in feature_names(levels_of(expected)) for name in kind), "num_devices", "tier"]
    assert made.num_rows == expected.num_rows

    def differ(name: str) -> bool:
        ours, theirs = (table[name].to_numpy(zero_copy_only=False) for table in (made, expected))
        if ours.dtype == np.float64:
            # A process of more points rounds otherwise in its last digits; all else is the same number.
            return not np.allclose(ours, theirs, rtol=0, atol=2e-6 if name in PROCESS_FEATURES else 0, equal_nan=True)
        return ours.tolist() != theirs.tolist()

    return {name: (made[name].to_pylist()[:5], expected[name].to_pylist()[:5]) for name in names if differ(name)}


def levels_of(matrix: pa.Table) -> dict[str, tuple[str, ...]]:
    return {name.removesuffix("_log_count"): () for name in matrix.column_names if name.endswith("_log_count")}


def knows_history(features: pa.Table) -> int:
    return int(np.isfinite(features["job_hardware_last"].to_numpy()).sum())


@pytest.fixture(scope="module")
def as_it_was(tmp_path_factory: pytest.TempPathFactory, logs: Path, make_leap_in: Callable[[Path], Leap]) -> Leap:
    """The night of the 4th as it was run on the 4th, when nothing of that day was known."""
    root = tmp_path_factory.mktemp("as-it-was")
    known = root / "logs"
    known.mkdir()
    for path in [*sorted(logs.glob("attempts-*.jsonl"))[:3], logs / "corrections.jsonl"]:
        lines = [line for line in path.read_text().splitlines() if json.loads(line)["known_at"] < EARLIER.isoformat()]
        assert lines
        (known / path.name).write_text("\n".join(lines) + "\n")
    return run_earlier(make_leap_in(root), "--source", f"jsonl={known}")


@pytest.fixture(scope="module")
def run_again(tmp_path_factory: pytest.TempPathFactory, good: GoodHome, make_leap_in: Callable[[Path], Leap]) -> Leap:
    """The night of the 4th, run again in a copy of the home in which that of the 5th was."""
    root = tmp_path_factory.mktemp("run-again")
    leap = make_leap_in(root)
    shutil.copytree(good.leap.home, leap.home)
    return run_earlier(leap)


def run_earlier(leap: Leap, *arguments: str) -> Leap:
    done = leap.night("--as-of", EARLIER.isoformat(), *arguments)
    assert done.code == 0, f"{done.out}\n{done.err}"
    return leap


def label_of_the_corrected(leap: Leap, sql: str) -> list[float]:
    return [round(math.exp(row["value"]), 6) for row in leap.rows(sql)]


STATE = "select last_log_throughput as value from marts.state_current where level = 'model' and key = 'corrected-late'"


def test_a_night_knows_nothing_of_a_later_correction(as_it_was: Leap, run_again: Leap, good: GoodHome) -> None:
    assert label_of_the_corrected(as_it_was, STATE) == [100.0]
    assert label_of_the_corrected(run_again, STATE) == [100.0]
    assert label_of_the_corrected(good.leap, STATE) == [500.0]


def test_each_night_trains_on_the_label_that_it_knew(run_again: Leap) -> None:
    sql = """
        select log_throughput_per_device as value from marts.fct_training_examples
        where attempt_id = 'late-1' and visible_from <= date '{night}' and coalesce(visible_to, '9999-12-31') > date '{night}'
    """

    assert label_of_the_corrected(run_again, sql.format(night="2026-03-04")) == [100.0]
    assert label_of_the_corrected(run_again, sql.format(night="2026-03-05")) == [500.0]


def test_a_night_run_again_when_more_is_known_publishes_what_it_published(as_it_was: Leap, run_again: Leap) -> None:
    assert as_it_was.manifest()["night"] == run_again.manifest()["night"] == EARLIER.isoformat()
    assert model_of(run_again) == model_of(as_it_was)
    assert published(run_again).equals(published(as_it_was))


def model_of(leap: Leap) -> str:
    return Scorer.load(SnapshotReader(leap.layout.published).bundle()).predictor.fingerprint


def published(leap: Leap) -> pa.Table:
    """Give the rows served, without what counts versions or says when."""
    snapshot = leap.layout.published / "snapshots" / leap.manifest()["snapshot_id"]
    rows = pq.read_table(snapshot / "rankings.parquet")
    return rows.drop_columns(["generated_at", "valid_until", "model_version", "ranking_id"])


@pytest.fixture(scope="module")
def bad_log(tmp_path_factory: pytest.TempPathFactory, logs: Path) -> Path:
    """Three attempts of the first day that ran well and report a throughput that is none."""
    folder = tmp_path_factory.mktemp("bad-throughput")
    good = json.loads((logs / "attempts-2026-03-01.jsonl").read_text().splitlines()[0])
    good |= dict.fromkeys(("step_seconds", "start_step", "end_step"))  # they would make a label of their own
    records = [{**good, "attempt_id": f"bad-{value}", "outcome": "succeeded", "throughput": value} for value in (0, -5, None)]
    (folder / "bad.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


def test_attempts_without_a_throughput_change_nothing_that_is_learned(
    good: GoodHome, dataset: Dataset, logs: Path, bad_log: Path, repository: Path, tmp_path: Path
) -> None:
    params = load_params(repository / "params.yaml", good.leap.params)
    warehouses = {"clean": [logs], "spoilt": [logs, bad_log]}
    kept, quarantine = {}, {}
    for name, paths in warehouses.items():
        with connect(tmp_path / f"{name}.duckdb") as connection:
            seeds, now = repository / "dbt_project" / "seeds", datetime.now(UTC)
            ingest(connection, "jsonl", paths, seeds=seeds, params=params.ingest, received_at=now, load_id="load")
            kept[name] = read(connection, "select * exclude (received_at, user) from raw.job_attempts order by content_hash")
            quarantine[name] = read(connection, "select * from raw.quarantine order by content_hash")

    # three are in quarantine, with what is wrong with them
    new = [row for row in quarantine["spoilt"].to_pylist() if row["slice"] == "bad.jsonl"]
    assert sorted((row["attempt_id"], row["reason"]) for row in new) == [
        ("bad--5", "bad-throughput"),
        ("bad-0", "bad-throughput"),
        ("bad-None", "bad-throughput"),
    ]
    assert quarantine["spoilt"].num_rows == quarantine["clean"].num_rows + 3
    assert kept["spoilt"].equals(kept["clean"])
    # and model and scores are those of the clean log
    clean, spoilt = (trained(dataset, quarantine[name], params) for name in ("clean", "spoilt"))
    assert spoilt.challenger.fingerprint == clean.challenger.fingerprint == model_of(good.leap)
    assert {name: card.to_json() for name, card in spoilt.scorecards.items()} == {
        name: card.to_json() for name, card in clean.scorecards.items()
    }


def trained(dataset: Dataset, quarantine: pa.Table, params: Any) -> TrainingResult:
    process = GaussianProcess.from_examples(dataset.table("training_examples"))
    state = State.from_table(dataset.table("state_history"), params.features.state_levels, process)
    history = History.from_matrix(training_matrix(dataset.table("training_examples"), state), quarantine)
    return train(history, params, np.datetime64(NIGHT, "D"), None)
