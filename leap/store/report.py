"""The night's report: what came in, how good the model is, what is served.

What lives here: gathering figures that the night's steps left, and showing them as markdown. What does not: computing them.
"""

from __future__ import annotations

from datetime import date
from typing import Any

import duckdb

from leap.params import PublishParams
from leap.serving.reader import SnapshotReader
from leap.store.datasets import prune
from leap.store.home import Home
from leap.store.night import NightFolder, export_results, forget_older
from leap.store.warehouse import reconciliation


def night_report(home: Home, night: date, connection: duckdb.DuckDBPyConnection, params: PublishParams) -> dict[str, Any]:
    """Gather the report of `night`, leave it in the night's folder, export its results, and forget what is past its time."""
    folder = NightFolder.of(home, night)
    manifest = SnapshotReader(home.published).manifest()
    verdict = folder.read_facts("verdict")
    report = {
        "night": night.isoformat(),
        "dataset_id": folder.read_facts("dataset")["id"],
        "results_id": export_results(connection, home, night),
        "model_version": manifest.model_version,
        "snapshot_id": manifest.snapshot_id,
        "previous_snapshot_id": manifest.previous_snapshot_id,
        "rankings_hash": manifest.rankings_hash,
        "ranking_rows": manifest.row_count,
        "job_keys": manifest.job_key_count,
        "coverage": dict(manifest.coverage),
        "verdict": verdict["reason"],
        "scorecards": folder.read_facts("scorecards"),
        "slices": reconciliation(connection).to_pylist(),
    }
    folder.write_facts("report", report)
    forget_older(home, night)
    for datasets in (home.datasets, home.results):
        prune(datasets, params.datasets_kept)
    return report


def report_text(report: dict[str, Any]) -> str:
    """Say in a few lines what a report tells: scores, and what is served."""
    scores = [
        f"  {name}: {card['within_10']:.1%} within 10% ({_interval(card)}), {card['within_20']:.1%} within 20%, "
        f"{card['answered']:.1%} answered"
        for name, card in report["scorecards"].items()
    ]
    first = next(iter(report["scorecards"].values()))
    replaced = report["previous_snapshot_id"] or ""
    is_earlier = replaced[: len("2026-01-01")] > report["night"]
    return "\n".join(
        [
            f"scored on {first['n']} attempts of {first['jobs']} jobs that the models had not seen (95% interval by job):",
            *scores,
            f"published {report['snapshot_id']}: {report['ranking_rows']} rows for {report['job_keys']} job keys, "
            f"model version {report['model_version']}, rankings hash {report['rankings_hash'][:12]}",
            *([f"note: this night is earlier than the one whose ranking it replaced, {replaced}"] if is_earlier else []),
        ]
    )


def report_markdown(report: dict[str, Any]) -> str:
    """Show a report as markdown."""
    scores = [
        f"| {name} | {card['n']} | {card['jobs']} | {card['answered']:.1%} | {card['within_10']:.1%} "
        f"({_interval(card)}) | {card['within_20']:.1%} |"
        for name, card in report["scorecards"].items()
    ]
    figures = ("source", "slice", "records_read", "kept", "quarantined", "duplicates")
    slices = [f"| {' | '.join(str(row[name]) for name in figures)} |" for row in report["slices"]]
    return "\n".join(
        [
            f"## Night {report['night']}",
            f"Snapshot `{report['snapshot_id']}`: {report['ranking_rows']} rows for {report['job_keys']} job keys, "
            f"model version {report['model_version']}, dataset `{report['dataset_id']}`.",
            "",
            report["verdict"],
            "",
            "| predictor | attempts | jobs | answered | within 10% (95% interval by job) | within 20% |",
            "| --- | --- | --- | --- | --- | --- |",
            *scores,
            "",
            "| source | slice | read | kept | quarantined | duplicates |",
            "| --- | --- | --- | --- | --- | --- |",
            *slices,
        ]
    )


def _interval(card: dict[str, Any]) -> str:
    low, high = card["interval_within_10"]
    return f"{low:.1%} to {high:.1%}"
