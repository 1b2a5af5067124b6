"""The model registry and experiment tracker (MLflow).

What lives here: making MLflow's database, logging a challenger with what it was trained on, registered versions and aliases.
What does not: the scoring code that a version carries (`scoring_model.py`), deciding who is champion (`leap.promotion`), the
bundle that is published (`publisher.py`): serving never asks MLflow.

MLflow is imported when a method first needs it. Its tracking URI is always said: left to itself, MLflow makes a database in the
current directory.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import yaml
from pydantic import BaseModel, ConfigDict, Field, PositiveInt, StringConstraints, ValidationError

from leap.contracts import SUBMISSION_SCHEMA
from leap.store.files import exclusive

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.models import ModelSignature
    from mlflow.pyfunc import PyFuncModel
    from mlflow.tracking import MlflowClient

FINGERPRINT = "fingerprint"
NIGHT = "night"
DATASET_ID = "dataset_id"
REUSED_VERSION = "reused_version"
RUNS_VIEW = "scores"
SCORING_MODEL = Path(__file__).with_name("scoring_model.py")

# Nothing is reported to MLflow's makers, and nothing of the current directory gets into a model. Hand this to the process of
# MLflow's UI too; a value that is already set is left alone.
QUIET_ENVIRONMENT: Mapping[str, str] = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_DISABLE_AGENT_HINT": "true",
    "MLFLOW_UV_AUTO_DETECT": "false",
    "MLFLOW_LOG_UV_FILES": "false",
}

REQUIRED_INPUTS = ("model_type", "hardware_type")
ANSWER_COLUMNS = ("throughput_p10", "throughput", "throughput_p90", "tier")

# What scoring needs, said outright: MLflow would otherwise find it out by running the model in a second process.
_REQUIREMENTS = ("leap-fleet", "lightgbm", "mlflow", "numpy", "pandas", "pyarrow")
_MAX_DIGEST_LENGTH = 36  # MLflow's limit
_MAX_METRICS = 1000  # of one call; MLflow's limit
_MILLISECONDS_FOR_PREDICTORS = 1000  # of a backtest's predictors each begins one earlier than the one before it
_NOTE = "mlflow.note.content"  # the tag that MLflow's UI shows as description

Text = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]


class RegistryError(Exception):
    """MLflow cannot be reached or refuses; the message says what was tried, where, and what to do next."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Aliases(_Frozen):
    """What the two roles of a model version are called in MLflow."""

    champion: Text
    challenger: Text


class RegistryConfig(_Frozen):
    """The whole of `mlflow/registry.yaml`: experiment and registered model, what their pages say, aliases, required tags."""

    experiment: Text
    experiment_note: Text
    backtest_experiment: Text
    backtest_note: Text
    backtest_columns: Mapping[Text, PositiveInt]
    shown_columns: Mapping[Text, PositiveInt]
    model: Text
    model_note: Text
    aliases: Aliases
    required_tags: Annotated[tuple[Text, ...], Field(min_length=1)]


@dataclass(frozen=True)
class RegisteredModel:
    """A registered version and the run that asked for it; `reused` = the version was there already, with this fingerprint."""

    version: str
    run_id: str
    fingerprint: str
    reused: bool


def load_registry_config(path: Path) -> RegistryConfig:
    """Read `mlflow/registry.yaml`; RegistryError with file, key and reason where it is not what the model asks for."""
    try:
        return RegistryConfig.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise RegistryError(f"{path}: no such file; it names the experiment, the model and its aliases") from None
    except yaml.YAMLError as error:
        raise RegistryError(f"{path}: not YAML: {error}") from None
    except ValidationError as error:
        problems = (f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors())
        raise RegistryError(f"{path}: {'; '.join(problems)}") from None


