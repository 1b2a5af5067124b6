"""The dbt models and seeds as assets, their tests as checks, one by one.

What lives here: how a dbt node is named in the asset graph, and one `dbt build` for a night. What does not: any SQL of a model
(`dbt_project/`).
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import dagster as dg
from dagster_dbt import DagsterDbtTranslator, DbtCliInvocation, DbtProject, dbt_assets

from assets.resources import OWNER, HomeResource, LeapDbtResource, NightResource, ParamsResource, WarehouseResource
from assets.runs import HELD
from leap.params import Params

_SHOWN_PROBLEMS = 5
_DBT_NOISE = ("unique_id", "invocation_id", "status")  # says nothing that the run does not

_PROMISES = {
    "not_null": "{column_name} is never null.",
    "unique": "No two rows have the same {column_name}.",
    "accepted_values": "{column_name} is one of {values}.",
    "relationships": "Every {column_name} is a {field} of {to}.",
    "unique_combination": "No two rows have the same {columns}.",
    "expression_is_true": "In every row {expression}.",
    "segments_do_not_overlap": "Segments of one attempt, as known now, follow each other.",
}


class LeapTranslator(DagsterDbtTranslator):
    """Name dbt nodes as LEAP names tables: key = schema/table, group = schema."""

    def get_resource_props(self, manifest: Mapping[str, Any], unique_id: str) -> Mapping[str, Any]:
        """Give the node, with the types of a seed's columns where dagster-dbt looks for those of a model's."""
        node = super().get_resource_props(manifest, unique_id)
        types = node["config"].get("column_types") or {}
        columns = node.get("columns", {})
        typed = {name: {**column, "data_type": column["data_type"] or types.get(name)} for name, column in columns.items()}
        return {**node, "columns": typed}

    def get_asset_key(self, dbt_resource_props: Mapping[str, Any]) -> dg.AssetKey:
        """Give schema/table."""
        table = dbt_resource_props.get("identifier") or dbt_resource_props.get("alias") or dbt_resource_props["name"]
        return dg.AssetKey([dbt_resource_props["schema"], table])

    def get_group_name(self, dbt_resource_props: Mapping[str, Any]) -> str:
        """Give the schema."""
        return str(dbt_resource_props["schema"])

    def get_owners(self, _dbt_resource_props: Mapping[str, Any]) -> list[str]:
        """Give the one team."""
        return [OWNER]

    def get_description(self, dbt_resource_props: Mapping[str, Any]) -> str:
        """Give the description in the node's YAML, without the SQL that dagster-dbt would add."""
        return str(dbt_resource_props["description"])

    def get_asset_check_spec(
        self, asset_spec: dg.AssetSpec, manifest: Mapping[str, Any], unique_id: str, project: DbtProject | None
    ) -> dg.AssetCheckSpec | None:
        """Give the check with a sentence of what it promises; dbt's names of tests are long, and cut in the UI."""
        check = super().get_asset_check_spec(asset_spec, manifest, unique_id, project)
        return check._replace(description=describe_test(manifest["nodes"][unique_id]) or None) if check else None


def build_dbt_assets(manifest: Path) -> dg.AssetsDefinition:
    """Make the assets and checks that the dbt manifest names. Reads the file, runs nothing."""

    @dbt_assets(manifest=manifest, dagster_dbt_translator=LeapTranslator(), name="dbt_build")
    def dbt_build(
        context: dg.AssetExecutionContext,
        dbt: LeapDbtResource,
        home: HomeResource,
        night: NightResource,
        params: ParamsResource,
        warehouse: WarehouseResource,
    ) -> Iterator[Any]:
        target = home.get().work / "dbt"
        (target / "run_results.json").unlink(missing_ok=True)
        # unit tests take no data of the night: they run in `make test`
        arguments = ["build", "--exclude-resource-type", "unit_test", "--vars", json.dumps(dbt_vars(params.get(), night.night))]
        invocation = dbt.cli(arguments, context=context, raise_on_error=False, target_path=target)
        events = []  # kept to the end: DuckDB can be opened here only after dbt has closed it
        for event in invocation.stream():
            events.append(event)
            if isinstance(event, dg.Output):
                context.log.info(f"built {context.asset_key_for_output(event.output_name).to_user_string()}")
        yield from _with_row_counts(context, events, warehouse)
        _fail_unless_built(context, invocation, events)

    return dbt_build


