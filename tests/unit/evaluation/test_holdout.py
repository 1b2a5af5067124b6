"""Which rows are hidden, and when is trained."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from leap.evaluation.holdout import Kind, NothingToHideError, Regime, choose_hidden, rounds

SCHEMA = pa.schema(
    [
        ("attempt_id", pa.string()),
        ("job_id", pa.string()),
        ("model_type", pa.string()),
        ("hardware_type", pa.string()),
        ("vendor", pa.string()),
        ("outcome", pa.string()),
        ("is_newest", pa.bool_()),
        ("night", pa.date32()),
    ]
)


def rows(count: int, **columns: Any) -> list[dict[str, Any]]:
    """Make runs of four jobs, one a night."""
    return [
        {
            "attempt_id": f"{columns}-{number}",
            "job_id": f"job-{number % 4}",
            "model_type": "m",
            "hardware_type": "a",
            "vendor": "v",
            "outcome": "succeeded",
            "is_newest": True,
            "night": dt.date(2024, 1, 1) + dt.timedelta(days=number),
        }
        | columns
        for number in range(count)
    ]


def table(*parts: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist([row for part in parts for row in part], schema=SCHEMA)


def chosen(examples: pa.Table, kind: Kind, regime: Regime, **options: Any) -> list[tuple[str, int, int]]:
    """Give name, rows hidden and rows scored of each."""
    hidden = choose_hidden(examples, kind, regime, **{"first_nights": 0, **options})
    return [
        (one.name if one.model is None else f"{one.name} with {one.model}", int(one.rows.sum()), int(one.scored.sum()))
        for one in hidden
    ]


def test_types_with_enough_attempts_and_jobs_are_hidden_largest_first():
    examples = table(
        rows(20, hardware_type="just"), rows(30, hardware_type="large"), rows(19, hardware_type="few"),
        rows(40, hardware_type="one-job", job_id="alone"),
    )  # fmt: skip
    assert chosen(examples, Kind.HARDWARE, Regime.TYPE) == [("large", 30, 30), ("just", 20, 20)]


def test_all_rows_of_a_type_are_hidden_and_only_attempts_that_count_are_scored():
    examples = table(
        rows(25, hardware_type="a"),
        rows(5, hardware_type="a", outcome="failed"),
        rows(5, hardware_type="a", is_newest=False),
        rows(3, hardware_type="b"),
    )
    assert chosen(examples, Kind.HARDWARE, Regime.TYPE) == [("a", 35, 25)]
    # the first four nights are learned from and not scored
    assert chosen(examples, Kind.HARDWARE, Regime.TYPE, first_nights=4) == [("a", 35, 21)]
    # of few nights half, where nothing is said
    assert chosen(table(rows(60)), Kind.HARDWARE, Regime.TYPE, first_nights=None) == [("a", 60, 30)]


def test_a_pair_is_hidden_with_one_model_at_a_time_and_never_the_only_one():
    examples = table(
        rows(22, hardware_type="a", model_type="m"), rows(5, hardware_type="a", model_type="n"),
        rows(30, hardware_type="b", model_type="m"),
    )  # fmt: skip
    assert chosen(examples, Kind.HARDWARE, Regime.PAIR) == [("a with m", 22, 22), ("a with n", 5, 5)]


@pytest.mark.parametrize(("kind", "column"), [(Kind.MODEL, "model_type"), (Kind.VENDOR, "vendor")])
def test_models_and_vendors_are_hidden_by_their_own_names(kind, column):
    examples = table(rows(20, **{column: "x"}), rows(21, **{column: "y"}))
    assert chosen(examples, kind, Regime.TYPE) == [("y", 21, 21), ("x", 20, 20)]
    assert chosen(examples, kind, Regime.TYPE, only=["x"]) == [("x", 20, 20)]


def test_nothing_large_enough_is_an_error_that_names_what_there_is():
    with pytest.raises(NothingToHideError, match="among the 12 that are scored; there are: a"):
        chosen(table(rows(12)), Kind.HARDWARE, Regime.TYPE)


def test_a_gap_of_more_than_a_month_starts_a_round_of_training():
    nights = np.array(["2024-01-01", "2024-01-31", "2024-03-02", "2024-05-01", "2024-05-01"], dtype="datetime64[D]")
    assert [tuple(map(str, one)) for one in rounds(nights)] == [
        ("2024-01-01", "2024-01-31"),
        ("2024-03-02", "2024-03-02"),
        ("2024-05-01", "2024-05-01"),
    ]


def test_many_rounds_are_joined_in_order():
    nights = np.array([f"20{year}-01-01" for year in range(10, 19)], dtype="datetime64[D]")
    joined = rounds(nights)
    assert len(joined) == 4
    assert [str(start) for start, _ in joined] == ["2010-01-01", "2013-01-01", "2015-01-01", "2017-01-01"]
    assert [str(end) for _, end in joined] == ["2012-01-01", "2014-01-01", "2016-01-01", "2018-01-01"]