class Registry:
    """One experiment and one registered model in one MLflow database.

    `tracking_uri` names the database: `sqlite:////an/absolute/path.db`, or the address of a server. `artifact_root` is the
    folder under which models and plots are kept. Nothing is opened before the first method is called.
    """

    def __init__(self, tracking_uri: str, artifact_root: Path, config: RegistryConfig) -> None:
        self.tracking_uri = _checked_uri(tracking_uri)
        self.artifact_root = artifact_root.resolve()
        self.config = config

    def prepare(self) -> None:
        """Make or migrate the database, the experiment and the registered model; safe to repeat, and at once."""
        with self._speaking("prepare MLflow"), self._alone():
            self.artifact_root.mkdir(parents=True, exist_ok=True)
            client = self._connect()
            self._prepare_experiment(client)
            if not any(model.name == self.config.model for model in client.search_registered_models()):
                client.create_registered_model(self.config.model)
            client.update_registered_model(self.config.model, self.config.model_note)

    def log_challenger(
        self,
        bundle: Path,
        *,
        params: Mapping[str, Any],
        metrics: Mapping[str, float],
        plots: Mapping[str, Path | Figure],
        tags: Mapping[str, str],
        dataset_id: str,
        dataset_digest: str,
        dataset_path: Path,
        input_example: pd.DataFrame,
        note: str = "",
        scoring_model: Path = SCORING_MODEL,
    ) -> RegisteredModel:
        """Log one run and register its model, or find the version that is registered already with the same fingerprint.

        Args:
            bundle: the scorer's folder; it is copied whole into the version.
            params: any nesting of mappings; keys are joined by dots, what is neither text nor number is written as JSON.
            metrics: figures by name.
            plots: figures, or image files, by name.
            tags: of the run and the version, with all of the config's `required_tags`.
            dataset_id: the name of the immutable dataset that was trained on.
            dataset_digest: its checksum; MLflow keeps the first 36 characters.
            dataset_path: its folder.
            input_example: a few rows with the columns of `input_columns()`; the version is registered only if it scores them.
            note: what the pages of run and version say on top, as Markdown.
            scoring_model: the models-from-code file.

        Raises RegistryError, or what the scoring code raises; the run is then marked failed and no version is registered.
        """
        missing = [name for name in dict.fromkeys((FINGERPRINT, *self.config.required_tags)) if not tags.get(name)]
        if missing:
            raise RegistryError(f"a run of experiment {self.config.experiment!r} lacks required tags: {', '.join(missing)}")
        tags = {**tags, DATASET_ID: dataset_id}
        with self._speaking(f"log the model of night {tags.get(NIGHT, '?')}"):
            client = self._open()
            known = self._version_with(client, tags[FINGERPRINT])
            run_tags = {**tags, _NOTE: note}
            if known is not None:
                run_tags |= {REUSED_VERSION: str(known.version), _NOTE: f"{note} The same model as version {known.version}."}
            with self._run(client, run_tags) as run_id:
                _log_facts(params, metrics, plots)
                _log_dataset(dataset_id, dataset_digest, dataset_path)
                version = str(known.version) if known else self._register(bundle, tags, input_example, scoring_model)
                if known is None:
                    client.update_model_version(self.config.model, version, note)
        return RegisteredModel(version, run_id, tags[FINGERPRINT], reused=known is not None)

    def log_backtest(
        self,
        name: str,
        *,
        tags: Mapping[str, str],
        params: Mapping[str, Any],
        scores: Mapping[str, Mapping[str, float]],
        by_night: Mapping[str, Mapping[str, Mapping[str, float]]],
        plots: Mapping[str, Figure],
        report: str,
    ) -> str:
        """Log a backtest as one run, below it one run per predictor, and below each of these one per night.

        Args:
            name: what the run is called.
            tags: of the run; all runs below it have them too.
            params: any nesting of mappings.
            scores: figures of each predictor over all nights.
            by_night: figures by predictor and night (ISO date), nights ascending; the predictor's run has them as series too.
            plots: figures by name.
            report: the whole outcome as JSON.

        Returns the id of the run. Raises RegistryError; what was logged until then is marked failed.
        """
        with self._speaking("log a backtest"):
            client = self._open()
            experiment = self._backtest_experiment(client)
            # The page lists the newest first, a hundred at a time: the backtest, then the predictors, then all their nights.
            now = time.time_ns() // 1_000_000
            parent = _begin(client, experiment, name, tags, now)
            begun = [parent]
            try:
                client.log_batch(parent, params=_params(params))
                client.log_dict(parent, json.loads(report), "backtest.json")
                for plot, figure in plots.items():
                    client.log_figure(parent, figure, f"plots/{plot}.png")
                for place, (predictor, figures) in enumerate(scores.items()):
                    nights = by_night.get(predictor, {})
                    mine = {**tags, "predictor": predictor}
                    run = _begin(client, experiment, predictor, mine, now - 1 - place, parent)
                    begun.append(run)
                    _log_metrics(client, run, [(key, value, 0) for key, value in figures.items()])
                    series = [(key, value, step) for step, each in enumerate(nights.values()) for key, value in each.items()]
                    _log_metrics(client, run, [(f"by_night/{key}", value, step) for key, value, step in series])
                    before = now - _MILLISECONDS_FOR_PREDICTORS - place
                    for night, of_night in nights.items():
                        child = _begin(client, experiment, night, {**mine, NIGHT: night}, before, run)
                        begun.append(child)
                        _log_metrics(client, child, [(key, value, 0) for key, value in of_night.items()])
                        client.set_terminated(child)
                    client.set_terminated(run)
                client.set_terminated(parent)
            except BaseException:
                for run in begun:
                    if client.get_run(run).info.status == "RUNNING":
                        client.set_terminated(run, "FAILED")
                raise
            return parent

    def end_dead_runs(self) -> tuple[str, ...]:
        """Mark runs killed that are under way by MLflow's books, and give their ids.

        The caller holds the night lock: no run of another process can be alive.
        """
        with self._speaking("end the runs of nights that were killed"):
            client = self._open()
            experiment = client.get_experiment_by_name(self.config.experiment)
            if experiment is None:
                return ()
            dead = client.search_runs([experiment.experiment_id], "attributes.status = 'RUNNING'")
            for run in dead:
                client.set_terminated(run.info.run_id, "KILLED")
            return tuple(run.info.run_id for run in dead)

    def versions(self) -> tuple[str, ...]:
        """List the registered versions, oldest first."""
        with self._speaking("list versions"):
            return tuple(str(found.version) for found in self._search(self._open()))

    def set_alias(self, alias: str, version: str) -> None:
        """Let `alias` name `version`; RegistryError where there is no such version."""
        with self._speaking(f"let {alias!r} name version {version}"):
            self._open().set_registered_model_alias(self.config.model, alias, version)

    def version_of(self, alias: str) -> str | None:
        """Give the version that `alias` names; None where there is no such alias, or its version was deleted."""
        with self._speaking(f"look up alias {alias!r}"):
            client = self._open()
            models = client.search_registered_models(f"name = '{self.config.model}'")
            version = next((str(model.aliases[alias]) for model in models if alias in model.aliases), None)
            # MLflow may keep the alias of a version that was deleted.
            return version if version in {str(found.version) for found in self._search(client)} else None

    def load(self, alias_or_version: str) -> PyFuncModel:
        """Load a version for scoring: a frame with the columns of `input_columns()` in, throughput (samples/s) and tier out."""
        version = alias_or_version if alias_or_version.isdecimal() else self.version_of(alias_or_version)
        if version is None:
            raise RegistryError(f"{self.config.model}: no version has the alias {alias_or_version!r} in {self.tracking_uri}")
        with self._speaking(f"load version {version}"):
            self._open()
            model: PyFuncModel = _mlflow().pyfunc.load_model(f"models:/{self.config.model}/{version}")
            return model

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other processes from an empty SQLite database: of several that make it at once, MLflow lets all but one fail."""
        database = _sqlite_path(self.tracking_uri)
        if database is None:
            yield
            return
        database.parent.mkdir(parents=True, exist_ok=True)
        with exclusive(database.with_name(f"{database.name}.lock")):
            yield

    def _prepare_experiment(self, client: MlflowClient) -> None:
        """Make the experiment where it is missing; one whose artifacts lie elsewhere (the home was moved) is set aside.

        MLflow freezes the artifact folder into an experiment, so a moved home would go on writing into its old place.
        """
        name, location = self.config.experiment, self.artifact_root.as_uri()
        experiment = client.get_experiment_by_name(name)
        if experiment is not None and experiment.artifact_location.rstrip("/") != location:
            client.rename_experiment(experiment.experiment_id, f"{name} (of {experiment.artifact_location})")
            experiment = None
        if experiment is None:
            number = client.create_experiment(name, artifact_location=location)
        else:
            number = experiment.experiment_id
            if experiment.lifecycle_stage == "deleted":
                client.restore_experiment(number)
        self._furnish(client, number, self.config.experiment_note, self.config.shown_columns)
        _remove_default(client)

    def _backtest_experiment(self, client: MlflowClient) -> str:
        """Give the experiment that backtests are logged to, made where it is missing."""
        name, location = self.config.backtest_experiment, (self.artifact_root / "backtests").as_uri()
        found = client.get_experiment_by_name(name)
        if found is not None and found.artifact_location.rstrip("/") != location:
            client.rename_experiment(found.experiment_id, f"{name} (of {found.artifact_location})")
            found = None
        number = client.create_experiment(name, artifact_location=location) if found is None else str(found.experiment_id)
        if found is not None and found.lifecycle_stage == "deleted":
            client.restore_experiment(number)
        self._furnish(client, str(number), self.config.backtest_note, self.config.backtest_columns)
        return str(number)

    def _furnish(self, client: MlflowClient, experiment_id: str, note: str, shown_columns: Mapping[str, int]) -> None:
        """Say on the experiment's page what its runs are, and keep a view of them that shows their scores."""
        columns = dict(shown_columns)
        view = {"selectedColumns": list(columns), "columnOrder": list(columns), "columnWidths": columns}
        for name, value in (
            (_NOTE, note),
            ("mlflow.experimentKind", "custom_model_development"),
            (f"mlflow.sharedViewState.{RUNS_VIEW}", json.dumps(view)),
        ):
            client.set_experiment_tag(experiment_id, name, value)

    @contextmanager
    def _run(self, client: MlflowClient, tags: Mapping[str, str]) -> Iterator[str]:
        experiment = client.get_experiment_by_name(self.config.experiment)
        if experiment is None:
            raise RegistryError(f"no experiment {self.config.experiment!r} in {self.tracking_uri}; run `leap init`")
        with _mlflow().start_run(experiment_id=experiment.experiment_id, run_name=tags.get(NIGHT), tags=dict(tags)) as run:
            yield run.info.run_id

    def _register(self, bundle: Path, tags: Mapping[str, str], input_example: pd.DataFrame, scoring_model: Path) -> str:
        mlflow = _mlflow()
        logged = mlflow.pyfunc.log_model(
            name=self.config.model,
            python_model=str(scoring_model),
            artifacts={"bundle": str(bundle)},
            signature=_signature(),
            input_example=input_example,
            pip_requirements=[f"{name}=={installed_version(name)}" for name in _REQUIREMENTS],
            tags=dict(tags),
        )
        _check_scores(mlflow.pyfunc.load_model(logged.model_uri), input_example)
        registered = mlflow.register_model(logged.model_uri, self.config.model, tags=dict(tags))
        return str(registered.version)

    def _version_with(self, client: MlflowClient, fingerprint: str) -> ModelVersion | None:
        """Give the newest version with this fingerprint whose files are still there."""
        same = [found for found in self._search(client) if found.tags.get(FINGERPRINT) == fingerprint]
        kept = (found for found in reversed(same) if self._has_files(client, str(found.version)))
        return next(kept, None)

    def _search(self, client: MlflowClient) -> list[ModelVersion]:
        found = client.search_model_versions(f"name = '{self.config.model}'", max_results=10_000)
        return sorted(found, key=lambda version: int(version.version))  # MLflow's versions are text: "9" > "10"

    def _has_files(self, client: MlflowClient, version: str) -> bool:
        place = urlsplit(client.get_model_version_download_uri(self.config.model, version))
        return place.scheme != "file" or Path(url2pathname(place.path)).is_dir()

    def _open(self) -> MlflowClient:
        database = _sqlite_path(self.tracking_uri)
        if database is not None and not database.is_file():
            raise RegistryError(f"there is no MLflow database at {database}; run `leap init`")
        return self._connect()

    def _connect(self) -> MlflowClient:
        # Both are set for the whole process: parts of MLflow open a client of their own, which must not fall back to a default.
        mlflow = _mlflow()
        mlflow.set_tracking_uri(self.tracking_uri)
        mlflow.set_registry_uri(self.tracking_uri)
        client: MlflowClient = mlflow.MlflowClient(tracking_uri=self.tracking_uri, registry_uri=self.tracking_uri)
        return client

    @contextmanager
    def _speaking(self, attempt: str) -> Iterator[None]:
        """Turn what MLflow, its database or the file system raise into a sentence."""
        try:
            yield
        except (*_exceptions(), OSError) as error:
            raise RegistryError(
                f"could not {attempt} in {self.tracking_uri} (artifacts in {self.artifact_root}): {error}; "
                "is the database there, readable and of this MLflow version? `leap init` makes or migrates it"
            ) from error