def describe_test(node: Mapping[str, Any]) -> str:
    """Say what a dbt test promises: its description in the YAML, else its arguments in words; empty for a kind without words."""
    test = node.get("test_metadata") or {"name": "", "kwargs": {}}
    arguments = {name: _in_words(value) for name, value in test["kwargs"].items()}
    promise = node["description"] or _PROMISES.get(test["name"], "").format(**arguments)
    where = node["config"].get("where")
    return f"Where `{where}`: {promise}" if where and promise else promise


def _in_words(value: Any) -> str:
    """Give a test's argument as code: a name, an expression, a list of them, or the table in `ref('table')`."""
    if isinstance(value, list):
        return ", ".join(f"`{item}`" for item in value)
    table = re.fullmatch(r"ref\('(\w+)'\)", value)
    return f"`{table[1] if table else ' '.join(value.split())}`"


def dbt_vars(params: Params, night: date) -> dict[str, Any]:
    """Give the variables that the dbt project asks for."""
    return {
        "cut": night.isoformat(),
        "state_levels": {level: list(columns) for level, columns in params.features.state_levels.items()},
        "active_days": params.ranking.active_days,
        "hardware_seen_days": params.ranking.hardware_seen_days,
        "price_list": params.ranking.price_list,
    }


def _with_row_counts(context: dg.AssetExecutionContext, events: Iterable[Any], warehouse: WarehouseResource) -> Iterator[Any]:
    outputs = {
        event.output_name: context.asset_key_for_output(event.output_name) for event in events if isinstance(event, dg.Output)
    }
    counts = _row_counts(warehouse, outputs.values())
    for event in events:
        if isinstance(event, dg.Output):
            key = outputs[event.output_name]
            counted = {"dagster/row_count": counts[key]} if key in counts else {}
            yield event.with_metadata({**_shown(event.metadata), **counted})
        elif isinstance(event, dg.AssetCheckResult):
            yield event._replace(metadata=_shown(event.metadata))
        else:
            yield event


def _shown(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in metadata.items() if name not in _DBT_NOISE}


def _row_counts(warehouse: WarehouseResource, keys: Iterable[dg.AssetKey]) -> dict[dg.AssetKey, int]:
    """Count the rows of those keys that are tables; a view would have to be computed for it."""
    with warehouse.connect() as connection:
        tables = connection.execute("select schema_name, table_name from duckdb_tables()").fetchall()
        counted = [key for key in keys if tuple(key.path) in tables]
        counts = [f"(select count(*) from {'.'.join(map(_quoted, key.path))})" for key in counted]
        row = connection.execute(f"select {', '.join(counts)}").fetchone() if counts else ()
    return dict(zip(counted, row or (), strict=True))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _fail_unless_built(context: dg.AssetExecutionContext, invocation: DbtCliInvocation, events: Iterable[Any]) -> None:
    """Raise where dbt failed or left out a table; failed tests that are checks are left to Dagster, which blocks on them."""
    if not (invocation.target_path / "run_results.json").exists():
        raise dg.Failure(f"dbt stopped before it built anything: {invocation.get_error()}")
    results = invocation.get_artifact("run_results.json")["results"]
    broken = [
        f"{result['unique_id']}: {result['message']}" for result in results if result["status"] in ("error", "runtime error")
    ]
    if broken:
        raise dg.Failure(_listed("dbt could not build", broken))
    checked = {event.metadata["unique_id"].text for event in events if isinstance(event, dg.AssetCheckResult)}
    failed = [result for result in results if result["status"] == "fail"]
    # Tests of several models, or of a source, are no checks, and Dagster would not block on them. Source tests could be made
    # checks, but then dbt would no longer wait for the other checks of the raw tables.
    spanning = [_line(result) for result in failed if result["unique_id"] not in checked]
    if spanning:
        raise dg.Failure(_listed("dbt tests failed", spanning), metadata={HELD: True})
    built = {context.asset_key_for_output(event.output_name) for event in events if isinstance(event, dg.Output)}
    skipped = sorted(key.to_user_string() for key in context.selected_asset_keys - built)
    if skipped and not failed:
        raise dg.Failure(_listed("dbt ended well but did not build", skipped))


def _line(result: Mapping[str, Any]) -> str:
    return f"{result['unique_id']}: {result['message']}"


def _listed(what: str, problems: list[str]) -> str:
    shown = "\n".join(problems[:_SHOWN_PROBLEMS])
    more = len(problems) - _SHOWN_PROBLEMS
    return f"{what}:\n{shown}" + (f"\nand {more} more" if more > 0 else "")
