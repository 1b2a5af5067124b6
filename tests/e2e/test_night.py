"""A good night: everything is made, every check passes, the ranking answers; and the same night again changes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest

from leap.store.dictionary import list_tables
from pipelines.definitions import build_defs
from pipelines.settings import Settings

if TYPE_CHECKING:
    from tests.e2e.conftest import GoodHome, Leap


@pytest.fixture(scope="module")
def definitions(good: GoodHome, repository: Path) -> dg.Definitions:
    return build_defs(Settings(home=good.leap.home, params=repository / "params.yaml"))


@pytest.fixture(scope="module")
def instance(good: GoodHome) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.from_config(str(good.leap.layout.dagster)) as instance:
        yield instance


_KEPT_IN = ("raw.job_attempts", "raw.prices")


def test_every_record_is_kept_in_quarantine_or_a_duplicate(good: GoodHome) -> None:
    counts = good.leap.rows("select * from raw.loads order by received_at, slice")

    assert all(row["records_read"] == row["kept"] + row["quarantined"] + row["duplicates"] for row in counts)
    kept = {
        name: sum(row["kept"] for row in counts if (row["source"] == "prices") == (name == "raw.prices")) for name in _KEPT_IN
    }
    assert kept == {name: good.first.counts[name] for name in _KEPT_IN}
    assert sum(row["quarantined"] for row in counts) == good.first.counts["raw.quarantine"]


def test_every_asset_was_made_and_every_check_passed(
    definitions: dg.Definitions, instance: dg.DagsterInstance, good: GoodHome
) -> None:
    graph = definitions.resolve_asset_graph()

    made = {key for key in graph.materializable_asset_keys if instance.get_latest_materialization_event(key) is not None}
    passed = {key for key in graph.asset_check_keys if _passed(instance, key)}

    assert {key.to_user_string() for key in graph.materializable_asset_keys - made} == set()
    assert {str(key) for key in graph.asset_check_keys - passed} == set()
    assert [run.status for run in instance.get_runs()] == [dg.DagsterRunStatus.SUCCESS] * 2


def _passed(instance: dg.DagsterInstance, key: dg.AssetCheckKey) -> bool:
    (record,) = instance.event_log_storage.get_asset_check_execution_history(key, limit=1)
    evaluation = record.evaluation
    return evaluation is not None and evaluation.passed


def test_the_model_is_registered_and_is_champion(good: GoodHome) -> None:
    version = good.again.manifest["model_version"]

    assert good.leap.aliases() == {"champion": version, "challenger": version}


def test_the_snapshot_says_what_it_is_made_of_and_the_control_database_why_it_is_live(good: GoodHome) -> None:
    manifest = good.first.manifest
    (promotion,) = good.leap.promotions()

    assert manifest["night"] == "2026-03-05"
    assert manifest["row_count"] > 1000
    facts = ("snapshot_id", "model_version", "fingerprint", "dataset_id", "code_version", "price_version")
    assert {name: promotion[name] for name in facts} == {name: manifest[name] for name in facts}
    assert (good.leap.layout.datasets / manifest["dataset_id"] / "attempts.parquet").is_file()
    assert good.leap.ledger() == [("2026-03-05", "succeeded")] * 2


def test_the_tables_of_the_model_have_the_columns_of_the_dictionary(good: GoodHome, repository: Path) -> None:
    described = {
        table.name: [(column.name, column.type) for column in table.columns]
        for table in list_tables(repository)
        if table.name.startswith(("raw.", "model.", "marts."))
    }
    written: dict[str, list[tuple[str, str]]] = {}
    for row in good.leap.rows(
        """
        select
            table_schema || '.' || table_name as name, column_name,
            replace(data_type, 'TIMESTAMP WITH TIME ZONE', 'TIMESTAMPTZ') as type
        from information_schema.columns
        where table_schema in ('raw', 'model', 'marts')
        order by table_schema, table_name, ordinal_position
        """
    ):
        written.setdefault(row["name"], []).append((row["column_name"], row["type"]))

    assert written == described


def test_nothing_is_left_where_the_command_was_started(good: GoodHome) -> None:
    assert list(good.leap.folder.iterdir()) == []


def test_the_same_night_again_gives_the_same(good: GoodHome) -> None:
    first, again = good.first, good.again

    ledgers = {"raw.loads"}
    assert {name: n for name, n in again.counts.items() if name not in ledgers} == {
        name: n for name, n in first.counts.items() if name not in ledgers
    }
    same = ("rankings_hash", "model_version", "fingerprint", "dataset_id", "row_count")
    assert {name: again.manifest[name] for name in same} == {name: first.manifest[name] for name in same}
    assert again.manifest["previous_snapshot_id"] == first.manifest["snapshot_id"]
    loads = good.leap.rows("select load_id, records_read, duplicates from raw.loads order by received_at")
    second = loads[len(loads) // 2 :]
    assert len({load["load_id"] for load in second}) == 2  # of the logs, and of the price list
    assert [load["duplicates"] for load in second] == [load["records_read"] for load in second]


def test_the_night_can_be_read_by_a_program(good: GoodHome) -> None:
    said = good.again.done.json()

    assert (said["outcome"], said["night"], said["failures"], said["not_run"]) == ("good", "2026-03-05", [], [])
    assert said["assets"]["published/rankings"]["snapshot"] == good.again.manifest["snapshot_id"]
    assert said["assets"]["model/challenger"]["was registered before"] is True


def rank(leap: Leap, *arguments: str | Path) -> dict[str, Any]:
    done = leap("rank", *arguments, "--json")
    assert done.code == 0, done.err
    answer: dict[str, Any] = done.json()
    return answer


def a_submission(good: GoodHome, **more: Any) -> dict[str, Any]:
    """Give the submission of the job that is ranked first by name, as a scheduler would write it."""
    (row,) = good.leap.rows("select * from marts.fct_ranking_candidates where eligible order by job_key, hardware_type limit 1")
    fields = ("model_type", "team", "task", "framework", "framework_version", "precision", "global_batch_size")
    return {name: row[name] for name in fields} | {"num_devices": int(row["num_devices"]), "job_id": row["job_key"]} | more


def written(folder: Path, content: Any) -> Path:
    path = folder / "job.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_known_job_is_ranked_by_its_key(good: GoodHome) -> None:
    key = a_submission(good)["job_id"]

    answer = rank(good.leap, "--job", key)

    assert (answer["key"], answer["freshness"], answer["warning"]) == (key, "fresh", None)
    assert answer["snapshot_id"] == good.again.manifest["snapshot_id"]
    ranked = [row for row in answer["rankings"] if row["rank"] is not None]
    assert [row["rank"] for row in ranked] == list(range(1, len(ranked) + 1))
    assert len({row["hardware_type"] for row in ranked}) >= 10
    assert ranked[0]["relative_to_best"] == 1.0


def test_an_unknown_key_falls_back_to_what_all_jobs_have_in_common(good: GoodHome) -> None:
    answer = rank(good.leap, "--job", "no-such-model@8")

    assert answer["key"] == "*"
    assert all(row["throughput"] is None for row in answer["rankings"])


def test_a_job_of_a_known_model_type_is_scored(good: GoodHome, tmp_path: Path) -> None:
    submission = a_submission(good, job_id="never-seen", num_devices=3)

    answer = rank(good.leap, "--submission", written(tmp_path, submission))

    assert (answer["key"], answer["warning"]) == ("submission", None)
    best = answer["rankings"][0]
    assert (best["rank"], best["job_key"], best["num_devices"]) == (1, "never-seen", 3)
    assert best["throughput_p10"] <= best["throughput"] <= best["throughput_p90"]
    assert best["throughput_per_usd"] == pytest.approx(best["throughput"] / (3 * best["usd_per_device_hour"] / 3600))
    assert "measured" not in {row["tier"] for row in answer["rankings"]}


def test_a_model_type_never_seen_is_a_guess_and_says_so(good: GoodHome, tmp_path: Path) -> None:
    submission = {"model_type": "never-seen", "num_devices": 8}

    answer = rank(good.leap, "--submission", written(tmp_path, submission))

    assert {row["tier"] for row in answer["rankings"]} <= {"analytic", "none"}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({"model_type": "bert", "num_devices": 8, "batchsize": 4}, "batchsize: Extra inputs are not permitted"),
        ({"model_type": "bert"}, "num_devices: Field required"),
        ({"model_type": "bert", "num_devices": 0}, "num_devices: Input should be greater than 0"),
        ("{model_type: bert", "Invalid JSON"),
        ("", "Invalid JSON"),
    ],
)
def test_a_submission_that_is_none_is_told_in_one_line(good: GoodHome, tmp_path: Path, content: Any, told: str) -> None:
    path = written(tmp_path, content)

    done = good.leap("rank", "--submission", path)

    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"leap: {path}: not a job submission: ")
    assert told in done.err
    assert len(done.err.splitlines()) == 1
