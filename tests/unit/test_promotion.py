"""`decide` promotes on measured figures alone, and each gate says its figure."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from leap.evaluation.metrics import Scorecard
from leap.params import GateParams
from leap.promotion import decide

GATES = GateParams(
    min_answered=0.9,
    min_within_20=0.4,
    min_within_10_over_lookup=0.0,
    min_within_10_over_champion=0.0,
    min_coverage=0.5,
    max_quarantined_share=0.2,
)
CARD = Scorecard("leap", 100, 20, 1.0, 0.8, 0.9, (0.7, 0.9), 0.05, 0.8, 0.2, {})
LOOKUP = replace(CARD, predictor="lookup", within_10=0.7)


def test_a_challenger_that_passes_every_gate_is_promoted():
    verdict = decide(replace(CARD, within_10=0.75), CARD, GATES, lookup=LOOKUP, quarantined_share=0.01)
    assert verdict.promoted
    assert verdict.failed == ()
    assert "80.0% within 10%" in verdict.reason
    assert [gate.value for gate in verdict.gates] == pytest.approx([1.0, 0.9, 0.8, 0.1, 0.05, 0.01])


@pytest.mark.parametrize(
    ("change", "gate"),
    [
        ({"answered": 0.89}, "min_answered"),
        ({"within_20": 0.39}, "min_within_20"),
        ({"coverage": 0.49}, "min_coverage"),
        ({"within_10": 0.69}, "min_within_10_over_lookup"),
        ({"within_10": math.nan}, "min_within_10_over_lookup"),
        ({"coverage": math.nan}, "min_coverage"),
    ],
)
def test_one_failed_gate_holds_the_challenger_and_names_itself(change, gate):
    verdict = decide(None, replace(CARD, **change), GATES, lookup=LOOKUP, quarantined_share=0.01)
    assert not verdict.promoted
    assert gate in [failed.name for failed in verdict.failed]
    assert gate in verdict.reason


def test_a_champion_that_is_better_holds_the_challenger():
    verdict = decide(replace(CARD, within_10=0.85), CARD, GATES, lookup=LOOKUP, quarantined_share=0.01)
    assert [gate.name for gate in verdict.failed] == ["min_within_10_over_champion"]


def test_without_a_comparable_champion_that_gate_says_so_and_passes():
    verdict = decide(None, CARD, GATES, lookup=LOOKUP, quarantined_share=0.01)
    gate = next(gate for gate in verdict.gates if gate.name == "min_within_10_over_champion")
    assert gate.passed
    assert gate.value is None


def test_too_much_quarantine_holds_the_night():
    verdict = decide(None, CARD, GATES, lookup=LOOKUP, quarantined_share=0.21)
    assert [gate.name for gate in verdict.failed] == ["max_quarantined_share"]
