"""Of a large night a sample of the attempts gets features: the same one each time, whole, with its share of the quarantine."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from leap.contracts import UTC_TIMESTAMP
from leap.evaluation.history import training_matrix
from leap.features import State
from leap.gaussian_process import GaussianProcess
from leap.params import Params, load_params
from leap.store.datasets import Dataset, export, open_dataset
from leap.store.examples import assemble_examples, load_history, read_examples, read_quarantine

LARGE, SMALL = date(2026, 3, 1), date(2026, 3, 2)
MOST = 200


def limited(params: Params, most: int) -> Params:
    return params.model_copy(update={"features": params.features.model_copy(update={"max_attempts_a_night": most})})


@pytest.fixture
def params(repository: Path) -> Params:
    return limited(load_params(repository / "params.yaml"), MOST)


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    """A night of 2,000 attempts, each with two versions of its label, and one of 50; a tenth as many are in quarantine."""
    nights = [LARGE] * 2000 + [SMALL] * 50
    versions = [(f"a{number}", night, version) for number, night in enumerate(nights) for version in (1, 2)]
    rejects = [(f"q{number}", night) for number, night in enumerate(nights[::10])]
    started = [datetime(night.year, night.month, night.day, 12, tzinfo=UTC) for _, night in rejects]
    tables = {
        "training_examples": pa.table(
            {
                "attempt_id": [attempt for attempt, _, _ in versions],
                "night": pa.array([night for _, night, _ in versions], pa.date32()),
                "version": [version for _, _, version in versions],
            }
        ),
        "quarantine": pa.table(
            {
                "attempt_id": [*(attempt for attempt, _ in rejects), None],
                "started_at": pa.array([*started, started[0]], UTC_TIMESTAMP),
                "received_at": pa.array([*(at + timedelta(days=1) for at in started), started[0]], UTC_TIMESTAMP),
            }
        ),
    }
    export(tmp_path, tables, date(2026, 3, 3), "digest")
    return open_dataset(tmp_path)


def test_a_small_night_is_taken_whole_and_a_large_one_to_its_limit(dataset: Dataset, params: Params) -> None:
    taken = read_examples(dataset, params)
    of_small = taken.filter(pc.equal(taken["night"], pa.scalar(SMALL)))
    of_large = taken.filter(pc.equal(taken["night"], pa.scalar(LARGE)))

    assert of_small.num_rows == 2 * 50
    # a hash takes about as many as are meant: within four standard deviations
    assert abs(of_large.num_rows / 2 - MOST) < 4 * np.sqrt(MOST)
    # versions of a label are not parted
    assert set(pc.value_counts(taken["attempt_id"]).field("counts").to_pylist()) == {2}
    # the dataset's order, whatever DuckDB does
    place = [
        2 * int(name[1:]) + version
        for name, version in zip(*taken.select(["attempt_id", "version"]).to_pydict().values(), strict=True)
    ]
    assert place == sorted(place)


def test_an_attempt_that_is_asked_for_is_among_them(dataset: Dataset, params: Params) -> None:
    usual = set(read_examples(dataset, params)["attempt_id"].to_pylist())
    left_out = next(name for name in dataset.table("training_examples")["attempt_id"].to_pylist() if name not in usual)

    assert set(read_examples(dataset, params, also=[left_out])["attempt_id"].to_pylist()) == usual | {left_out}


def test_the_quarantine_is_taken_to_the_same_share(dataset: Dataset, params: Params) -> None:
    rejects = read_quarantine(dataset, params)
    nights = pc.cast(rejects["started_at"], pa.date32())
    of_large = pc.sum(pc.equal(nights, pa.scalar(LARGE))).as_py()

    assert pc.sum(pc.equal(nights, pa.scalar(SMALL))).as_py() == 5
    assert 1 < of_large < 50  # about 20 of 200, and the one without a name, which no hash can choose
    assert read_quarantine(dataset, limited(params, 2000)).num_rows == 200 + 5 + 1


def test_features_of_a_sample_are_those_of_the_whole(simulated_night) -> None:
    whole = simulated_night.dataset.table("training_examples")
    sampled = limited(simulated_night.params, 60)
    some = assemble_examples(simulated_night.dataset, sampled)

    assert 0.1 * whole.num_rows < some.num_rows < 0.4 * whole.num_rows
    # history is of all attempts: level by level, and with the process of the same sample, each row is as it is among all
    process = GaussianProcess.from_examples(read_examples(simulated_night.dataset, sampled))
    levels = simulated_night.params.features.state_levels
    everything = training_matrix(whole, State.from_table(simulated_night.dataset.table("state_history"), levels, process))
    of_some = everything.filter(pc.is_in(everything["attempt_id"], value_set=some["attempt_id"].combine_chunks()))
    pd.testing.assert_frame_equal(of_some.to_pandas(), some.to_pandas(), rtol=0, atol=2e-6)
    # and history may be asked for with its denominator
    history = load_history(simulated_night.dataset, sampled)
    assert len(history.night) == some.num_rows
    assert history.is_scored.any()
