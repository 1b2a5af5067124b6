"""Candidates are ordered by what is known of them per dollar; a guess does not beat a measurement by less than its own doubt."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leap.contracts import RANKING_SCHEMA
from leap.params import RankingParams
from leap.predictors import Prediction
from leap.ranking import rank

PARAMS = RankingParams(active_days=1, hardware_seen_days=1, near_best_share=0.05, price_list="list")


def candidates(rows: list[dict]) -> pa.Table:
    known = {
        "job_key": "job",
        "model_type": "bert",
        "num_devices": 8.0,
        "pool": "default",
        "usd_per_device_hour": 3600.0,
        "price_version": "p1",
        "price_note": "",
        "eligible": True,
        "reason": "",
    }
    return pa.Table.from_pylist([known | row for row in rows])


def prediction(
    per_device: list[float], *, tier: list[str] | str = "learned", half_width: float | list[float] = 0.01
) -> Prediction:
    p50 = np.log(np.array(per_device, dtype=float))
    width = np.broadcast_to(np.asarray(half_width, dtype=float), p50.shape)
    tiers = np.array([tier] * len(p50) if isinstance(tier, str) else tier)
    return Prediction(p50 - width, p50, p50 + width, tiers)


def of_job(table: pa.Table, key: str = "job") -> list[dict]:
    return [row for row in table.to_pylist() if row["job_key"] == key]


def test_rank_goes_by_throughput_per_dollar_of_the_whole_job():
    # given: B is slower and cheaper; 8 devices at one dollar per second and device
    table = candidates([{"hardware_type": "A"}, {"hardware_type": "B", "usd_per_device_hour": 1800.0}])
    # when
    rows = of_job(rank(table, prediction([100.0, 80.0]), PARAMS, model_version="3"))
    # then: 100 per dollar for A, 160 for B
    assert [(row["hardware_type"], row["rank"]) for row in rows] == [("B", 1), ("A", 2)]
    assert [row["throughput_per_usd"] for row in rows] == pytest.approx([160.0, 100.0])
    assert [row["throughput"] for row in rows] == pytest.approx([640.0, 800.0])
    assert [row["relative_to_best"] for row in rows] == pytest.approx([1.0, 0.625])
    assert rows[0]["throughput_p10"] < rows[0]["throughput"] < rows[0]["throughput_p90"]
    assert {row["model_version"] for row in rows} == {"3"}


def test_ties_go_by_the_name_of_the_hardware_type():
    table = candidates([{"hardware_type": name} for name in ("C", "A", "B")])
    rows = of_job(rank(table, prediction([5.0, 5.0, 5.0]), PARAMS, model_version="1"))
    assert [row["hardware_type"] for row in rows] == ["A", "B", "C"]
    assert all(row["is_near_best"] for row in rows)


@pytest.mark.parametrize("price", [0.0, None, float("nan"), -1.0, float("inf")])
def test_a_type_without_a_usable_price_is_never_ranked(price):
    # given: trouble 35; the mart marks it, and the ranking would not rank it even if the mart did not
    rows = [{"hardware_type": "free", "usd_per_device_hour": price}, {"hardware_type": "paid"}]
    for eligible in (True, False):
        rows[0] |= {"eligible": eligible, "reason": "" if eligible else "no price"}
        ranked = of_job(rank(candidates(rows), prediction([1e9, 1.0]), PARAMS, model_version="1"))
        assert [(row["hardware_type"], row["rank"]) for row in ranked if row["rank"]] == [("paid", 1)]
        assert ranked[1]["throughput_per_usd"] is None


def test_what_is_to_be_known_of_a_price_is_said():
    table = candidates([{"hardware_type": "A", "price_note": "assumed price"}, {"hardware_type": "B"}])
    rows = of_job(rank(table, prediction([2.0, 1.0]), PARAMS, model_version="1"))
    assert [row["reason"] for row in rows] == ["assumed price", ""]


def test_no_answer_is_no_rank_and_says_why():
    rows = of_job(
        rank(
            candidates([{"hardware_type": "A"}, {"hardware_type": "B"}]),
            prediction([1.0, np.nan], tier=["learned", "none"]),
            PARAMS,
            model_version="1",
        )
    )
    assert rows[1]["rank"] is None
    assert rows[1]["throughput"] is None
    assert not rows[1]["eligible"]
    assert "known to LEAP" in rows[1]["reason"]


def test_a_guess_does_not_outrank_a_measured_type_by_less_than_its_own_uncertainty():
    table = candidates([{"hardware_type": "measured"}, {"hardware_type": "guess"}, {"hardware_type": "sure"}])
    answer = prediction([100.0, 120.0, 200.0], tier=["measured", "family", "learned"], half_width=[0.01, 0.5, 0.1])
    rows = of_job(rank(table, answer, PARAMS, model_version="1"))
    # then: the guess leads by 18% with 50% doubt and goes below; the other leads by 69% with 10% and stays first
    assert [row["hardware_type"] for row in rows] == ["sure", "measured", "guess"]
    assert "measured" in rows[2]["reason"]


def test_the_doubt_of_a_lead_is_the_side_on_which_the_guess_may_fall_short():
    # given: a guess that leads by 18%, sure not to be much faster, and not sure at all not to be slower
    table = candidates([{"hardware_type": "measured"}, {"hardware_type": "guess"}])
    p50 = np.log(np.array([100.0, 120.0]))
    answer = Prediction(p50 - np.array([0.01, 0.7]), p50, p50 + np.array([0.01, 0.05]), np.array(["measured", "learned"]))
    rows = of_job(rank(table, answer, PARAMS, model_version="1"))
    assert [row["hardware_type"] for row in rows] == ["measured", "guess"]


def test_near_best_is_what_cannot_be_told_from_rank_one():
    table = candidates([{"hardware_type": name} for name in "ABCD"])
    answer = prediction([100.0, 96.0, 80.0, 80.0], half_width=[0.3, 0.01, 0.3, 0.01])
    rows = of_job(rank(table, answer, PARAMS, model_version="1"))
    # B is within 5%; C's interval reaches A and A's reaches C; D is known to be slower
    assert {row["hardware_type"]: row["is_near_best"] for row in rows} == {"A": True, "B": True, "C": True, "D": False}


def test_aggregate_keys_carry_the_mean_relative_throughput_and_no_throughput():
    # given: two bert jobs on 8 devices that disagree, one on 16
    rows = [
        {"job_key": job, "hardware_type": hardware, "num_devices": devices}
        for job, devices in (("one", 8.0), ("two", 8.0), ("three", 16.0))
        for hardware in ("A", "B")
    ]
    answer = prediction([100.0, 50.0, 80.0, 80.0, 10.0, 40.0])
    # when
    table = rank(candidates(rows), answer, PARAMS, model_version="1")
    # then: A is worth 1 and 1, B 0.5 and 1 on 8 devices: sqrt(0.5) of A
    at_8 = of_job(table, "bert@8")
    assert [(row["hardware_type"], row["rank"]) for row in at_8] == [("A", 1), ("B", 2)]
    assert [row["relative_to_best"] for row in at_8] == pytest.approx([1.0, 0.5**0.5])
    assert {row["num_devices"] for row in at_8} == {8}
    assert {row["throughput"] for row in at_8} == {None}
    assert [row["is_near_best"] for row in at_8] == [True, False]
    # and over all three A is worth (1 * 1 * 0.25), B (0.5 * 1 * 1)
    for key in ("bert", "*"):
        rows_of_key = of_job(table, key)
        assert [row["hardware_type"] for row in rows_of_key] == ["B", "A"]
        assert rows_of_key[1]["relative_to_best"] == pytest.approx(0.5 ** (1 / 3))
        assert {row["num_devices"] for row in rows_of_key} == {None}


def test_a_job_that_is_named_like_a_model_type_keeps_its_own_rows():
    table = rank(candidates([{"job_key": "bert", "hardware_type": "A"}]), prediction([1.0]), PARAMS, model_version="1")
    assert [row["throughput"] for row in of_job(table, "bert")] == pytest.approx([8.0])


def test_the_receipt_of_a_row_comes_from_its_content():
    table = candidates([{"hardware_type": "A"}, {"hardware_type": "B"}])
    first = rank(table, prediction([1.0, 2.0]), PARAMS, model_version="1")
    again = rank(table, prediction([1.0, 2.0]), PARAMS, model_version="1")
    other = rank(table, prediction([1.0, 2.1]), PARAMS, model_version="1")
    assert first["ranking_id"] == again["ranking_id"]
    assert len(set(first["ranking_id"].to_pylist())) == first.num_rows
    changed = {row["ranking_id"] for row in of_job(other)} - {row["ranking_id"] for row in of_job(first)}
    assert len(changed) == 2, "both rows of the job stand in another relation to its best"


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["j1", "j2", "j3"]),
            st.sampled_from(["measured", "learned", "family", "none"]),
            st.one_of(st.floats(0.1, 1e6), st.just(float("nan"))),
            st.one_of(st.none(), st.floats(-1, 50)),
            st.floats(0, 2),
        ),
        min_size=1,
        max_size=40,
    )
)
def test_each_job_is_ranked_one_to_n_without_gaps_whatever_comes(rows):
    table = candidates(
        [
            {"job_key": job, "hardware_type": f"h{number:02d}", "usd_per_device_hour": price}
            for number, (job, _, _, price, _) in enumerate(rows)
        ]
    )
    table = table.set_column(
        table.column_names.index("usd_per_device_hour"), "usd_per_device_hour", table["usd_per_device_hour"].cast(pa.float64())
    )
    answer = prediction([row[2] for row in rows], tier=[row[1] for row in rows], half_width=[row[4] for row in rows])
    ranked = rank(table, answer, PARAMS, model_version="1")
    assert ranked.schema.names == RANKING_SCHEMA.names
    for key in {row[0] for row in rows}:
        places = [row["rank"] for row in of_job(ranked, key) if row["rank"] is not None]
        assert places == list(range(1, len(places) + 1))
        for row in of_job(ranked, key):
            assert (row["rank"] is None) == (row["relative_to_best"] is None)
            if row["rank"] is not None:
                assert 0 < row["relative_to_best"] <= 1
                assert row["eligible"]
                assert row["usd_per_device_hour"] > 0


def test_times_are_left_to_the_publisher():
    table = rank(candidates([{"hardware_type": "A"}]), prediction([1.0]), PARAMS, model_version="1")
    assert table["generated_at"].null_count == table.num_rows
