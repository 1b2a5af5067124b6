"""Nights on measured logs: bad input is told and nothing is lost; a round of MLPerf Training results goes all the way."""

from __future__ import annotations

import random
import re
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.e2e.conftest import Done, Leap, Night

ROUND = "training_results_v5.0"
SUBMITTER, SYSTEMS, BENCHMARK = "AMD", ("MI300X_EPYC_9575F_pytorch", "MI325X_EPYC_9575F_pytorch"), "llama2_70b_lora"
RUNS = 10  # of each system


@pytest.fixture(scope="module")
def archive(shared_data: Path) -> Path:
    return shared_data / "mlperf" / f"{ROUND}.tar.xz"


@pytest.fixture(scope="module")
def leap(tmp_path_factory: pytest.TempPathFactory, make_leap_in: Callable[[Path], Leap]) -> Leap:
    """One home: a night over one round, then all that is read in badly."""
    return make_leap_in(tmp_path_factory.mktemp("one-round"))


@pytest.fixture(scope="module")
def one_round(leap: Leap, archive: Path) -> Night:
    return leap.left_by(leap.night("--source", f"mlperf={archive}"))


@pytest.fixture(scope="module")
def submission(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with the results of one submitter: twenty runs on two systems."""
    folder = tmp_path_factory.mktemp("submission")
    with tarfile.open(archive) as tar:
        members = [member for member in tar if member.name.startswith(f"{ROUND}/{SUBMITTER}/")]
        tar.extractall(folder, members, filter="data")
    return folder / ROUND


@pytest.fixture
def checkout(one_round: Night, submission: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A copy that no other test has read: its runs are on a day of the test's own."""
    folder = shutil.copytree(submission, tmp_path / ROUND)
    earlier = random.Random(request.node.name).randrange(10**9)
    for path in folder.rglob("result_*.txt"):
        path.write_text(re.sub(r'(?<="time_ms": )\d+', lambda time: str(int(time[0]) - earlier), path.read_text()))
    return folder


def test_a_round_goes_all_the_way_and_the_terminal_says_what_became_of_it(one_round: Night, leap: Leap) -> None:
    done = one_round.done

    assert done.code == 0, f"{done.out}\n{done.err}"
    said = re.search(r"records: read (\d+) = kept (\d+) \+ quarantined (\d+) \+ duplicates 0$", done.out, re.MULTILINE)
    assert said is not None
    read, kept, quarantined = map(int, said.groups())
    assert read == kept + quarantined > 1700
    assert (kept, quarantined) == (one_round.counts["raw.job_attempts"], one_round.counts["raw.quarantine"])
    assert len(ranked_hardware(leap, "llama2_70b_lora@8")) >= 5


def test_a_source_that_is_not_there_fails_the_night_and_changes_nothing(one_round: Night, leap: Leap) -> None:
    before = leap.counts()

    night = leap.left_by(leap.night("--source", "mlperf=/no/such/place"))

    assert night.done.code == 1
    assert "/no/such/place: no such file or folder" in night.done.out
    assert (night.counts, night.manifest) == (before, one_round.manifest)


def ingested(done: Done) -> dict[str, int]:
    """Give the total of what `leap ingest` printed as JSON; it must add up."""
    assert done.code == 0, done.err
    total: dict[str, int] = done.json()["total"]
    assert total["records_read"] == total["kept"] + total["quarantined"] + total["duplicates"]
    return total


def result(checkout: Path, system: int = 0, run: int = 0) -> Path:
    return checkout / SUBMITTER / "results" / SYSTEMS[system] / BENCHMARK / f"result_{run}.txt"


def without(path: Path, text: str) -> None:
    """Take the lines that hold the text out of a file."""
    path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if text not in line))


def spoil_with_random_bytes(checkout: Path) -> None:
    result(checkout).write_bytes(random.Random(7).randbytes(20_000))


def leave_out_run_stop(checkout: Path) -> None:
    without(result(checkout), '"run_stop"')


def leave_out_time(checkout: Path) -> None:
    path = result(checkout)
    path.write_text(path.read_text().replace('"time_ms"', '"time_was"'))


def cut_the_system_description(checkout: Path) -> None:
    path = checkout / SUBMITTER / "systems" / f"{SYSTEMS[0]}.json"
    path.write_bytes(path.read_bytes()[:-40])


