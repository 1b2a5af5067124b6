"""The asset graph: it loads as the server loads it, opens nothing, and every change of it shows in review."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from pipelines.definitions import build_defs
from pipelines.settings import Settings, SettingsError

GOLDEN = Path(__file__).with_name("golden_graph.json")

LOAD_WATCHED = """
import json, sys

opened = []

def watch(event, arguments):
    # not socket.bind: urllib3 binds an unused port when it is imported, to see whether the machine speaks IPv6
    if event in ("sqlite3.connect", "socket.connect", "socket.getaddrinfo", "socket.sendto"):
        opened.append([event, str(arguments[-1])])

import duckdb  # opens files without Python's knowledge, so its own door is watched

duckdb.connect = lambda *arguments, **_: opened.append(["duckdb.connect", str(arguments)])
sys.addaudithook(watch)

from dagster._core.definitions.reconstruct import ReconstructableRepository

# the way from a module's name to its definitions that Dagster's code server takes
repository = ReconstructableRepository.for_module("pipelines.definitions", "defs").get_definition()
repository.load_all_definitions()
print(json.dumps({"opened": opened, "assets": len(repository.assets_defs_by_key)}))
"""


def test_the_definitions_load_as_the_server_loads_them(settings: Settings) -> None:
    command = [sys.executable, "-m", "dagster", "definitions", "validate", "-m", "pipelines.definitions"]

    done = subprocess.run(command, env=settings.subprocess_environment(), cwd=settings.home, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert "Validation successful for code location pipelines.definitions" in done.stdout + done.stderr


def test_loading_opens_no_database_and_no_socket(settings: Settings) -> None:
    before = sorted(settings.home.rglob("*"))

    done = subprocess.run(
        [sys.executable, "-c", LOAD_WATCHED], env=settings.subprocess_environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr

    said = json.loads(done.stdout.splitlines()[-1])
    assert said["opened"] == []
    assert said["assets"] > 15
    assert sorted(settings.home.rglob("*")) == before


def test_without_a_manifest_the_error_says_what_to_do(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="run `leap init`") as caught:
        build_defs(replace(settings, home=tmp_path))

    assert str(tmp_path / "dbt" / "target" / "manifest.json") in str(caught.value)


def test_every_asset_says_what_it_is_and_whose(definitions: dg.Definitions) -> None:
    specs = list(definitions.resolve_all_asset_specs())

    silent = {
        spec.key.to_user_string(): missing
        for spec in specs
        if (missing := [what for what in ("owners", "group_name", "kinds", "description") if not getattr(spec, what)])
    }

    assert silent == {}
    assert {tuple(spec.owners) for spec in specs} == {("team:leap",)}
    assert [spec.key.to_user_string() for spec in specs if spec.group_name != spec.key.path[0]] == []
    assert [spec.key.to_user_string() for spec in specs if len(spec.key.path) != 2] == []


def test_every_asset_has_a_check(definitions: dg.Definitions) -> None:
    graph = definitions.resolve_asset_graph()
    checked = {key.asset_key for key in graph.asset_check_keys}

    assert sorted(key.to_user_string() for key in graph.materializable_asset_keys - checked) == []


def test_nothing_is_published_before_every_check_that_could_hold_it(definitions: dg.Definitions) -> None:
    structure = definitions.resolve_job_def("nightly").graph.dependency_structure
    names = {node.name for node in definitions.resolve_job_def("nightly").graph.nodes}

    def before(name: str) -> set[str]:
        direct = {output.node_name for output in structure.all_upstream_outputs_from_node(name)}
        return direct.union(*(before(found) for found in direct))

    after = {name for name in names if "published__rankings" in before(name)}

    # the checks that hold nothing: what is in quarantine or held back is not used, and a gate decides on the whole share of it
    unguarded = names - before("published__rankings") - after - {"published__rankings"}
    assert unguarded == {
        "raw__prices_prices_are_settled",
        "raw__quarantine_quarantined",
        "raw__quarantine_quarantine_did_not_rise",
    }


def test_every_check_says_what_it_promises(definitions: dg.Definitions) -> None:
    graph = definitions.resolve_asset_graph()

    assert [key.to_user_string() for key in graph.asset_check_keys if not graph.get(key).description] == []


def test_every_table_tells_its_columns(definitions: dg.Definitions) -> None:
    tables = {"raw", "seeds", "staging", "intermediate", "marts", "published"}
    schemas = {
        spec.key.to_user_string(): spec.metadata.get("dagster/column_schema")
        for spec in definitions.resolve_all_asset_specs()
        if spec.group_name in tables
    }

    assert [key for key, schema in schemas.items() if schema is None] == []
    untold = [
        f"{key}.{column.name}"
        for key, schema in schemas.items()
        for column in schema.columns
        if not column.description or column.type == "?"
    ]
    assert untold == []


def test_every_asset_holds_the_night_lock(definitions: dg.Definitions) -> None:
    without = [
        definition.op.name
        for definition in definitions.resolve_asset_graph().assets_defs
        if definition.is_executable and not {"night", "warehouse"} & definition.required_resource_keys
    ]

    assert without == []


def test_nothing_runs_outside_one_process(definitions: dg.Definitions) -> None:
    # the night lock and the night itself are resources, which start once a run only there
    jobs = [definitions.resolve_job_def("nightly"), definitions.resolve_implicit_global_asset_job_def()]

    assert [job.executor_def.name for job in jobs] == ["in_process", "in_process"]


def test_a_resource_can_be_replaced(settings: Settings) -> None:
    replaced = build_defs(settings, resource_overrides={"params": "another"})

    assert (replaced.resources or {})["params"] == "another"


def test_the_schedule_runs_by_default_only_where_there_is_something_to_read(settings: Settings) -> None:
    fed = build_defs(Settings.from_environment({"LEAP_HOME": str(settings.home), "LEAP_SOURCES": "jsonl=/logs"}))
    idle = build_defs(settings)

    assert fed.resolve_schedule_def("nightly_schedule").default_status == dg.DefaultScheduleStatus.RUNNING
    assert idle.resolve_schedule_def("nightly_schedule").default_status == dg.DefaultScheduleStatus.STOPPED


def test_the_schedule_asks_for_the_night_of_its_tick(settings: Settings) -> None:
    fed = build_defs(Settings.from_environment({"LEAP_HOME": str(settings.home), "LEAP_SOURCES": "jsonl=/logs"}))
    schedule = fed.resolve_schedule_def("nightly_schedule")
    tick = dg.build_schedule_context(scheduled_execution_time=_utc("2026-03-01T01:15:00+00:00"))

    requests = schedule.evaluate_tick(tick).run_requests or []

    assert [request.run_config["resources"]["night"]["config"] for request in requests] == [
        {"as_of": "2026-03-01", "sources": ["jsonl=/logs"]}
    ]


def test_the_graph_is_the_one_that_was_reviewed(definitions: dg.Definitions) -> None:
    """After a wanted change: LEAP_UPDATE_GOLDEN=1 pytest tests/graph, and read the difference."""
    graph = _describe(definitions)

    if os.environ.get("LEAP_UPDATE_GOLDEN"):
        GOLDEN.write_text(json.dumps(graph, indent=1) + "\n", encoding="utf-8")

    assert graph == json.loads(GOLDEN.read_text(encoding="utf-8"))


def _describe(definitions: dg.Definitions) -> dict[str, Any]:
    graph = definitions.resolve_asset_graph()
    checks: dict[str, dict[str, str]] = {}
    for key in sorted(graph.asset_check_keys, key=lambda key: (key.asset_key.to_user_string(), key.name)):
        blocking = graph.get(key).blocking
        checks.setdefault(key.asset_key.to_user_string(), {})[key.name] = "blocking" if blocking else "warning"
    return {
        "assets": {
            spec.key.to_user_string(): {
                "depends_on": sorted(dependency.asset_key.to_user_string() for dependency in spec.deps),
                "checks": checks.get(spec.key.to_user_string(), {}),
            }
            for spec in sorted(definitions.resolve_all_asset_specs(), key=lambda spec: spec.key.to_user_string())
        },
        "jobs": {"nightly": sorted(definitions.resolve_job_def("nightly").graph.node_dict)},
        "schedules": {
            schedule.name: f"{schedule.job_name} at {schedule.cron_schedule} {schedule.execution_timezone}"
            for schedule in [definitions.resolve_schedule_def("nightly_schedule")]
        },
        "sensors": [sensor.name for sensor in definitions.sensors or []],
        "resources": sorted(definitions.resources or {}),
    }


def _utc(text: str) -> Any:
    from datetime import datetime

    return datetime.fromisoformat(text)
