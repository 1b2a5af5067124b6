"""Where LEAP runs: its home, its parameters, its sources, and the environment that its tools get.

What lives here: the only code that reads or sets environment variables. What does not: numbers that a person may argue about
(`params.yaml`, `leap/params.py`) and the layout inside the home (`leap/store/home.py`).
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

# The checkout that holds this package: `dbt_project/` and `params.yaml` stand beside the packages.
PROJECT_ROOT = Path(__file__).resolve().parent.parent

# Usage reporting of each tool that LEAP is made of, off unless a person has set the variable otherwise.
_NO_USAGE_REPORTING = {
    "DAGSTER_DISABLE_TELEMETRY": "yes",
    "DBT_SEND_ANONYMOUS_USAGE_STATS": "false",
    "DO_NOT_TRACK": "true",  # the one spelling that dbt, MLflow and others all take for yes
    "GX_ANALYTICS_ENABLED": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


class SettingsError(ValueError):
    """A setting cannot be used; the message names the variable or option and what it should look like."""


class Source(NamedTuple):
    """A place that a night reads attempts from: the kind of log, and a file or folder."""

    kind: str
    path: Path

    @classmethod
    def parse(cls, text: str) -> "Source":
        """Read `KIND=PATH`, or `table:MAPPING=PATH`. Raises SettingsError."""
        kind, equals, path = text.partition("=")
        if not (kind.strip() and equals and path.strip()):
            raise SettingsError(f"source {text!r}: must be KIND=PATH, as in mlperf=/data/training_results_v4.0")
        name, colon, file = kind.strip().partition(":")
        named = f"{name}:{Path(file).expanduser().resolve()}" if colon else name
        return cls(named, Path(path.strip()).expanduser().resolve())

    def __str__(self) -> str:
        return f"{self.kind}={self.path}"


@dataclass(frozen=True)
class Settings:
    """What a process of LEAP knows of its surroundings. All paths are absolute."""

    home: Path
    params: Path
    sources: tuple[Source, ...] = ()
    root: Path = PROJECT_ROOT

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> "Settings":
        """Read LEAP_HOME (default ./var), LEAP_PARAMS (default params.yaml of the checkout) and LEAP_SOURCES
        (`KIND=PATH;KIND=PATH`). Raises SettingsError."""
        values = os.environ if environ is None else environ
        sources = (Source.parse(part) for part in values.get("LEAP_SOURCES", "").split(";") if part.strip())
        return cls(
            home=_absolute(values.get("LEAP_HOME") or "var"),
            params=_absolute(values.get("LEAP_PARAMS") or PROJECT_ROOT / "params.yaml"),
            sources=tuple(sources),
        )

    @property
    def dbt_project(self) -> Path:
        """The folder of the dbt project."""
        return self.root / "dbt_project"

    @property
    def dbt_executable(self) -> Path:
        """The `dbt` of the interpreter that runs LEAP, whether or not its environment is activated."""
        return _scripts() / "dbt"

    @property
    def dagster_home(self) -> Path:
        """DAGSTER_HOME: Dagster's runs, events and schedules."""
        return self.home / "dagster"

    @property
    def manifest(self) -> Path:
        """The dbt manifest that `leap init` makes and the asset graph is built from."""
        return self.home / "dbt" / "target" / "manifest.json"

    def environment(self, environ: Mapping[str, str] | None = None) -> dict[str, str]:
        """Give the variables that LEAP's tools need, on top of those already set."""
        values = os.environ if environ is None else environ
        ours = {
            "LEAP_HOME": str(self.home),
            "LEAP_PARAMS": str(self.params),
            "LEAP_SOURCES": ";".join(map(str, self.sources)),
            "DAGSTER_HOME": str(self.dagster_home),
            "LEAP_WAREHOUSE": str(self.home / "warehouse.duckdb"),  # read by dbt_project/profiles.yml
            "DBT_PROJECT_DIR": str(self.dbt_project),
            "DBT_PROFILES_DIR": str(self.dbt_project),
            "DBT_TARGET_PATH": str(self.manifest.parent),
            "DBT_LOG_PATH": str(self.home / "dbt" / "logs"),
            # dagster and dagster-dbt start `dagster`, `dbt` and `tail` by name
            "PATH": _path_with(_scripts(), values.get("PATH", os.defpath)),
        }
        # Two threads of LightGBM's OpenMP wait for each other in a busy loop otherwise; read once, when lightgbm is imported.
        preferred = {"OMP_WAIT_POLICY": "passive", **_NO_USAGE_REPORTING}
        return ours | {name: values.get(name, value) for name, value in preferred.items()}

    def subprocess_environment(self) -> dict[str, str]:
        """Give the whole environment for a process that LEAP starts."""
        return {**os.environ, **self.environment()}

    def enter(self) -> None:
        """Set these variables in this process. Must come before lightgbm, dagster, mlflow or great_expectations is imported."""
        os.environ.update(self.environment())


def is_debug(environ: Mapping[str, str] | None = None) -> bool:
    """Tell whether LEAP_DEBUG asks for tracebacks of errors that are otherwise one line."""
    values = os.environ if environ is None else environ
    return values.get("LEAP_DEBUG", "") not in ("", "0")


def _absolute(path: str | Path) -> Path:
    return Path(path).expanduser().resolve()


def _scripts() -> Path:
    return Path(sys.executable).parent


def _path_with(folder: Path, path: str) -> str:
    others = [part for part in path.split(os.pathsep) if part and part != str(folder)]
    return os.pathsep.join([str(folder), *others])