def _begin(
    client: MlflowClient, experiment: str, name: str, tags: Mapping[str, str], began_ms: int, parent: str | None = None
) -> str:
    """Begin a run, below `parent` where one is given; returns its id."""
    nested = {} if parent is None else {"mlflow.parentRunId": parent}
    return str(client.create_run(experiment, began_ms, {**tags, **nested}, name).info.run_id)


def _log_metrics(client: MlflowClient, run: str, metrics: Sequence[tuple[str, float, int]]) -> None:
    """Log figures with their steps, as many at once as MLflow takes."""
    from mlflow.entities import Metric

    now = time.time_ns() // 1_000_000
    records = [Metric(key, value, now, step) for key, value, step in metrics]
    for start in range(0, len(records), _MAX_METRICS):
        client.log_batch(run, metrics=records[start : start + _MAX_METRICS])


def _params(params: Mapping[str, Any]) -> list[Any]:
    from mlflow.entities import Param

    return [Param(key, value) for key, value in _flatten(params).items()]


def _remove_default(client: MlflowClient) -> None:
    """Remove the empty experiment that MLflow makes of itself; its artifacts would lie in what was the current directory then."""
    default = client.get_experiment_by_name("Default")
    if (
        default is not None
        and default.lifecycle_stage == "active"
        and not client.search_runs([default.experiment_id], max_results=1)
    ):
        client.delete_experiment(default.experiment_id)


