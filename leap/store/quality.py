"""Validation at three borders (Great Expectations): raw attempts of the day, training matrix, candidate ranking.

What lives here: the suites, what a failure says in words, and the report that people read. What does not: what follows from a
failure (the checks in `assets`), and judging a model (`leap.promotion`).

Great Expectations takes 5 s to import, so it is imported when a border is first checked. Left to itself it passes empty tables,
columns of nulls and infinities: every suite here says that rows, values and finite numbers are expected. pandas holds NaN and
null as one thing, "no value".
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from leap.contracts import RANKING_SCHEMA, RANKING_SCHEMA_VERSION, TIERS, Outcome, ThroughputScope, ThroughputUnit

if TYPE_CHECKING:
    import pandas as pd
    from great_expectations.datasource.fluent.pandas_datasource import PandasDatasource

TARGET = "log_throughput_per_device"
MAX_DEVICES = 1_000_000
_LARGEST = sys.float_info.max  # infinity is above it
_EXAMPLES = 3

RAW_TEXT = ("attempt_id", "model_type", "hardware_type", "content_hash", "outcome", "throughput_unit", "throughput_scope")
RAW_TIMES = ("started_at", "ended_at")
RAW_NUMBERS = ("segment_number", "num_devices", "throughput")

PROFILE_COUNTS = ("row_count", "null_count", "non_finite_count", "infinite_count", "distinct_count")
PROFILE_COLUMNS = ("column_name", *PROFILE_COUNTS, "minimum", "maximum")

RANKING_TEXT = ("ranking_id", "job_key", "hardware_type", "pool", "tier", "model_version")
RANKING_FLAGS = ("eligible", "is_near_best")
# The figures of a job's own rows: positive wherever they are given, and left empty by aggregate keys.
RANKING_FIGURES = ("throughput_p10", "throughput", "throughput_p90", "usd_per_device_hour", "throughput_per_usd")
RANKING_NUMBERS = ("schema_version", "num_devices", "rank", *RANKING_FIGURES, "relative_to_best")


@dataclass(frozen=True)
class QualityReport:
    """What the checks of one border found: `failures` are sentences, `results` every expectation with what was observed."""

    border: str
    success: bool
    failures: tuple[str, ...]
    statistics: dict[str, Any]
    results: dict[str, Any]


@dataclass(frozen=True)
class _Rule:
    """One expectation: what it says in words, its class in Great Expectations, and its arguments."""

    says: str
    kind: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class _View:
    """Some rows of a table, and what is expected of them. `keys` are the columns that tell a reader which row is meant."""

    rows: str
    frame: pd.DataFrame
    rules: Sequence[_Rule]
    keys: Sequence[str] = ()


@dataclass(frozen=True)
class _Finding:
    """What came of one rule on one view."""

    rows: str
    rule: _Rule
    success: bool
    observed: dict[str, Any]
    sentence: str


def validate_raw_attempts(frame: pd.DataFrame) -> QualityReport:
    """Check attempts newly known, with the columns of `raw.job_attempts`."""
    return _validate("raw_attempts", frame, (*RAW_TEXT, *RAW_TIMES, *RAW_NUMBERS), _raw_views)


def validate_training_profile(
    frame: pd.DataFrame,
    *,
    minimum_rows: int = 1,
    history: Sequence[str] = ("prior",),
    identity: Sequence[str] = ("model_type", "hardware_type"),
) -> QualityReport:
    """Check the training matrix by its profile (`profile`): one row per column of the matrix, and one for the target.

    Args:
        frame: the columns `PROFILE_COLUMNS`.
        minimum_rows: how many rows the matrix must have.
        history: features from history, of which at least one must be known somewhere.
        identity: features that must be known in every row.
    """

    def views(profiled: pd.DataFrame) -> Iterator[_View]:
        return _training_views(profiled, minimum_rows, history, (TARGET, *identity))

    return _validate("training_profile", frame, PROFILE_COLUMNS, views)


def validate_ranking(frame: pd.DataFrame) -> QualityReport:
    """Check a candidate ranking, with the columns of `RANKING_SCHEMA`; `generated_at` and `valid_until` may still be empty."""
    return _validate("ranking", frame, RANKING_SCHEMA.names, _ranking_views)


def profile(table: pa.Table) -> pd.DataFrame:
    """Describe each column of a table: one row per column, `PROFILE_COLUMNS`.

    `null_count` counts nulls, `non_finite_count` NaN and infinities, `infinite_count` infinities alone. `distinct_count` leaves
    both out. `minimum` and `maximum` are of finite numbers, null for other kinds.
    """
    import duckdb

    with duckdb.connect(":memory:") as connection:
        connection.register("matrix", table)
        described: pd.DataFrame = connection.sql(" union all by name ".join(map(_profile_query, table.schema))).df()
    return described


def write_report(report: QualityReport, folder: Path) -> Path:
    """Write `<border>.json` and `<border>.html` into `folder`, made if absent; return the page."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{report.border}.json").write_text(json.dumps(asdict(report), indent=1, allow_nan=False), encoding="utf-8")
    page = folder / f"{report.border}.html"
    page.write_text(_page(report), encoding="utf-8")
    return page


