"""The JSON Schema of one record: it takes what LEAP renders, refuses what LEAP refuses, and describes every field."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from typer.testing import CliRunner

from leap.contracts import ATTEMPT_SCHEMA, ATTEMPT_SCHEMA_VERSION
from leap.hardware.catalog import read_catalog
from leap.simulator.fleet import FleetConfig, simulate
from leap.sources import jsonl
from leap.store.record_schema import field_rows, json_schema
from pipelines.cli import app

GOOD = {
    "attempt_id": "a1",
    "started_at": "2026-03-01T09:30:00+02:00",
    "outcome": "succeeded",
    "model_type": "bert",
    "num_devices": 8,
    "hardware_name": "NVIDIA H100-SXM5-80GB",
}


@pytest.fixture(scope="module")
def validator() -> Any:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_what_is_rendered_is_valid(validator: Any, repository: Path) -> None:
    # given the log of a simulated fleet
    fleet = FleetConfig(
        hardware=read_catalog(repository / "dbt_project" / "seeds" / "hardware_types.csv").table,
        hardware_types=("A100-80GB-SXM4", "H100-80GB-SXM5", "L40S"),
        start=date(2026, 3, 1),
        days=3,
        attempts_per_day=60,
        num_model_types=8,
        num_jobs=20,
        num_teams=3,
    )
    lines = jsonl.render(simulate(fleet).attempts).to_pylist()
    # then each of its records is one
    assert len(lines) > 100
    assert [error.message for line in lines for error in validator.iter_errors(json.loads(line))] == []


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"config": {"a": {"b": [1, None]}}, "eligible_hardware": ["T4"], "throughput": 12, "pinned": False},
        {"config": '{"a": 1}', "eligible_hardware": '["T4"]', "throughput_unit": "tokens/s", "throughput_scope": "device"},
        {"ended_at": "2026-03-01 10:30Z", "team": None, "throughput_unit": None, "num_devices": 8.0},
    ],
)
def test_good_records_are_valid_and_read(validator: Any, fields: dict[str, Any]) -> None:
    record = GOOD | fields
    assert list(validator.iter_errors(record)) == []
    assert jsonl.parse(json.dumps(record).encode(), "log").rejects.num_rows == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"speed": 5},
        {"attempt_id": 7},
        {"num_devices": "8"},
        {"num_devices": 2.5},
        {"num_devices": 2**32},
        {"num_devices": True},
        {"throughput": "fast"},
        {"pinned": 1},
        {"started_at": 1772323200},
        {"started_at": "2026-03-01T09:30:00"},
        {"started_at": "yesterday"},
        {"config": [1]},
        {"eligible_hardware": [1]},
    ],
)
def test_what_the_reader_refuses_is_not_valid(validator: Any, fields: dict[str, Any]) -> None:
    record = GOOD | fields
    assert jsonl.parse(json.dumps(record).encode(), "log").attempts.num_rows == 0
    assert list(validator.iter_errors(record))


@pytest.mark.parametrize("name", GOOD)
def test_a_record_without_what_is_needed_is_not_valid(validator: Any, name: str) -> None:
    assert list(validator.iter_errors({field: value for field, value in GOOD.items() if field != name}))


@pytest.mark.parametrize("fields", [{"outcome": "ok"}, {"throughput_unit": "TFLOP/s"}, {"throughput_scope": "rack"}])
def test_a_word_that_means_nothing_is_not_valid(validator: Any, fields: dict[str, Any]) -> None:
    assert list(validator.iter_errors(GOOD | fields))


def test_every_field_is_described_in_order() -> None:
    rows = field_rows()
    assert [row.name for row in rows] == ATTEMPT_SCHEMA.names
    assert all(row.meaning for row in rows)
    assert {row.name: row.unit for row in rows}["steady_seconds"] == "s"


def test_the_command_prints_both_forms() -> None:
    printed = CliRunner().invoke(app, ["schema"])
    assert printed.exit_code == 0, printed.output
    assert json.loads(printed.output) == json_schema()
    assert json.loads(printed.output)["$id"] == f"urn:leap:attempt:{ATTEMPT_SCHEMA_VERSION}"
    table = CliRunner().invoke(app, ["schema", "--format", "table"])
    assert table.exit_code == 0, table.output
    assert all(name in table.output for name in ATTEMPT_SCHEMA.names)
