"""Each border lets good data through and says in words what is wrong with bad data: empty, null, infinite, missing, doubled."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from leap.params import RankingParams
from leap.predictors import Prediction
from leap.ranking import rank
from leap.store.quality import (
    PROFILE_COLUMNS,
    QualityReport,
    profile,
    validate_ranking,
    validate_raw_attempts,
    validate_training_profile,
    write_report,
)

INFINITY, NAN = float("inf"), float("nan")


@pytest.fixture(autouse=True, scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """An empty current directory, which stays empty."""
    before, folder = Path.cwd(), tmp_path_factory.mktemp("elsewhere")
    os.chdir(folder)
    yield
    os.chdir(before)
    assert list(folder.iterdir()) == []


START = pd.Timestamp("2026-11-29 08:00", tz="UTC")
FIGURES = ("throughput_p10", "throughput", "throughput_p90", "usd_per_device_hour", "throughput_per_usd")


@pytest.fixture
def attempts() -> pd.DataFrame:
    """Eight attempts, the second one changed its device count on the way."""
    return pd.DataFrame(
        {
            "attempt_id": ["a1", "a2", "a2", "a3", "a4", "a5", "a6", "a7"],
            "segment_number": [1, 1, 2, 1, 1, 1, 1, 1],
            "content_hash": [f"h{number}" for number in range(8)],
            "model_type": "bert",
            "hardware_type": ["h100", "a100"] * 4,
            "num_devices": [8, 16, 8, 1_000_000, 1, 1, 1, 1],
            "started_at": START,
            "ended_at": [START + pd.Timedelta(hours=hours) for hours in range(8)],
            "throughput": [1600.0, 1600.0, 800.0, 1e9, 1.0, 1.0, 1.0, 1.0],
            "throughput_unit": ["samples/s", "tokens/s", "tokens/s", "steps/s"] * 2,
            "throughput_scope": ["job", "node", "device", "job"] * 2,
            "outcome": ["succeeded", "preempted", "preempted", "failed"] * 2,
            "team": None,
        }
    )


def ranking_of(jobs: int) -> pd.DataFrame:
    """What `rank` gives for some jobs on three hardware types, one without a price, and for the aggregate keys.

    The rows of each job j00, j01, ... are h100 (rank 1), a100 (rank 2) and mi300x.
    """
    candidates = pa.table(
        {
            "job_key": np.repeat([f"j{number:02}" for number in range(jobs)], 3),
            "model_type": ["bert"] * 3 * jobs,
            "hardware_type": ["a100", "h100", "mi300x"] * jobs,
            "num_devices": np.full(3 * jobs, 8.0),
            "pool": ["default"] * 3 * jobs,
            "usd_per_device_hour": pa.array([2.0, 4.0, None] * jobs),
            "price_version": ["list-1"] * 3 * jobs,
            "price_note": [""] * 3 * jobs,
            "eligible": [True, True, False] * jobs,
            "reason": ["", "", "no price"] * jobs,
        }
    )
    p50 = np.log([100.0, 300.0, 200.0] * jobs)
    prediction = Prediction(p50 - 0.1, p50, p50 + 0.1, np.array(["measured", "measured", "family"] * jobs))
    params = RankingParams(active_days=14, hardware_seen_days=90, near_best_share=0.05, price_list="list")
    return rank(candidates, prediction, params, model_version="7").to_pandas()


@pytest.fixture
def ranking() -> pd.DataFrame:
    return ranking_of(2)


@pytest.fixture
def matrix() -> pd.DataFrame:
    """The profile of a matrix of four rows."""
    table = pa.table(
        {
            "model_type": ["bert", "bert", "gpt", "gpt"],
            "hardware_type": ["h100", "a100", "h100", "a100"],
            "log_image_size": [NAN] * 4,
            "prior": [NAN, NAN, NAN, 5.0],
            "log_throughput_per_device": [5.0, 4.0, 3.0, 2.0],
        }
    )
    return profile(table)


def changed(frame: pd.DataFrame, *changes: tuple[int, str, Any]) -> pd.DataFrame:
    """Give a copy in which some cells (row, column, value) hold other values."""
    copy = frame.astype({column: object for _, column, _ in changes})
    for row, column, value in changes:
        copy.at[row, column] = value
    return copy


def said(report: QualityReport) -> list[str]:
    """List what a red report says, without the places."""
    assert report.success is False
    return [failure.partition(" (first at")[0].replace(": expected that ", ": ") for failure in report.failures]


VALIDATORS: list[tuple[str, Callable[[pd.DataFrame], QualityReport]]] = [
    ("attempts", validate_raw_attempts),
    ("ranking", validate_ranking),
    ("matrix", validate_training_profile),
]


@pytest.mark.parametrize(("name", "validate"), VALIDATORS)
def test_good_data_passes(name: str, validate: Any, request: pytest.FixtureRequest) -> None:
    frame = request.getfixturevalue(name)

    report = validate(frame)

    assert (report.failures, report.success, report.statistics["rows"]) == ((), True, len(frame))


@pytest.mark.parametrize(("name", "validate"), VALIDATORS)
def test_a_table_without_rows_is_red(name: str, validate: Any, request: pytest.FixtureRequest) -> None:
    assert said(validate(request.getfixturevalue(name).iloc[:0])) == ["table: there is at least one: observed 0"]


@pytest.mark.parametrize(("name", "validate"), VALIDATORS)
def test_a_renamed_column_is_red_and_named(name: str, validate: Any, request: pytest.FixtureRequest) -> None:
    frame = request.getfixturevalue(name)
    column = "column_name" if name == "matrix" else "hardware_type"

    (failure,) = said(validate(frame.rename(columns={column: "renamed"})))

    assert failure.endswith(f": missing {column}")


@pytest.mark.parametrize(("name", "validate"), VALIDATORS)
def test_columns_of_nulls_are_red(name: str, validate: Any, request: pytest.FixtureRequest) -> None:
    frame = request.getfixturevalue(name)
    optional = {"team", "minimum", "maximum", "generated_at", "valid_until"}
    if name == "ranking":  # rows of aggregate keys and rows that are not eligible have these empty
        optional |= {"num_devices", *FIGURES, "throughput_unit", "price_version", "rank", "relative_to_best"}

    sentences = said(validate(frame.assign(**dict.fromkeys(frame.columns))))

    empty = [sentence for sentence in sentences if f"has a value: {len(frame)} of {len(frame)} are not so" in sentence]
    assert {sentence.split(": ")[1].split()[0] for sentence in empty} == set(frame.columns) - optional


def test_figures_that_are_null_in_every_row_are_red(ranking: pd.DataFrame) -> None:
    # Given only the price, which says that these are rows of a job.
    nulls = [*(name for name in FIGURES if name != "usd_per_device_hour"), "throughput_unit", "price_version", "num_devices"]

    sentences = said(validate_ranking(ranking.assign(**dict.fromkeys(nulls))))

    assert {
        f"ranked rows with figures of their own: {name} has a value: 4 of 4 are not so, e.g. no value" for name in nulls
    } <= set(sentences)


def test_figures_that_are_all_null_are_red(ranking: pd.DataFrame) -> None:
    sentences = said(validate_ranking(ranking.assign(**dict.fromkeys([*FIGURES, "throughput_unit"]))))

    assert "ranked rows with figures of their own: throughput has a value: 4 of 4 are not so, e.g. no value" in sentences


def test_a_ranking_in_which_nothing_is_ranked_is_red(ranking: pd.DataFrame) -> None:
    sentences = said(validate_ranking(ranking[~ranking["eligible"]]))

    assert sentences == ["ranked rows with figures of their own: there is at least one: observed 0"]


def test_a_throughput_that_is_no_throughput_is_red(attempts: pd.DataFrame) -> None:
    values = [0.0, -5.0, INFINITY, -INFINITY, NAN, None, "fast"]
    odd = changed(attempts, *((row, "throughput", value) for row, value in enumerate(values)))

    report = validate_raw_attempts(odd)

    assert said(report) == [
        "attempts: throughput has a value: 3 of 8 are not so, e.g. no value",
        "attempts: throughput is finite and above 0: 4 of 8 are not so, e.g. 0; -5; inf",
    ]
    assert report.failures[1].endswith("(first at attempt_id a1, segment_number 1)")


def test_odd_attempts_are_red_each_by_name(attempts: pd.DataFrame) -> None:
    odd = changed(
        attempts,
        (0, "num_devices", 0),
        (1, "num_devices", 1_000_001),
        (2, "throughput_unit", "images/s"),
        (3, "throughput_scope", "rack"),
        (4, "outcome", "crashed"),
        (5, "hardware_type", ""),
        (6, "ended_at", START - pd.Timedelta(hours=1)),
    )
    # The newest version of an attempt beside an older one is no fault; the same content twice is.
    odd = pd.concat([odd, odd.iloc[[7]], odd.iloc[[7]].assign(content_hash="corrected")])

    assert said(validate_raw_attempts(odd)) == [
        "attempts: hardware_type has a value: 1 of 10 are not so, e.g. no value",
        "attempts: num_devices is from 1 to 1,000,000: 2 of 10 are not so, e.g. 0; 1,000,001",
        "attempts: throughput_unit is one of samples/s, tokens/s, steps/s: 1 of 10 are not so, e.g. images/s",
        "attempts: throughput_scope is one of job, node, device: 1 of 10 are not so, e.g. rack",
        "attempts: outcome is one of succeeded, failed, cancelled, preempted, running: 1 of 10 are not so, e.g. crashed",
        "attempts: ended_at is not below started_at: 1 of 10 are not so, e.g. "
        "ended_at 2026-11-29 07:00:00, started_at 2026-11-29 08:00:00",
        "attempts: each combination of attempt_id, segment_number, content_hash is there once: 2 of 10 are not so, e.g. "
        "attempt_id a7, segment_number 1, content_hash h7",
    ]


def test_odd_rows_of_a_ranking_are_red_each_by_name() -> None:
    # Given one fault in the best row of each of some jobs.
    faults = [
        ("throughput", INFINITY),
        ("throughput", NAN),
        ("usd_per_device_hour", 0.0),
        ("usd_per_device_hour", "N/A"),
        ("throughput_per_usd", -1.0),
        ("throughput_p10", 1e9),
        ("throughput_p90", 1e-9),
        ("hardware_type", None),
        ("tier", "guessed"),
        ("relative_to_best", 1.01),
        ("relative_to_best", 0.0),
        ("relative_to_best", None),
        ("schema_version", 2),
        ("hardware_type", "a100"),
        ("num_devices", None),
        ("is_near_best", None),
    ]
    ranking = ranking_of(len(faults))
    best = ranking.index[ranking["job_key"].str.startswith("j") & (ranking["rank"] == 1)]
    rows = len(ranking)
    # And an aggregate row without its share, which is all that it has to give.
    overall = ranking.index[ranking["job_key"] == "*"][0]

    sentences = said(
        validate_ranking(
            changed(
                ranking,
                *((row, column, value) for row, (column, value) in zip(best, faults, strict=True)),
                (overall, "relative_to_best", NAN),
            )
        )
    )

    own = "ranked rows with figures of their own"
    assert [sentence.split(", e.g.")[0] for sentence in sentences] == [
        f"rows: hardware_type has a value: 1 of {rows} are not so",
        f"rows: is_near_best has a value: 1 of {rows} are not so",
        f"rows: schema_version is 1: 1 of {rows} are not so",
        f"rows: tier is one of measured, learned, family, analytic, none: 1 of {rows} are not so",
        f"rows: throughput is finite and above 0: 1 of {rows} are not so",
        f"rows: usd_per_device_hour is finite and above 0: 1 of {rows} are not so",
        f"rows: throughput_per_usd is finite and above 0: 1 of {rows} are not so",
        f"rows: relative_to_best is above 0 and at most 1: 2 of {rows} are not so",
        f"rows: each combination of job_key, hardware_type, num_devices, pool is there once: 2 of {rows} are not so",
        f"eligible rows: relative_to_best has a value: 2 of {rows - len(faults)} are not so",
        f"{own}: num_devices has a value: 1 of {2 * len(faults)} are not so",
        f"{own}: throughput has a value: 1 of {2 * len(faults)} are not so",
        f"{own}: usd_per_device_hour has a value: 1 of {2 * len(faults)} are not so",
        f"{own}: throughput is not below throughput_p10: 1 of {2 * len(faults)} are not so",
        f"{own}: throughput_p90 is not below throughput: 2 of {2 * len(faults)} are not so",
    ]


def test_ranks_that_do_not_run_from_one_are_red() -> None:
    # Given a best row without a rank, doubled, left out, and not eligible any more; and an ineligible row without a reason.
    ranking = ranking_of(5)
    best = ranking.index[ranking["job_key"].str.startswith("j") & (ranking["rank"] == 1)]
    unpriced = ranking.index[~ranking["eligible"]][4]

    report = validate_ranking(
        changed(
            ranking,
            (best[0], "rank", None),
            (best[1], "rank", 2),
            (best[2], "rank", 3),
            (best[3], "eligible", False),
            (unpriced, "reason", ""),
        )
    )

    assert [sentence.split(", e.g.")[0] for sentence in said(report)] == [
        "eligible rows: rank has a value: 1 of 15 are not so",
        "rows that are not eligible: reason has a value: 2 of 6 are not so",
        "rows that are not eligible: rank is empty: 1 of 6 are not so",
        "rows that are not eligible: relative_to_best is empty: 1 of 6 are not so",
        "job keys with eligible rows: exactly one row has rank 1: 4 of 8 are not so",
        "job keys with eligible rows: no rank is given twice: 1 of 8 are not so",
        "job keys with eligible rows: ranks go from 1 to the number of ranked rows: 3 of 8 are not so",
    ]
    assert report.failures[0].endswith("(first at job_key j00, hardware_type h100, pool default)")


def test_an_odd_training_matrix_is_red(matrix: pd.DataFrame) -> None:
    # Rows: 0 model_type, 1 hardware_type, 2 log_image_size, 3 prior, 4 the target.
    odd = changed(
        matrix,
        (0, "null_count", 4),
        (2, "infinite_count", 1),
        (3, "non_finite_count", 4),
        (3, "maximum", INFINITY),
        (2, "row_count", 5),
        (4, "non_finite_count", 1),
    )

    assert said(validate_training_profile(odd, minimum_rows=5)) == [
        "columns of the matrix: row_count is at least 5: 4 of 5 are not so, e.g. 4",
        "columns of the matrix: row_count is the same everywhere: observed 2",
        "columns of the matrix: infinite_count is 0: 1 of 5 are not so, e.g. 1",
        "columns of the matrix: maximum is finite: 1 of 5 are not so, e.g. inf",
        "columns that must be complete: null_count is 0: 1 of 3 are not so, e.g. 4",
        "columns that must be complete: non_finite_count is 0: 1 of 3 are not so, e.g. 1",
        "columns from history: some of prior is known: observed 0",
    ]


def test_a_training_matrix_without_target_or_history_is_red(matrix: pd.DataFrame) -> None:
    odd = changed(matrix, (4, "column_name", "throughput"), (3, "column_name", "throughput"))

    sentences = said(validate_training_profile(odd))

    assert sentences[0] == "columns of the matrix: column_name is there once: 2 of 5 are not so, e.g. throughput"
    assert sentences[1].startswith("columns of the matrix: log_throughput_per_device, model_type, hardware_type are there")
    assert sentences[2:] == ["columns from history: some of prior is known: observed no value"]


def test_a_profile_counts_nulls_nans_and_infinities_apart() -> None:
    table = pa.table(
        {
            "double": pa.array([1.5, None, NAN, INFINITY, -2.0, -2.0]),
            "whole": pa.array([1, 2, None, 3, 3, 3], pa.int32()),
            "it's": pa.array(["b", "", None, "a", "a", "a"]),
            'a "name"': pa.array([True, None, None, False, True, True]),
            "nothing": pa.nulls(6),
        }
    )

    described = profile(table).astype(object).where(lambda frame: frame.notna(), None)

    assert tuple(described.columns) == PROFILE_COLUMNS
    assert [tuple(row) for row in described.itertuples(index=False)] == [
        ("double", 6, 1, 2, 1, 2, -2.0, 1.5),
        ("whole", 6, 1, 0, 0, 3, 1.0, 3.0),
        ("it's", 6, 1, 0, 0, 3, None, None),
        ('a "name"', 6, 2, 0, 0, 2, None, None),
        ("nothing", 6, 6, 0, 0, 0, None, None),
    ]


def test_borders_may_be_checked_again_and_at_once(attempts: pd.DataFrame, matrix: pd.DataFrame) -> None:
    jobs = [
        (validate_raw_attempts, attempts),
        (validate_raw_attempts, attempts.iloc[:0]),
        (validate_training_profile, matrix),
    ] * 2

    with ThreadPoolExecutor(max_workers=6) as pool:
        reports = list(pool.map(lambda job: job[0](job[1]), jobs))

    assert [report.success for report in reports] == [True, False, True] * 2
    assert reports[:3] == reports[3:]
    assert reports[0] == validate_raw_attempts(attempts)


def test_a_report_is_json_and_a_page_that_runs_nothing(attempts: pd.DataFrame, tmp_path: Path) -> None:
    odd = changed(attempts, (0, "outcome", "<script>alert(1)</script>"), (1, "throughput", INFINITY))
    report = validate_raw_attempts(odd)

    page = write_report(report, tmp_path / "quality" / "2026-11-30")

    assert page == tmp_path / "quality" / "2026-11-30" / "raw_attempts.html"
    text = page.read_text(encoding="utf-8")
    assert "<script>" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    written = json.loads(page.with_suffix(".json").read_text(encoding="utf-8"))
    assert (written["border"], written["success"], tuple(written["failures"])) == ("raw_attempts", False, report.failures)
    (infinite,) = (found for found in written["results"]["expectations"] if found["says"] == "throughput is finite and above 0")
    assert infinite["observed"]["partial_unexpected_list"] == ["inf"]
