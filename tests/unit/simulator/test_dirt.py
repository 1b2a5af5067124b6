"""Dirt with a known count: what is put in, where it stands, and a truth that agrees with the bytes on disk."""

from __future__ import annotations

import gzip
import json
import zlib
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from leap.contracts import ATTEMPT_SCHEMA, HARDWARE_SCHEMA
from leap.simulator.dirt import CLEAN, DirtyLog, soil
from leap.simulator.faults import FAULTS, Kind, facts_of
from leap.simulator.fleet import FleetConfig, simulate
from leap.simulator.write_dirty import Truth, write_dirty
from leap.sources.jsonl import render

START, DAYS, SHORT = date(2026, 3, 1), 6, 5.0


def fleet(days: int, attempts_per_day: float) -> pa.Table:
    rows = [
        {
            "hardware_type": f"t{number}",
            "vendor": "V",
            "family": "F",
            "peak_bf16_tflops": 100.0 * number,
            "memory_bandwidth_gbps": 900.0,
        }
        for number in (1, 2, 3)
    ]
    return simulate(
        FleetConfig(
            hardware=pa.Table.from_pylist(rows, HARDWARE_SCHEMA),
            hardware_types=("t1", "t2", "t3"),
            start=START,
            days=days,
            attempts_per_day=attempts_per_day,
            num_model_types=20,
            num_jobs=60,
            num_teams=24,
        )
    ).attempts


def dirty(attempts: pa.Table, days: int, seed: int = 5) -> DirtyLog:
    return soil(attempts, days, np.random.default_rng(seed), SHORT)


def write(log: DirtyLog, root: Path, seed: int = 6) -> Truth:
    return write_dirty(log, START, root / "logs", root / "truth", np.random.default_rng(seed))


@pytest.fixture(scope="module")
def attempts() -> pa.Table:
    return fleet(DAYS, 300)


