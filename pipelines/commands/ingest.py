"""`leap ingest KIND PATH...`."""

import json as json_format
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from pipelines.commands.tables import wide_console
from pipelines.settings import Settings, SettingsError

if TYPE_CHECKING:
    from leap.sources import Progress
    from leap.store.ingest import OffGroup, Reason, Relabelled
    from leap.store.warehouse import SliceCount

Paths = Annotated[list[Path], typer.Argument(metavar="PATH...", help="Files or folders.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print the counts as one JSON object.")]

ingest = typer.Typer(no_args_is_help=True, help="Read job logs into the raw tables; what is not trusted goes to quarantine.")


@ingest.command()
def mlperf(paths: Paths, json: AsJson = False) -> None:
    """Read MLPerf Training results: a checkout of a results repository, its .tar.xz or .tar.gz, or a folder of them.

    Prints what was read, kept, quarantined and found twice by round and benchmark: read = kept + quarantined + duplicates.

    Examples:

        leap ingest mlperf training_results_v4.0

        leap ingest mlperf training_results_v4.0.tar.xz training_results_v4.1.tar.xz
    """
    _ingest("mlperf", paths, json)


@ingest.command()
def jsonl(paths: Paths, json: AsJson = False) -> None:
    """Read the canonical attempt log: JSON lines, plain, gzip or zstd, one record per attempt and constant segment.

    Prints what was read, kept, quarantined and found twice by file: read = kept + quarantined + duplicates.

    Examples:

        leap ingest jsonl /var/log/fleet/attempts-2026-03-01.jsonl.gz

        leap ingest jsonl /var/log/fleet
    """
    _ingest("jsonl", paths, json)


@ingest.command()
def csv(paths: Paths, json: AsJson = False) -> None:
    """Read the canonical attempt log as CSV: a header of field names, plain, gzip or zstd; empty is unknown.

    Prints what was read, kept, quarantined and found twice by file: read = kept + quarantined + duplicates.
    For columns of other names see `leap ingest table`.

    Examples:

        leap ingest csv /var/log/fleet/attempts-2026-03-01.csv.gz
    """
    _ingest("csv", paths, json)


@ingest.command()
def parquet(paths: Paths, json: AsJson = False) -> None:
    """Read the canonical attempt log as Parquet: columns named as its fields (`leap schema`).

    Prints what was read, kept, quarantined and found twice by file: read = kept + quarantined + duplicates.
    For columns of other names see `leap ingest table`.

    Examples:

        leap ingest parquet /var/log/fleet
    """
    _ingest("parquet", paths, json)


