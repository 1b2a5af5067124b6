"""`leap quarantine` and `leap quarantine retry`."""

import json as json_format
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.commands.tables import wide_console
from pipelines.settings import Settings

if TYPE_CHECKING:
    from leap.store.quarantine import Reason

_EXAMPLES = 3
_RecordReason = Annotated[str | None, typer.Option("--reason", metavar="CODE", help="Only records with this reason.")]
_Source = Annotated[str | None, typer.Option("--source", metavar="KIND", help="Only records of this kind of log.")]

quarantine = typer.Typer(
    invoke_without_command=True, help="List the records that are not trusted, and let back in what a mended seed or rule admits."
)


@quarantine.callback()
def show(
    context: typer.Context,
    reason: _RecordReason = None,
    source: _Source = None,
    examples: Annotated[int, typer.Option(min=0, help="How many records to show of each reason.")] = _EXAMPLES,
    dataset: Annotated[
        str | None, typer.Option(metavar="ID", help="The dataset of a night. Default: the newest.", show_default=False)
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the list as one JSON object, records included.")] = False,
) -> None:
    """List the records that are not trusted, and let back in what a mended seed or rule admits.

    Read from the dataset of a night, so that it works while another night runs; what was ingested since is in the next one.

    Examples:

        leap quarantine

        leap quarantine --reason unknown-hardware --examples 20

        leap quarantine retry --reason unknown-hardware
    """
    if context.invoked_subcommand is not None:
        return
    settings = Settings.from_environment()
    settings.enter()
    from leap.store.datasets import open_dataset
    from leap.store.quarantine import list_reasons

    opened = open_dataset(settings.home / "datasets", dataset)
    found = list_reasons(opened, examples, reason, source)
    if json:
        outcome = {"dataset_id": opened.id, "reasons": [one.to_json() for one in found]}
        typer.echo(json_format.dumps(outcome, indent=2, ensure_ascii=False))
    else:
        typer.echo(_as_text(found, opened.id))


@quarantine.command()
def retry(
    reason: _RecordReason = None,
    source: _Source = None,
    json: Annotated[bool, typer.Option("--json", help="Print the counts as one JSON object.")] = False,
) -> None:
    """Try the records in quarantine again, by the hardware types, spellings and rules of today.

    For a record that was read and not admitted: its hardware was unknown, say, and now `dbt_project/seeds/hardware_aliases.csv`
    knows the spelling. It becomes an attempt of its own file and line. Where a file could not be read (wrong mapping, cut short),
    mend that and ingest the file again: what is there already counts as duplicate.

    Waits for nobody: exit code 4 where a night is running.

    Examples:

        leap quarantine retry

        leap quarantine retry --reason unknown-hardware --json
    """
    settings = Settings.from_environment()
    settings.enter()
    from leap.params import load_params
    from leap.store.home import night_lock
    from leap.store.ingest import counts_text
    from leap.store.quarantine import retry as try_again
    from leap.store.warehouse import connect, create_raw_tables
    from pipelines.prepare import prepare_home

    params = load_params(settings.params)
    home = prepare_home(settings)
    now = datetime.now(UTC)
    with night_lock(home, owner="leap quarantine retry"), connect(home.warehouse) as connection:
        create_raw_tables(connection)
        done = try_again(
            connection,
            seeds=settings.dbt_project / "seeds",
            params=params.ingest,
            received_at=now,
            load_id=f"{now.isoformat()}:retry",
            reason=reason,
            source=source,
        )
    if json:
        figures = ("tried", "admitted", "duplicates", "refused")
        typer.echo(json_format.dumps({name: getattr(done, name) for name in figures}, indent=2))
        return
    lines = [
        f"tried {done.tried} records: {done.admitted} are attempts now, {done.duplicates} were there already, {done.refused} stay"
    ]
    lines += [counts_text(done.counts)] if done.counts else []
    lines += ["The next night learns from them: `leap nightly`."] if done.admitted else []
    typer.echo("\n".join(lines))


def _as_text(found: "list[Reason]", dataset_id: str) -> str:
    from rich.markup import escape
    from rich.table import Table

    if not found:
        return f"Nothing of it is in quarantine (dataset {dataset_id})."
    total = sum(one.records for one in found)
    table = Table(
        title=f"In quarantine: {total} records, {sum(one.open for one in found)} of them open",
        caption=f"dataset {dataset_id}; open: no other record of the attempt was kept since",
    )
    for name in ("reason", "source", "records", "open", "files", "arrived"):
        table.add_column(name, justify="right" if name in ("records", "open", "files") else "left")
    for one in found:
        first, last = (f"{at:%Y-%m-%d}" for at in (one.first_received_at, one.last_received_at))
        arrived = first if first == last else f"{first} to {last}"
        table.add_row(one.reason, escape(one.source), str(one.records), str(one.open), str(one.files), arrived)
    console = wide_console()
    with console.capture() as capture:
        console.print(table)
        for one in found:
            for example in one.examples:
                console.print(escape(f"{one.reason}: {' '.join(example.detail.split())}"))
    return capture.get().rstrip("\n")
