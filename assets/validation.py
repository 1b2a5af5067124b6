"""The checks at the three borders, and the verdict on the challenger.

What lives here: asset checks that hold a night, and the verdict asset. What does not: the rules (`leap/store/quality.py`,
`leap/promotion.py`, dbt tests).
"""

from collections.abc import Sequence
from typing import Any

import dagster as dg
import pyarrow as pa

from assets.resources import OWNER, HomeResource, NightResource, ParamsResource, RegistryResource, WarehouseResource
from assets.tables import described, markdown_table
from assets.training import assembled_examples
from leap.promotion import decide
from leap.serving.reader import SnapshotReader
from leap.serving.scorer import Scorer
from leap.store.challenger import read_scorecards, verdict_table
from leap.store.home import Home
from leap.store.ingest import newest_attempts, quarantined_share
from leap.store.night import NightFolder, open_night
from leap.store.prices import held_back
from leap.store.quality import (
    QualityReport,
    profile,
    validate_ranking,
    validate_raw_attempts,
    validate_training_profile,
    write_report,
)
from leap.store.quarantine import share_by_day, sudden_rise
from leap.store.warehouse import read, reconciliation, replace
from leap.training import CHAMPION


def held(
    problems: Sequence[str], good: str, severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR
) -> dg.AssetCheckResult:
    """Pass where there are no problems; else say them."""
    return dg.AssetCheckResult(
        passed=not problems,
        severity=severity,
        description="; ".join(problems[:5]) or good,
        metadata={"reason": "\n".join(problems)} if problems else {},
    )


def border(report: QualityReport, home: Home) -> dg.AssetCheckResult:
    """Keep a Great Expectations report where people read it, and carry its failures."""
    page = write_report(report, home.quality)
    result = held(report.failures, f"every expectation at the border {report.border!r} holds")
    return result._replace(metadata={**result.metadata, "report": dg.MetadataValue.path(str(page))})


@dg.asset_check(asset=["raw", "loads"], blocking=True, description="read = kept + quarantined + duplicates, by source and slice.")
def counts_reconcile(warehouse: WarehouseResource) -> dg.AssetCheckResult:
    """Hold the night where a record was lost."""
    with warehouse.connect() as connection:
        slices = reconciliation(connection).to_pylist()
    lost = [f"{row['source']} {row['slice']}: {row}" for row in slices if not row["is_reconciled"]]
    return held(lost, f"every record of {len(slices)} slices is accounted for")


@dg.asset_check(asset=["raw", "job_attempts"], blocking=True, description="Great Expectations on the newest attempts received.")
def raw_attempts_quality(warehouse: WarehouseResource, home: HomeResource) -> dg.AssetCheckResult:
    """Hold the night where what came in is not what attempts look like."""
    with warehouse.connect(read_only=True) as connection:
        frame = newest_attempts(connection).to_pandas()
    return border(validate_raw_attempts(frame), home.get())


@dg.asset_check(asset=["raw", "measurements"], blocking=True, description="Every measurement has a rate and known hardware.")
def measurements_are_whole(warehouse: WarehouseResource) -> dg.AssetCheckResult:
    """Hold the night where a figure got in that says nothing, or nothing of a place."""
    sql = """
        select file, line from raw.measurements
        where hardware_type is null or not (isfinite(throughput) and throughput > 0) order by all
    """
    with warehouse.connect(read_only=True) as connection:
        wrong = read(connection, sql).to_pylist()
    return held([f"{row['file']}, line {row['line']}" for row in wrong], "every measurement has both")


@dg.asset_check(asset=["raw", "prices"], description="No price waits for a person's word.")
def prices_are_settled(warehouse: WarehouseResource) -> dg.AssetCheckResult:
    """Tell of prices that jumped and are held back; the older ones stay in force, so the night goes on."""
    with warehouse.connect(read_only=True) as connection:
        waiting = held_back(connection)
    return held([one.detail for one in waiting], "none is held back", dg.AssetCheckSeverity.WARN)


@dg.asset_check(asset=["raw", "quarantine"], description="Share of all records that is in quarantine, with the reasons.")
def quarantined(warehouse: WarehouseResource, params: ParamsResource) -> dg.AssetCheckResult:
    """Show the share; the gate of the same name decides with the other gates."""
    limit = params.get().gates.max_quarantined_share
    with warehouse.connect(read_only=True) as connection:
        share = quarantined_share(connection)
        reasons = read(
            connection, "select reason, source, count(*) as records from raw.quarantine group by all order by 3 desc, 1, 2"
        )
    return dg.AssetCheckResult(
        passed=share <= limit,
        severity=dg.AssetCheckSeverity.WARN,
        description=f"{share:.2%} of the records are faulty; the gate max_quarantined_share is {limit:.2%}",
        metadata={"share": share, "reasons": markdown_table(reasons)},
    )


