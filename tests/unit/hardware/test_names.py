"""Spellings become the right type or none with a reason; form factor, memory size and slices are never guessed."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from leap.hardware.catalog import read_catalog
from leap.hardware.names import (
    RESOLUTION_SCHEMA,
    AliasError,
    HardwareResolver,
    is_slice,
    read_aliases,
    spelling_key,
)

SEEDS = Path(__file__).parents[3] / "dbt_project" / "seeds"
TYPES = read_catalog(SEEDS / "hardware_types.csv").types
ALIASES = read_aliases(SEEDS / "hardware_aliases.csv")
RESOLVER = HardwareResolver.from_aliases(ALIASES, TYPES)

# Every accelerator spelling of MLPerf Training v1.0 to v5.0, then those of v0.7 and v5.1 that are new; no type = unresolved.
with (Path(__file__).parent / "mlperf_spellings.csv").open(encoding="utf-8", newline="") as _file:
    GOLDEN = [(row["spelling"], row["hardware_type"] or None) for row in csv.DictReader(_file)]

# And of the published measurements, spelling lists and cluster logs, reviewed likewise: what does not say form factor or memory
# size, where there are several, is unresolved.
with (Path(__file__).parent / "published_spellings.csv").open(encoding="utf-8", newline="") as _file:
    PUBLISHED = [(row["spelling"], row["hardware_type"] or None) for row in csv.DictReader(_file)]

SPELLINGS = st.sampled_from([*(spelling for spelling, _ in GOLDEN), *ALIASES["spelling"].to_pylist(), *TYPES])


def resolve(spelling: str) -> str | None:
    return RESOLVER.resolve([spelling])["hardware_type"][0].as_py()


def reason(spelling: str) -> str | None:
    return RESOLVER.resolve([spelling])["reason"][0].as_py()


def test_mlperf_spellings_resolve_as_reviewed() -> None:
    resolved = RESOLVER.resolve(spelling for spelling, _ in GOLDEN)
    assert list(zip(resolved["hardware_name"].to_pylist(), resolved["hardware_type"].to_pylist(), strict=True)) == GOLDEN


def test_published_spellings_resolve_as_reviewed() -> None:
    resolved = RESOLVER.resolve(spelling for spelling, _ in PUBLISHED)
    assert list(zip(resolved["hardware_name"].to_pylist(), resolved["hardware_type"].to_pylist(), strict=True)) == PUBLISHED


def test_every_spelling_of_the_shared_data_was_reviewed(shared_data: Path) -> None:
    seen: set[str] = set()
    files = [*(shared_data / "throughput").glob("*.csv"), shared_data / "hardware" / "spellings.csv"]
    for path in files:
        with path.open(encoding="utf-8", newline="") as file:
            seen |= {row["hardware_raw_name"] for row in csv.DictReader(file)}
    with gzip.open(shared_data / "joblogs" / "public_jobs.csv.gz", "rt", encoding="utf-8", newline="") as file:
        seen |= {row["gpu_spec"] for row in csv.DictReader(file)}

    assert seen - {""} - {spelling for spelling, _ in PUBLISHED} == set()


@given(st.sampled_from(sorted({name for name, _ in [*GOLDEN, *PUBLISHED]})), st.integers(1, 7), st.integers(5, 80), st.booleans())
def test_a_slice_of_any_card_is_never_the_card(spelling: str, units: int, gigabytes: int, is_named: bool) -> None:
    assert resolve(f"{spelling}{' MIG ' if is_named else '-'}{units}g.{gigabytes}gb") is None


def test_resolution_is_one_row_per_distinct_spelling_in_order() -> None:
    resolved = RESOLVER.resolve(["NVIDIA L4", "what is this", None, "NVIDIA L4"])
    assert resolved.schema == RESOLUTION_SCHEMA
    assert resolved["hardware_name"].to_pylist() == ["NVIDIA L4", "what is this"]
    assert resolved["hardware_type"].to_pylist() == ["L4", None]
    assert resolved["reason"][0].as_py() is None


@pytest.mark.parametrize(
    ("spelling", "hardware_type"),
    [
        ("NVIDIA A100-SXM4-80GB (400W)", "A100-80GB-SXM4"),
        ("A100-SXM4-80GB", "A100-80GB-SXM4"),
        ("NVIDIA A100-SXM-80GB CTS", "A100-80GB-SXM4"),
        ("NVIDIA A100 - PCIe - 80 GB", "A100-80GB-PCIe"),
        ("NVIDIA A100-PCIe-40GB(250W)", "A100-40GB-PCIe"),
        ("NVIDIA_A100_80GB_PCIe", "A100-80GB-PCIe"),
        ("NVIDIA Blackwell GPU (GB200)", "GB200"),
        ("NVIDIA Blackwell GPU (B200-SXM-180GB)", "B200"),
        ("NVIDIA H100-PCIe", "H100-80GB-PCIe"),
        ("NVIDIA H100-SXM5-80GB", "H100-80GB-SXM5"),
        ("NVIDIA H100-SXM5-96GB", "H100-96GB-SXM5"),
        ("H100 NVL Tensor Core GPU (PCIe)", "H100-NVL-94GB"),
        ("NVIDIA H200-NVL-141GB", "H200-NVL"),
        ("NVIDIA H200-SXM5-141GB", "H200-SXM"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA A10", "A10"),
        ("7900 XTX", "RX7900XTX"),
        ("HL-205", "Gaudi1"),
        ("Intel® Gaudi® 2 AI Accelerator", "Gaudi2"),
        ("AMD Instinct MI325X 256GB HBM3E DLC", "MI325X"),
        ("Ascend 910", "Ascend910"),
        ("Ascend 910*", "Ascend910B"),
        ("Ascend 910 Pro A", "Ascend910ProA"),
        ("Ascend 910 Premium A", "Ascend910PremiumA"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX6000Ada"),
        ("Quadro RTX 6000", "QuadroRTX6000"),
        ("NVIDIA RTX A6000", "RTXA6000"),
        ("CPU: Intel(R) Xeon(R) Platinum 8480+ @ 2.00GHz", "Xeon-8480+"),
        ("CPU: Intel(R) Xeon(R) code named Sapphire Rapids", "Xeon-SPR"),
    ],
)
def test_names_that_are_close_stay_apart(spelling: str, hardware_type: str) -> None:
    assert resolve(spelling) == hardware_type


@pytest.mark.parametrize(
    ("spelling", "candidates"),
    [
        ("A100", "A100-40GB-PCIe or A100-40GB-SXM4 or A100-80GB-PCIe or A100-80GB-SXM4"),
        ("NVIDIA A100 80GB", "A100-80GB-PCIe or A100-80GB-SXM4"),
        ("A100-PCIe", "A100-40GB-PCIe or A100-80GB-PCIe"),
        ("H100", "H100-80GB-PCIe or H100-80GB-SXM5 or H100-96GB-SXM5 or H100-NVL-94GB"),
        ("NVIDIA H100-SXM5", "H100-80GB-SXM5 or H100-96GB-SXM5"),
        ("V100-SXM2", "V100-16GB-SXM2 or V100-32GB-SXM2"),
        ("H200", "H200-NVL or H200-SXM"),
    ],
)
def test_form_factor_and_memory_size_are_not_guessed(spelling: str, candidates: str) -> None:
    assert resolve(spelling) is None
    assert f"it may be {candidates};" in str(reason(spelling))


@pytest.mark.parametrize(
    "spelling",
    [
        "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb",
        "NVIDIA A100-SXM4-80GB MIG 3g.40gb (400W)",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb+me",
        "A100-SXM4-40GB 1c.2g.10gb",
        "nvidia.com/mig-1g.5gb",
        "NVIDIA_A100_SXM4_40GB_MIG",
    ],
)
def test_a_mig_slice_is_never_the_whole_gpu(spelling: str) -> None:
    assert resolve(spelling) is None
    assert "is a MIG slice" in str(reason(spelling))


@given(SPELLINGS, st.sampled_from(["MIG 1g.5gb", "-MIG-3g.20gb", " (MIG)", " 7g.80gb"]), st.sampled_from(["", " (400W)"]))
def test_no_slice_of_anything_resolves(spelling: str, part: str, cap: str) -> None:
    assert resolve(f"{spelling} {part}{cap}") is None


def test_other_memory_sizes_and_counts_are_unknown() -> None:
    for spelling in ("NVIDIA A100-PCIE-60GB", "8x A100-SXM4-80GB", "MI300X-CPX", "MI300X 128GB", "A100-SXM4-80GB-PCIe", "TPU"):
        assert resolve(spelling) is None, spelling


def test_unknown_names_the_nearest_and_says_what_to_do() -> None:
    text = str(reason("NVIDIA RTX A5001"))
    assert "'NVIDIA RTX A5000' (RTXA5000)" in text
    assert "add a line to dbt_project/seeds/hardware_aliases.csv" in text


@pytest.mark.parametrize("spelling", ["", "   ", "NVIDIA GPU", "(400W)", "80GB"])
def test_a_name_without_a_chip_resolves_to_nothing(spelling: str) -> None:
    assert resolve(spelling) is None
    assert "names no hardware" in str(reason(spelling))


@given(st.text())
@example("A100")
@example("İ MIG ﬁ 80GB")
def test_any_text_gives_a_known_type_or_a_reason(spelling: str) -> None:
    row = RESOLVER.resolve([spelling]).to_pylist()[0]
    assert row["hardware_name"] == spelling
    assert (row["hardware_type"] in TYPES) != (row["hardware_type"] is None)
    assert (row["reason"] is None) == (row["hardware_type"] is not None)


@given(SPELLINGS, st.integers(0, 3), st.booleans())
def test_case_and_extra_spaces_do_not_matter(spelling: str, spaces: int, upper: bool) -> None:
    changed = " " * spaces + spelling.replace(" ", " " * (spaces + 1)).replace("-", " " * spaces + "-") + "\t"
    assert resolve(changed.upper() if upper else changed.lower()) == resolve(spelling)


def test_each_type_is_a_spelling_of_itself_and_each_alias_is_what_it_says() -> None:
    assert RESOLVER.resolve(TYPES)["hardware_type"].to_pylist() == list(TYPES)
    assert RESOLVER.resolve(ALIASES["spelling"].to_pylist())["hardware_type"].to_pylist() == ALIASES["hardware_type"].to_pylist()


def test_no_alias_says_what_the_rules_say_already() -> None:
    bare = HardwareResolver.from_aliases([], TYPES)
    assert [name for name in ALIASES["spelling"].to_pylist() if bare.resolve([name])["hardware_type"][0].as_py()] == []


def test_contradicting_aliases_are_an_error() -> None:
    with pytest.raises(AliasError, match="'nvidia a-1 gpu' is said to be B1, but 'A1', which normalises alike, is A1"):
        HardwareResolver.from_aliases([("nvidia a-1 gpu", "B1")], ["A1", "B1"])


def test_an_alias_of_an_unknown_type_is_an_error() -> None:
    with pytest.raises(AliasError, match="'Z9', which is no known type"):
        HardwareResolver.from_aliases([("z nine", "Z9")], ["A1"])


def test_an_alias_of_a_slice_needs_a_type_of_its_own() -> None:
    with pytest.raises(AliasError, match="is a MIG slice and A1 is a whole GPU"):
        HardwareResolver.from_aliases([("A1 MIG 1g.5gb", "A1")], ["A1"])
    own = HardwareResolver.from_aliases([("A1 MIG 1g.5gb", "A1-MIG-1g.5gb")], ["A1", "A1-MIG-1g.5gb"])
    assert own.resolve(["a1-mig-1g.5gb", "A1"])["hardware_type"].to_pylist() == ["A1-MIG-1g.5gb", "A1"]


def test_an_alias_without_a_chip_is_an_error() -> None:
    with pytest.raises(AliasError, match="holds no word that tells one chip from another"):
        HardwareResolver.from_aliases([("NVIDIA GPU", "A1")], ["A1"])


def test_reading_aliases_names_the_missing_column(tmp_path: Path) -> None:
    path = tmp_path / "aliases.csv"
    path.write_text("spelling,kind\nA1,A1\n")
    with pytest.raises(AliasError, match=r"aliases\.csv: .*hardware_type.*the columns are spelling,hardware_type,source"):
        read_aliases(path)


def test_numbers_in_the_alias_file_stay_text(tmp_path: Path) -> None:
    path = tmp_path / "aliases.csv"
    path.write_text("spelling,hardware_type,source\n4090,RTX4090,x\n")
    assert read_aliases(path).to_pylist() == [{"spelling": "4090", "hardware_type": "RTX4090"}]


def test_the_key_leaves_what_tells_chips_apart() -> None:
    assert spelling_key("NVIDIA A100-SXM4-80GB (400W)") == ("a 100", ("sxm4",), ("80",))
    assert spelling_key("A100-80GB-SXM4") == spelling_key("nvidia a100 sxm4 80 GiB")
    assert spelling_key("CPU: Intel(R) Xeon(R) Platinum 8380H CPU @ 2.90GHz").name == "xeon platinum 8380 h"
    assert not is_slice("Migrated A100")
