"""What a cut could not have known changes nothing: the report finds what is planted, and labels of later are without effect."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from leap.evaluation.history import History, days, training_matrix
from leap.evaluation.leaks import LeakReport, report
from leap.evaluation.retrain import default_predictors, fit_with_intervals
from leap.features import State
from leap.gaussian_process import GaussianProcess
from leap.store.warehouse import connect, read

if TYPE_CHECKING:
    from tests.integration.conftest import SimulatedNight

CUTS = ("2026-03-05", "2026-03-08", "2026-03-10")


def history_of(night: SimulatedNight, examples: pa.Table) -> History:
    levels = night.params.features.state_levels
    state = State.from_table(night.rebuild(examples), levels, GaussianProcess.from_examples(examples))
    return History.from_matrix(training_matrix(examples, state))


def with_labels(examples: pa.Table, labels: np.ndarray) -> pa.Table:
    """Replace the label of each example, per device and of the whole job."""
    devices = examples["num_devices"].cast(pa.float64()).to_numpy()
    for name, values in (("log_throughput_per_device", labels), ("throughput", np.exp(labels) * devices)):
        examples = examples.set_column(examples.column_names.index(name), name, pa.array(values))
    return examples


def permuted(examples: pa.Table, rows: np.ndarray) -> pa.Table:
    """Give the marked rows each other's labels, moved so that none keeps its own."""
    labels = examples["log_throughput_per_device"].to_numpy().copy()
    labels[rows] = np.random.default_rng(5).permutation(labels[rows]) + 1.0
    return with_labels(examples, labels)


@pytest.fixture(scope="module")
def examples(simulated_night: SimulatedNight) -> pa.Table:
    return simulated_night.dataset.table("training_examples")


@pytest.fixture(scope="module")
def as_it_is(simulated_night: SimulatedNight, examples: pa.Table) -> History:
    return history_of(simulated_night, examples)


def test_the_data_has_what_the_tests_are_about(examples: pa.Table) -> None:
    assert pc.sum(pc.invert(examples["is_newest"])).as_py() > 50
    crossing = pc.greater(examples["ended_at"].cast(pa.date32()), examples["night"])
    assert pc.sum(crossing).as_py() > 50


@pytest.mark.parametrize("cut", CUTS)
def test_no_label_known_after_the_cut_changes_a_feature_or_a_prediction(
    simulated_night: SimulatedNight, examples: pa.Table, as_it_is: History, cut: str
) -> None:
    # given every label that became known after the cut, corrections included, is another's
    at = np.datetime64(cut)
    later = days(examples["visible_from"]) > at
    assert 0 < later.sum() < len(later)
    assert (later & (as_it_is.night < at)).any(), "some ran before the cut and were known, or corrected, after it"
    shuffled = history_of(simulated_night, permuted(examples, later))
    # then every feature of that night and of those before it is the same
    past = pa.array(as_it_is.night <= at)
    for name in as_it_is.features.column_names:
        ours, theirs = (one.features[name].filter(past).to_numpy(zero_copy_only=False) for one in (as_it_is, shuffled))
        np.testing.assert_array_equal(ours, theirs, err_msg=name)
    # and so is every answer to what was submitted that night
    asked = pa.array(as_it_is.night == at)
    for make in default_predictors(simulated_night.params):
        ours, theirs = (
            fit_with_intervals(make(), one, at, simulated_night.params).predict(one.features.filter(asked))
            for one in (as_it_is, shuffled)
        )
        assert len(ours.p50) > 100
        for part in ("p10", "p50", "p90", "tier"):
            np.testing.assert_array_equal(getattr(ours, part), getattr(theirs, part))


def test_labels_known_before_the_cut_do_change_predictions(
    simulated_night: SimulatedNight, examples: pa.Table, as_it_is: History
) -> None:
    at = np.datetime64(CUTS[-1])
    earlier = days(examples["visible_from"]) <= at
    shuffled = history_of(simulated_night, permuted(examples, earlier))
    asked = pa.array(as_it_is.night == at)
    ours, theirs = (
        fit_with_intervals(default_predictors(simulated_night.params)[0](), one, at, simulated_night.params)
        .predict(one.features.filter(asked))
        .p50
        for one in (as_it_is, shuffled)
    )
    assert (ours != theirs).all()


def reported(night: SimulatedNight, examples: pa.Table, state: pa.Table) -> LeakReport:
    levels = night.params.features.state_levels
    matrix = training_matrix(examples, State.from_table(state, levels))
    numbered = examples.append_column("row", pa.array(range(examples.num_rows), pa.int64()))
    with connect(Path(":memory:")) as connection:
        connection.register("examples", numbered)
        connection.register("attempts", night.dataset.table("attempts"))
        return report(matrix, levels, lambda statement: read(connection, statement))


def test_the_report_of_a_night_finds_nothing_and_no_fact_is_of_the_future(
    simulated_night: SimulatedNight, examples: pa.Table
) -> None:
    found = reported(simulated_night, examples, simulated_night.dataset.table("state_history"))
    assert found.findings == ()
    ages = {feature.feature: feature for feature in found.features}
    assert all(age.min_days > 0 and age.min_known_days > 0 for age in ages.values() if age.rows)
    # about 300 attempts a day on six types: the newest is of the evening before
    assert 0 < ages["hardware_last"].median_days < 0.5
    assert ages["log_peak_tflops"].rows == 0


def test_a_history_that_shows_a_night_too_early_is_found(simulated_night: SimulatedNight, examples: pa.Table) -> None:
    # given the rows of the level `model` stand a night earlier than they were known
    state = simulated_night.dataset.table("state_history")
    early = pc.if_else(
        pc.equal(state["level"], "model"),
        pc.subtract(state["night"].cast(pa.timestamp("s")), pa.scalar(dt.timedelta(days=1), pa.duration("s"))).cast(pa.date32()),
        state["night"],
    )
    planted = state.set_column(state.column_names.index("night"), "night", early)
    # when
    found = reported(simulated_night, examples, planted)
    # then only that level is blamed, for facts of after the cut
    assert {finding.source for finding in found.findings} == {"model"}
    assert "its newest fact ended after the cut" in {finding.what for finding in found.findings}
    assert sum(finding.rows for finding in found.findings) > 1000


def test_a_history_that_forgets_a_fact_is_found(simulated_night: SimulatedNight, examples: pa.Table) -> None:
    state = simulated_night.dataset.table("state_history")
    is_model = pc.equal(state["level"], "hardware")
    first = pc.min(state.filter(is_model)["night"])
    found = reported(simulated_night, examples, state.filter(pc.invert(pc.and_(is_model, pc.greater(state["night"], first)))))
    assert {finding.source for finding in found.findings} == {"hardware"}
    assert "a newer fact was known at the cut" in {finding.what for finding in found.findings}


def test_a_label_taken_as_known_before_it_was_is_found(simulated_night: SimulatedNight, examples: pa.Table) -> None:
    # given the pipeline took each correction as known from the day it corrects: `visible_from` lies
    first = pc.if_else(pc.greater(examples["version"], 1), examples["night"], examples["visible_from"])
    planted = examples.set_column(examples.column_names.index("visible_from"), "visible_from", first)
    found = reported(simulated_night, planted, simulated_night.rebuild(planted))
    assert "it counts other runs than were known" in {finding.what for finding in found.findings}
