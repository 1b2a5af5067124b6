"""`decide()`: does the challenger become champion? Pure arithmetic over scorecards and the gates of `params.yaml`.

What lives here: the gates and the verdict with its reasons. What does not: scoring (`leap.evaluation`), carrying a verdict out
(`leap.store`).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from leap.evaluation.metrics import Scorecard
from leap.params import GateParams


@dataclass(frozen=True)
class Gate:
    """One gate: the figure, its limit and what came of it. `value` is None where there was nothing to compare."""

    name: str
    value: float | None
    limit: float
    passed: bool
    reason: str


@dataclass(frozen=True)
class Verdict:
    """Whether the challenger is promoted, each gate's figure, and one sentence that says why."""

    promoted: bool
    gates: tuple[Gate, ...]
    reason: str

    @property
    def failed(self) -> tuple[Gate, ...]:
        """The gates that failed."""
        return tuple(gate for gate in self.gates if not gate.passed)

    def to_json(self) -> dict[str, Any]:
        """Give the verdict as JSON values."""
        return asdict(self)


def decide(
    champion: Scorecard | None,
    challenger: Scorecard,
    gates: GateParams,
    *,
    lookup: Scorecard,
    quarantined_share: float,
) -> Verdict:
    """Apply each gate to the challenger's figures on the newest window.

    Args:
        champion: the champion's score on the same attempts; None where there is none, or where it has trained on them.
        challenger: the challenger's score.
        gates: the limits.
        lookup: the lookup table's score on the same attempts.
        quarantined_share: share of the records read that went to quarantine, 0 to 1.

    A figure that is not a number fails its gate: nothing that could not be measured is promoted.
    """
    applied = (
        _at_least("min_answered", challenger.answered, gates.min_answered, "share of attempts answered"),
        _at_least("min_within_20", challenger.within_20, gates.min_within_20, "share within 20%"),
        _at_least("min_coverage", challenger.coverage, gates.min_coverage, "share of labels between p10 and p90"),
        _at_least(
            "min_within_10_over_lookup",
            challenger.within_10 - lookup.within_10,
            gates.min_within_10_over_lookup,
            "share within 10% over the lookup table's",
        ),
        _over_champion(champion, challenger, gates),
        _at_most("max_quarantined_share", quarantined_share, gates.max_quarantined_share, "share of records quarantined"),
    )
    failed = [gate for gate in applied if not gate.passed]
    if failed:
        reason = "challenger held: " + "; ".join(gate.reason for gate in failed)
    else:
        reason = (
            f"challenger passes all {len(applied)} gates on {challenger.n} attempts of {challenger.jobs} jobs: "
            f"{challenger.within_10:.1%} within 10%, the lookup table {lookup.within_10:.1%}"
        )
    return Verdict(promoted=not failed, gates=applied, reason=reason)


def _over_champion(champion: Scorecard | None, challenger: Scorecard, gates: GateParams) -> Gate:
    name, limit = "min_within_10_over_champion", gates.min_within_10_over_champion
    if champion is None:
        return Gate(name, None, limit, True, "no champion that could be scored on attempts it has not trained on")
    gain = challenger.within_10 - champion.within_10
    return _at_least(name, gain, limit, "share within 10% over the champion's")


def _at_least(name: str, value: float, limit: float, what: str) -> Gate:
    passed = math.isfinite(value) and value >= limit
    return Gate(name, _finite(value), limit, passed, f"{what} is {value:.4g}, must be at least {limit:.4g} ({name})")


def _at_most(name: str, value: float, limit: float, what: str) -> Gate:
    passed = math.isfinite(value) and value <= limit
    return Gate(name, _finite(value), limit, passed, f"{what} is {value:.4g}, must be at most {limit:.4g} ({name})")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