def _raw_views(frame: pd.DataFrame) -> Iterator[_View]:
    frame = _cast(frame, texts=RAW_TEXT, numbers=RAW_NUMBERS, times=RAW_TIMES)
    rules = [
        *map(_is_given, (*RAW_TEXT, *RAW_TIMES, *RAW_NUMBERS)),
        _is_positive("throughput"),
        _is_between("num_devices", 1, MAX_DEVICES),
        _is_one_of("throughput_unit", [unit.value for unit in ThroughputUnit]),
        _is_one_of("throughput_scope", [scope.value for scope in ThroughputScope]),
        _is_one_of("outcome", [outcome.value for outcome in Outcome]),
        _is_at_least("ended_at", "started_at"),
        _is_unique("attempt_id", "segment_number", "content_hash"),
    ]
    yield _View("attempts", frame, rules, keys=("attempt_id", "segment_number"))


def _training_views(frame: pd.DataFrame, minimum_rows: int, history: Sequence[str], complete: Sequence[str]) -> Iterator[_View]:
    frame = _cast(frame, texts=("column_name",), numbers=(*PROFILE_COUNTS, "minimum", "maximum"))
    frame["known_count"] = frame["row_count"] - frame["null_count"] - frame["non_finite_count"]
    rules = [
        *map(_is_given, ("column_name", *PROFILE_COUNTS)),
        _is_unique("column_name"),
        _is_between("row_count", minimum_rows, None),
        _rule("row_count is the same everywhere", "ExpectColumnUniqueValueCountToBeBetween", column="row_count", max_value=1),
        _is_between("infinite_count", 0, 0),
        *(_is_between(column, -_LARGEST, _LARGEST, says=f"{column} is finite") for column in ("minimum", "maximum")),
        _rule(
            f"{', '.join(complete)} are there",
            "ExpectColumnDistinctValuesToContainSet",
            column="column_name",
            value_set=list(complete),
        ),
    ]
    yield _View("columns of the matrix", frame, rules, keys=("column_name",))
    yield _View(
        "columns that must be complete",
        frame[frame["column_name"].isin(complete)],
        [_is_between("null_count", 0, 0), _is_between("non_finite_count", 0, 0)],
        keys=("column_name",),
    )
    yield _View(
        "columns from history",
        frame[frame["column_name"].isin(history)],
        [_rule(f"some of {', '.join(history)} is known", "ExpectColumnMaxToBeBetween", column="known_count", min_value=1)],
    )


