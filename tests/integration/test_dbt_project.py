"""The dbt project: one real build of a small history, run as a night runs it, in a process whose time zone is not UTC."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from leap.contracts import CANDIDATE_SCHEMA, HARDWARE_SCHEMA, REJECT_SCHEMA, SUBMISSION_SCHEMA
from leap.params import load_params
from leap.sources.admission import ADMITTED_SCHEMA, Admission
from leap.store import warehouse
from leap.store.prices import load_prices

CUT = date(2025, 3, 4)
MARTS = (
    "dim_hardware_type",
    "fct_attempts",
    "fct_training_examples",
    "state_history",
    "state_current",
    "fct_ranking_candidates",
)


def at(day: int, clock: str) -> datetime:
    """Make a time of March 2025, UTC."""
    return datetime.fromisoformat(f"2025-03-{day:02d}T{clock}+00:00")


def attempt(name: str, model: str, ended: datetime, throughput: float, **more: Any) -> dict[str, Any]:
    """Make an admitted attempt on one device, known when it ended."""
    return {
        "source": "jsonl",
        "slice": "march.jsonl",
        "file": "march.jsonl",
        "line": 1,
        "attempt_id": name,
        "segment_number": 1,
        "job_id": f"job-of-{model}",
        "started_at": at(1, "01:00:00"),
        "ended_at": ended,
        "known_at": ended,
        "outcome": "succeeded",
        "model_type": model,
        "num_devices": 1,
        "hardware_name": "H100",
        "hardware_type": "H100-80GB-SXM5",
        "throughput": throughput,
        "throughput_unit": "samples/s",
        "throughput_scope": "job",
    } | more


ATTEMPTS = [
    # corrected after the cut of 2 March
    attempt("late", "late", at(1, "09:00:00"), 100.0),
    attempt("late", "late", at(1, "09:00:00"), 500.0, known_at=at(2, "11:00:00")),
    # the older of two attempts, corrected after the newer one had ended
    attempt("a", "both", at(1, "08:00:00"), 100.0),
    attempt("b", "both", at(1, "09:00:00"), 110.0),
    attempt("a", "both", at(1, "08:00:00"), 500.0, known_at=at(1, "09:45:00")),
    # two that end in the same second
    attempt("x", "ties", at(1, "09:00:00"), 90.0),
    attempt("y", "ties", at(1, "09:00:00"), 110.0),
    # at the edge of a UTC day
    attempt("before", "edge", at(1, "23:59:59"), 10.0),
    attempt("exactly", "edge", at(2, "00:00:00"), 20.0),
    # whole-job samples per second out of tokens per second and device
    attempt(
        "tokens", "tokens", at(1, "09:00:00"), 4096.0, throughput_unit="tokens/s", throughput_scope="device", num_devices=16,
        sequence_length=1024.0,
    ),
    # the job may run on other hardware only
    attempt("picky", "picky", at(1, "09:00:00"), 10.0, eligible_hardware='["A100-80GB-SXM4"]'),
    # blanks around names are none of theirs
    attempt("blanks", " blanks\t", at(1, "09:00:00"), 10.0, job_id=" job-of-blanks\n", team="  ", pool=""),
    # 60 minutes on 16 devices, then 60 on 8; and one that was preempted after enough steady time
    attempt("elastic", "elastic", at(1, "09:00:00"), 1600.0, num_devices=16, started_at=at(1, "08:00:00")),
    attempt(
        "elastic", "elastic", at(1, "10:00:00"), 800.0, num_devices=8, segment_number=2, started_at=at(1, "09:00:00"),
    ),
    attempt("preempted", "preempted", at(1, "09:00:00"), 40.0, outcome="preempted", steady_seconds=600.0),
    attempt("a100", "other", at(1, "09:00:00"), 10.0, hardware_type="A100-80GB-SXM4", hardware_name="A100-SXM4-80GB"),
]  # fmt: skip
# Ended on 1 March and received on the 3rd; the source does not say when it was known.
LATECOMER = attempt("latecomer", "latecomer", at(1, "09:00:00"), 70.0, known_at=None)


@dataclass(frozen=True)
class Project:
    """A dbt project over a warehouse of its own."""

    folder: Path
    home: Path
    variables: Mapping[str, Any]

    @property
    def warehouse(self) -> Path:
        return self.home / "warehouse.duckdb"

    def dbt(self, *arguments: str, variables: Mapping[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
        """Run dbt as a night does, somewhere else in the world."""
        given = self.variables if variables is None else variables
        return subprocess.run(
            [
                str(Path(sys.executable).parent / "dbt"), "--no-use-colors", *arguments,
                "--project-dir", str(self.folder), "--vars", json.dumps(given),
            ],
            env=os.environ
            | {
                "DBT_PROFILES_DIR": str(self.folder),
                "DBT_TARGET_PATH": str(self.home / "target"),
                "DBT_LOG_PATH": str(self.home / "logs"),
                "LEAP_WAREHOUSE": str(self.warehouse),
                "TZ": "America/New_York",
            },
            check=False,
            capture_output=True,
            text=True,
        )  # fmt: skip

    def results(self) -> dict[str, str]:
        """Give the status of each node of the last run."""
        found = json.loads((self.home / "target" / "run_results.json").read_text())["results"]
        return {result["unique_id"]: result["status"] for result in found}

    def rows(self, sql: str) -> list[dict[str, Any]]:
        with warehouse.connect(self.warehouse) as con:
            found: list[dict[str, Any]] = warehouse.read(con, sql).to_pylist()
        return found

    def table(self, name: str) -> pa.Table:
        with warehouse.connect(self.warehouse) as con:
            return warehouse.read(con, f"FROM marts.{name}")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Project:
    """A small history, loaded and built at the cut of 4 March."""
    params = load_params(repository / "params.yaml")
    variables = {
        "cut": CUT.isoformat(),
        "state_levels": {level: list(columns) for level, columns in params.features.state_levels.items()},
        "active_days": 10,
        "hardware_seen_days": 10,
        "price_list": params.ranking.price_list,
    }
    project = Project(repository / "dbt_project", tmp_path_factory.mktemp("home"), variables)
    with warehouse.connect(project.warehouse) as con:
        for name, records, received_at in (("first", ATTEMPTS, at(2, "12:00:00")), ("second", [LATECOMER], at(3, "06:00:00"))):
            kept = pa.Table.from_pylist(records, schema=ADMITTED_SCHEMA)
            warehouse.load(con, [Admission(kept, REJECT_SCHEMA.empty_table())], received_at, name)
        seeds = repository / "dbt_project" / "seeds"
        files, now = [seeds / "prices.csv"], at(1, "00:00:00")
        load_prices(con, files, seeds=seeds, max_jump=3, approved=[], received_at=now, load_id="prices")
    done = project.dbt("build", "--exclude-resource-type", "unit_test")
    assert done.returncode == 0, done.stdout
    return project


@pytest.fixture(scope="module")
def marts(built: Project) -> Mapping[str, pa.Table]:
    """The marts as the first build left them."""
    return {name: built.table(name) for name in MARTS}


def history(marts: Mapping[str, pa.Table], model: str) -> list[tuple[date, int, float, float]]:
    """Give night, count, last and median samples/s per device of the level `model`."""
    found = [row for row in marts["state_history"].to_pylist() if (row["level"], row["key"]) == ("model", model)]
    return [
        (
            row["night"],
            row["evidence_count"],
            *(round(math.exp(row[f"{what}_log_throughput"]), 6) for what in ("last", "median")),
        )
        for row in sorted(found, key=lambda row: row["night"])
    ]


def test_tables_have_the_columns_of_the_contracts(marts: Mapping[str, pa.Table]) -> None:
    def types(schema: pa.Schema) -> dict[str, pa.DataType]:
        return {field.name: field.type for field in schema}

    for name, schema in (
        ("dim_hardware_type", HARDWARE_SCHEMA),
        ("fct_attempts", SUBMISSION_SCHEMA),
        ("fct_training_examples", SUBMISSION_SCHEMA),
        ("fct_training_examples", CANDIDATE_SCHEMA),
        ("fct_ranking_candidates", SUBMISSION_SCHEMA),
        ("fct_ranking_candidates", CANDIDATE_SCHEMA),
    ):
        assert types(schema).items() <= types(marts[name].schema).items(), name


def test_the_correction_of_a_label_leaves_past_nights_as_they_were(marts: Mapping[str, pa.Table]) -> None:
    # then what the night of 2 March knew was 100, and that of 3 March 500
    assert history(marts, "late") == [(date(2025, 3, 2), 1, 100.0, 100.0), (date(2025, 3, 3), 1, 500.0, 500.0)]
    # and it is the same of the label that each night trains on
    examples = [row for row in marts["fct_training_examples"].to_pylist() if row["attempt_id"] == "late"]
    assert [(row["visible_from"], row["visible_to"], row["throughput"], row["is_newest"]) for row in examples] == [
        (date(2025, 3, 2), date(2025, 3, 3), 100.0, False),
        (date(2025, 3, 3), None, 500.0, True),
    ]


def test_the_last_attempt_is_the_one_that_ended_last_not_the_one_corrected_last(marts: Mapping[str, pa.Table]) -> None:
    assert history(marts, "both") == [(date(2025, 3, 2), 2, 110.0, round(math.sqrt(110 * 500), 6))]
    # the version that was replaced before any cut is kept as a fact and is no example
    versions = {(row["attempt_id"], row["version"]) for row in marts["fct_attempts"].to_pylist() if row["model_type"] == "both"}
    examples = {
        (row["attempt_id"], row["version"]) for row in marts["fct_training_examples"].to_pylist() if row["model_type"] == "both"
    }
    assert versions - examples == {("a", 1)}


def test_attempts_that_end_together_have_one_order(marts: Mapping[str, pa.Table]) -> None:
    assert history(marts, "ties") == [(date(2025, 3, 2), 2, 110.0, round(math.sqrt(90 * 110), 6))]


def test_what_ends_at_the_cut_is_not_seen_by_it(marts: Mapping[str, pa.Table]) -> None:
    assert [(night, count, last) for night, count, last, _ in history(marts, "edge")] == [
        (date(2025, 3, 2), 1, 10.0),
        (date(2025, 3, 3), 2, 20.0),
    ]


def test_what_arrives_late_is_seen_from_then_on(marts: Mapping[str, pa.Table]) -> None:
    assert history(marts, "latecomer") == [(date(2025, 3, 4), 1, 70.0, 70.0)]


def test_throughput_has_one_meaning(marts: Mapping[str, pa.Table]) -> None:
    (row,) = [row for row in marts["fct_training_examples"].to_pylist() if row["attempt_id"] == "tokens"]
    assert row["throughput"] == 64.0
    assert row["log_throughput_per_device"] == math.log(4.0)


def test_segments_of_an_elastic_attempt_are_labels_of_their_own(marts: Mapping[str, pa.Table]) -> None:
    # trouble 29: never 1,200 on 16 devices
    rows = [row for row in marts["fct_training_examples"].to_pylist() if row["attempt_id"] == "elastic"]
    assert [(row["segment_number"], row["num_devices"], row["throughput"]) for row in rows] == [(1, 16, 1600.0), (2, 8, 800.0)]
    assert {row["log_throughput_per_device"] for row in rows} == {math.log(100.0)}


def test_a_preempted_attempt_with_steady_time_is_a_label(marts: Mapping[str, pa.Table]) -> None:
    # trouble 31: learned only from what finished, hardware that is often taken away would look slow or unknown
    (row,) = [row for row in marts["fct_training_examples"].to_pylist() if row["attempt_id"] == "preempted"]
    assert (row["throughput"], row["outcome"]) == (40.0, "preempted")


def test_names_are_known_without_the_blanks_around_them(marts: Mapping[str, pa.Table]) -> None:
    (row,) = [row for row in marts["fct_attempts"].to_pylist() if row["attempt_id"] == "blanks"]
    assert [row[name] for name in ("job_id", "model_type", "team", "pool")] == ["job-of-blanks", "blanks", None, "default"]


def test_the_current_state_is_the_newest_history_before_the_cut(marts: Mapping[str, pa.Table]) -> None:
    newest: dict[tuple[str, str], dict[str, Any]] = {}
    for row in marts["state_history"].sort_by("night").to_pylist():
        if row["night"] <= CUT:
            newest[row["level"], row["key"]] = row
    current = {(row["level"], row["key"]): row for row in marts["state_current"].to_pylist()}
    assert current == {key: row for key, row in newest.items() if row["evidence_count"]}


def test_candidates_pair_jobs_with_the_hardware_seen(marts: Mapping[str, pa.Table]) -> None:
    candidates = marts["fct_ranking_candidates"].to_pylist()
    found = {(row["job_key"], row["hardware_type"], row["num_devices"]): (row["eligible"], row["reason"]) for row in candidates}
    assert found["job-of-tokens", "A100-80GB-SXM4", 16.0] == (True, "")
    assert found["job-of-picky", "H100-80GB-SXM5", 1.0] == (False, "not in the job's eligible list")
    assert found["job-of-picky", "A100-80GB-SXM4", 1.0] == (True, "")
    assert len(found) == len(candidates) == 2 * len({row["job_key"] for row in candidates})


def test_a_second_build_and_its_unit_tests_give_the_same_tables(built: Project, marts: Mapping[str, pa.Table]) -> None:
    # when everything is built anew, unit tests included
    done = built.dbt("build")
    # then
    assert done.returncode == 0, done.stdout
    assert sum(name.startswith("unit_test.") for name in built.results()) >= 15
    assert {name: built.table(name) for name in MARTS} == dict(marts)


def test_history_is_the_same_in_whatever_order_facts_arrived(built: Project, tmp_path: Path) -> None:
    """Ten builds by several threads, over attempts of which many end in the same second and many are corrected later."""
    sql = (built.home / "target" / "compiled" / "leap" / "models" / "marts" / "state_history.sql").read_text()
    hashes = set()
    with warehouse.connect(tmp_path / "warehouse.duckdb") as con:
        con.execute("SET threads = 4")
        con.execute("CREATE SCHEMA marts")
        for order in range(10):
            con.execute(f"{_MANY_EXAMPLES} ORDER BY hash(attempt_id, {order})")
            hashes |= set(con.execute(f"SELECT count(*), bit_xor(hash(history)) FROM ({sql}) AS history").fetchall())
    assert len(hashes) == 1
    assert hashes.pop()[0] > 10_000


_MANY_EXAMPLES = """
CREATE OR REPLACE TABLE marts.fct_training_examples AS
SELECT
    'a' || i AS attempt_id, 1 AS segment_number, version, 'job-' || i % 1000 AS job_id, 'team-' || i % 7 AS team,
    'model-' || i % 50 AS model_type, 'framework-' || i % 3 AS framework, 'type-' || i % 11 AS hardware_type,
    'family-' || i % 11 % 4 AS family, 1.0 + i % 5 AS num_devices, 64.0 * (1 + i % 3) AS global_batch_size,
    100.0 + i % 11 AS peak_bf16_tflops, NULL::DOUBLE AS peak_fp32_tflops,
    ln(1 + hash(i) % 100000 + version) AS log_throughput_per_device,
    TIMESTAMPTZ '2025-01-01 00:00:00+00' + to_hours(i // 100) AS ended_at, ended_at::DATE + version AS visible_from,
    CASE WHEN version = 1 AND i % 10 = 0 THEN visible_from + 1 END AS visible_to
FROM range(15000) AS attempts(i), (VALUES (1), (2)) AS versions(version)
WHERE version = 1 OR i % 10 = 0
"""


def test_a_record_that_stands_twice_stops_the_build(built: Project, tmp_path: Path) -> None:
    # given a warehouse in which a record was doubled behind LEAP's back
    doubled = Project(built.folder, tmp_path, built.variables)
    shutil.copy(built.warehouse, doubled.warehouse)
    with warehouse.connect(doubled.warehouse) as con:
        con.execute("INSERT INTO raw.job_attempts FROM raw.job_attempts WHERE attempt_id = 'x'")
    # when
    done = doubled.dbt("build", "--exclude-resource-type", "unit_test", "--select", "source:raw.job_attempts+")
    # then the build is red, and the tables are as they were
    assert done.returncode == 1
    results = doubled.results()
    assert [name for name, status in results.items() if status == "fail" and "unique_raw_job_attempts" in name]
    assert results["model.leap.fct_attempts"] == "skipped"
    assert doubled.rows("SELECT count(*) AS n FROM marts.fct_attempts") == [{"n": len(ATTEMPTS) + 1}]


def test_a_run_without_its_variables_says_which_is_missing(built: Project, tmp_path: Path) -> None:
    # given no variables and no warehouse, as when the manifest is made
    bare = Project(built.folder, tmp_path, {})
    # when
    done = bare.dbt("compile", "--select", "state_history")
    # then it was parsed, and then refused
    assert (tmp_path / "target" / "manifest.json").is_file()
    assert done.returncode != 0
    assert "the variable `state_levels` is missing; run `leap nightly`, or pass --vars" in done.stdout
