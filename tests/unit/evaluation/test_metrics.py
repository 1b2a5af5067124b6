"""A scorecard counts every miss: wrong answers, missing answers and attempts whose label was quarantined."""

from __future__ import annotations

import json

import numpy as np
import pytest

from leap.evaluation.metrics import bootstrap_by_job, score
from leap.predictors import Prediction


def prediction(log_p50, tier="learned", half_width=0.05) -> Prediction:
    p50 = np.asarray(log_p50, dtype=float)
    return Prediction(p50 - half_width, p50, p50 + half_width, np.full(len(p50), tier))


def test_hits_are_counted_on_the_relative_error_and_the_limit_itself_is_a_hit():
    # given: predictions off by exactly +10%, -10%, +10.1%, +20%, +30% and none
    off = np.array([1.1, 0.9, 1.101, 1.2, 1.3, np.nan])
    # when
    card = score("leap", np.zeros(6), prediction(np.log(off)), np.array(list("abcdef")), seed=1)
    # then
    assert card.within_10 == pytest.approx(2 / 6)
    assert card.within_20 == pytest.approx(4 / 6)
    assert card.answered == pytest.approx(5 / 6)
    assert card.n == 6
    assert card.jobs == 6


def test_an_attempt_with_a_quarantined_label_is_a_miss_in_the_denominator():
    card = score("leap", np.zeros(1), prediction([0.0]), np.array(["a"]), seed=1, unlabelled_jobs=np.array(["b", "b", "c"]))
    assert card.n == 4
    assert card.within_10 == pytest.approx(0.25)
    assert card.answered == pytest.approx(0.25)
    assert card.jobs == 3


def test_coverage_is_of_the_answers():
    card = score("leap", np.array([0.0, 0.04, 1.0, 0.0]), prediction([0.0, 0.0, 0.0, np.nan]), np.array(list("abcd")), seed=1)
    assert card.coverage == pytest.approx(2 / 3)
    assert card.median_width == pytest.approx(0.1)


def test_scores_stand_by_tier():
    answer = prediction([0.0, 1.0])
    answer = Prediction(answer.p10, answer.p50, answer.p90, np.array(["measured", "family"]))
    card = score("leap", np.zeros(2), answer, np.array(["a", "b"]), seed=1)
    assert card.tiers["measured"].within_10 == 1.0
    assert card.tiers["family"].within_10 == 0.0


def test_nothing_to_score_is_not_a_score_of_zero():
    card = score("leap", np.empty(0), prediction([]), np.empty(0, dtype=str), seed=1)
    assert card.n == 0
    assert np.isnan(card.within_10)
    assert json.loads(json.dumps(card.to_json()))["within_10"] is None


def test_the_bootstrap_resamples_jobs_and_not_attempts():
    # given: 2 jobs of 500 attempts, one all hits, one all misses
    hits = np.repeat([True, False], 500)
    jobs = np.repeat(["a", "b"], 500)
    # then: with two jobs nothing between 0 and 1 can be excluded; by attempts it would be 0.47 to 0.53
    assert bootstrap_by_job(hits, jobs, seed=1) == (0.0, 1.0)
