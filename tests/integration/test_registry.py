"""MLflow on SQLite: what a night logs, which version it gets, and what the aliases say when versions go."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
import pytest
from mlflow.tracking import MlflowClient

from leap.store.registry import (
    RegisteredModel,
    Registry,
    RegistryConfig,
    RegistryError,
    input_columns,
    load_registry_config,
)

CONFIG = RegistryConfig.model_validate(
    {
        "experiment": "nights",
        "experiment_note": "One run a night.",
        "backtest_experiment": "backtests",
        "backtest_note": "One run a backtest.",
        "backtest_columns": {"metrics.`within_10`": 110},
        "shown_columns": {"metrics.`leap/within_10`": 120},
        "model": "throughput",
        "model_note": "Throughput of a job.",
        "aliases": {"champion": "champion", "challenger": "challenger"},
        "required_tags": ["night", "code_version", "fingerprint"],
    }
)

# Answers with the number in the bundle times the devices, through the same casts as LEAP's own scoring code.
STAND_IN = """
from pathlib import Path
import mlflow
import pyarrow as pa
from leap.contracts import SUBMISSION_SCHEMA
from leap.store import scoring_model

class StandIn:
    def __init__(self, per_device):
        self.per_device = per_device

    def predict(self, submissions, candidates):
        assert submissions.schema == SUBMISSION_SCHEMA
        rows = zip(candidates["num_devices"].to_pylist(), submissions["global_batch_size"].to_pylist())
        answer = [None if devices is None else self.per_device * devices + (batch or 0.0) for devices, batch in rows]
        median = pa.array(answer, pa.float64())
        tier = submissions["team"].fill_null("none")
        return pa.table({"throughput_p10": median, "throughput": median, "throughput_p90": median, "tier": tier})

class Model(scoring_model.ThroughputModel):
    def load_context(self, context):
        self._scorer = StandIn(float(Path(context.artifacts["bundle"], "booster.txt").read_text()))

mlflow.models.set_model(Model())
"""

ECHO = """
import mlflow

class Model(mlflow.pyfunc.PythonModel):
    def predict(self, context, model_input, params=None):
        return model_input

mlflow.models.set_model(Model())
"""

ROWS: list[dict[str, Any]] = [
    {"model_type": "bert", "hardware_type": "h100", "num_devices": 8, "global_batch_size": 512, "team": "vision"},
    {"model_type": "bert", "hardware_type": "a100", "num_devices": 4, "global_batch_size": None, "team": None},
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a prepared MLflow database; the current directory is another, empty one until the module is through."""
    root = tmp_path_factory.mktemp("mlflow")
    before, elsewhere = Path.cwd(), tmp_path_factory.mktemp("elsewhere")
    os.chdir(elsewhere)
    registry_at(root).prepare()
    (root / "stand_in.py").write_text(STAND_IN, encoding="utf-8")
    yield root
    os.chdir(before)
    assert list(elsewhere.iterdir()) == []


@pytest.fixture
def registry(root: Path) -> Registry:
    return registry_at(root)


@pytest.fixture
def client(root: Path) -> MlflowClient:
    return MlflowClient(registry_at(root).tracking_uri)


def registry_at(root: Path) -> Registry:
    return Registry(f"sqlite:///{root}/mlflow.db", root / "artifacts", CONFIG)


def log(registry: Registry, root: Path, fingerprint: str, **changes: Any) -> RegisteredModel:
    bundle = root / fingerprint / "bundle"
    bundle.mkdir(parents=True, exist_ok=True)
    (bundle / "booster.txt").write_text("2.5", encoding="utf-8")
    arguments: dict[str, Any] = {
        "params": {},
        "metrics": {},
        "plots": {},
        "tags": {"night": "2026-11-30", "code_version": "0123abc", "fingerprint": fingerprint},
        "dataset_id": "2026-11-30-4f2a",
        "dataset_digest": "4f2a" * 16,
        "dataset_path": root,
        "input_example": pd.DataFrame(ROWS).astype({"num_devices": "float64"}),
        "scoring_model": root / "stand_in.py",
    }
    return registry.log_challenger(bundle, **(arguments | changes))