@pytest.fixture(scope="module")
def folder(attempts: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("dirty")
    write(dirty(attempts, DAYS), root)
    return root


def lines_of(path: Path) -> list[bytes]:
    """Give the lines that are whole, and what is left of a last one."""
    data = path.read_bytes()
    if path.suffix == ".gz":
        data = zlib.decompressobj(wbits=31).decompress(data)
    return data.split(b"\n")


def test_every_fault_befalls_a_record_and_is_seen_in_its_line(attempts: pa.Table, folder: Path) -> None:
    dirt = pq.read_table(folder / "truth" / "dirt.parquet").to_pylist()
    found = {(row["kind"], row["what"], row["reason"]) for row in dirt if row["outcome"] == "quarantined"}
    assert {(str(fault.kind), fault.what, fault.reason) for fault in FAULTS} <= found
    # and no line that is said to be spoiled is what the clean fleet would have written
    clean = set(render(attempts).cast(pa.binary()).to_pylist())
    spoiled = [row for row in dirt if row["reason"] not in (None, "too-short") and row["line"] > 0]
    texts = {file: lines_of(folder / "logs" / file) for file in {row["file"] for row in spoiled}}
    assert len(spoiled) >= len(FAULTS)
    assert [row for row in spoiled if texts[row["file"]][row["line"] - 1] in clean] == []


def test_every_attempt_of_the_clean_fleet_is_accounted_for(attempts: pa.Table, folder: Path) -> None:
    kept = pq.read_table(folder / "truth" / "attempts.parquet")
    dirt = pq.read_table(folder / "truth" / "dirt.parquet")
    assert kept.schema.equals(ATTEMPT_SCHEMA)
    rejected = dirt.filter(pc.equal(dirt["outcome"], "quarantined"))["attempt_id"].drop_null()
    fleet_ids, kept_ids = set(attempts["attempt_id"].to_pylist()), kept["attempt_id"].to_pylist()
    assert set(kept_ids) | set(rejected.to_pylist()) == fleet_ids
    assert set(kept_ids) & set(rejected.to_pylist()) == set()
    # what is kept says what the fleet logged, but for corrected records: two versions each, the later one with the fleet's figure
    as_logged = {row["attempt_id"]: row for row in attempts.to_pylist()}
    twice = {name for name in kept_ids if kept_ids.count(name) == 2}
    assert len(kept_ids) == len(set(kept_ids)) + len(twice)
    for row in kept.to_pylist():
        clean = as_logged[row["attempt_id"]]
        if row["attempt_id"] not in twice:
            assert row == clean
        elif row["known_at"] == clean["known_at"]:
            assert row["throughput"] == pytest.approx(0.7 * clean["throughput"])
        else:
            assert row == clean | {"known_at": row["known_at"]}
            assert row["known_at"] > clean["known_at"]


def test_the_counts_are_those_of_the_bytes_on_disk(folder: Path) -> None:
    truth = json.loads((folder / "truth" / "truth.json").read_text(encoding="utf-8"))
    dirt = pq.read_table(folder / "truth" / "dirt.parquet").to_pylist()
    assert truth["records_read"] == truth["kept"] + truth["quarantined"] + truth["duplicates"]
    assert truth["kept"] == pq.read_metadata(folder / "truth" / "attempts.parquet").num_rows
    assert sum(truth["quarantine"].values()) == truth["quarantined"]
    assert sum(row["outcome"] == "quarantined" for row in dirt) == truth["quarantined"]
    assert sum(row["outcome"] == "duplicate" for row in dirt) == truth["duplicates"]
    assert {path.name for path in (folder / "logs").iterdir()} == {file["name"] for file in truth["files"]}
    for file in truth["files"]:
        lines = lines_of(folder / "logs" / file["name"])
        assert file["records"] == (len(lines) if lines[-1] else len(lines) - 1), file
        assert file["name"].startswith(f"attempts-{file['arrives_on']}")


def test_whole_files_are_cut_sent_again_and_copied(folder: Path) -> None:
    names = sorted(path.name for path in (folder / "logs").iterdir())
    (again_plain,) = (name for name in names if "-again-of-" in name and name.endswith(".jsonl"))
    (again_packed,) = (name for name in names if "-again-of-" in name and name.endswith(".jsonl.gz"))
    (copy,) = (name for name in names if "-copy-of-" in name)
    logs = folder / "logs"

    def first_of(name: str) -> Path:
        day, _, suffix = name.partition("-of-")[2].partition(".")
        return logs / f"attempts-{day}.{suffix}"

    assert (logs / copy).read_bytes() == first_of(copy).read_bytes()
    whole = (logs / again_plain).read_bytes()
    cut = first_of(again_plain).read_bytes()
    assert whole.startswith(cut)
    assert not cut.endswith(b"\n")
    with pytest.raises(EOFError):
        gzip.decompress(first_of(again_packed).read_bytes())
    assert gzip.decompress((logs / again_packed).read_bytes()).startswith(b"\n".join(lines_of(first_of(again_packed))))


def test_late_records_stand_in_the_file_of_a_later_day(folder: Path) -> None:
    dirt = pq.read_table(folder / "truth" / "dirt.parquet").to_pylist()
    late = [row for row in dirt if row["kind"] == Kind.LATE and row["outcome"] == "kept"]
    assert len(late) > 5
    for row in late:
        record = json.loads(lines_of(folder / "logs" / row["file"])[row["line"] - 1])
        assert record["attempt_id"] == row["attempt_id"]
        assert record["known_at"][:10] < row["arrived_on"].isoformat()


def test_the_same_seed_gives_the_same_files_and_another_one_others(attempts: pa.Table, folder: Path, tmp_path: Path) -> None:
    write(dirty(attempts, DAYS), tmp_path / "same")
    write(dirty(attempts, DAYS, seed=8), tmp_path / "other")
    first, same, other = (
        {path.name: path.read_bytes() for path in sorted((root / "logs").iterdir())}
        for root in (folder, tmp_path / "same", tmp_path / "other")
    )
    assert first == same
    assert first != other


def test_a_wrong_figure_is_put_where_its_steps_tell_alone(attempts: pa.Table) -> None:
    facts = facts_of(attempts)
    needs_steps = [fault for fault in FAULTS if fault.reason in ("scope-disagrees", "unit-disagrees")]
    assert len(needs_steps) == 4
    assert 0 < facts.has_steps.sum() < len(facts.has_steps)
    for fault in needs_steps:
        befallen = fault.befalls(facts)
        assert befallen.any()
        assert not (befallen & ~facts.has_steps).any()


@pytest.mark.parametrize(("days", "attempts_per_day"), [(1, 1), (1, 40), (2, 3), (4, 1)])
def test_a_log_of_few_records_has_as_much_dirt_as_it_can(days: int, attempts_per_day: float, tmp_path: Path) -> None:
    attempts = fleet(days, attempts_per_day)
    truth = write(dirty(attempts, days), tmp_path)
    assert truth.records_read == truth.kept + truth.quarantined + truth.duplicates >= attempts.num_rows
    assert pq.read_metadata(tmp_path / "truth" / "attempts.parquet").num_rows == truth.kept


def test_lines_of_days_hold_each_content_that_is_planned(attempts: pa.Table) -> None:
    log = dirty(attempts, DAYS)
    days = [log.of_day(day) for day in range(DAYS)]
    contents = np.concatenate([lines.content for lines in days])
    assert set(contents.tolist()) == set(range(log.num_contents))
    kinds = np.concatenate([lines.kind for lines in days])
    again = int((kinds == Kind.DUPLICATE).sum())
    assert len(contents) - log.num_contents == again > 0
    assert (kinds == CLEAN).mean() > 0.9