def input_columns() -> tuple[str, ...]:
    """Name the columns that a version scores: the submission's, and the candidate's hardware type, device count and pool."""
    return (*SUBMISSION_SCHEMA.names, "hardware_type", "num_devices", "pool")


def _checked_uri(uri: str) -> str:
    scheme = urlsplit(uri).scheme if uri else ""
    if not scheme:
        raise RegistryError(f"MLflow's tracking URI is {uri!r}: name it, e.g. sqlite:////srv/leap/mlflow/mlflow.db")
    database = _sqlite_path(uri)
    if database is not None and not database.is_absolute():
        raise RegistryError(f"MLflow's tracking URI {uri!r} lies relative to the current directory: give an absolute path")
    return uri


def _sqlite_path(uri: str) -> Path | None:
    """Give the file of a SQLite URI (`sqlite:///` and a path), None for another kind of database."""
    return Path(uri.partition(":///")[2]) if urlsplit(uri).scheme.startswith("sqlite") else None


def _mlflow() -> Any:
    for name, value in QUIET_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import mlflow

    logging.getLogger("mlflow").setLevel(logging.WARNING)
    return mlflow


def _exceptions() -> tuple[Any, Any]:
    _mlflow()
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    return MlflowException, SQLAlchemyError


def _log_facts(params: Mapping[str, Any], metrics: Mapping[str, float], plots: Mapping[str, Path | Figure]) -> None:
    mlflow = _mlflow()
    mlflow.log_params(_flatten(params))
    mlflow.log_metrics(dict(metrics))
    for name, plot in plots.items():
        if isinstance(plot, Path):
            mlflow.log_artifact(str(plot), "plots")
        else:
            mlflow.log_figure(plot, f"plots/{name}.png")