def test_a_run_tells_what_was_trained_on_what(registry: Registry, root: Path, client: MlflowClient, tmp_path: Path) -> None:
    plot = tmp_path / "error.png"
    plot.write_bytes(b"png")

    logged = log(
        registry,
        root,
        "told",
        params={"model": {"num_leaves": 31}, "features": {"state_levels": {"exact": ["model_type", "hardware_type"]}}},
        metrics={"within_10": 0.75},
        plots={"error": plot},
        note="Within 10%: 75.0%.",
    )

    run = client.get_run(logged.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params == {"model.num_leaves": "31", "features.state_levels.exact": '["model_type", "hardware_type"]'}
    assert run.data.metrics == {"within_10": 0.75}
    assert run.data.tags["code_version"] == "0123abc"
    assert run.data.tags["mlflow.note.content"] == "Within 10%: 75.0%."
    assert [file.path for file in client.list_artifacts(logged.run_id, "plots")] == ["plots/error.png"]
    (dataset,) = run.inputs.dataset_inputs
    assert (dataset.dataset.name, dataset.dataset.digest) == ("2026-11-30-4f2a", ("4f2a" * 16)[:36])
    version = client.get_model_version(CONFIG.model, logged.version)
    assert (version.run_id, version.tags["fingerprint"]) == (logged.run_id, "told")
    assert version.description == "Within 10%: 75.0%."


def test_a_version_holds_text_and_code_and_no_pickle(registry: Registry, root: Path, client: MlflowClient) -> None:
    logged = log(registry, root, "plain")

    folder = Path(client.get_model_version_download_uri(CONFIG.model, logged.version).removeprefix("file://"))
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert {"MLmodel", "stand_in.py", "artifacts/bundle/booster.txt"} <= files
    assert [name for name in files if name.endswith((".pkl", ".pickle"))] == []
    assert folder.is_relative_to(root / "artifacts")
    signature = registry.load(logged.version).metadata.signature
    assert tuple(signature.inputs.input_names()) == input_columns()
    assert signature.inputs.required_input_names() == ["model_type", "hardware_type"]
    assert signature.outputs.input_names() == ["throughput_p10", "throughput", "throughput_p90", "tier"]


def test_the_same_model_twice_is_one_version_and_two_runs(registry: Registry, root: Path, client: MlflowClient) -> None:
    first = log(registry, root, "same")
    before = registry.versions()

    second = log(registry, root, "same", note="As good.")

    assert (first.reused, second.reused) == (False, True)
    assert second.version == first.version
    assert registry.versions() == before
    assert second.run_id != first.run_id
    tags = client.get_run(second.run_id).data.tags
    assert tags["reused_version"] == first.version
    assert tags["mlflow.note.content"] == f"As good. The same model as version {first.version}."


def test_a_version_whose_files_are_gone_is_not_reused(registry: Registry, root: Path, client: MlflowClient) -> None:
    first = log(registry, root, "gone")
    shutil.rmtree(client.get_model_version_download_uri(CONFIG.model, first.version).removeprefix("file://"))

    second = log(registry, root, "gone")

    assert int(second.version) > int(first.version)
    with pytest.raises(RegistryError, match=f"could not load version {first.version}"):
        registry.load(first.version)


@pytest.mark.parametrize("read", [lambda text: pd.DataFrame(json.loads(text)), lambda text: pd.read_json(StringIO(text))])
def test_scoring_from_json_equals_scoring_in_process(registry: Registry, root: Path, read: Any) -> None:
    # Given whole numbers, nulls and missing columns, as JSON has them.
    registry.set_alias("challenger", log(registry, root, "json").version)

    answer = registry.load("challenger").predict(read(json.dumps(ROWS)))

    assert answer.to_dict("records") == [
        {"throughput_p10": 532.0, "throughput": 532.0, "throughput_p90": 532.0, "tier": "vision"},
        {"throughput_p10": 10.0, "throughput": 10.0, "throughput_p90": 10.0, "tier": "none"},
    ]


@pytest.mark.parametrize(("column", "value"), [("num_devices", "eight"), ("framework_version", 2.4)])
def test_a_value_of_another_kind_is_refused_by_name(registry: Registry, root: Path, column: str, value: Any) -> None:
    registry.set_alias("challenger", log(registry, root, "json").version)

    with pytest.raises(ValueError, match=f"column '{column}' must hold"):
        registry.load("challenger").predict(pd.DataFrame([{**ROWS[0], column: value}]))


def test_versions_and_aliases_are_numbers_past_nine(registry: Registry, root: Path, client: MlflowClient) -> None:
    # Given more than eleven versions.
    source = log(registry, root, "many")
    location = client.get_model_version_download_uri(CONFIG.model, source.version)
    while len(registry.versions()) < 11:
        client.create_model_version(CONFIG.model, location, tags={"fingerprint": "many"})

    # When champion and challenger are 9 and 10, and the same model comes again.
    registry.set_alias("champion", "9")
    registry.set_alias("challenger", "10")

    assert registry.versions() == tuple(str(number) for number in range(1, len(registry.versions()) + 1))
    assert (registry.version_of("champion"), registry.version_of("challenger")) == ("9", "10")
    assert log(registry, root, "many").version == registry.versions()[-1]


def test_the_alias_of_a_deleted_version_names_nothing(registry: Registry, root: Path, client: MlflowClient) -> None:
    version = log(registry, root, "deleted").version
    registry.set_alias("champion", version)

    client.delete_model_version(CONFIG.model, version)

    assert registry.version_of("champion") is None
    with pytest.raises(RegistryError, match="no version has the alias 'champion'"):
        registry.load("champion")
    assert log(registry, root, "deleted").reused is False


def test_an_alias_never_set_names_nothing(registry: Registry) -> None:
    assert registry.version_of("nobody") is None


def test_an_alias_for_a_version_that_is_not_there_is_refused(registry: Registry) -> None:
    with pytest.raises(RegistryError, match="'champion' name version 999"):
        registry.set_alias("champion", "999")


@pytest.mark.parametrize(
    ("code", "complaint"),
    [
        (STAND_IN.replace('"tier": tier', '"tier": tier[:0]'), "Column 3 named tier expected length 2 but got length 0"),
        (ECHO, "the logged model gave columns .* not .* it was not registered"),
    ],
)
def test_a_model_that_cannot_score_its_example_is_not_registered(
    registry: Registry, root: Path, client: MlflowClient, tmp_path: Path, code: str, complaint: str
) -> None:
    (tmp_path / "broken.py").write_text(code, encoding="utf-8")
    before = registry.versions()

    with pytest.raises((RegistryError, ValueError), match=complaint):
        log(registry, root, "broken", scoring_model=tmp_path / "broken.py")

    assert registry.versions() == before
    newest = client.search_runs([client.get_experiment_by_name(CONFIG.experiment).experiment_id], max_results=1)[0]
    assert newest.info.status == "FAILED"


def test_a_run_without_its_tags_is_refused(registry: Registry, root: Path) -> None:
    with pytest.raises(RegistryError, match="lacks required tags: fingerprint, code_version"):
        log(registry, root, "untagged", tags={"night": "2026-11-30"})


def test_preparing_again_changes_nothing(registry: Registry, client: MlflowClient) -> None:
    before = client.search_experiments()

    registry.prepare()

    assert [experiment.experiment_id for experiment in client.search_experiments()] == [e.experiment_id for e in before]


def test_the_pages_say_what_they_show(registry: Registry, client: MlflowClient) -> None:
    tags = client.get_experiment_by_name(CONFIG.experiment).tags

    assert tags["mlflow.note.content"] == CONFIG.experiment_note
    assert json.loads(tags["mlflow.sharedViewState.scores"]) == {
        "selectedColumns": ["metrics.`leap/within_10`"],
        "columnOrder": ["metrics.`leap/within_10`"],
        "columnWidths": {"metrics.`leap/within_10`": 120},
    }
    assert client.get_registered_model(CONFIG.model).description == CONFIG.model_note


def test_two_processes_may_prepare_an_empty_database_at_once(tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from leap.store.registry import Registry, RegistryConfig
config = RegistryConfig.model_validate({CONFIG.model_dump()!r})
Registry("sqlite:///{tmp_path}/home/mlflow.db", Path("{tmp_path}/artifacts"), config).prepare()
"""
    running = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) for _ in range(2)]

    errors = [process.communicate()[1] for process in running]

    assert [process.returncode for process in running] == [0, 0], errors
    client = MlflowClient(f"sqlite:///{tmp_path}/home/mlflow.db")
    assert {experiment.name for experiment in client.search_experiments()} == {CONFIG.experiment}


def test_a_moved_home_writes_into_its_new_place(root: Path, tmp_path: Path) -> None:
    # Given a copy of a home: MLflow's experiment still names the old folder.
    shutil.copy(root / "mlflow.db", tmp_path)
    (tmp_path / "stand_in.py").write_text(STAND_IN, encoding="utf-8")
    moved = registry_at(tmp_path)

    moved.prepare()
    version = log(moved, tmp_path, "moved").version

    location = MlflowClient(moved.tracking_uri).get_model_version_download_uri(CONFIG.model, version)
    assert Path(location.removeprefix("file://")).is_relative_to(tmp_path / "artifacts")


@pytest.mark.parametrize("uri", ["", "  ", "mlflow.db", "sqlite:///mlflow.db", None])
def test_a_tracking_uri_that_is_not_said_fails_loudly(uri: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(RegistryError, match="MLflow's tracking URI"):
        Registry(uri, tmp_path / "artifacts", CONFIG)

    assert list(tmp_path.iterdir()) == []


def test_a_database_that_is_away_is_said_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match=r"there is no MLflow database at .*; run `leap init`"):
        registry_at(tmp_path).version_of("champion")

    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_database_is_said(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_bytes(os.urandom(4096))

    with pytest.raises(RegistryError, match="could not look up alias 'champion'"):
        registry_at(tmp_path).version_of("champion")


def test_mlflow_is_imported_late_and_reports_nothing(registry: Registry, tmp_path: Path) -> None:
    # Given a process that is neither CI nor a test, in an empty directory.
    code = f"""
import sys
from pathlib import Path
from leap.store.registry import Registry, load_registry_config
assert "mlflow" not in sys.modules
config = load_registry_config(Path({str(Path(__file__).parents[2] / "mlflow" / "registry.yaml")!r}))
Registry({registry.tracking_uri!r}, Path({str(registry.artifact_root)!r}), config).versions()
from mlflow.telemetry import get_telemetry_client
assert get_telemetry_client() is None
"""
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}

    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )

    assert result.returncode == 0, result.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_key_of_the_config_is_named(tmp_path: Path) -> None:
    config = tmp_path / "registry.yaml"
    config.write_text(json.dumps({**CONFIG.model_dump(), "modle": "e"}))

    with pytest.raises(RegistryError, match=r"registry.yaml: modle: Extra inputs"):
        load_registry_config(config)


def test_the_process_is_left_on_the_tracking_uri_that_was_said(registry: Registry) -> None:
    registry.versions()

    assert mlflow.get_tracking_uri() == registry.tracking_uri