@pytest.mark.parametrize(
    ("spoil", "reason", "runs", "told"),
    [
        (spoil_with_random_bytes, "not-a-log", 1, "there is no readable :::MLLOG line in it"),
        (leave_out_run_stop, "no-run-stop", 1, "the log has no run_stop"),
        (leave_out_time, "no-time", 1, "run_start has no usable time_ms"),
        (cut_the_system_description, "bad-system-description", RUNS, "the system description does not parse"),
    ],
)
def test_what_cannot_be_trusted_is_in_quarantine_with_its_reason(
    leap: Leap, checkout: Path, spoil: Callable[[Path], None], reason: str, runs: int, told: str
) -> None:
    spoil(checkout)

    done = leap("ingest", "mlperf", checkout, "--json")

    assert list(ingested(done).values()) == [2 * RUNS, 2 * RUNS - runs, runs, 0]
    (found,) = done.json()["quarantine"]
    assert (found["reason"], found["records"]) == (reason, runs)
    assert told in found["first"]
    assert f"{SYSTEMS[0]}/{BENCHMARK}/result_0.txt" in found["first"]
    # the records themselves are kept
    rows = leap.rows(
        "select record from raw.quarantine where reason = ? and received_at = (select max(received_at) from raw.loads)", reason
    )
    assert len(rows) == runs
    assert all(row["record"] for row in rows)


def test_the_terminal_says_what_was_wrong_with_the_first_of_each_kind(leap: Leap, checkout: Path) -> None:
    for run in range(3):
        without(result(checkout, run=run), '"run_stop"')

    done = leap("ingest", "mlperf", checkout)

    assert done.code == 0
    assert f"no-run-stop 3, the first: {ROUND}/{SUBMITTER}/results/{SYSTEMS[0]}/{BENCHMARK}/result_0.txt, line " in done.out


def test_of_a_truncated_archive_all_that_is_whole_is_kept(leap: Leap, checkout: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole" / f"{ROUND}.tar.xz"
    cut = tmp_path / "cut" / f"{ROUND}.tar.xz"
    for path in (whole, cut):
        path.parent.mkdir()
    with tarfile.open(whole, "w:xz") as tar:
        # a system's description may stand behind its runs
        for name in (f"{SUBMITTER}/results/{SYSTEMS[0]}", f"{SUBMITTER}/systems", f"{SUBMITTER}/results/{SYSTEMS[1]}"):
            tar.add(checkout / name, f"{ROUND}/{name}")
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size * 3 // 4])

    first = leap("ingest", "mlperf", cut, "--json")
    then = leap("ingest", "mlperf", whole, "--json")

    found = {reason["reason"]: reason["first"] for reason in first.json()["quarantine"]}
    assert "the archive cannot be read to its end" in found["unreadable-archive"]
    assert 0 < ingested(first)["kept"] < 2 * RUNS
    assert ingested(first)["kept"] + ingested(then)["kept"] == 2 * RUNS
    assert ingested(then)["duplicates"] == ingested(first)["kept"]


def test_the_runs_of_a_second_archive_of_the_same_round_are_duplicates(leap: Leap, checkout: Path, tmp_path: Path) -> None:
    archives = [tmp_path / name for name in (f"{ROUND}.tar.gz", "the-same-again.tar.xz")]
    for path in archives:
        with tarfile.open(path, f"w:{path.suffix.removeprefix('.')}") as tar:
            tar.add(checkout, ROUND)

    total = ingested(leap("ingest", "mlperf", *archives, "--json"))

    assert list(total.values()) == [4 * RUNS, 2 * RUNS, 0, 2 * RUNS]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (Path.mkdir, "the folder is empty"),
        (lambda path: None, "no such file or folder"),
        (lambda path: path.write_text("hello"), "neither a folder nor an archive"),
    ],
    ids=["empty folder", "no such path", "something else"],
)
def test_a_source_that_is_none_is_told_in_one_line_and_changes_nothing(
    one_round: Night, leap: Leap, tmp_path: Path, make: Callable[[Path], Any], told: str
) -> None:
    path = tmp_path / "source"
    make(path)
    before = leap.counts()

    done = leap("ingest", "mlperf", path)

    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"leap: {path}: ")
    assert told in done.err
    assert len(done.err.splitlines()) == 1
    assert leap.counts() == before