def _ranking_views(frame: pd.DataFrame) -> Iterator[_View]:
    frame = _cast(frame, texts=RANKING_TEXT, numbers=RANKING_NUMBERS)
    keys = ("job_key", "hardware_type", "pool")
    is_eligible = frame["eligible"].eq(True)
    rules = [
        *map(_is_given, ("schema_version", *RANKING_TEXT, *RANKING_FLAGS, "reason")),
        _is_one_of("schema_version", [RANKING_SCHEMA_VERSION]),
        _is_one_of("tier", TIERS),
        *(_is_one_of(flag, [True, False]) for flag in RANKING_FLAGS),
        *map(_is_positive, ("num_devices", *RANKING_FIGURES)),
        _is_between("relative_to_best", 0, 1, strict_min=True, says="relative_to_best is above 0 and at most 1"),
        _is_unique("job_key", "hardware_type", "num_devices", "pool"),
    ]
    yield _View("rows", frame, rules, keys)
    yield _View("eligible rows", frame[is_eligible], [_is_given("rank"), _is_given("relative_to_best")], keys)
    ineligible = frame[~is_eligible]
    yield _View(
        "rows that are not eligible",
        ineligible.assign(reason=ineligible["reason"].mask(ineligible["reason"].eq(""))),
        [_is_given("reason"), _is_empty("rank"), _is_empty("relative_to_best")],
        keys,
    )
    own_rules = [
        _has_rows(),
        *map(_is_given, ("num_devices", *RANKING_FIGURES, "throughput_unit", "price_version")),
        _is_at_least("throughput", "throughput_p10"),
        _is_at_least("throughput_p90", "throughput"),
    ]
    yield _View("ranked rows with figures of their own", frame[frame["rank"].notna() & ~_is_aggregate(frame)], own_rules, keys)
    run_rules = [
        _rule("exactly one row has rank 1", "ExpectColumnValuesToBeInSet", column="rank_1_rows", value_set=[1]),
        _are_equal("no rank is given twice", "ranked_rows", "distinct_ranks"),
        _are_equal("ranks go from 1 to the number of ranked rows", "ranked_rows", "worst_rank"),
    ]
    yield _View("job keys with eligible rows", _rank_runs(frame[is_eligible]), run_rules, keys=("job_key",))


def _is_aggregate(frame: pd.DataFrame) -> pd.Series[bool]:
    """Tell the rows of aggregate keys: no figures, and a key that spans device counts or ends in its own (`bert@8`)."""
    is_aggregate = frame[list(RANKING_FIGURES)].isna().all(axis=1)
    counted = frame.loc[is_aggregate & frame["num_devices"].notna(), ["job_key", "num_devices"]]
    devices = counted["num_devices"].map("{:.0f}".format)
    is_aggregate.loc[counted.index] = counted["job_key"].astype(str).str.extract(r"@(\d+)$")[0].eq(devices)
    return is_aggregate


def _rank_runs(eligible: pd.DataFrame) -> pd.DataFrame:
    """Give one row per job key: how its ranks run."""
    ranks = eligible.assign(is_first=eligible["rank"].eq(1)).groupby("job_key", sort=False)
    return ranks.agg(
        ranked_rows=("rank", "count"),
        distinct_ranks=("rank", "nunique"),
        worst_rank=("rank", "max"),
        rank_1_rows=("is_first", "sum"),
    ).reset_index()


def _rule(says: str, kind: str, **arguments: Any) -> _Rule:
    return _Rule(says, kind, arguments)


def _is_given(column: str) -> _Rule:
    return _rule(f"{column} has a value", "ExpectColumnValuesToNotBeNull", column=column)


def _is_empty(column: str) -> _Rule:
    return _rule(f"{column} is empty", "ExpectColumnValuesToBeNull", column=column)


def _is_between(column: str, low: float, high: float | None, *, strict_min: bool = False, says: str | None = None) -> _Rule:
    limits = f"at least {low:,}" if high is None else f"{low:,}" if low == high else f"from {low:,} to {high:,}"
    return _rule(
        says or f"{column} is {limits}",
        "ExpectColumnValuesToBeBetween",
        column=column,
        min_value=low,
        max_value=high,
        strict_min=strict_min,
    )


def _is_positive(column: str) -> _Rule:
    return _is_between(column, 0, _LARGEST, strict_min=True, says=f"{column} is finite and above 0")


def _is_one_of(column: str, values: Sequence[Any]) -> _Rule:
    says = f"{column} is {'one of ' if len(values) > 1 else ''}{', '.join(map(str, values))}"
    return _rule(says, "ExpectColumnValuesToBeInSet", column=column, value_set=list(values))


def _is_at_least(column: str, other: str) -> _Rule:
    return _rule(
        f"{column} is not below {other}",
        "ExpectColumnPairValuesAToBeGreaterThanB",
        column_A=column,
        column_B=other,
        or_equal=True,
        ignore_row_if="either_value_is_missing",
    )


