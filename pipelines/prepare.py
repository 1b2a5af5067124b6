"""Making a home ready: dbt's manifest, MLflow's database, Dagster's database.

What lives here: what `leap init` does beyond folders. What does not: the lock and the stamp that make it safe to start twice
(`leap/store/home.py`).
"""

import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from hashlib import sha256
from importlib.metadata import version
from io import StringIO
from pathlib import Path

from leap.store.home import Home, init_home
from pipelines.settings import Settings

# Each writes a schema or a manifest of its own version into the home.
_TOOLS = ("leap-fleet", "dagster", "dbt-core", "dbt-duckdb", "mlflow")
_SHOWN_LINES = 20


class PrepareError(RuntimeError):
    """A tool could not be made ready; the message holds what it said."""


def prepare_home(settings: Settings) -> Home:
    """Make the home that `settings` names, or bring it up to date; milliseconds where nothing has changed.

    Says so on the error stream where there is something to wait for. Raises HomeError, PrepareError, RegistryError.
    """
    home = Home(settings.home)

    steps: list[Callable[[Home], None]] = [
        _tell,
        partial(parse_dbt, settings),
        _prepare_dagster,
        partial(_prepare_mlflow, settings),
    ]
    if home.stamp.is_file() and not (settings.manifest.is_file() and home.mlflow_database.is_file()):
        home.stamp.unlink(missing_ok=True)  # somebody removed what was made: make it anew
    init_home(home, prepare=steps, fingerprint=_fingerprint(settings))
    return home


def _tell(home: Home) -> None:
    sys.stderr.write(f"making {home.root} ready: dbt, Dagster, MLflow\n")


def _fingerprint(settings: Settings) -> str:
    """Name what the prepared parts were made from: dbt project, registry settings, versions, and where all of it lies."""
    digest = sha256()
    for path in _made_from(settings):
        digest.update(f"{path}\n".encode())
        digest.update(sha256(path.read_bytes()).digest())
    # the manifest and MLflow's experiment keep absolute paths
    for fact in (settings.root, settings.home, *(f"{tool} {version(tool)}" for tool in _TOOLS)):
        digest.update(f"{fact}\n".encode())
    return digest.hexdigest()


def _made_from(settings: Settings) -> list[Path]:
    if not (settings.dbt_project / "dbt_project.yml").is_file():
        raise PrepareError(f"{settings.dbt_project}: no dbt project there; run LEAP from a checkout of its repository")
    made = {settings.dbt_project / name for name in ("target", "logs")}  # by somebody who runs dbt by hand
    files = (path for path in settings.dbt_project.rglob("*") if path.is_file() and made.isdisjoint(path.parents))
    return [*sorted(files), settings.root / "mlflow" / "registry.yaml"]


def parse_dbt(settings: Settings, home: Home) -> None:
    """Make the manifest that the asset graph is built from. Raises PrepareError with what dbt said."""
    target = home.work / "parse"
    done = subprocess.run(
        [settings.dbt_executable, "--quiet", "parse", "--target-path", target],
        cwd=settings.dbt_project,
        env=settings.subprocess_environment(),
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-_SHOWN_LINES:])
        raise PrepareError(f"dbt cannot parse {settings.dbt_project}:\n{said}")
    # by renaming: a process that loads the asset graph meanwhile sees the old manifest or the new one
    (target / "manifest.json").replace(settings.manifest)


def _prepare_dagster(home: Home) -> None:
    import dagster as dg

    said = StringIO()  # Dagster prints what it migrates
    with dg.DagsterInstance.from_config(str(home.dagster)) as instance, redirect_stdout(said), redirect_stderr(said):
        instance.upgrade()


def _prepare_mlflow(settings: Settings, home: Home) -> None:
    from assets.resources import open_registry

    open_registry(home, settings.root / "mlflow" / "registry.yaml").prepare()