@dg.asset_check(asset=["raw", "quarantine"], description="Share of the day's arrivals that is faulty, against the days before.")
def quarantine_did_not_rise(warehouse: WarehouseResource, params: ParamsResource) -> dg.AssetCheckResult:
    """Fail where an exporter, a mapping or a name has just changed; what was kept is good, so the night goes on."""
    limits = params.get().quarantine
    with warehouse.connect(read_only=True) as connection:
        shares = share_by_day(connection, limits.days)
    risen = sudden_rise(shares, limits.max_rise, limits.min_records)
    days = pa.table({name: [getattr(day, name) for day in shares] for name in ("day", "records", "faulty", "share")})
    newest = f"{shares[-1].share:.2%} of {shares[-1].records} records that arrived on {shares[-1].day}" if shares else "none yet"
    result = held([risen] if risen else [], f"faulty: {newest}")
    return result._replace(metadata={**result.metadata, "by day of arrival": markdown_table(days)})


@dg.asset_check(asset=["raw", "hardware_spellings"], blocking=True, description="Every admitted spelling resolves to a type.")
def spellings_resolve(warehouse: WarehouseResource) -> dg.AssetCheckResult:
    """Hold the night where an attempt is on nothing."""
    with warehouse.connect(read_only=True) as connection:
        unresolved = read(connection, "select hardware_name from raw.hardware_spellings where hardware_type is null order by 1")
    return held([f"{name!r} has no type" for name in unresolved["hardware_name"].to_pylist()], "every spelling resolves")


@dg.asset_check(asset=["datasets", "night_dataset"], blocking=True, description="The dataset can be opened and holds examples.")
def dataset_opens(night: NightResource, home: HomeResource) -> dg.AssetCheckResult:
    """Read back what was exported."""
    rows = open_night(home.get(), night.night).table("training_examples", columns=["attempt_id"]).num_rows
    return held([] if rows else ["the dataset has no training example"], f"{rows} training examples")


@dg.asset_check(asset=assembled_examples, blocking=True, description="Great Expectations on the profile of the training matrix.")
def training_profile_quality(night: NightResource, home: HomeResource) -> dg.AssetCheckResult:
    """Hold the night where the matrix is empty, all unknown or not finite."""
    matrix = NightFolder.of(home.get(), night.night).read_table("matrix")
    return border(validate_training_profile(profile(matrix)), home.get())


@dg.asset_check(
    asset=["model", "challenger"], blocking=True, description="The alias `challenger` names the version of this night."
)
def challenger_is_registered(night: NightResource, home: HomeResource, registry: RegistryResource) -> dg.AssetCheckResult:
    """Compare the alias with what training left."""
    trained = NightFolder.of(home.get(), night.night).read_facts("challenger")["model_version"]
    named = registry.get().version_of("challenger")
    return held([] if named == trained else [f"alias challenger names {named}, trained was {trained}"], f"version {trained}")


@dg.asset_check(asset=["model", "scorecards"], blocking=True, description="All predictors are scored on the same attempts.")
def scores_are_comparable(night: NightResource, home: HomeResource) -> dg.AssetCheckResult:
    """Hold the night where a score is of other attempts than the one it is compared with."""
    counts = {name: card.n for name, card in read_scorecards(NightFolder.of(home.get(), night.night)).items()}
    return held([] if len(set(counts.values())) == 1 else [f"attempts scored: {counts}"], f"attempts scored: {counts}")


@dg.asset_check(
    asset=["model", "predictions"], blocking=True, description="Each predictor has a row for every attempt of the window."
)
def predictions_are_complete(night: NightResource, warehouse: WarehouseResource) -> dg.AssetCheckResult:
    """Hold the night where an answer is missing rather than counted as a miss."""
    sql = """
        select predictor, count(*) as n, count(distinct attempt_id) as attempts
        from model.predictions where night = ? group by all order by all
    """
    with warehouse.connect(read_only=True) as connection:
        rows = read(connection, sql, [night.night]).to_pylist()
    # an attempt has a row per segment
    uneven = [str(row) for row in rows if (row["attempts"], row["n"]) != (rows[0]["attempts"], rows[0]["n"])]
    return held(uneven if rows else ["no prediction of this night"], f"{len(rows)} predictors")


