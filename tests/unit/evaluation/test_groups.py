"""Choosing among hardware types: order, first place and the cost of a wrong choice, on groups worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from leap.evaluation.groups import cells_of, score_groups


def names(*values: str) -> np.ndarray:
    return np.array(values)


def test_pairs_first_place_rank_correlation_and_regret_by_hand():
    # given: bert on three types (labels 10, 20, 40; the middle one with two runs), resnet on one type alone
    model = names("bert", "bert", "bert", "bert", "resnet")
    hardware = names("A", "B", "B", "C", "A")
    label = np.log([10.0, 19.0, 21.0, 40.0, 5.0])
    cells = cells_of({"model_type": model}, hardware, label)
    assert cells.hardware_type.tolist() == ["A", "B", "C"]
    assert cells.member.tolist() == [0, 1, 1, 2, -1]
    # when: B is predicted above C; of the pairs AB, AC, BC two are right
    score = score_groups(cells, np.log([10.0, 50.0, 50.0, 40.0, 5.0]), {"A": 1.0, "B": 2.0, "C": 4.0})
    # then
    assert (score.groups, score.pairs, score.priced) == (1, 3, 1)
    assert score.pairwise == pytest.approx(2 / 3)
    assert score.top_1 == 0.0
    assert score.rank_correlation == pytest.approx(0.5)
    # costs per sample are 1/10, 2/19.97 (the middle in logs), 4/40: B is chosen at 2/50, and A is cheapest by 0.1%
    assert score.regret == pytest.approx((2 / np.sqrt(19 * 21)) / 0.1 - 1)


def test_no_answer_is_on_no_right_side_and_is_not_chosen():
    cells = cells_of({"model_type": names("a", "a", "b", "b")}, names("X", "Y", "X", "Y"), np.log([1.0, 2.0, 1.0, 2.0]))
    score = score_groups(cells, np.array([0.0, np.nan, np.nan, np.nan]), {"X": 1.0, "Y": 1.0})
    assert score.pairwise == 0.0
    assert score.top_1 == 0.0
    # group a: X is chosen at twice the cost of Y; group b: nothing is chosen, the mean of both costs, half as much again in logs
    assert score.regret == pytest.approx((1.0 + (np.sqrt(2) - 1)) / 2)
    assert np.isnan(score.rank_correlation)


def test_types_that_are_tied_have_no_order_and_either_may_be_first():
    cells = cells_of({"model_type": names("a", "a")}, names("X", "Y"), np.array([1.0, 1.04]))
    score = score_groups(cells, np.array([2.0, 1.0]), {})
    assert (score.pairs, score.top_1, score.priced) == (0, 1.0, 0)
    assert np.isnan(score.pairwise)
    assert np.isnan(score.regret)
    assert score.to_json()["regret"] is None


def test_other_work_is_another_group():
    work = {"model_type": names("a", "a", "a", "a"), "devices": names("8", "8", "16", "16")}
    cells = cells_of(work, names("X", "Y", "X", "Y"), np.log([1.0, 2.0, 3.0, 1.0]))
    score = score_groups(cells, np.log([1.0, 2.0, 3.0, 1.0]), {})
    assert (score.groups, score.pairs, score.pairwise, score.top_1) == (2, 2, 1.0, 1.0)


def test_no_group_at_all_tells_nothing():
    cells = cells_of({"model_type": names("a", "b")}, names("X", "Y"), np.array([1.0, 2.0]))
    score = score_groups(cells, np.array([1.0, 2.0]), {})
    assert score.groups == 0
    assert np.isnan(score.top_1)
