"""The `leap` command.

What lives here: which subcommands there are, and how an error reaches a person. What does not: what a subcommand does
(`pipelines/commands/`). Nothing heavy is imported here, so that `leap --help` answers at once.
"""

import sys

import typer

from pipelines.commands.backtest import backtest
from pipelines.commands.dataset import dataset
from pipelines.commands.demo import demo
from pipelines.commands.explain_miss import explain_miss
from pipelines.commands.hardware import hardware
from pipelines.commands.ingest import ingest
from pipelines.commands.init import init
from pipelines.commands.leaks import leaks
from pipelines.commands.nightly import nightly
from pipelines.commands.prices import prices
from pipelines.commands.quarantine import quarantine
from pipelines.commands.rank import rank
from pipelines.commands.schema import schema
from pipelines.commands.simulate import simulate
from pipelines.commands.ui import ui
from pipelines.commands.version import version
from pipelines.settings import is_debug

# Errors of LEAP's own that have an exit code of their own; `leap nightly --help` says what the codes mean.
_EXIT_CODES = {
    "leap.params.ParamsError": 2,
    "pipelines.settings.SettingsError": 2,
    "leap.store.home.NightIsRunning": 4,
}
_OURS = ("leap.", "assets.", "pipelines.")

app = typer.Typer(
    name="leap",
    help="Learns each night how fast training jobs run on each kind of hardware, and ranks hardware by throughput per dollar.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(demo)
app.command()(init)
app.add_typer(ingest, name="ingest")
app.add_typer(quarantine, name="quarantine")
app.add_typer(prices, name="prices")
app.add_typer(hardware, name="hardware")
app.command()(nightly)
app.command()(rank)
app.command()(schema)
app.command()(backtest)
app.command()(explain_miss)
app.command()(dataset)
app.command()(leaks)
app.command()(simulate)
app.command()(ui)
app.command()(version)


def main() -> None:
    """Run the command line. An error that LEAP raises is a sentence, shown without its traceback unless LEAP_DEBUG is set."""
    try:
        app()
    except Exception as error:
        kind = f"{type(error).__module__}.{type(error).__qualname__}"
        if is_debug() or not kind.startswith(_OURS):
            raise
        typer.echo(f"leap: {error}", err=True)
        sys.exit(_EXIT_CODES.get(kind, 1))