def _log_dataset(dataset_id: str, digest: str, path: Path) -> None:
    mlflow = _mlflow()
    source = mlflow.data.sources.LocalArtifactDatasetSource(str(path))
    dataset = mlflow.data.meta_dataset.MetaDataset(source, name=dataset_id, digest=digest[:_MAX_DIGEST_LENGTH])
    mlflow.log_input(dataset, context="training")


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value if isinstance(value, str) else json.dumps(value, default=str)
    return flat


def _signature() -> ModelSignature:
    """Give the signature: what must be named is text, the rest may be missing, null, whole or fractional.

    Those columns have MLflow's type `any`, because it refuses whole numbers, and columns of nulls, for `double`: scoring from
    JSON would depend on how its numbers happen to be written. `scoring_model.py` casts them.
    """
    from mlflow.models import ModelSignature
    from mlflow.types.schema import Schema

    inputs = [
        {"name": name, "type": "string" if name in REQUIRED_INPUTS else "any", "required": name in REQUIRED_INPUTS}
        for name in input_columns()
    ]
    outputs = [{"name": name, "type": "string" if name == "tier" else "double"} for name in ANSWER_COLUMNS]
    return ModelSignature(Schema.from_json(json.dumps(inputs)), Schema.from_json(json.dumps(outputs)))


def _check_scores(model: PyFuncModel, input_example: pd.DataFrame) -> None:
    answer: Any = model.predict(input_example)
    if tuple(answer.columns) != ANSWER_COLUMNS or len(answer) != len(input_example):
        raise RegistryError(
            f"the logged model gave columns {list(answer.columns)} in {len(answer)} rows for {len(input_example)} examples, "
            f"not {list(ANSWER_COLUMNS)} and one row each: it was not registered"
        )
