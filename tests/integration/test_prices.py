"""Prices as they became known: what will not do stops nothing else, a jump waits for a person, and the past stays as it was."""

from __future__ import annotations

import shutil
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest

from leap.hardware.catalog import read_catalog
from leap.params import IngestParams
from leap.store import warehouse
from leap.store.control import Control, ControlError, PriceApproval
from leap.store.datasets import export, open_dataset
from leap.store.ingest import ingest, quarantined_share, read_resolver
from leap.store.prices import held_back, in_force, load_prices
from leap.store.unknown_hardware import list_unknown
from leap.store.warehouse import connect, read

FIRST = datetime(2026, 3, 1, 1, tzinfo=UTC)
HEADER = "hardware_type,pool,price_list,usd_per_device_hour,valid_from,source,is_assumption,note\n"
A100, H100 = "A100-80GB-SXM4", "H100-80GB-SXM5"


@pytest.fixture
def seeds(repository: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(repository / "dbt_project" / "seeds", tmp_path / "seeds"))


class Lists:
    """Loads price lists of a test, a day after the other."""

    def __init__(self, con: duckdb.DuckDBPyConnection, seeds: Path, folder: Path) -> None:
        self.con, self.seeds, self.folder, self.loads = con, seeds, folder, 0

    def load(self, text: str, approved: tuple[PriceApproval, ...] = (), name: str = "prices.csv") -> dict[str, int]:
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        at = FIRST + timedelta(days=self.loads)
        counts = load_prices(
            self.con, [path], seeds=self.seeds, max_jump=3, approved=approved, received_at=at, load_id=f"load {self.loads}"
        )
        self.loads += 1
        assert all(row["is_reconciled"] for row in warehouse.reconciliation(self.con).to_pylist())
        return {name: sum(getattr(one, name) for one in counts) for name in ("kept", "quarantined", "duplicates")}

    def now(self, on: date = date(2026, 12, 1)) -> dict[tuple[str, str], float]:
        return {(one.hardware_type, one.pool): one.usd_per_device_hour for one in in_force(self.con, on)}


@pytest.fixture
def lists(seeds: Path, tmp_path: Path) -> Any:
    with connect(tmp_path / "warehouse.duckdb") as con:
        yield Lists(con, seeds, tmp_path)


def test_a_bad_row_stops_no_other_and_is_told_with_its_line(lists: Lists) -> None:
    # trouble 35: free hardware wins; prices 0, NULL, NaN, -1 and N/A are none
    bad = "".join(
        f"{A100},default,list,{price},2025-01-0{day},here,false,\n" for day, price in enumerate(("0", "", "NaN", "-1", "N/A"), 1)
    )
    others = (
        "A100,default,list,2,2025-01-01,here,false,\n"
        f"{A100},default,list,2,soon,here,false,\n"
        f"{A100},default,,2,2025-01-01,here,false,\n"
        f"{H100},spot,list,2,2025-01-01,here,false,\n{H100},spot,list,3,2025-01-01,here,false,\n"
        f"{H100},default,list,1,2,3,4,5,6,7\n"
    )
    counts = lists.load(HEADER + bad + f"{H100},default,list,4.5,2025-01-01,here,false,fine\n" + others)

    assert counts == {"kept": 1, "quarantined": 11, "duplicates": 0}
    assert lists.now() == {(H100, "default"): 4.5}
    told = lists.con.execute("select line, reason, detail from raw.quarantine order by line").fetchall()
    assert [(line, reason) for line, reason, _ in told] == [
        *((line, "bad-price") for line in range(2, 7)),
        (8, "unknown-hardware"), (9, "bad-time"), (10, "missing-field"), (11, "contradicts-itself"), (12, "contradicts-itself"),
        (13, "ragged-row"),
    ]  # fmt: skip
    assert "prices.csv, line 6: the price is N/A; it must be a number above 0: what costs nothing would rank first." in told[4][2]


def test_the_same_list_again_is_all_duplicates(lists: Lists, seeds: Path) -> None:
    text = (seeds / "prices.csv").read_text(encoding="utf-8")
    first = lists.load(text)
    assert first["quarantined"] == first["duplicates"] == 0
    assert lists.load(text) == {"kept": 0, "quarantined": 0, "duplicates": first["kept"]}


def test_a_jump_waits_for_a_word_and_the_older_price_stays(lists: Lists) -> None:
    lists.load(HEADER + f"{A100},default,list,2,2025-01-01,here,false,\n")
    jumped = HEADER + f"{A100},default,list,20,2025-06-01,here,false,\n{H100},default,list,5,2025-06-01,here,false,\n"

    assert lists.load(jumped) == {"kept": 1, "quarantined": 1, "duplicates": 0}
    assert lists.now() == {(A100, "default"): 2.0, (H100, "default"): 5.0}
    (held,) = held_back(lists.con)
    assert (held.hardware_type, held.usd_per_device_hour, held.valid_from) == (A100, 20.0, date(2025, 6, 1))
    assert f"leap prices approve {A100} --price 20 --pool default --list list" in held.detail
    # another night finds it again and nothing new
    assert lists.load(jumped) == {"kept": 0, "quarantined": 0, "duplicates": 2}

    word = PriceApproval(A100, "default", "list", 20.0, FIRST, "ada", "new contract")
    assert lists.load(jumped, (word,)) == {"kept": 1, "quarantined": 0, "duplicates": 1}
    assert lists.now() == {(A100, "default"): 20.0, (H100, "default"): 5.0}
    assert held_back(lists.con) == []
    # a fall is a jump too, and a step within the limit is none
    assert lists.load(HEADER + f"{A100},default,list,1,2025-07-01,here,false,\n")["quarantined"] == 1
    assert lists.load(HEADER + f"{A100},default,list,8,2025-08-01,here,false,\n")["kept"] == 1