def _are_equal(says: str, column: str, other: str) -> _Rule:
    return _rule(says, "ExpectColumnPairValuesToBeEqual", column_A=column, column_B=other)


def _is_unique(*columns: str) -> _Rule:
    if len(columns) == 1:
        return _rule(f"{columns[0]} is there once", "ExpectColumnValuesToBeUnique", column=columns[0])
    says = f"each combination of {', '.join(columns)} is there once"
    return _rule(says, "ExpectCompoundColumnsToBeUnique", column_list=list(columns))


def _has_rows() -> _Rule:
    return _rule("there is at least one", "ExpectTableRowCountToBeBetween", min_value=1)


def _has_columns(columns: Sequence[str]) -> _Rule:
    says = f"it has the columns {', '.join(columns)}"
    return _rule(says, "ExpectTableColumnsToMatchSet", column_set=list(columns), exact_match=False)


def _cast(frame: pd.DataFrame, *, texts: Iterable[str], numbers: Iterable[str], times: Iterable[str] = ()) -> pd.DataFrame:
    """Give a copy in which what is no text, number or time, and the empty text, is no value."""
    import pandas as pd

    columns: dict[str, Any] = {name: frame[name].mask(frame[name].eq("")) for name in texts}
    columns |= {name: pd.to_numeric(frame[name], errors="coerce").astype("float64") for name in numbers}
    columns |= {name: pd.to_datetime(frame[name], errors="coerce", utc=True).dt.tz_localize(None) for name in times}
    return frame.assign(**columns)


def _validate(
    border: str, frame: pd.DataFrame, columns: Sequence[str], views: Callable[[pd.DataFrame], Iterator[_View]]
) -> QualityReport:
    """Check that rows and columns are there, then the views, which need them."""
    frame = frame.reset_index(drop=True)
    source = _source()
    findings = _check(source, _View("table", frame, [_has_rows(), _has_columns(columns)]))
    if all(finding.success for finding in findings):
        findings += [finding for view in views(frame) for finding in _check(source, view)]
    failures = tuple(finding.sentence for finding in findings if not finding.success)
    return QualityReport(
        border=border,
        success=not failures,
        failures=failures,
        statistics={"rows": len(frame), "expectations": len(findings), "failed": len(failures)},
        results={
            "expectations": [
                {
                    "rows": finding.rows,
                    "says": finding.rule.says,
                    "success": finding.success,
                    "kind": finding.rule.kind,
                    "arguments": _plain(finding.rule.arguments),
                    "observed": finding.observed,
                }
                for finding in findings
            ]
        },
    )


def _source() -> PandasDatasource:
    """Make a context that lives in memory and is used once: runs never meet, in one process or several."""
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    import great_expectations as gx
    from great_expectations.data_context.types.base import DataContextConfig, InMemoryStoreBackendDefaults, ProgressBarsConfig

    config = DataContextConfig(
        store_backend_defaults=InMemoryStoreBackendDefaults(),
        progress_bars=ProgressBarsConfig(globally=False),
        analytics_enabled=False,
    )
    return gx.get_context(mode="ephemeral", project_config=config).data_sources.add_pandas("frames")


def _check(source: PandasDatasource, view: _View) -> list[_Finding]:
    """Check a view's rules, all in one go."""
    import great_expectations as gx
    from great_expectations import expectations as gxe

    asset = source.add_dataframe_asset(view.rows)
    batch = asset.add_batch_definition_whole_dataframe("whole").get_batch({"dataframe": view.frame})
    suite = gx.ExpectationSuite(
        name=view.rows,
        expectations=[
            getattr(gxe, rule.kind)(**rule.arguments, description=rule.says, meta={"rule": number})
            for number, rule in enumerate(view.rules)
        ],
    )
    validated: Any = batch.validate(suite, result_format={"result_format": "SUMMARY", "partial_unexpected_count": _EXAMPLES})
    results = sorted(validated.results, key=lambda result: result.expectation_config.meta["rule"])
    return [_finding(view, rule, result) for rule, result in zip(view.rules, results, strict=True)]


