"""`leap explain-miss`: the parts of an answer are its whole, and all that is shown was known at the cut."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from leap.evaluation.explain import Explanation, NothingKnownError, contributions, explain, find_attempt
from leap.evaluation.history import History
from leap.evaluation.retrain import default_predictors, fit_with_intervals
from leap.predictors.gbdt import GbdtPredictor, base
from leap.store.examples import load_history

if TYPE_CHECKING:
    from tests.integration.conftest import SimulatedNight

CUT = np.datetime64("2026-03-08")


def explain_miss(night: SimulatedNight, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).with_name("leap"), "explain-miss", "--params", night.overlay, *arguments],
        env={**os.environ, "LEAP_HOME": str(night.home)},
        check=False,
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def examples(simulated_night: SimulatedNight) -> pa.Table:
    return simulated_night.dataset.table("training_examples")


@pytest.fixture(scope="module")
def history(simulated_night: SimulatedNight) -> History:
    return load_history(simulated_night.dataset, simulated_night.params)


@pytest.fixture(scope="module")
def model(simulated_night: SimulatedNight, history: History) -> GbdtPredictor:
    made = fit_with_intervals(default_predictors(simulated_night.params)[0](), history, CUT, simulated_night.params)
    assert isinstance(made, GbdtPredictor)
    return made


@pytest.fixture(scope="module")
def row(history: History) -> int:
    return int(np.flatnonzero(history.is_scored & (history.night == CUT))[7])


@pytest.fixture(scope="module")
def explained(simulated_night: SimulatedNight, examples: pa.Table, history: History, row: int) -> Explanation:
    return explain(examples, history, row, simulated_night.params)


def test_the_contributions_add_up_to_the_prediction(history: History, model: GbdtPredictor) -> None:
    # whatever part of the correction is taken: rows whose configuration was seen before, and rows whose was not
    seen = np.nan_to_num(history.features["exact_log_count"].to_numpy()) > 0
    known = np.isfinite(base(history.features))
    shares = set()
    for kind in (seen, ~seen):
        for place in np.flatnonzero(known & kind)[:20].tolist():
            asked = history.features.slice(place, 1)
            names, parts, common = contributions(model, asked)
            assert len(names) == len(parts)
            assert base(asked)[0] + common + parts.sum() == pytest.approx(model.predict(asked).p50[0], abs=1e-9)
            shares.add(float(model.share_of_correction(asked)[0]))
    assert len(shares) == 2


def test_the_answer_is_the_backtests_and_its_factors_make_it(
    explained: Explanation, history: History, model: GbdtPredictor, row: int
) -> None:
    answer = model.predict(history.features.slice(row, 1))
    devices = explained.num_devices
    assert explained.p50 == pytest.approx(np.exp(answer.p50[0]) * devices)
    assert explained.p10 == pytest.approx(np.exp(answer.p10[0]) * devices)
    assert explained.p90 == pytest.approx(np.exp(answer.p90[0]) * devices)
    assert explained.tier == answer.tier[0]
    assert explained.label == pytest.approx(np.exp(history.target[row]) * devices)
    assert explained.error == pytest.approx(explained.p50 / explained.label - 1)
    assert explained.start is not None
    product = explained.start * explained.common_factor * explained.rest_factor
    product *= float(np.prod([driver.factor for driver in explained.drivers]))
    assert product * devices == pytest.approx(explained.p50, rel=1e-9)
    # the twelve with the largest share, largest first
    sizes = [abs(driver.log) for driver in explained.drivers]
    assert len(sizes) == 12
    assert sizes == sorted(sizes, reverse=True)


def test_what_is_shown_was_known_at_the_cut(explained: Explanation, examples: pa.Table) -> None:
    rows = {row["attempt_id"]: row for row in examples.to_pylist() if str(row["visible_from"]) <= explained.cut}
    assert 0 < len(explained.neighbours) <= 10
    for one in explained.neighbours:
        assert rows[one.attempt_id]["model_type"] == explained.model_type
        assert one.off == pytest.approx(one.throughput_per_device / (explained.label / explained.num_devices) - 1)
    # the level `hardware` counts what SQL-free counting counts
    (hardware,) = [level for level in explained.levels if level.level == "hardware"]
    known = [
        row
        for row in examples.to_pylist()
        if row["hardware_type"] == explained.hardware_type
        and str(row["visible_from"]) <= explained.cut
        and (row["visible_to"] is None or str(row["visible_to"]) > explained.cut)
    ]
    assert (hardware.key, hardware.count) == (explained.hardware_type, len(known))
    assert [level.level for level in explained.levels if level.is_prior] == [explained.prior_level]


def test_the_command_tells_the_same_as_json_and_as_text(simulated_night: SimulatedNight, explained: Explanation) -> None:
    done = explain_miss(simulated_night, explained.attempt_id, "--json")
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    expected = json.loads(json.dumps(explained.to_json()))
    assert {name: told[name] for name in expected} == expected
    look = "a look at the nights that are kept for the final score: change nothing because of it"
    assert (told["dataset_id"], told["note"]) == (simulated_night.dataset.id, look)
    text = explain_miss(simulated_night, explained.attempt_id).stdout
    assert f"off by {explained.error:+.1%}" in text
    assert text.splitlines()[-1] == look


def test_an_attempt_before_the_nights_of_the_final_score_is_no_look_at_them(
    simulated_night: SimulatedNight, history: History
) -> None:
    # ten nights: the last five are kept, the night of the cut among them
    rows = np.flatnonzero(history.is_scored & (history.night == np.datetime64("2026-03-05")))
    text = explain_miss(simulated_night, str(history.attempt_id[rows[0]].as_py())).stdout
    assert "The nearest attempts" in text
    assert "final score" not in text


def test_a_name_that_is_none_or_several_is_a_sentence(simulated_night: SimulatedNight, examples: pa.Table) -> None:
    done = explain_miss(simulated_night, "no-such-attempt")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("leap: no attempt matches 'no-such-attempt'; the nearest of")
    some = str(examples["attempt_id"][0].as_py())[:2]
    done = explain_miss(simulated_night, some)
    assert done.returncode == 1
    assert f"attempts match {some!r}; name one of them, as:" in done.stderr


def test_the_first_night_knows_nothing_to_explain_by(
    simulated_night: SimulatedNight, examples: pa.Table, history: History
) -> None:
    first = int(np.flatnonzero(history.night == history.night.min())[0])
    name = str(examples["attempt_id"][first].as_py())
    with pytest.raises(NothingKnownError, match="2026-03-01: 0 attempts"):
        explain(examples, history, find_attempt(examples, name), simulated_night.params)
