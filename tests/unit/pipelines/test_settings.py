"""Settings: what is read of the environment, and what LEAP's tools get."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.settings import PROJECT_ROOT, Settings, SettingsError, Source, is_debug


def test_home_is_var_of_the_current_folder_unless_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    settings = Settings.from_environment({})

    assert settings.home == tmp_path / "var"
    assert settings.sources == ()


def test_the_checkout_is_found_from_the_package_and_not_from_the_current_folder(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    settings = Settings.from_environment({})

    assert settings.root == PROJECT_ROOT == repository
    assert settings.params == repository / "params.yaml"
    assert settings.dbt_project == repository / "dbt_project"


def test_relative_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    settings = Settings.from_environment({"LEAP_HOME": "state", "LEAP_PARAMS": "mine.yaml", "LEAP_SOURCES": "jsonl=logs"})

    assert settings.home == tmp_path / "state"
    assert settings.params == tmp_path / "mine.yaml"
    assert settings.sources == (Source("jsonl", tmp_path / "logs"),)


def test_sources_are_separated_by_semicolons_and_may_hold_equals_signs() -> None:
    settings = Settings.from_environment({"LEAP_SOURCES": "mlperf=/data/a=b; jsonl=/logs ;"})

    assert settings.sources == (Source("mlperf", Path("/data/a=b")), Source("jsonl", Path("/logs")))


@pytest.mark.parametrize("text", ["/data/logs", "=/data", "mlperf=", "mlperf"])
def test_a_source_without_kind_or_path_is_refused_with_the_form_it_should_have(text: str) -> None:
    with pytest.raises(SettingsError, match="must be KIND=PATH") as caught:
        Settings.from_environment({"LEAP_SOURCES": text})

    assert repr(text) in str(caught.value)


def test_settings_cannot_be_changed() -> None:
    settings = Settings.from_environment({})

    with pytest.raises(AttributeError):
        settings.home = Path("/elsewhere")  # type: ignore[misc]


def test_tools_find_their_state_in_the_home() -> None:
    settings = Settings(home=Path("/srv/leap"), params=Path("/etc/leap.yaml"), sources=(Source("jsonl", Path("/logs")),))

    environment = settings.environment({"PATH": "/usr/bin"})

    assert environment["LEAP_HOME"] == "/srv/leap"
    assert environment["LEAP_PARAMS"] == "/etc/leap.yaml"
    assert environment["LEAP_SOURCES"] == "jsonl=/logs"
    assert environment["LEAP_WAREHOUSE"] == "/srv/leap/warehouse.duckdb"
    assert environment["DAGSTER_HOME"] == "/srv/leap/dagster"
    assert environment["DBT_TARGET_PATH"] == "/srv/leap/dbt/target"
    assert Settings.from_environment(environment) == settings


def test_the_commands_of_this_python_come_first_on_the_path_once() -> None:
    ours = str(Path(sys.executable).parent)

    path = Settings.from_environment({}).environment({"PATH": f"/usr/bin:{ours}:/bin"})["PATH"]

    assert path.split(os.pathsep) == [ours, "/usr/bin", "/bin"]


def test_no_tool_reports_usage_unless_a_person_said_so() -> None:
    settings = Settings.from_environment({})

    by_default = settings.environment({})
    asked_for = settings.environment({"DBT_SEND_ANONYMOUS_USAGE_STATS": "true"})

    assert by_default["DAGSTER_DISABLE_TELEMETRY"] == "yes"
    assert by_default["DBT_SEND_ANONYMOUS_USAGE_STATS"] == "false"
    assert by_default["DO_NOT_TRACK"] == "true"
    assert by_default["GX_ANALYTICS_ENABLED"] == "false"
    assert by_default["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert asked_for["DBT_SEND_ANONYMOUS_USAGE_STATS"] == "true"


def test_waiting_threads_of_lightgbm_do_not_spin() -> None:
    assert Settings.from_environment({}).environment({})["OMP_WAIT_POLICY"] == "passive"


@pytest.mark.parametrize(("value", "expected"), [(None, False), ("", False), ("0", False), ("1", True), ("yes", True)])
def test_debug_is_off_unless_asked_for(value: str | None, expected: bool) -> None:
    assert is_debug({} if value is None else {"LEAP_DEBUG": value}) is expected


def test_mlflow_and_dbt_take_it_that_way() -> None:
    # given: a process that has entered the settings; when: the tools are asked; then: they say that they report nothing
    script = """
from pipelines.settings import Settings
Settings.from_environment({}).enter()
from dbt.cli.main import cli
from mlflow.telemetry.utils import is_telemetry_disabled
context = cli.make_context("dbt", ["parse"], resilient_parsing=False)
print(is_telemetry_disabled(), context.params["send_anonymous_usage_stats"])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert done.stdout.split() == ["True", "False"], done.stderr