def _finding(view: _View, rule: _Rule, result: Any) -> _Finding:
    observed = {
        name: _plain(result.result[name])
        for name in ("observed_value", "element_count", "unexpected_count", "partial_unexpected_list")
        if name in result.result
    }
    if "column_A" in rule.arguments:
        pair = (rule.arguments["column_A"], rule.arguments["column_B"])
        unexpected = observed.get("partial_unexpected_list", [])
        observed["partial_unexpected_list"] = [dict(zip(pair, values, strict=True)) for values in unexpected]
    complaint = _exception(result.exception_info)
    if complaint is not None:
        observed["exception"] = complaint
        told = f"could not be checked: {complaint}"
    elif observed.get("unexpected_count"):
        where = _places(view, result.result.get("partial_unexpected_index_list") or [])
        told = f"{observed['unexpected_count']:,} of {observed['element_count']:,} are not so, e.g. {_examples(observed)}{where}"
    elif rule.kind == "ExpectTableColumnsToMatchSet":
        told = f"missing {', '.join(sorted(set(rule.arguments['column_set']) - set(view.frame.columns)))}"
    else:
        told = f"observed {_text(observed.get('observed_value'))}"
    return _Finding(view.rows, rule, bool(result.success), observed, f"{view.rows}: expected that {rule.says}: {told}")


def _exception(info: Mapping[str, Any]) -> str | None:
    """Find the first exception; one result may hold several, by metric."""
    for part in (info, *(value for value in info.values() if isinstance(value, Mapping))):
        if part.get("raised_exception"):
            return str(part.get("exception_message"))
    return None


def _examples(observed: Mapping[str, Any]) -> str:
    return "; ".join(dict.fromkeys(_text(value) for value in observed.get("partial_unexpected_list", [])))


def _places(view: _View, index: Sequence[Any]) -> str:
    if not view.keys or not index:
        return ""
    row = view.frame.loc[index[0]]
    return f" (first at {', '.join(f'{key} {_text(_plain(row[key]))}' for key in view.keys)})"


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(part)}" for name, part in value.items())
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return "no value" if value is None else f"{value:,.12g}" if isinstance(value, float) else str(value)


def _plain(value: Any) -> Any:
    """Turn what pandas and numpy hold into JSON values; an infinity becomes text, NaN becomes null."""
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(part) for part in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _profile_query(field: pa.Field) -> str:
    column = f'"{field.name.replace(chr(34), chr(34) * 2)}"'
    is_number = pa.types.is_floating(field.type) or pa.types.is_integer(field.type)
    number = f"cast({column} as double)" if is_number else "cast(null as double)"
    name = field.name.replace("'", "''")
    return f"""
        select
            '{name}' as column_name,
            count(*) as row_count,
            count(*) - count({column}) as null_count,
            count(*) filter (where not isfinite({number})) as non_finite_count,
            count(*) filter (where isinf({number})) as infinite_count,
            count(distinct {column}) filter (where {number} is null or isfinite({number})) as distinct_count,
            min({number}) filter (where isfinite({number})) as minimum,
            max({number}) filter (where isfinite({number})) as maximum
        from matrix
    """


_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 64rem; padding: 0 1rem; color: #1c2024; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; vertical-align: top; padding: .3rem .6rem; }
tr { border-bottom: 1px solid #d9dde1; } .failed { color: #b3261e; font-weight: 600; } .passed { color: #1b6e3c; }
"""


def _page(report: QualityReport) -> str:
    state = "passed" if report.success else "failed"
    title = escape(report.border.replace("_", " "))
    failures = "".join(f"<li>{escape(failure)}</li>" for failure in report.failures)
    figures = ", ".join(f"{escape(name)} {value:,}" for name, value in report.statistics.items())
    rows = "".join(
        f"<tr><td class='{'passed' if result['success'] else 'failed'}'>{'passed' if result['success'] else 'failed'}</td>"
        f"<td>{escape(result['rows'])}</td><td>{escape(result['says'])}</td></tr>"
        for result in report.results["expectations"]
    )
    return (
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{title}: {state}</title>"
        f"<style>{_STYLE}</style></head><body><h1>{title}: <span class='{state}'>{state}</span></h1>"
        f"<p>{figures}</p><ul>{failures}</ul>"
        f"<table><tr><th>result</th><th>rows</th><th>expected</th></tr>{rows}</table></body></html>\n"
    )