@ingest.command()
def table(
    paths: Annotated[list[Path] | None, typer.Argument(metavar="PATH...", help="Files or folders.", show_default=False)] = None,
    mapping: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, metavar="FILE", help="The mapping: which columns feed which fields.", show_default=False
        ),
    ] = None,
    guess: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            metavar="FILE",
            help="Print a mapping for this file, to look over and keep.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what the mapping makes of the files; nothing is loaded.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Read any table (CSV, TSV, JSON lines, Parquet) by a mapping file: attempts of jobs, or published measurements.

    docs/bring-your-own-logs.md shows how in five minutes; examples/mappings has one for each of 16 public sources.

    Examples:

        leap ingest table --guess export.csv > mapping.yaml

        leap ingest table --mapping mapping.yaml --dry-run export.csv

        leap ingest table --mapping mapping.yaml export.csv

        leap nightly --source table:mapping.yaml=/var/log/fleet
    """
    if guess is not None:
        from leap.sources.mapping_guess import propose

        typer.echo(propose(guess), nl=False)
        return
    if mapping is None or not paths:
        raise SettingsError("give --mapping FILE and the files to read, or --guess FILE; see `leap ingest table --help`")
    if dry_run:
        typer.echo(_dry_run(mapping, paths, json))
        return
    _ingest(f"table:{mapping.resolve()}", paths, json)


@ingest.command()
def other(
    kind: Annotated[str, typer.Argument(help="A kind of log that an installed package reads.", show_default=False)],
    paths: Paths,
    json: AsJson = False,
) -> None:
    """Read a kind of log that another package offers by the entry point `leap.readers`.

    Examples:

        leap ingest other slurm /var/log/slurm/jobs.txt
    """
    _ingest(kind, paths, json)


def _dry_run(mapping: Path, paths: Sequence[Path], json: bool) -> str:
    from leap.params import load_params
    from leap.store.preview import preview

    settings = Settings.from_environment()
    seen = preview(mapping, paths, settings.dbt_project / "seeds", load_params(settings.params).ingest, datetime.now(UTC))
    if json:
        return json_format.dumps(seen.to_json(), indent=2, ensure_ascii=False, default=str)
    from rich.markup import escape
    from rich.table import Table

    figures = Table(title=f"read {seen.records} = would keep {seen.kept} + quarantine {seen.records - seen.kept}")
    figures.add_column("field")
    for number in range(len(seen.rows)):
        figures.add_column(f"row {number + 1}", overflow="fold")
    for name in seen.rows[0] if seen.rows else ():
        values = [row[name] for row in seen.rows]
        if any(value is not None for value in values):
            figures.add_row(name, *("" if value is None else escape(str(value)) for value in values))
    console = wide_console()
    with console.capture() as capture:
        console.print(figures)
        for reason, (count, first) in seen.reasons.items():
            console.print(escape(f"{reason} {count}, the first: {' '.join(first.split())}"))
    return capture.get().rstrip("\n")


def _ingest(kind: str, paths: Sequence[Path], json: bool) -> None:
    settings = Settings.from_environment()
    settings.enter()
    from leap.params import load_params
    from leap.store.home import night_lock
    from leap.store.ingest import ingest as load_logs
    from leap.store.ingest import off_group, reasons_of, relabelled
    from leap.store.warehouse import connect
    from pipelines.prepare import prepare_home

    params = load_params(settings.params)
    home = prepare_home(settings)
    received_at = datetime.now(UTC)
    load_id = f"{received_at.isoformat()}:{kind}"
    with night_lock(home, owner=f"leap ingest {kind}"), connect(home.warehouse) as connection, _progress() as progress:
        counts = load_logs(
            connection,
            kind,
            paths,
            seeds=settings.dbt_project / "seeds",
            params=params.ingest,
            received_at=received_at,
            load_id=load_id,
            progress=progress,
        )
        found = _Found(
            counts, reasons_of(connection, [load_id]), relabelled(connection, [load_id]), off_group(connection, [load_id])
        )
    typer.echo(_as_json(found) if json else _as_text(found))


class _Found(NamedTuple):
    """What a load found."""

    counts: "Sequence[SliceCount]"
    reasons: "Sequence[Reason]"
    relabelled: "Sequence[Relabelled]"
    strangers: "Sequence[OffGroup]"


def _as_json(found: _Found) -> str:
    from dataclasses import asdict

    outcome = {
        "total": {name: sum(getattr(count, name) for count in found.counts) for name in _FIGURES},
        "slices": [asdict(count) for count in found.counts],
        "quarantine": [reason._asdict() for reason in found.reasons],
        "relabelled": [each._asdict() for each in found.relabelled],
        "far_from_group": [each._asdict() for each in found.strangers],
    }
    return json_format.dumps(outcome, indent=2)


_FIGURES = ("records_read", "kept", "quarantined", "duplicates")


def _as_text(found: _Found) -> str:
    from rich.table import Table

    from leap.store.ingest import off_group_text, reasons_text, relabelled_text

    table = Table(title="records by slice: read = kept + quarantined + duplicates", show_footer=True)
    table.add_column("slice", footer="all")
    for name in _FIGURES:
        footer = str(sum(getattr(count, name) for count in found.counts))
        table.add_column(name.removeprefix("records_"), justify="right", footer=footer)
    for count in found.counts:
        table.add_row(count.slice, *(str(getattr(count, name)) for name in _FIGURES))
    console = wide_console()
    with console.capture() as capture:
        console.print(table)
    more = (reasons_text(found.reasons), relabelled_text(found.relabelled), off_group_text(found.strangers))
    return "\n".join([capture.get().rstrip("\n"), *filter(None, more)])


@contextmanager
def _progress() -> "Iterator[Progress]":
    """Show how far reading is, on the error stream."""
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield lambda _what, _done, _total: None
        return
    with console.status("reading") as status:
        yield lambda what, done, total: status.update(escape(f"{what}: {done}" + (f" of {total}" if total else "")))
