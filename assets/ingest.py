"""Raw tables: what the night's sources brought, and what of it is in quarantine.

What lives here: the raw assets. What does not: readers (`leap/sources`), loading (`leap/store`), checks (`validation.py`).
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import dagster as dg

from assets.resources import OWNER, HomeResource, NightResource, ParamsResource, ProjectResource, WarehouseResource
from assets.tables import described, markdown_lines, markdown_table
from leap.sources import SourceError
from leap.store.control import Control
from leap.store.ingest import (
    counts_text,
    ingest,
    off_group,
    off_group_text,
    reasons_of,
    reasons_text,
    relabelled,
    relabelled_text,
)
from leap.store.prices import held_back, load_prices
from leap.store.warehouse import SliceCount, create_raw_tables, read, reconciliation

_RAW = {
    "job_attempts": "Job attempts as received and admitted, one row per record: source, file, line, content hash, arrival.",
    "measurements": "Published or measured figures without job or time of their own, one row per measurement.",
    "prices": "What a device costs, as listed and as it became known, one row per price and version.",
    "quarantine": "Records that are not trusted, whole, each with its reason, file and line.",
    "loads": "What each load read, kept, quarantined and found again, by slice of the source.",
    "hardware_spellings": "Every admitted hardware spelling and the hardware type it resolves to.",
}
_FIGURES = ("records_read", "kept", "quarantined", "duplicates")


@dg.multi_asset(
    specs=[
        dg.AssetSpec(
            ["raw", name],
            group_name="raw",
            owners=[OWNER],
            kinds={"duckdb", "python"},
            description=text,
            metadata=described(f"raw.{name}"),
        )
        for name, text in _RAW.items()
    ],
    name="raw_ingest",
)
def raw_ingest(
    context: dg.AssetExecutionContext,
    night: NightResource,
    home: HomeResource,
    warehouse: WarehouseResource,
    params: ParamsResource,
    project: ProjectResource,
) -> Iterator[dg.MaterializeResult[Any]]:
    """Read the night's sources into the raw tables."""
    with warehouse.connect() as connection:
        create_raw_tables(connection)
        received_at = datetime.now(UTC)  # one arrival, whatever the number of sources
        loaded: list[SliceCount] = []
        load_ids = []
        for kind, path in night.sources_to_read():
            load_ids.append(f"{context.run_id}:{kind}={path}")
            loaded += ingest(
                connection,
                kind,
                [path],
                seeds=project.seeds,
                params=params.get().ingest,
                received_at=received_at,
                load_id=load_ids[-1],
                progress=lambda what, done, total: context.log.info(f"{what}: {done} of {total}" if total else f"{what}: {done}"),
            )
        # after the sources: a night that cannot read one changes nothing
        load_ids.append(f"{context.run_id}:prices")
        load_prices(
            connection,
            [project.seeds / "prices.csv"],
            seeds=project.seeds,
            max_jump=params.get().prices.max_jump,
            approved=Control(home.get().control).price_approvals(),
            received_at=received_at,
            load_id=load_ids[-1],
        )
        waiting = held_back(connection)
        counts = {name: read(connection, f"select count(*) as n from raw.{name}")["n"][0].as_py() for name in _RAW}
        slices = reconciliation(connection)
        told = [
            counts_text(loaded),
            reasons_text(reasons_of(connection, load_ids)),
            relabelled_text(relabelled(connection, load_ids)),
            off_group_text(off_group(connection, load_ids)),
            *(f"price held back: {one.detail}" for one in waiting),
        ]
    if not counts["job_attempts"] + counts["measurements"] + counts["quarantine"]:
        raise SourceError("nothing was ever read: name a source with --source KIND=PATH, or set LEAP_SOURCES")
    for name, count in counts.items():
        metadata: dict[str, Any] = {"dagster/row_count": count}
        if name == "loads":
            metadata |= {
                **{figure.replace("_", " "): sum(getattr(count, figure) for count in loaded) for figure in _FIGURES},
                "summary": markdown_lines("\n".join(filter(None, told))),
                "by slice": markdown_table(slices),
            }
        yield dg.MaterializeResult(asset_key=["raw", name], metadata=metadata)