def test_another_figure_for_the_same_day_is_a_version_that_the_past_does_not_see(lists: Lists) -> None:
    lists.load(HEADER + f"{A100},default,list,2,2025-01-01,here,false,\n")
    lists.load(HEADER + f"{A100},default,list,3,2025-01-01,here,false,\n")

    rows = read(lists.con, "select usd_per_device_hour, known_from from raw.prices order by known_from").to_pylist()
    assert [(row["usd_per_device_hour"], row["known_from"]) for row in rows] == [
        (2.0, datetime(1970, 1, 1, tzinfo=UTC)),  # what a home began with is known to all its nights
        (3.0, FIRST + timedelta(days=1)),
    ]
    assert [(one.usd_per_device_hour, one.version) for one in in_force(lists.con, date(2026, 1, 1))] == [(3.0, 2)]
    assert lists.now(date(2024, 12, 31)) == {}


def test_lists_in_other_currencies_need_a_rate(lists: Lists, seeds: Path) -> None:
    header = "hardware_type,price_list,price_per_device_hour,currency,valid_from,valid_to\n"
    text = (
        header
        + f"{A100},ours,2,eur,2025-06-01,2026-01-01\n{H100},ours,2,EUR,2024-01-01,\n{H100},ours,2,EUR,2025-06-01,2025-06-01\n"
    )
    assert lists.load(text) == {"kept": 0, "quarantined": 3, "duplicates": 0}
    with (seeds / "exchange_rates.csv").open("a", encoding="utf-8") as rates:
        rates.write("EUR,1.1,2025-01-01,test\nEUR,1.2,2025-07-01,test\n")
    assert lists.load(text)["kept"] == 1
    (price,) = in_force(lists.con, date(2025, 12, 1))
    assert (price.usd_per_device_hour, price.pool, price.valid_to) == (pytest.approx(2.2), "default", date(2026, 1, 1))
    reasons = [row[0] for row in lists.con.execute("select distinct reason from raw.quarantine order by 1").fetchall()]
    assert reasons == ["bad-time", "unknown-currency"]


def test_an_approval_is_recorded_for_good(tmp_path: Path) -> None:
    control = Control(tmp_path / "control.db")
    word = PriceApproval(A100, "default", "list", 20.0, FIRST, "ada", "new contract")
    control.approve_price(word)

    assert Control(tmp_path / "control.db").price_approvals() == [word]
    for wrong in (
        PriceApproval(A100, "default", "list", 20.0, FIRST, "", "why"),
        PriceApproval(A100, "default", "list", 0.0, FIRST, "ada", "why"),
    ):
        with pytest.raises(ControlError, match="it needs a price above 0, a name and a reason"):
            control.approve_price(wrong)


def test_spellings_that_nobody_named_are_listed_with_what_they_might_be(seeds: Path, tmp_path: Path) -> None:
    record = (
        '{"attempt_id": "%s", "started_at": "2026-03-01T10:00:00Z", "ended_at": "2026-03-01T11:00:00Z", "outcome": "succeeded", '
        '"model_type": "bert", "num_devices": 8, "hardware_name": "%s", "throughput": 9, "throughput_unit": "samples/s", '
        '"throughput_scope": "job"}\n'
    )
    names = ["NVIDIA H100 SXM9 80GB"] * 2 + ["NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "NVIDIA H100-SXM5-80GB"]
    log = tmp_path / "log.jsonl"
    log.write_text("".join(record % (number, name) for number, name in enumerate(names)), encoding="utf-8")
    with connect(tmp_path / "warehouse.duckdb") as con:
        params = IngestParams(max_label_disagreement=0.05, min_steady_seconds=5)
        ingest(con, "jsonl", [log], seeds=seeds, params=params, received_at=FIRST + timedelta(days=9), load_id="load")
        assert quarantined_share(con) == 0.75
        export(tmp_path / "datasets", {"quarantine": read(con, "select * from raw.quarantine")}, date(2026, 3, 2), "digest")
    dataset = open_dataset(tmp_path / "datasets")
    types = read_catalog(seeds / "hardware_types.csv").types

    unknown, mig = list_unknown(dataset, read_resolver(seeds), types)
    assert (unknown.hardware_name, unknown.records, unknown.first) == (names[0], 2, f"{log.as_posix()}, line 1")
    assert any(one.hardware_type.startswith("H100-80GB") for one in unknown.candidates)
    assert "a row for the slice, a type of its own" in mig.line_to_add

    with (seeds / "hardware_aliases.csv").open("a", encoding="utf-8") as aliases:
        aliases.write(f"{names[0]},{H100},a person\n")
    assert [one.hardware_name for one in list_unknown(dataset, read_resolver(seeds), types)] == [mig.hardware_name]