def kept_of_the_successful(leap: Leap) -> dict[str, float]:
    """Give by round which share of the runs that ended well is learned from."""
    sql = """
        select split_part(slice, '/', 1) as round, avg(kept) as share
        from (
            select slice, outcome, 1 as kept from raw.job_attempts
            union all select slice, outcome, 0 from raw.quarantine
        )
        where outcome = 'succeeded'
        group by round
    """
    return {row["round"]: row["share"] for row in leap.rows(sql)}


def ranked_hardware(leap: Leap, key: str) -> set[str]:
    done = leap("rank", "--job", key, "--json")
    assert done.code == 0, done.err
    answer = done.json()
    assert answer["key"] == key
    return {row["hardware_type"] for row in answer["rankings"] if row["rank"] is not None}


@dataclass(frozen=True)
class AllRounds:
    """Two nights over all archives with the gates of params.yaml, and the most memory that the first took."""

    leap: Leap
    first: Night
    peak_bytes: int
    again: Night


@pytest.fixture(scope="module")
def all_rounds(shared_data: Path, tmp_path_factory: pytest.TempPathFactory, make_leap_in: Callable[[Path], Leap]) -> AllRounds:
    leap = replace(make_leap_in(tmp_path_factory.mktemp("all-rounds")), params=None)
    source = ("--source", f"mlperf={shared_data / 'mlperf'}")
    running = leap.start_night(*source)
    peak = 0
    while running.process.poll() is None:
        peak = max(peak, running.resident_bytes())
        sleep(0.2)
    first = leap.left_by(running.finish())
    return AllRounds(leap, first, peak, leap.left_by(leap.night(*source)))


@pytest.mark.slow
def test_all_rounds_are_learned_from_in_time_and_memory(all_rounds: AllRounds) -> None:
    done = all_rounds.first.done
    assert done.code == 0, f"{done.out}\n{done.err}"
    assert done.seconds < 600
    assert all_rounds.peak_bytes < 4 * 2**30


@pytest.mark.slow
def test_of_each_round_nearly_all_runs_that_succeeded_are_kept(all_rounds: AllRounds) -> None:
    shares = kept_of_the_successful(all_rounds.leap)

    assert sorted(shares) == ["v1.0", "v1.1", "v2.0", "v2.1", "v3.0", "v3.1", "v4.0", "v4.1", "v5.0"]
    assert {name: share for name, share in shares.items() if share < 0.99} == {}


@pytest.mark.slow
def test_every_slice_of_every_round_adds_up(all_rounds: AllRounds) -> None:
    sql = """
        with tables as (
            select slice, count(*) filter (kept) as kept, count(*) filter (not kept) as quarantined
            from (select slice, true as kept from raw.job_attempts union all select slice, false from raw.quarantine)
            group by slice
        )

        select slice, sum(records_read) as records, sum(loads.kept + loads.quarantined + duplicates) as counted,
            sum(loads.kept) as loaded, any_value(tables.kept) as kept,
            sum(loads.quarantined) as refused, any_value(tables.quarantined) as quarantined
        from raw.loads as loads left join tables using (slice)
        group by slice
    """
    rows = all_rounds.leap.rows(sql)

    assert len(rows) > 50
    wrong = [
        row
        for row in rows
        if row["records"] != row["counted"] or row["loaded"] != row["kept"] or row["refused"] != row["quarantined"]
    ]
    assert wrong == []


@pytest.mark.slow
def test_a_benchmark_is_ranked_on_ten_hardware_types(all_rounds: AllRounds) -> None:
    assert len(ranked_hardware(all_rounds.leap, "bert@8")) >= 10


@pytest.mark.slow
def test_all_rounds_again_give_the_same(all_rounds: AllRounds) -> None:
    first, again = all_rounds.first, all_rounds.again
    assert again.done.code == 0, f"{again.done.out}\n{again.done.err}"
    assert again.manifest["rankings_hash"] == first.manifest["rankings_hash"]
    assert {**again.counts, "raw.loads": 0} == {**first.counts, "raw.loads": 0}
