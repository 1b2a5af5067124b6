"""`leap version`."""

from importlib.metadata import version as installed

import typer

from pipelines.settings import PROJECT_ROOT, Settings

_TOOLS = ("dagster", "dbt-core", "dbt-duckdb", "duckdb", "great-expectations", "lightgbm", "mlflow")


def version() -> None:
    """Print the versions of LEAP and its tools, and which home it would use.

    Examples:

        leap version
    """
    settings = Settings.from_environment()
    facts = {"leap": installed("leap-fleet"), **{tool: installed(tool) for tool in _TOOLS}}
    facts |= {"checkout": str(PROJECT_ROOT), "home": str(settings.home), "params": str(settings.params)}
    width = max(map(len, facts))
    for name, value in facts.items():
        typer.echo(f"{name:<{width}}  {value}")
