"""History that grows night by night: real builds of a warehouse that gets late, corrected, withdrawn and doubled records."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from leap.contracts import REJECT_SCHEMA
from leap.params import load_params
from leap.sources.admission import ADMITTED_SCHEMA, Admission
from leap.store import warehouse
from leap.store.state import compiled_state, rebuild_state

pytestmark = pytest.mark.slow

Row = dict[str, Any]
MARK = -1.0


def at(day: int, clock: str = "09:00:00") -> datetime:
    """Make a time of March 2025, UTC."""
    return datetime.fromisoformat(f"2025-03-{day:02d}T{clock}+00:00")


def attempt(name: str, model: str, ended: datetime, throughput: float, **more: Any) -> Row:
    """Make an admitted attempt on one device, known when it ended, without a cluster."""
    return {
        "source": "jsonl", "slice": "march.jsonl", "file": "march.jsonl", "line": 1, "attempt_id": name, "segment_number": 1,
        "job_id": f"job-of-{model}", "started_at": at(1, "01:00:00"), "ended_at": ended, "known_at": ended,
        "outcome": "succeeded", "model_type": model, "num_devices": 1, "hardware_name": "H100", "hardware_type": "H100-80GB-SXM5",
        "throughput": throughput, "throughput_unit": "samples/s", "throughput_scope": "job",
    } | more  # fmt: skip


UNNAMED_CLUSTER = attempt("n", "null", at(1), 40.0, cluster=None)
# What arrives before the cut of each night.
ARRIVALS: dict[date, list[Row]] = {
    date(2025, 3, 3): [
        attempt("a", "corrected", at(1, "08:00:00"), 100.0),
        attempt("b", "corrected", at(1, "09:00:00"), 110.0),
        attempt("x", "ties", at(1), 90.0),
        attempt("y", "ties", at(1), 110.0),
        attempt("w", "withdrawn", at(1), 10.0),
        attempt("c", "changed twice", at(1), 10.0),
        attempt("u", "untouched", at(1), 70.0),
        *(attempt(f"m{i}", "many", at(1 + i % 2, f"{i // 60:02d}:{i % 60:02d}:00"), 50.0 + i * 37 % 101) for i in range(200)),
        UNNAMED_CLUSTER,
    ],
    date(2025, 3, 4): [
        attempt("a", "corrected", at(1, "08:00:00"), 500.0, known_at=at(3, "11:00:00")),
        attempt("c", "changed twice", at(1), 20.0, known_at=at(3, "11:00:00")),
        attempt("m7", "many", at(2, "00:07:00"), 900.0, known_at=at(3, "11:00:00")),
        UNNAMED_CLUSTER,
    ],
    # Of the days before: one record that was known then, and of one the source does not say when.
    date(2025, 3, 13): [
        attempt("late", "late", at(3), 70.0, known_at=None),
        attempt("z", "ties", at(1), 1000.0, known_at=at(1)),
        attempt("c", "changed twice", at(1), 15.0, known_at=at(2)),
        *(attempt(f"l{i}", "many", at(4 + i % 8), 60.0 + i) for i in range(40)),
        UNNAMED_CLUSTER,
    ],
    date(2025, 3, 14): [
        attempt("w", "other", at(1), 10.0, known_at=at(13, "10:00:00")),
        attempt("m9", "many", at(2, "00:09:00"), 1.0, known_at=at(13, "10:00:00")),
    ],
}


@dataclass
class Warehouse:
    """A warehouse that dbt builds night by night, and what it held after each."""

    project: Path
    home: Path
    levels: Mapping[str, Sequence[str]]
    nights: dict[date, list[Row]] = field(default_factory=dict)
    rebuilt: dict[date, list[Row]] = field(default_factory=dict)
    statements: list[str] = field(default_factory=list)

    @property
    def file(self) -> Path:
        return self.home / "warehouse.duckdb"

    def dbt(self, *arguments: str, cut: date, levels: Mapping[str, Sequence[str]] | None = None, fails: bool = False) -> None:
        """Run dbt as a night does."""
        variables = {
            "cut": cut.isoformat(),
            "state_levels": {level: list(columns) for level, columns in (levels or self.levels).items()},
            "active_days": 30,
            "hardware_seen_days": 30,
            "price_list": "list",
        }
        done = subprocess.run(
            [
                str(Path(sys.executable).parent / "dbt"), "--no-use-colors", *arguments,
                "--project-dir", str(self.project), "--vars", json.dumps(variables),
            ],
            env=os.environ
            | {
                "DBT_PROFILES_DIR": str(self.project),
                "DBT_TARGET_PATH": str(self.home / "target"),
                "DBT_LOG_PATH": str(self.home / "logs"),
                "LEAP_WAREHOUSE": str(self.file),
            },
            check=False,
            capture_output=True,
            text=True,
        )  # fmt: skip
        assert (done.returncode != 0) == fails, done.stdout

    def load(self, records: list[Row], received_at: datetime) -> None:
        with warehouse.connect(self.file) as con:
            kept = pa.Table.from_pylist(records, schema=ADMITTED_SCHEMA)
            warehouse.load(con, [Admission(kept, REJECT_SCHEMA.empty_table())], received_at, received_at.isoformat())

    def execute(self, sql: str) -> None:
        with warehouse.connect(self.file) as con:
            con.execute(sql)

    def rows(self, sql: str) -> list[Row]:
        with warehouse.connect(self.file) as con:
            found: list[Row] = warehouse.read(con, sql).to_pylist()
        return found

    def history(self) -> list[Row]:
        return self.rows("FROM marts.state_history ORDER BY level, key, night")

    def history_made_anew(self) -> list[Row]:
        """Run the whole statement that dbt compiled over the examples as they are now."""
        statement = compiled_state(self.home / "target")
        assert statement is not None
        self.statements.append(statement)
        with warehouse.connect(self.file) as con:
            examples = warehouse.read(con, "FROM marts.fct_training_examples")
        anew: list[Row] = rebuild_state(examples, f"SELECT * FROM ({statement}) ORDER BY level, key, night").to_pylist()
        return anew


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Warehouse:
    """Four nights, each built on the one before; the history of `untouched` was marked after the first."""
    levels = load_params(repository / "params.yaml").features.state_levels
    built = Warehouse(repository / "dbt_project", tmp_path_factory.mktemp("home"), levels)
    for night, records in ARRIVALS.items():
        built.load(records, at(night.day - 1, "12:00:00"))
        if not built.nights:
            built.dbt("seed", cut=night)
        built.dbt("run", "--select", "+state_current", cut=night)
        built.nights[night] = built.history()
        built.rebuilt[night] = built.history_made_anew()
        if len(built.nights) == 1:
            built.execute(f"UPDATE marts.state_history SET mean_log_peak = {MARK} WHERE level = 'model' AND key = 'untouched'")
    return built


def of_model(history: list[Row], model: str) -> list[tuple[date, int, float | None, float | None]]:
    """Give night, count, last and median samples/s of the level `model`."""

    def rate(value: float | None) -> float | None:
        return None if value is None else round(math.exp(value), 6)

    return [
        (row["night"], row["evidence_count"], rate(row["last_log_throughput"]), rate(row["median_log_throughput"]))
        for row in history
        if (row["level"], row["key"]) == ("model", model)
    ]


def test_every_night_leaves_what_a_whole_build_would(built: Warehouse) -> None:
    first, *others = ARRIVALS
    assert built.nights[first] == built.rebuilt[first]
    for night in others:
        # what nothing touched was not made again; the rest is the same, row by row
        marked = [row for row in built.nights[night] if row["mean_log_peak"] == MARK]
        assert [(row["level"], row["key"]) for row in marked] == [("model", "untouched")]
        unmarked = [row for row in built.rebuilt[night] if (row["level"], row["key"]) != ("model", "untouched")]
        assert [row for row in built.nights[night] if row["mean_log_peak"] != MARK] == unmarked


def test_the_statement_of_a_night_is_the_whole_one_also_where_little_was_built(built: Warehouse) -> None:
    assert len(built.statements) >= len(ARRIVALS)
    assert len(set(built.statements[: len(ARRIVALS)])) == 1


def test_a_correction_changes_the_nights_from_its_own_on(built: Warehouse) -> None:
    before = [(date(2025, 3, 2), 2, 110.0, round(math.sqrt(100 * 110), 6))]
    assert of_model(built.nights[date(2025, 3, 3)], "corrected") == before
    after = [*before, (date(2025, 3, 4), 2, 110.0, round(math.sqrt(110 * 500), 6))]
    for night in list(ARRIVALS)[1:]:
        assert of_model(built.nights[night], "corrected") == after


def test_a_late_record_is_in_the_history(built: Warehouse) -> None:
    # of a source that does not say when it was known: from its arrival on
    assert of_model(built.nights[date(2025, 3, 13)], "late") == [(date(2025, 3, 13), 1, 70.0, 70.0)]
    # of one that does: on the old nights too, and the last of three that ended together is that of the greatest name
    assert of_model(built.nights[date(2025, 3, 4)], "ties") == [(date(2025, 3, 2), 2, 110.0, round(math.sqrt(90 * 110), 6))]
    assert of_model(built.nights[date(2025, 3, 13)], "ties") == [(date(2025, 3, 2), 3, 1000.0, 110.0)]


def test_a_late_version_between_two_takes_its_place(built: Warehouse) -> None:
    first, second, third = date(2025, 3, 2), date(2025, 3, 3), date(2025, 3, 4)
    assert of_model(built.nights[date(2025, 3, 4)], "changed twice") == [(first, 1, 10.0, 10.0), (third, 1, 20.0, 20.0)]
    assert of_model(built.nights[date(2025, 3, 13)], "changed twice") == [
        (first, 1, 10.0, 10.0),
        (second, 1, 15.0, 15.0),
        (third, 1, 20.0, 20.0),
    ]


def test_a_withdrawn_attempt_leaves_a_count_of_none(built: Warehouse) -> None:
    assert of_model(built.nights[date(2025, 3, 14)], "withdrawn") == [
        (date(2025, 3, 2), 1, 10.0, 10.0),
        (date(2025, 3, 14), 0, None, None),
    ]
    assert of_model(built.nights[date(2025, 3, 14)], "other") == [(date(2025, 3, 14), 1, 10.0, 10.0)]


def test_a_record_without_a_cluster_that_comes_three_times_counts_once(built: Warehouse) -> None:
    assert [row["attempt_id"] for row in built.rows("FROM marts.fct_attempts WHERE model_type = 'null'")] == ["n"]
    assert of_model(built.nights[date(2025, 3, 14)], "null") == [(date(2025, 3, 2), 1, 40.0, 40.0)]


def test_a_whole_build_and_other_levels_leave_nothing_of_before(built: Warehouse) -> None:
    night = max(ARRIVALS)
    # when all is built anew
    built.dbt("run", "--full-refresh", "--select", "state_history", cut=night)
    # then it is what the nights had come to, the mark gone
    assert built.history() == built.history_made_anew() == built.rebuilt[night]
    # when a level goes, one is new and one of the same name has another key
    others = {"model": ["model_type", "num_devices"], "job": ["job_id"], "hardware_devices": ["hardware_type", "num_devices"]}
    built.dbt("run", "--select", "state_history", cut=night, levels=others)
    # then history is of these levels alone
    history = built.history()
    assert {row["level"] for row in history} == set(others)
    assert {row["key"].count("\x1f") for row in history if row["level"] == "model"} == {1}
    assert history == built.history_made_anew()


def test_an_example_that_vanishes_takes_its_history_along(built: Warehouse) -> None:
    # given a warehouse as the nights left it
    night = max(ARRIVALS)
    built.dbt("run", "--select", "state_history", cut=night)
    # when examples go and one changes, behind LEAP's back
    built.execute("DELETE FROM marts.fct_training_examples WHERE model_type = 'late'")
    built.execute("UPDATE marts.fct_training_examples SET peak_bf16_tflops = 1 WHERE attempt_id = 'y'")
    built.dbt("run", "--select", "state_history", cut=night)
    # then history follows
    history = built.history()
    assert of_model(history, "late") == []
    assert history == built.history_made_anew()


def test_a_build_that_fails_leaves_history_and_evidence_as_they_were(built: Warehouse) -> None:
    # given a table that refuses one key, and an example that now has it
    night = max(ARRIVALS)
    built.dbt("run", "--select", "state_history", cut=night)
    types = built.rows(
        "SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = 'state_history' ORDER BY column_index"
    )
    columns = ", ".join(f"{row['column_name']} {row['data_type']}" for row in types)
    built.execute(f"""
        ALTER TABLE marts.state_history RENAME TO before;
        CREATE TABLE marts.state_history ({columns}, CHECK (key <> 'refused'));
        INSERT INTO marts.state_history FROM marts.before;
        DROP TABLE marts.before;
        UPDATE marts.fct_training_examples SET model_type = 'refused' WHERE attempt_id = 'u';
    """)
    evidence = "FROM intermediate.state_history_evidence ORDER BY ALL"
    before = built.history(), built.rows(evidence)
    # when
    built.dbt("run", "--select", "state_history", cut=night, fails=True)
    # then
    assert (built.history(), built.rows(evidence)) == before
    # and the next build, which can write, makes up for it
    built.execute("UPDATE marts.fct_training_examples SET model_type = 'accepted' WHERE attempt_id = 'u'")
    built.dbt("run", "--select", "state_history", cut=night)
    assert of_model(built.history(), "untouched") == []
    assert of_model(built.history(), "accepted") == [(date(2025, 3, 2), 1, 70.0, 70.0)]
    assert built.history() == built.history_made_anew()
