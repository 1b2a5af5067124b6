"""Paired differences and slices, with values worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from leap.evaluation.compare import SliceScore, paired_difference, slice_scores, within

JOBS = np.array(["a", "a", "b", "c"])


def test_a_hit_is_within_the_share_of_the_label_and_no_answer_is_a_miss():
    label = np.log([100.0, 100.0, 100.0, 100.0])
    prediction = np.log([110.0, 89.0, 100.0, np.nan])
    assert within(label, prediction, 0.10).tolist() == [True, False, True, False]
    assert within(label, prediction, 0.20).tolist() == [True, True, True, False]


def test_the_difference_is_of_attempts_and_equal_predictors_differ_by_nothing_whatever_is_drawn():
    ours, theirs = np.array([True, True, False, True]), np.array([True, False, False, False])
    difference = paired_difference(ours, theirs, JOBS, seed=1)
    assert difference.value == pytest.approx(0.5)
    assert 0 <= difference.low <= 0.5 <= difference.high <= 1
    same = paired_difference(ours, ours, JOBS, seed=1)
    assert (same.value, same.low, same.high) == (0, 0, 0)


def test_a_gain_on_every_job_excludes_zero_though_each_share_alone_is_uncertain():
    rng = np.random.default_rng(0)
    jobs = np.repeat([f"job-{number}" for number in range(60)], 5)
    hard = np.repeat(rng.random(60) < 0.5, 5)  # half of the jobs nobody gets right
    theirs = hard & (rng.random(300) < 0.8)
    ours = hard & (theirs | (rng.random(300) < 0.9))
    difference = paired_difference(ours, theirs, jobs, seed=1)
    assert 0 < difference.low < difference.value < difference.high


def test_slices_are_scored_on_their_own_rows_largest_first():
    label = np.log([100.0, 100.0, 100.0, 100.0])
    ours, table = np.log([100.0, 100.0, 150.0, 100.0]), np.log([100.0, 150.0, 100.0, np.nan])
    axes = {"hardware_type": np.array(["H100", "H100", "H100", "A100"])}
    h100, a100 = slice_scores("leap", label, ours, table, JOBS, axes, seed=1)
    assert (h100.value, h100.n, h100.jobs, h100.within_10) == ("H100", 3, 2, pytest.approx(2 / 3))
    assert h100.over_lookup is not None
    assert h100.over_lookup.value == pytest.approx(0)
    assert (a100.value, a100.n, a100.within_20) == ("A100", 1, 1.0)


@pytest.mark.parametrize(("n", "high", "worse"), [(100, -0.01, True), (99, -0.01, False), (100, 0.01, False)])
def test_a_slice_is_worse_only_where_it_is_large_and_the_interval_excludes_zero(n, high, worse):
    difference = paired_difference(np.array([True]), np.array([True]), np.array(["a"]), seed=1)
    difference = type(difference)(-0.1, -0.2, high)
    assert SliceScore("leap", "team", "x", n, 20, 0.5, 0.5, difference).is_worse is worse
