"""`leap init`."""

import typer

from pipelines.settings import Settings


def init() -> None:
    """Make the home (LEAP_HOME, default ./var), or bring it up to date.

    Every other command does this first, so it is only needed to look at a home before anything has run, or before
    `dagster dev -m pipelines.definitions`. Safe to repeat, and to start twice at once.

    Examples:

        leap init

        LEAP_HOME=/srv/leap leap init
    """
    from pipelines.prepare import prepare_home

    settings = Settings.from_environment()
    settings.enter()
    typer.echo(f"ready: {prepare_home(settings).root}")
