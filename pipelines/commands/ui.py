"""`leap ui`."""

from typing import Annotated

import typer

from pipelines.settings import Settings


def ui(
    port_dagster: Annotated[int, typer.Option(min=1, max=65535, help="Port of the Dagster UI.")] = 3000,
    port_mlflow: Annotated[int, typer.Option(min=1, max=65535, help="Port of the MLflow UI.")] = 5000,
) -> None:
    """Start the Dagster and the MLflow UI on this machine's loopback address, until interrupted.

    Dagster's daemon runs with them: schedules, sensors and runs started in the UI work while this does.

    Examples:

        leap ui

        leap ui --port-dagster 3001 --port-mlflow 5001
    """
    settings = Settings.from_environment()
    settings.enter()
    from pipelines.ui import serve

    serve(settings, port_dagster=port_dagster, port_mlflow=port_mlflow)
