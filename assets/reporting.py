"""What a night tells people: one report of what came in, how good the model is, and what is published.

What lives here: the report asset. What does not: its figures (each comes from the step that made it).
"""

from typing import Any

import dagster as dg

from assets.resources import OWNER, HomeResource, NightResource, ParamsResource, WarehouseResource
from assets.tables import markdown_lines
from leap.store.report import night_report as make_report
from leap.store.report import report_markdown, report_text


@dg.asset(
    key_prefix="reports",
    group_name="reports",
    owners=[OWNER],
    kinds={"markdown"},
    deps=[["model", "promotions"]],
    description="The night on one page: counts by source, scores with their intervals, coverage, what is served.",
)
def night_report(
    night: NightResource, home: HomeResource, params: ParamsResource, warehouse: WarehouseResource
) -> dg.MaterializeResult[Any]:
    """Write the night's report beside its dataset, and show it."""
    with warehouse.connect() as connection:
        report = make_report(home.get(), night.night, connection, params.get().publish)
    return dg.MaterializeResult(
        metadata={
            "summary": markdown_lines(report_text(report)),
            "report": dg.MetadataValue.md(report_markdown(report)),
            "snapshot": report["snapshot_id"],
        }
    )