@dg.asset(
    key_prefix="model",
    group_name="model",
    owners=[OWNER],
    kinds={"python", "duckdb"},
    deps=[["model", "scorecards"], ["model", "predictions"], ["model", "challenger"], ["raw", "quarantine"]],
    description="What the gates of params.yaml say of the challenger, one row per gate with its figure and limit.",
    metadata=described("model.verdicts"),
)
def verdicts(
    night: NightResource, home: HomeResource, params: ParamsResource, warehouse: WarehouseResource
) -> dg.MaterializeResult[Any]:
    """Decide, and write the reasons down."""
    folder = NightFolder.of(home.get(), night.night)
    scores = read_scorecards(folder)
    with warehouse.connect() as connection:
        verdict = decide(
            scores.get(CHAMPION),
            scores["leap"],
            params.get().gates,
            lookup=scores["lookup"],
            quarantined_share=quarantined_share(connection),
        )
        challenger = folder.read_facts("challenger")
        rows = verdict_table(verdict, night.night, challenger["model_version"])
        replace(connection, "model.verdicts", rows, {"night": night.night})
    folder.write_facts("verdict", {**verdict.to_json(), "fingerprint": challenger["fingerprint"]})
    return dg.MaterializeResult(
        metadata={
            "dagster/row_count": rows.num_rows,
            "promoted": verdict.promoted,
            "reason": verdict.reason,
            "gates": markdown_table(rows.select(["has_passed", "reason"])),
            # figures by themselves: Dagster draws them over the nights
            **{gate.name: gate.value for gate in verdict.gates if gate.value is not None},
        }
    )


@dg.asset_check(asset=verdicts, blocking=True, description="The challenger passes every gate; else champion and ranking stay.")
def gates(night: NightResource, home: HomeResource) -> dg.AssetCheckResult:
    """Hold the night where a gate is shut."""
    verdict = NightFolder.of(home.get(), night.night).read_facts("verdict")
    return held([gate["reason"] for gate in verdict["gates"] if not gate["passed"]], verdict["reason"])


@dg.asset_check(asset=["model", "rankings"], blocking=True, description="Great Expectations on the ranking to be published.")
def ranking_quality(night: NightResource, home: HomeResource) -> dg.AssetCheckResult:
    """Hold the night where the ranking is empty, not finite or contradicts itself."""
    rows = NightFolder.of(home.get(), night.night).read_table("rankings")
    return border(validate_ranking(rows.to_pandas()), home.get())


@dg.asset_check(asset=["published", "rankings"], blocking=True, description="The published snapshot reads back whole.")
def snapshot_reads_back(night: NightResource, home: HomeResource) -> dg.AssetCheckResult:
    """Read the snapshot as the scheduler would, checksums and all."""
    reader = SnapshotReader(home.get().published)
    manifest = reader.manifest()
    wrong = [] if manifest.night == night.night else [f"the pointer names a snapshot of {manifest.night}"]
    Scorer.load(reader.bundle())
    return held(wrong, f"{manifest.row_count} rows, {manifest.job_key_count} job keys, hash {manifest.rankings_hash[:12]}")


@dg.asset_check(
    asset=["model", "promotions"], blocking=True, description="The alias `champion` names the version that is published."
)
def champion_is_published(home: HomeResource, night: NightResource, registry: RegistryResource) -> dg.AssetCheckResult:
    """Compare registry and snapshot."""
    manifest = SnapshotReader(home.get().published).manifest()
    named = registry.get().version_of("champion")
    served = manifest.model_version
    wrong = [] if served == named else [f"the alias names {named}, {manifest.snapshot_id} is of {served}"]
    return held(wrong, f"version {named} since the night of {night.night}")


@dg.asset_check(asset=["reports", "night_report"], blocking=True, description="The report names the snapshot that is served.")
def report_is_current(night: NightResource, home: HomeResource) -> dg.AssetCheckResult:
    """Compare report and pointer."""
    reported = NightFolder.of(home.get(), night.night).read_facts("report")["snapshot_id"]
    served = SnapshotReader(home.get().published).manifest().snapshot_id
    return held([] if reported == served else [f"reported {reported}, served {served}"], f"snapshot {served}")
