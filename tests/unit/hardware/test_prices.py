"""The price seed: every type has a finite price, and each price is what the stated rule makes of its source."""

from __future__ import annotations

import csv
import math
import statistics
from collections import defaultdict
from datetime import date
from pathlib import Path

import pytest

from leap.hardware.catalog import read_catalog

SEEDS = Path(__file__).parents[3] / "dbt_project" / "seeds"
TYPES = read_catalog(SEEDS / "hardware_types.csv").types
with (SEEDS / "prices.csv").open(encoding="utf-8", newline="") as _file:
    PRICES = list(csv.DictReader(_file))

# A list price without form factor is one of these types; a PCIe type's own quotes of the same date come first.
WITHOUT_FORM_FACTOR = {
    "A100-80GB (form factor not stated)": ("A100-80GB-SXM4", "A100-80GB-PCIe"),
    "A100-40GB (form factor not stated)": ("A100-40GB-SXM4", "A100-40GB-PCIe"),
    "H100-80GB (form factor not stated)": ("H100-80GB-SXM5", "H100-80GB-PCIe"),
    "V100-16GB": ("V100-16GB-SXM2",),
    "V100-32GB": ("V100-32GB-SXM2", "V100-32GB-PCIe"),
    "P100-16GB": ("P100-16GB-SXM2", "P100-16GB-PCIe"),
}
NOT_USED = {("QuadroRTX6000", "Lambda"), ("GH200-96GB", "Dataoorts")}


@pytest.mark.parametrize("hardware_type", TYPES)
def test_every_type_has_a_price_on_the_list(hardware_type: str) -> None:
    rows = [row for row in PRICES if (row["hardware_type"], row["pool"], row["price_list"]) == (hardware_type, "default", "list")]
    assert rows
    assert all(math.isfinite(float(row["usd_per_device_hour"])) and float(row["usd_per_device_hour"]) > 0 for row in rows)


def test_rows_are_unique_dated_and_explained() -> None:
    keys = [(row["hardware_type"], row["pool"], row["price_list"], row["valid_from"]) for row in PRICES]
    assert len(set(keys)) == len(keys)
    assert {row["hardware_type"] for row in PRICES} == set(TYPES)
    assert all(date.fromisoformat(row["valid_from"]) and row["note"] for row in PRICES)


def test_assumptions_are_named_so() -> None:
    assert {row["is_assumption"] for row in PRICES} == {"true", "false"}
    assert all((row["source"] == "assumption") == (row["is_assumption"] == "true") for row in PRICES)
    assumed = {row["hardware_type"] for row in PRICES if row["is_assumption"] == "true"}
    assert {"MI300X", "Gaudi2", "Ascend910ProA", "IPU-Bow", "Xeon-8380H"} <= assumed
    assert {"A100-80GB-SXM4", "H100-80GB-SXM5", "TPUv4"}.isdisjoint(assumed)


def test_an_assumption_lies_on_its_curve() -> None:
    # MI300X: 1307 TFLOP/s, log-log between H100-80GB-SXM5 (989, 4.915 USD) and B200 (2250, 5.50 USD), x 0.8
    share = math.log(1307 / 989) / math.log(2250 / 989)
    expected = 0.8 * 4.915 * (5.5 / 4.915) ** share
    assert price_of("MI300X", "2026-01-01") == pytest.approx(expected, abs=1e-4)


def test_list_prices_are_the_median_over_clouds_of_their_lowest_quote(shared_data: Path) -> None:
    with (shared_data / "hardware" / "prices.csv").open(encoding="utf-8", newline="") as file:
        quotes = [row for row in csv.DictReader(file) if is_used(row)]
    own = {(row["accelerator"], day_of(row)) for row in quotes}
    lowest: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for row in quotes:
        for hardware_type in WITHOUT_FORM_FACTOR.get(row["accelerator"], (row["accelerator"],)):
            taken_for_pcie = row["accelerator"] in WITHOUT_FORM_FACTOR and hardware_type.endswith("PCIe")
            if hardware_type in TYPES and not (taken_for_pcie and (hardware_type, day_of(row)) in own):
                clouds = lowest[hardware_type, day_of(row)]
                usd = float(row["on_demand_usd_per_accelerator_hour"])
                clouds[row["cloud"]] = min(usd, clouds.get(row["cloud"], usd))
    expected = {key: round(statistics.median(clouds.values()), 4) for key, clouds in lowest.items()}
    published = [row for row in PRICES if row["is_assumption"] == "false"]
    assert {(row["hardware_type"], row["valid_from"]): float(row["usd_per_device_hour"]) for row in published} == expected


def price_of(hardware_type: str, valid_from: str) -> float:
    (row,) = [row for row in PRICES if (row["hardware_type"], row["valid_from"]) == (hardware_type, valid_from)]
    return float(row["usd_per_device_hour"])


def is_used(row: dict[str, str]) -> bool:
    on_demand = row["on_demand_usd_per_accelerator_hour"] and not row["region_class"].startswith("reserved")
    return bool(on_demand) and (row["accelerator"], row["cloud"]) not in NOT_USED


def day_of(row: dict[str, str]) -> str:
    """The day from which a quote holds; a 2026 catalogue without an exact date counts from the first of January."""
    return "2026-01-01" if row["as_of"].startswith("2026 ") else row["as_of"]
