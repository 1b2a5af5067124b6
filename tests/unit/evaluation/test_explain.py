"""Finding the attempt that a person means."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from leap.evaluation.explain import NoSuchAttemptError, find_attempt

NAMES = ("v1/acme/box/bert/run_1", "v1/acme/box/bert/run_10", "v1/acme/box/resnet/run_1", "v2/umbrella/Box/bert/run_2")


def examples(*names: str) -> pa.Table:
    count = len(names)
    return pa.table(
        {
            "attempt_id": list(names),
            "is_newest": [True] * count,
            "segment_number": pa.array([1] * count, pa.int32()),
            "model_type": ["bert"] * count,
            "hardware_type": ["H100"] * count,
            "num_devices": [8.0] * count,
            "night": [dt.date(2024, 1, 2)] * count,
        }
    )


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("v1/acme/box/bert/run_1", 0),  # a whole name, though another begins with it
        ("v1/acme/box/res", 2),  # the only one that begins with it
        ("UMBRELLA/box", 3),  # a part, in whatever case
    ],
)
def test_an_attempt_is_found_by_name_beginning_or_part(text, row):
    assert find_attempt(examples(*NAMES), text) == row


def test_the_newest_label_of_the_first_segment_is_meant():
    table = examples("a", "a", "a", "b")
    table = table.set_column(1, "is_newest", pa.array([False, True, True, True]))
    table = table.set_column(2, "segment_number", pa.array([1, 1, 2, 1], pa.int32()))
    assert find_attempt(table, "a") == 1


def test_several_matches_are_listed_and_nothing_else():
    with pytest.raises(NoSuchAttemptError) as error:
        find_attempt(examples(*NAMES), "acme/box/bert")
    assert str(error.value) == (
        "2 attempts match 'acme/box/bert'; name one:\n"
        "  v1/acme/box/bert/run_1  (bert on 8 H100, 2024-01-02)\n"
        "  v1/acme/box/bert/run_10  (bert on 8 H100, 2024-01-02)"
    )


def test_many_matches_are_listed_from_all_over():
    names = [f"job-{number:02}/run" for number in range(40)]
    with pytest.raises(NoSuchAttemptError, match="40 attempts match 'run'; name one of them, as:") as error:
        find_attempt(examples(*names), "run")
    listed = [line.split()[0] for line in str(error.value).splitlines()[1:]]
    assert len(listed) == 10
    assert (listed[0], listed[-1]) == (names[0], names[-1])


def test_what_matches_nothing_gets_the_names_that_share_most_of_it():
    with pytest.raises(NoSuchAttemptError) as error:
        find_attempt(examples(*NAMES), "v3/acme/resnet")
    assert "no attempt matches 'v3/acme/resnet'; the nearest of 4 are:\n  v1/acme/box/resnet/run_1" in str(error.value)
