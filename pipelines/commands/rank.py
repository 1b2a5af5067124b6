"""`leap rank`."""

import json as json_format
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.commands.tables import wide_console
from pipelines.settings import Settings, SettingsError

if TYPE_CHECKING:
    import pyarrow as pa

    from leap.contracts import JobSubmission
    from leap.serving.reader import Answer, SnapshotReader

_SHOWN_ROWS = 40


def rank(
    job: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="The site's name of the job; or MODEL_TYPE@DEVICES, MODEL_TYPE or * for what such jobs have in common.",
            show_default=False,
        ),
    ] = None,
    submission: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            metavar="FILE",
            help="A job submission as JSON: model_type and num_devices, and whatever else is known of it.",
            show_default=False,
        ),
    ] = None,
    published: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="The published snapshots. Default: LEAP_HOME/published.", show_default=False),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the answer as one JSON object.")] = False,
) -> None:
    """Rank hardware types for a job by predicted throughput per dollar, from the published snapshot alone.

    A key that the snapshot does not know falls back from MODEL_TYPE@DEVICES to MODEL_TYPE, then to *. A submission whose job is
    not ranked yet is scored by the snapshot's own model.

    Exit codes: 0 an answer. 1 no answer: no snapshot, an expired one, nothing known, or no hardware that the job may run on.
    2 wrong usage.

    Examples:

        leap rank --job bert@8

        leap rank --submission job.json --json
    """
    if (job is None) == (submission is None):
        raise SettingsError("give either --job KEY or --submission FILE")
    from leap.serving.reader import SnapshotReader

    reader = SnapshotReader(published or Settings.from_environment().home / "published")
    now = datetime.now(UTC)
    answer = _by_key(reader, job, now) if job is not None else _by_submission(reader, submission, now)
    typer.echo(_as_json(answer) if json else _as_text(answer))
    if not _is_ranked(answer.rows):
        raise typer.Exit(1)


def _is_ranked(rows: "pa.Table") -> bool:
    return any(rows["rank"].is_valid().to_pylist())


def _by_key(reader: "SnapshotReader", key: str, now: datetime) -> "Answer":
    from dataclasses import replace

    answer = reader.rank_first(list(dict.fromkeys([key, key.rpartition("@")[0] or key, "*"])), now)
    if answer.key_used in (None, key):
        return answer
    fallback = f"{key!r} is not ranked; these are the rows of {answer.key_used!r}"
    return replace(answer, warning="; ".join(filter(None, [fallback, answer.warning])))


def _by_submission(reader: "SnapshotReader", path: Path | None, now: datetime) -> "Answer":
    from leap.serving.scorer import Scorer, SubmissionError
    from leap.serving.snapshot import Freshness

    assert path is not None
    submission = _read(path)
    answer = reader.rank_first(["*"], now)
    if answer.freshness is Freshness.EXPIRED:
        return answer
    try:
        rows = Scorer.load(reader.bundle()).rank(submission)
    except SubmissionError as error:
        raise SettingsError(f"{path}: {error}") from None
    return _answer_of(submission, rows, all_jobs=answer)


def _answer_of(submission: "JobSubmission", rows: "pa.Table", all_jobs: "Answer") -> "Answer":
    """Give the rows scored for a submission; or where nothing is known of it, of `all_jobs` those that it may run on."""
    from dataclasses import replace

    import pyarrow as pa
    import pyarrow.compute as pc

    from leap.contracts import Tier

    answer = replace(all_jobs, rows=rows, key_used="submission")
    if _is_ranked(rows):
        return answer
    if set(rows["tier"].to_pylist()) - {Tier.NONE.value}:
        offered = ", ".join(sorted(set(rows["hardware_type"].to_pylist())))
        reason = f"no hardware that this job may run on is offered at a price; offered: {offered}"
        return replace(answer, warning="; ".join(filter(None, [reason, all_jobs.warning])))
    # what all jobs have in common is still an answer, and says that it is one
    common = all_jobs.rows
    if submission.eligible_hardware is not None:
        allowed = pa.array(submission.eligible_hardware, pa.string())
        common = common.filter(pc.is_in(common["hardware_type"], value_set=allowed))
    reason = f"neither {submission.model_type!r} nor its history is known: all jobs together"
    return replace(all_jobs, rows=common, warning="; ".join(filter(None, [reason, all_jobs.warning])))


def _read(path: Path) -> "JobSubmission":
    from pydantic import ValidationError

    from leap.contracts import JobSubmission

    try:
        return JobSubmission.model_validate_json(path.read_bytes().removeprefix(b"\xef\xbb\xbf"))
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, part['loc'])) or 'the file'}: {part['msg']}" for part in error.errors())
        raise SettingsError(f"{path}: not a job submission: {problems}") from None


def _as_json(answer: "Answer") -> str:
    manifest = answer.manifest
    outcome: dict[str, Any] = {
        "key": answer.key_used,
        "freshness": answer.freshness.value,
        "warning": answer.warning,
        "snapshot_id": manifest.snapshot_id,
        "night": manifest.night,
        "generated_at": manifest.generated_at,
        "model_version": manifest.model_version,
        "rankings": answer.rows.to_pylist(),
    }
    return json_format.dumps(outcome, indent=2, default=_text)


def _text(value: Any) -> str:
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _as_text(answer: "Answer") -> str:
    from rich.table import Table

    manifest = answer.manifest
    source = f"snapshot {manifest.snapshot_id}, night {manifest.night}, {answer.freshness.value}"
    table = Table(
        title=f"{answer.key_used or 'no answer'}: hardware by predicted throughput per dollar",
        caption=f"{source}, model {manifest.model_version}",
    )
    for name, justify in _COLUMNS.items():
        table.add_column(name, justify=justify)
    for row in answer.rows.slice(0, _SHOWN_ROWS).to_pylist():
        table.add_row(*_cells(row))
    console = wide_console()
    with console.capture() as capture:
        console.print(table)
        if answer.rows.num_rows > _SHOWN_ROWS:
            console.print(f"and {answer.rows.num_rows - _SHOWN_ROWS} more (--json gives all)")
        if answer.warning:
            console.print(f"warning: {answer.warning}")
    return capture.get().rstrip("\n")


_COLUMNS: dict[str, Any] = {
    "rank": "right",
    "hardware": "left",
    "devices": "right",
    "samples/s (p10 to p90)": "right",
    "$/device h": "right",
    "samples/$": "right",
    "of best": "right",
    "tier": "left",
    "why": "left",
}


def _cells(row: dict[str, Any]) -> list[str]:
    throughput = ""
    if row["throughput"] is not None:
        throughput = f"{_figure(row['throughput'])} ({_figure(row['throughput_p10'])} to {_figure(row['throughput_p90'])})"
    best = "" if row["relative_to_best"] is None else f"{row['relative_to_best']:.0%}{' near' if row['is_near_best'] else ''}"
    return [
        "-" if row["rank"] is None else str(row["rank"]),
        row["hardware_type"] + ("" if row["pool"] == "default" else f" in {row['pool']}"),
        "" if row["num_devices"] is None else str(row["num_devices"]),
        throughput,
        "" if row["usd_per_device_hour"] is None else f"{row['usd_per_device_hour']:.2f}",
        "" if row["throughput_per_usd"] is None else _figure(row["throughput_per_usd"]),
        best,
        row["tier"],
        row["reason"],
    ]


def _figure(value: float) -> str:
    """Write a figure with three digits or more, without exponents."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
