"""The catalogue describes what it knows, row for row, and says what is wrong with a file that it cannot read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leap.contracts import HARDWARE_SCHEMA
from leap.hardware.catalog import DESCRIPTION_SCHEMA, CatalogError, read_catalog

SEED = Path(__file__).parents[3] / "dbt_project" / "seeds" / "hardware_types.csv"
CATALOG = read_catalog(SEED)
HEADER = ",".join([*HARDWARE_SCHEMA.names, "source"])


def test_describe_gives_the_specifications_in_the_order_asked() -> None:
    described = CATALOG.describe(["MI300X", "A100-80GB-SXM4", "MI300X"])
    assert described.schema == DESCRIPTION_SCHEMA
    assert described["vendor"].to_pylist() == ["AMD", "NVIDIA", "AMD"]
    assert described.to_pylist()[1] == {
        "hardware_type": "A100-80GB-SXM4",
        "vendor": "NVIDIA",
        "family": "Ampere",
        "form_factor": "sxm",
        "memory_bytes": 80e9,
        "memory_bandwidth_gbps": 2039.0,
        "peak_bf16_tflops": 312.0,
        "peak_fp8_tflops": None,
        "peak_fp32_tflops": 19.5,
        "interconnect_gbps": 600.0,
        "tdp_watts": 400.0,
        "release_year": 2020,
    }


def test_an_unknown_type_keeps_its_name_and_has_nothing_else() -> None:
    described = CATALOG.describe(pa.chunked_array([["T4", "no such chip"], [None]], pa.string()))
    assert described["hardware_type"].to_pylist() == ["T4", "no such chip", None]
    assert described["family"].to_pylist() == ["Turing", None, None]
    assert described["peak_bf16_tflops"].to_pylist() == [65.0, None, None]


@pytest.mark.parametrize("kind", [pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_text_of_any_encoding_is_described(kind: pa.DataType) -> None:
    assert CATALOG.describe(pa.array(["L4", "T4"], pa.string()).cast(kind))["family"].to_pylist() == ["Ada", "Turing"]


@pytest.mark.parametrize("empty", [[], pa.array([], pa.string()), pa.chunked_array([], pa.string())])
def test_describing_nothing_gives_no_rows(empty: list[str] | pa.Array | pa.ChunkedArray) -> None:
    assert CATALOG.describe(empty).equals(DESCRIPTION_SCHEMA.empty_table())


@given(st.lists(st.sampled_from([*CATALOG.types, "?"])))
def test_describe_is_row_for_row(names: list[str]) -> None:
    described = CATALOG.describe(names)
    assert described["hardware_type"].to_pylist() == names
    assert described["vendor"].is_valid().to_pylist() == [name != "?" for name in names]


def test_the_seed_covers_a_fleet_of_several_vendors() -> None:
    assert CATALOG.table.schema == HARDWARE_SCHEMA
    assert len(CATALOG.types) >= 40
    assert {"NVIDIA", "AMD", "Google", "Intel", "Graphcore", "Huawei", "AWS"} <= set(CATALOG.table["vendor"].to_pylist())


@pytest.mark.parametrize("column", [field.name for field in HARDWARE_SCHEMA if not pa.types.is_string(field.type)])
def test_figures_of_the_seed_are_positive_and_finite(column: str) -> None:
    values = CATALOG.table[column].drop_null().cast(pa.float64()).to_numpy()
    assert np.all(np.isfinite(values) & (values > 0))


def test_peaks_of_the_seed_are_dense() -> None:
    known = CATALOG.table.filter(pc.is_valid(CATALOG.table["peak_fp8_tflops"]))
    ratio = pc.divide(known["peak_fp8_tflops"], known["peak_bf16_tflops"]).to_numpy()
    assert np.all((ratio >= 1) & (ratio <= 2.1))


def test_a_type_that_stands_twice_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "types.csv"
    path.write_text(f"{HEADER}\nA1,V,F,,,,,,,,,,x\nA1,V,F,,,,,,,,,,x\n")
    with pytest.raises(CatalogError, match=r"types\.csv: A1 stands more than once"):
        read_catalog(path)


def test_a_missing_column_an_empty_family_and_a_wrong_number_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "types.csv"
    path.write_text("hardware_type,vendor\nA1,V\n")
    with pytest.raises(CatalogError, match=r"types\.csv: .*family"):
        read_catalog(path)
    path.write_text(f"{HEADER}\nA1,V,,,,,,,,,,,x\n")
    with pytest.raises(CatalogError, match="family is empty in 1 row"):
        read_catalog(path)
    path.write_text(f"{HEADER}\nA1,V,F,sxm,80 GB,,,,,,,,x\n")
    with pytest.raises(CatalogError, match="80 GB"):
        read_catalog(path)


def test_empty_cells_are_null(tmp_path: Path) -> None:
    path = tmp_path / "types.csv"
    path.write_text(f"{HEADER}\nA1,V,F,,,,,,,,,2020,x\n")
    assert read_catalog(path).table.to_pylist()[0] == {
        **dict.fromkeys(HARDWARE_SCHEMA.names),
        "hardware_type": "A1",
        "vendor": "V",
        "family": "F",
        "release_year": 2020,
    }
