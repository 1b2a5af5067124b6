"""The simple answers for hidden hardware, by hand."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from leap.evaluation.scaling import Runs, order_against_known, order_among, scaled_by_peak_rate, scaled_by_ratio

SCHEMA = pa.schema(
    [
        ("model_type", pa.string()),
        ("hardware_type", pa.string()),
        ("num_devices", pa.int32()),
        ("peak_bf16_tflops", pa.float64()),
        ("peak_fp32_tflops", pa.float64()),
        ("log_throughput_per_device", pa.float64()),
        ("night", pa.date32()),
        ("visible_from", pa.date32()),
        ("visible_to", pa.date32()),
    ]
)
PEAKS = {"old": 100.0, "older": 50.0, "new": 200.0}


def day(number: int) -> dt.date:
    return dt.date(2024, 1, number)


def run(model: str, hardware: str, devices: int, rate: float, night: int = 1, **more: Any) -> dict[str, Any]:
    """Make a run of so many samples/s per device, known from the night after."""
    return {
        "model_type": model,
        "hardware_type": hardware,
        "num_devices": devices,
        "peak_bf16_tflops": PEAKS[hardware],
        "log_throughput_per_device": float(np.log(rate)),
        "night": day(night),
        "visible_from": day(night + 1),
    } | more


def split(known: list[dict[str, Any]], asked: list[dict[str, Any]]) -> tuple[Runs, Runs]:
    """Number the names of both together, and divide them again."""
    runs = Runs.of(pa.Table.from_pylist([*known, *asked], schema=SCHEMA))
    is_asked = np.arange(len(known) + len(asked)) >= len(known)
    return runs.take(~is_asked), runs.take(is_asked)


def rates(answer: np.ndarray) -> list[float]:
    return [pytest.approx(value) for value in np.exp(answer).tolist()]


def test_the_nearest_device_count_is_scaled_by_the_ratio_of_peak_rates():
    known = [run("m", "old", 8, 10.0), run("m", "old", 8, 12.0), run("m", "old", 8, 11.0), run("m", "old", 16, 8.0)]
    asked = [run("m", "new", devices, 1.0, night=5) for devices in (8, 16, 12)]
    # 8: the median 11, times 200 / 100; 12 is nearer to 16 than to 8, by ratio
    assert rates(scaled_by_peak_rate(*split(known, asked))) == [22.0, 16.0, 16.0]


def test_only_what_the_night_knew_is_scaled():
    corrected = {"visible_to": day(6)}
    known = [run("m", "old", 8, 10.0, **corrected), run("m", "old", 8, 30.0, night=5)]
    asked = [run("m", "new", 8, 1.0, night=night) for night in (1, 5, 6)]
    # nothing is known on the 1st; the first version until the 5th; on the 6th the correction alone
    answer = scaled_by_peak_rate(*split(known, asked))
    assert np.isnan(answer[0])
    assert rates(answer[1:]) == [20.0, 60.0]


def test_a_peak_rate_in_32_bits_stands_in_and_none_gives_no_answer():
    known = [run("m", "old", 8, 10.0)]
    asked = [
        run("m", "new", 8, 1.0, night=5, peak_bf16_tflops=None, peak_fp32_tflops=50.0),
        run("m", "new", 8, 1.0, night=6, peak_bf16_tflops=None),
    ]
    answer = scaled_by_peak_rate(*split(known, asked))
    assert rates(answer[:1]) == [5.0]
    assert np.isnan(answer[1])


def test_the_median_ratio_on_other_models_is_taken_at_the_same_device_counts():
    known = [
        run("m", "old", 8, 10.0),
        # new is 3, 4 and 5 times as fast on other models
        *[run(name, "old", 8, 10.0) for name in "abc"],
        *[run(name, "new", 8, rate) for name, rate in (("a", 30.0), ("b", 40.0), ("c", 50.0))],
        # at a device count of which old has none: no part of the ratio
        run("a", "new", 1024, 1.0),
    ]
    assert rates(scaled_by_ratio(*split(known, [run("m", "new", 8, 1.0, night=5)]))) == [40.0]


def test_where_no_device_count_is_shared_the_ratio_is_by_model():
    known = [run("m", "old", 8, 10.0), run("a", "old", 8, 10.0), run("a", "new", 64, 20.0)]
    assert rates(scaled_by_ratio(*split(known, [run("m", "new", 8, 1.0, night=5)]))) == [20.0]


def test_several_types_to_scale_from_give_the_median_of_their_answers():
    known = [run("m", "old", 8, 10.0), run("m", "older", 8, 4.0)]
    known += [run("a", "new", 8, 20.0), run("a", "old", 8, 10.0), run("a", "older", 8, 5.0)]
    # from old 10 * 2, from older 4 * 4
    answer = np.exp(scaled_by_ratio(*split(known, [run("m", "new", 8, 1.0, night=5)])))
    assert answer[0] == pytest.approx(np.sqrt(20.0 * 16.0))


def test_a_type_that_is_known_from_no_model_has_no_ratio():
    answer = scaled_by_ratio(*split([run("m", "old", 8, 10.0)], [run("m", "new", 8, 1.0, night=5)]))
    assert np.isnan(answer).all()


def test_order_is_against_the_types_known_at_the_same_device_count():
    known = [run("m", "old", 8, 10.0), run("m", "older", 8, 20.4), run("m", "old", 16, 1.0)]
    asked = [run("m", "new", 8, 20.0, night=5)] * 3
    # older is within 5% of the label, a tie; old is slower: two of three predictions say so, one gives none
    predicted = np.log([11.0, 9.0, np.nan])
    right, total = order_against_known(*split(known, asked), predicted)
    assert right.tolist() == [1.0, 0.0, 0.0]
    assert total.tolist() == [1.0, 1.0, 1.0]


def test_order_within_a_hidden_model_compares_the_medians_of_its_types():
    _, asked = split(
        [], [run("m", "old", 8, 10.0), run("m", "new", 8, 20.0), run("m", "older", 8, 5.0), run("m", "old", 16, 9.0)]
    )
    # predicted: new before older before old; older over old is wrong
    assert order_among(asked, np.log([1.0, 3.0, 2.0, 1.0])) == (2.0, 3.0)
