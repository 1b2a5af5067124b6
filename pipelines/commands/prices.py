"""`leap prices`, `leap prices load` and `leap prices approve`."""

import json as json_format
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.commands.tables import wide_console
from pipelines.settings import Settings

if TYPE_CHECKING:
    from leap.store.prices import Held, Price

_AsJson = Annotated[bool, typer.Option("--json", help="Print it as one JSON object.")]

prices = typer.Typer(
    invoke_without_command=True, help="Show what hardware costs, load price lists, and approve prices that were held."
)


@prices.callback()
def show(
    context: typer.Context,
    on: Annotated[
        datetime | None, typer.Option(formats=["%Y-%m-%d"], metavar="DATE", help="Prices of a day. Default: today.")
    ] = None,
    json: _AsJson = False,
) -> None:
    """Show what hardware costs, load price lists, and approve prices that were held.

    Prices come from dbt_project/seeds/prices.csv at the start of each night, and from files that are loaded by hand. A row with a
    new valid_from is a new price; another figure for the same day is a further version, which past nights do not see. A price
    that is more than `prices.max_jump` times the one in force, or less than that part of it, waits for a person.

    Examples:

        leap prices

        leap prices load our-contract.csv

        leap prices approve H100-80GB-SXM5 --price 12.5 --by ada --because "new contract"
    """
    if context.invoked_subcommand is not None:
        return
    settings = Settings.from_environment()
    settings.enter()
    from leap.store.home import night_lock
    from leap.store.prices import held_back, in_force
    from leap.store.warehouse import connect, create_raw_tables
    from pipelines.prepare import prepare_home

    home = prepare_home(settings)
    with night_lock(home, owner="leap prices"), connect(home.warehouse) as connection:
        create_raw_tables(connection)
        found, waiting = in_force(connection, on.date() if on else datetime.now(UTC).date()), held_back(connection)
    if json:
        typer.echo(
            json_format.dumps({"prices": [one.to_json() for one in found], "held": [one.to_json() for one in waiting]}, indent=2)
        )
    else:
        typer.echo(_as_text(found, waiting))


@prices.command()
def load(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", exists=True, dir_okay=False, help="Price lists as CSV.", show_default=False)
    ],
    json: _AsJson = False,
) -> None:
    """Load price lists: hardware_type, price_list, valid_from, usd_per_device_hour (or price_per_device_hour and currency).

    May have pool, valid_to, source, is_assumption and note. A row that will not do goes to quarantine and stops no other.

    Examples:

        leap prices load our-contract.csv
    """
    settings = Settings.from_environment()
    settings.enter()
    from leap.params import load_params
    from leap.store.control import Control
    from leap.store.home import night_lock
    from leap.store.ingest import counts_text, reasons_of, reasons_text
    from leap.store.prices import load_prices
    from leap.store.warehouse import connect
    from pipelines.prepare import prepare_home

    params = load_params(settings.params)
    home = prepare_home(settings)
    now = datetime.now(UTC)
    load_id = f"{now.isoformat()}:prices"
    with night_lock(home, owner="leap prices load"), connect(home.warehouse) as connection:
        counts = load_prices(
            connection,
            files,
            seeds=settings.dbt_project / "seeds",
            max_jump=params.prices.max_jump,
            approved=Control(home.control).price_approvals(),
            received_at=now,
            load_id=load_id,
        )
        reasons = reasons_of(connection, [load_id])
    if json:
        outcome = {"slices": [vars(count) for count in counts], "quarantine": [reason._asdict() for reason in reasons]}
        typer.echo(json_format.dumps(outcome, indent=2))
    else:
        typer.echo("\n".join(filter(None, [counts_text(counts), reasons_text(reasons)])))


@prices.command()
def approve(
    hardware_type: Annotated[str, typer.Argument(help="The hardware type.", show_default=False)],
    price: Annotated[float, typer.Option(help="US dollars for one device and hour.", show_default=False)],
    by: Annotated[str, typer.Option(metavar="NAME", help="Who approves it.", show_default=False)],
    because: Annotated[str, typer.Option(metavar="WHY", help="Why it is right.", show_default=False)],
    pool: Annotated[str, typer.Option(help="The pool that it holds in.")] = "default",
    price_list: Annotated[str, typer.Option("--list", help="The list that it is on.")] = "list",
) -> None:
    """Approve a price that was held back as a jump; it is in force once its list is read again, by the next night or by hand.

    Recorded with name, reason and time; works while a night runs.

    Examples:

        leap prices approve H100-80GB-SXM5 --price 12.5 --by ada --because "new contract"
    """
    settings = Settings.from_environment()
    settings.enter()
    from leap.store.control import Control, PriceApproval
    from pipelines.prepare import prepare_home

    home = prepare_home(settings)
    Control(home.control).approve_price(
        PriceApproval(hardware_type, pool, price_list, price, datetime.now(UTC), by.strip(), because.strip())
    )
    typer.echo(f"approved: {hardware_type}, pool {pool}, list {price_list}, {price:g} US dollars per device-hour")


def _as_text(found: "list[Price]", waiting: "list[Held]") -> str:
    from rich.table import Table

    if not found:
        return "No price is known yet; a night loads dbt_project/seeds/prices.csv, `leap prices load FILE` any other list."
    table = Table(title="In force, US dollars for one device and hour")
    for name in ("hardware", "pool", "list", "price", "since", "until", "version", "from"):
        table.add_column(name, justify="right" if name in ("price", "version") else "left", overflow="fold")
    for one in found:
        since = one.valid_from.isoformat()
        until = "" if one.valid_to is None else one.valid_to.isoformat()
        origin = "assumption" if one.is_assumption else one.published_by or ""
        table.add_row(
            one.hardware_type, one.pool, one.price_list, f"{one.usd_per_device_hour:g}", since, until, str(one.version), origin
        )
    console = wide_console()
    with console.capture() as capture:
        console.print(table)
        for held in waiting:
            console.print(f"held back: {held.detail}")
    return capture.get().rstrip("\n")
