"""The reader of JSON lines: right values from good lines, a reason for every bad one, nothing lost."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leap.contracts import ATTEMPT_SCHEMA, READ_SCHEMA, REJECT_SCHEMA
from leap.params import IngestParams
from leap.sources import ReadBatch, SourceError, jsonl

PARAMS = IngestParams(max_label_disagreement=0.05, min_steady_seconds=20)
GOOD = '{"attempt_id": "a", "num_devices": 8}'


def read(*paths: Path) -> ReadBatch:
    batches = list(jsonl.read(paths, PARAMS))
    return ReadBatch(
        pa.concat_tables([READ_SCHEMA.empty_table(), *(batch.attempts for batch in batches)]),
        pa.concat_tables([REJECT_SCHEMA.empty_table(), *(batch.rejects for batch in batches)]),
    )


def read_text(folder: Path, text: str | bytes, name: str = "log.jsonl") -> ReadBatch:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read(path)


def ids(batch: ReadBatch) -> Sequence[Any]:
    return batch.attempts["attempt_id"].to_pylist()


def test_every_field_comes_in_its_own_type(tmp_path: Path) -> None:
    # given a line with one field of each kind, an object, an array and a time with an offset
    line = {
        "attempt_id": "a1",
        "num_devices": 8.0,
        "num_nodes": 1,
        "started_at": "2026-03-01T09:30:00.250+02:00",
        "throughput": 1200,
        "pinned": True,
        "config": {"b": [1, {"c": None}], "a": 0.5},
        "eligible_hardware": ["H200-SXM", "MI300X"],
        "team": None,
    }
    # when it is read
    attempts, rejects = read_text(tmp_path, json.dumps(line) + "\n")
    # then the table has the schema and the values
    assert attempts.schema == READ_SCHEMA
    assert rejects.num_rows == 0
    row = attempts.to_pylist()[0]
    assert (row["num_devices"], row["num_nodes"], row["throughput"], row["pinned"]) == (8, 1, 1200.0, True)
    assert row["started_at"] == datetime(2026, 3, 1, 7, 30, 0, 250_000, tzinfo=UTC)
    assert row["config"] == '{"a":0.5,"b":[1,{"c":null}]}'
    assert row["eligible_hardware"] == '["H200-SXM","MI300X"]'
    assert (row["team"], row["job_id"]) == (None, None)
    assert (row["source"], row["slice"], row["line"]) == ("jsonl", "log.jsonl", 1)
    assert row["file"] == (tmp_path / "log.jsonl").as_posix()


@pytest.mark.parametrize(
    "written",
    ['{"b": 2, "a": 1}', '{"a":1,"b":2}', json.dumps('{"b":2,  "a":1}')],
    ids=["object", "other order and spaces", "string that holds one"],
)
def test_the_same_settings_give_the_same_text_however_written(tmp_path: Path, written: str) -> None:
    attempts, _ = read_text(tmp_path, f'{{"config": {written}}}\n')
    assert attempts["config"].to_pylist() == ['{"a":1,"b":2}']


def test_text_that_looks_like_a_field_inside_a_string_stays_text(tmp_path: Path) -> None:
    team = 'x", "config": {"a": 1}, "eligible_hardware": ["b"]'
    line = json.dumps({"team": team, "config": {"note": 'say "config": {}'}})
    attempts, rejects = read_text(tmp_path, line + "\n")
    assert rejects.num_rows == 0
    assert attempts["team"].to_pylist() == [team]
    assert json.loads(attempts["config"][0].as_py()) == {"note": 'say "config": {}'}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"not json", "not-json"),
        (b'{"attempt_id": "b"', "not-json"),
        (b'{"attempt_id": "b"} {"attempt_id": "c"}', "not-json"),
        (b'{"throughput": NaN}', "not-json"),
        (b'{"throughput": -Infinity}', "not-json"),
        (b'{"config": {"rate": NaN}}', "not-json"),
        (b'{"config": ' + b"[" * 100_000 + b"}", "not-json"),
        (b'{"attempt_id": "\xff\xfe"}', "not-utf8"),
        (b'{"attempt_id": "\\ud800"}', "not-utf8"),
        (b"[1, 2]", "wrong-type"),
        (b'"text"', "wrong-type"),
        (b"17", "wrong-type"),
        (b"null", "wrong-type"),
        (b'{"attempt_id": 7}', "wrong-type"),
        (b'{"num_devices": "8"}', "wrong-type"),
        (b'{"num_devices": 2.5}', "wrong-type"),
        (b'{"num_devices": 4294967296}', "wrong-type"),
        (b'{"num_devices": true}', "wrong-type"),
        (b'{"throughput": "fast"}', "wrong-type"),
        (b'{"throughput": 1e999}', "wrong-type"),
        (b'{"throughput": ' + b"9" * 400 + b"}", "wrong-type"),
        (b'{"pinned": 1}', "wrong-type"),
        (b'{"started_at": 1772323200}', "wrong-type"),
        (b'{"config": 5}', "wrong-type"),
        (b'{"config": [1]}', "wrong-type"),
        (b'{"config": "text"}', "wrong-type"),
        (b'{"eligible_hardware": {"a": 1}}', "wrong-type"),
        (b'{"eligible_hardware": [1]}', "wrong-type"),
        (b'{"started_at": "2026-03-01T09:30:00"}', "bad-time"),
        (b'{"started_at": "2026-03-01"}', "bad-time"),
        (b'{"started_at": "yesterday"}', "bad-time"),
        (b'{"started_at": "2026-02-30T00:00:00Z"}', "bad-time"),
        (b'{"started_at": "0000-01-01T00:00:00Z"}', "bad-time"),
        (b'{"started_at": "0001-01-01T00:00:00+05:00"}', "bad-time"),
        (b'{"speed": 5}', "unknown-field"),
        (b'{"attempt_id": "b", "attempt_id": "c"}', "duplicate-field"),
        (b'{"config": {"a": 1, "a": 2}}', "duplicate-field"),
    ],
)
def test_a_bad_line_is_named_and_its_neighbours_are_kept(tmp_path: Path, line: bytes, reason: str) -> None:
    # given a bad line between two good ones
    attempts, rejects = read_text(tmp_path, GOOD.encode() + b"\n" + line + b"\n" + GOOD.encode() + b"\n")
    # then the good ones are read and the bad one is a reject with its place and text
    assert attempts["line"].to_pylist() == [1, 3]
    (reject,) = rejects.to_pylist()
    assert (reject["reason"], reject["line"], reject["slice"]) == (reason, 2, "log.jsonl")
    assert reject["record"] == line.decode("utf-8", "replace")
    assert reject["detail"].startswith(f"{(tmp_path / 'log.jsonl').as_posix()}, line 2: ")


def test_two_objects_on_one_line_and_none_on_the_next_are_not_taken_for_two_lines(tmp_path: Path) -> None:
    attempts, rejects = read_text(tmp_path, f"{GOOD}{GOOD}\n{{\n")
    assert attempts.num_rows == 0
    assert rejects["reason"].to_pylist() == ["not-json", "not-json"]


def test_a_reject_tells_what_could_be_read_of_it(tmp_path: Path) -> None:
    line = (
        '{"attempt_id": "a1", "model_type": "bert", "num_devices": "x", "hardware_name": "T4", "ended_at": "2026-03-01T00:00Z"}'
    )
    _, rejects = read_text(tmp_path, line)
    (reject,) = rejects.to_pylist()
    assert (reject["attempt_id"], reject["model_type"], reject["hardware_name"]) == ("a1", "bert", "T4")
    assert reject["ended_at"] == datetime(2026, 3, 1, tzinfo=UTC)
    assert reject["num_devices"] is None
    assert "'num_devices' is \"x\"; it must be a whole number" in reject["detail"]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n", "\n  \t\n", "\r\n\r\n"])
def test_line_ends_and_blank_lines_do_not_matter(tmp_path: Path, end: str) -> None:
    attempts, rejects = read_text(tmp_path, "\ufeff" + f"{GOOD}{end}" * 3 + GOOD)
    assert attempts.num_rows == 4
    assert rejects.num_rows == 0
    assert attempts["line"].to_pylist() == [1 + number * end.count("\n") for number in range(4)]


def test_a_folder_is_read_in_order_of_names_whatever_the_compression(tmp_path: Path) -> None:
    # given three files of three compressions, and one that is no log
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"attempt_id": "b"}\n') + gzip.compress(b'{"attempt_id": "b2"}\n'))
    (tmp_path / "c.jsonl").write_text('{"attempt_id": "c"}\n')
    with pa.CompressedOutputStream(str(tmp_path / "a.jsonl.zst"), "zstd") as stream:
        stream.write(b'{"attempt_id": "a"}\n')
    (tmp_path / "README.txt").write_text("no log")
    # when the folder is read
    batch = read(tmp_path)
    # then the order is that of the names
    assert ids(batch) == ["a", "b", "b2", "c"]
    assert batch.attempts["slice"].to_pylist() == ["a.jsonl.zst", "b.jsonl.gz", "b.jsonl.gz", "c.jsonl"]


def test_a_cut_gzip_keeps_what_was_read_and_says_so_once(tmp_path: Path) -> None:
    # given a gzip file cut in the middle
    lines = "".join(f'{{"attempt_id": "a{number}", "team": "{number * 7919 % 10007}"}}\n' for number in range(20_000))
    whole = gzip.compress(lines.encode())
    attempts, rejects = read_text(tmp_path, whole[: len(whole) // 2], "cut.jsonl.gz")
    # then every whole line before the cut is there, and one reject for the file
    assert 5_000 < attempts.num_rows < 20_000
    assert attempts["attempt_id"].to_pylist() == [f"a{number}" for number in range(attempts.num_rows)]
    (reject,) = rejects.to_pylist()
    assert (reject["reason"], reject["line"]) == ("unreadable-archive", 0)
    assert f"from line {attempts.num_rows + 1}" in reject["detail"]
    assert lines.splitlines()[attempts.num_rows].startswith(reject["record"])


def test_a_cut_zstd_keeps_what_was_read(tmp_path: Path) -> None:
    lines = "".join(f'{{"attempt_id": "a{number}", "team": "{number * 7919 % 10007}"}}\n' for number in range(50_000))
    whole = pa.Codec("zstd").compress(lines.encode(), asbytes=True)
    attempts, rejects = read_text(tmp_path, whole[: len(whole) // 2], "cut.jsonl.zst")
    assert 5_000 < attempts.num_rows < 50_000
    assert rejects["reason"].to_pylist() == ["unreadable-archive"]


@pytest.mark.parametrize("name", ["x.jsonl.gz", "x.jsonl.zst"])
def test_a_file_that_is_no_archive_is_one_reject(tmp_path: Path, name: str) -> None:
    attempts, rejects = read_text(tmp_path, bytes(range(256)) * 20, name)
    assert attempts.num_rows == 0
    assert rejects["reason"].to_pylist() == ["unreadable-archive"]


def test_a_broken_file_of_which_nothing_was_read_has_no_record(tmp_path: Path) -> None:
    # so that two of them are two: without a record a reject is told from others by its file
    _, rejects = read_text(tmp_path, b"plain text under an archive's name", "x.jsonl.gz")
    assert rejects["record"].to_pylist() == [None]


def test_a_file_name_that_is_no_text_is_read_and_named(tmp_path: Path) -> None:
    path = tmp_path / b"day\xff.jsonl".decode("utf-8", "surrogateescape")
    path.write_text('{"attempt_id": "a1"}\n')
    (batch,) = jsonl.read([tmp_path], PARAMS)
    assert batch.attempts["slice"].to_pylist() == ["day?.jsonl"]


def test_random_bytes_are_rejected_line_by_line(tmp_path: Path) -> None:
    noise = bytes((number * 193 + number // 7) % 256 for number in range(4096))
    attempts, rejects = read_text(tmp_path, noise)
    assert attempts.num_rows == 0
    assert rejects.num_rows == sum(1 for line in noise.split(b"\n") if line.strip(b" \t\r"))


def test_an_empty_file_has_no_records(tmp_path: Path) -> None:
    attempts, rejects = read_text(tmp_path, "")
    assert (attempts.num_rows, rejects.num_rows) == (0, 0)


def test_line_numbers_go_on_over_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a file of several batches with a bad line in one of them
    monkeypatch.setattr(jsonl, "BATCH_BYTES", 1000)
    lines = [f'{{"attempt_id": "{number}"}}' for number in range(1, 501)]
    lines[249] = "bad"
    # when it is read
    attempts, rejects = read_text(tmp_path, "\n".join(lines))
    # then each record knows its line
    assert attempts["line"].to_pylist() == [int(number) for number in attempts["attempt_id"].to_pylist()]
    assert rejects["line"].to_pylist() == [250]
    assert attempts.num_rows == 499


def test_a_line_longer_than_a_batch_is_one_reject(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "BATCH_BYTES", 1000)
    long = '{"team": "' + "x" * 5000 + '"}'
    attempts, rejects = read_text(tmp_path, f"{GOOD}\n{long}\n{GOOD}\n")
    assert attempts["line"].to_pylist() == [1, 3]
    (reject,) = rejects.to_pylist()
    assert (reject["reason"], reject["line"]) == ("line-too-long", 2)
    assert long.startswith(reject["record"])


def test_few_bad_lines_among_many_cost_no_good_one(tmp_path: Path) -> None:
    lines = [f'{{"attempt_id": "{number}", "config": {{"n": {number}}}}}' for number in range(1, 10_001)]
    for number in (7, 5_000, 9_999):
        lines[number - 1] = "{"
    attempts, rejects = read_text(tmp_path, "\n".join(lines) + "\n")
    assert rejects["line"].to_pylist() == [7, 5_000, 9_999]
    assert attempts["line"].to_pylist() == [number for number in range(1, 10_001) if number not in (7, 5_000, 9_999)]
    assert attempts["config"].to_pylist() == [f'{{"n":{line}}}' for line in attempts["line"].to_pylist()]


def test_progress_counts_the_bytes_of_all_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text(GOOD + "\n")
    told: list[tuple[str, int, int]] = []
    list(jsonl.read([tmp_path], PARAMS, lambda *what: told.append(what)))
    size = len(GOOD) + 1
    assert told[0] == ("a.jsonl", size, 2 * size)
    assert told[-1] == ("b.jsonl", 2 * size, 2 * size)


@pytest.mark.parametrize(
    ("name", "message"),
    [("absent.jsonl", "there is no such file"), ("empty", "holds no JSON lines"), ("notes.txt", "not known as a file")],
)
def test_a_source_that_cannot_be_read_says_what_was_expected(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(SourceError, match=message) as raised:
        jsonl.read([tmp_path / name], PARAMS)
    assert "expected files that end in .jsonl, .jsonl.gz, .jsonl.zst" in str(raised.value)
    assert name in str(raised.value)


def test_no_path_at_all_is_an_error() -> None:
    with pytest.raises(SourceError, match="No path"):
        jsonl.read([], PARAMS)


# Property: how a line is read does not depend on its neighbours

TEXTS = st.text(st.characters(codec="utf-8"), max_size=6)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**33), 2**33),
    st.floats(),
    TEXTS,
    st.sampled_from(
        ["2026-03-01T00:00:00Z", "2026-03-01 05+01", "2026-03-01T00:00:00", "1850-01-01T00:00Z", "{}", '["a"]', '{"a":1}']
    ),
)
VALUES = st.one_of(
    SCALARS, st.lists(SCALARS, max_size=2), st.dictionaries(TEXTS, st.one_of(SCALARS, st.lists(SCALARS)), max_size=2)
)
FIELDS = st.sampled_from([*ATTEMPT_SCHEMA.names, "config", "eligible_hardware", "speed"])
RECORDS = st.dictionaries(FIELDS, VALUES, max_size=4)
STYLES = st.sampled_from([(", ", ": "), (",", ":")])
OBJECTS = st.builds(json.dumps, RECORDS, ensure_ascii=st.booleans(), separators=STYLES)
JUNK = st.one_of(
    TEXTS,
    st.tuples(OBJECTS, TEXTS).map("".join),
    st.sampled_from([GOOD * 2, "", " ", "{", '{"config": {"a": {"config": {}}}}']),
)
LINES = st.lists(st.one_of(st.just(GOOD), OBJECTS, OBJECTS, JUNK), max_size=6)


@given(lines=LINES)
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_line_is_read_alike_alone_and_among_bad_ones(tmp_path: Path, lines: list[str]) -> None:
    # given lines of all kinds
    lines = [part for line in lines for part in line.split("\n")]
    together = read_text(tmp_path, "\n".join(lines))
    # when each is read in a file of its own
    alone = [read_text(tmp_path, line) for line in lines]
    # then it gives the same record, and each line that is not blank is one
    places = ["line", "detail"]
    attempts = pa.concat_tables([READ_SCHEMA.empty_table(), *(batch.attempts for batch in alone)])
    rejects = pa.concat_tables([REJECT_SCHEMA.empty_table(), *(batch.rejects for batch in alone)])
    assert together.attempts.drop_columns(["line"]).equals(attempts.drop_columns(["line"]))
    assert together.rejects.drop_columns(places).equals(rejects.drop_columns(places))
    assert attempts.num_rows + rejects.num_rows == sum(1 for line in lines if line.strip(" \t\r"))


STRINGS = st.one_of(st.none(), TEXTS)
NUMBERS = st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False))
TIMES = st.one_of(st.none(), st.datetimes(datetime(1950, 1, 1), datetime(2150, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001
ROWS = st.fixed_dictionaries(
    {
        field.name: st.sampled_from([None, '{"a":1}'])
        if field.name == "config"
        else st.sampled_from([None, '["T4"]'])
        if field.name == "eligible_hardware"
        else STRINGS
        if pa.types.is_string(field.type)
        else TIMES
        if pa.types.is_timestamp(field.type)
        else NUMBERS
        if pa.types.is_floating(field.type)
        else st.one_of(st.none(), st.booleans())
        if pa.types.is_boolean(field.type)
        else st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1))
        for field in ATTEMPT_SCHEMA
    }
)


@given(rows=st.lists(ROWS, max_size=3))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_what_is_rendered_is_read_back(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    table = pa.Table.from_pylist(rows, ATTEMPT_SCHEMA)
    batch = read_text(tmp_path, "\n".join(jsonl.render(table).to_pylist()))
    assert batch.rejects.num_rows == 0
    assert batch.attempts.select(ATTEMPT_SCHEMA.names).equals(table)


def test_a_number_that_json_does_not_know_is_rendered_as_text() -> None:
    table = pa.table({"throughput": [float("nan"), float("inf"), 0.5, None]})
    assert jsonl.render(table).to_pylist() == ['{"throughput":"nan"}', '{"throughput":"inf"}', '{"throughput":0.5}', "{}"]
