"""How a night ends for the shell."""

from __future__ import annotations

import pytest

from assets.runs import StepFailure
from pipelines.nightly import ExitCode, _exit_code

GATE, ERROR = StepFailure("gates", True, ("too few",)), StepFailure("dbt_build", False, ("no such column",))


@pytest.mark.parametrize(
    ("success", "failures", "is_published", "code"),
    [
        (True, [], True, ExitCode.GOOD),
        (False, [GATE], False, ExitCode.HELD),
        (False, [GATE, ERROR], False, ExitCode.FAILED),
        # what is served is no longer what it was
        (False, [GATE], True, ExitCode.FAILED),
        (False, [], False, ExitCode.FAILED),
    ],
)
def test_a_night_is_held_only_where_what_is_served_is_as_it_was(
    success: bool, failures: list[StepFailure], is_published: bool, code: ExitCode
) -> None:
    assert _exit_code(success, failures, is_published=is_published) == code
