"""The reader of CSV: each field in its type, the line where a row begins, a reason for every bad row."""

from __future__ import annotations

import gzip
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leap.contracts import ATTEMPT_SCHEMA, READ_SCHEMA, REJECT_SCHEMA
from leap.params import IngestParams
from leap.sources import ReadBatch, SourceError, csv

PARAMS = IngestParams(max_label_disagreement=0.05, min_steady_seconds=20)
GOOD = b"good,8,,\n"
HEADER = b"attempt_id,num_devices,started_at,pinned\n"


def read(*paths: Path) -> ReadBatch:
    batches = list(csv.read(paths, PARAMS))
    return ReadBatch(
        pa.concat_tables([READ_SCHEMA.empty_table(), *(batch.attempts for batch in batches)]),
        pa.concat_tables([REJECT_SCHEMA.empty_table(), *(batch.rejects for batch in batches)]),
    )


def read_bytes(folder: Path, content: bytes, name: str = "log.csv") -> ReadBatch:
    path = folder / name
    path.write_bytes(content)
    return read(path)


def test_every_field_comes_in_its_own_type(tmp_path: Path) -> None:
    # given a row with one field of each kind, and one that is empty
    content = (
        b"attempt_id,num_devices,throughput,started_at,pinned,config,eligible_hardware,team\r\n"
        b'a1,8.0,1.5e3,2026-03-01T09:30:00.25+02:00,true,"{""b"": 1, ""a"": 0.5}","[""T4""]",""\r\n'
    )
    # when it is read
    attempts, rejects = read_bytes(tmp_path, content)
    # then it has the schema and the values
    assert (attempts.schema, rejects.num_rows) == (READ_SCHEMA, 0)
    (row,) = attempts.to_pylist()
    assert (row["attempt_id"], row["num_devices"], row["throughput"], row["pinned"]) == ("a1", 8, 1500.0, True)
    assert row["started_at"] == datetime(2026, 3, 1, 7, 30, 0, 250_000, tzinfo=UTC)
    assert (row["config"], row["eligible_hardware"]) == ('{"a":0.5,"b":1}', '["T4"]')
    assert (row["team"], row["job_id"]) == (None, None)
    assert (row["source"], row["slice"], row["line"]) == ("csv", "log.csv", 2)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (b"b,2.5,,", "wrong-type"),
        (b"b,8 ,,", "wrong-type"),
        (b"b,nan,,", "wrong-type"),
        (b"b,inf,,", "wrong-type"),
        (b"b,4294967296,,", "wrong-type"),
        (b"b,eight,,", "wrong-type"),
        (b"b,,,1", "wrong-type"),
        (b"b,,,yes", "wrong-type"),
        (b"b,,2026-03-01T09:30:00,", "bad-time"),
        (b"b,,yesterday,", "bad-time"),
        (b"b,,1772323200,", "bad-time"),
        (b"b,8,", "ragged-row"),
        (b"b,8,,,\xff", "ragged-row"),
        (b"b\xff,8,,", "not-utf8"),
    ],
)
def test_a_bad_row_is_named_and_its_neighbours_are_kept(tmp_path: Path, row: bytes, reason: str) -> None:
    attempts, rejects = read_bytes(tmp_path, HEADER + GOOD + row + b"\n" + GOOD)
    assert attempts["line"].to_pylist() == [2, 4]
    assert attempts["num_devices"].to_pylist() == [8, 8]
    (reject,) = rejects.to_pylist()
    assert (reject["reason"], reject["line"]) == (reason, 3)
    assert reject["detail"].startswith(f"{(tmp_path / 'log.csv').as_posix()}, line 3: ")
    assert reject["record"]


def test_a_line_is_where_its_row_begins_also_after_line_breaks_in_quotes(tmp_path: Path) -> None:
    content = b'attempt_id,num_devices\n"a\nb\nc",1\n\n"d",x\n"e ""f"", g",2\n'
    attempts, rejects = read_bytes(tmp_path, content)
    assert attempts.select(["line", "attempt_id"]).to_pylist() == [
        {"line": 2, "attempt_id": "a\nb\nc"},
        {"line": 7, "attempt_id": 'e "f", g'},
    ]
    assert (rejects["line"].to_pylist(), rejects["attempt_id"].to_pylist()) == ([6], ["d"])


def test_few_bad_rows_among_many_cost_no_good_one(tmp_path: Path) -> None:
    rows = [b"a%d,%d" % (number, number) for number in range(2, 5_002)]
    for line in (7, 2_500, 5_001):
        rows[line - 2] = b"bad,x"
    attempts, rejects = read_bytes(tmp_path, b"attempt_id,num_devices\n" + b"\n".join(rows))
    assert rejects["line"].to_pylist() == [7, 2_500, 5_001]
    assert attempts["line"].to_pylist() == attempts["num_devices"].to_pylist()
    assert attempts.num_rows == 4_997


def test_an_unknown_column_rejects_the_file_and_says_what_to_do(tmp_path: Path) -> None:
    attempts, rejects = read_bytes(tmp_path, b"attempt_id,speed\na,1\nb,2\n")
    assert attempts.num_rows == 0
    (reject,) = rejects.to_pylist()
    assert (reject["reason"], reject["line"]) == ("unknown-field", 0)
    assert "'speed'" in reject["detail"]
    assert "`leap ingest table`" in reject["detail"]


def test_a_row_that_cannot_be_parted_does_not_say_who_submitted_the_job(tmp_path: Path) -> None:
    _, rejects = read_bytes(tmp_path, b"attempt_id,user\na,ada,1\nb,ada\xff\nb,bob,2\n")
    assert sorted(rejects["reason"].to_pylist()) == ["not-utf8", "ragged-row", "ragged-row"]
    assert not [text for text in rejects["record"].to_pylist() if "ada" in text or "bob" in text]
    assert len(set(rejects["record"].to_pylist())) == 3


def test_a_folder_is_read_whatever_the_compression_and_one_bad_file_stops_no_other(tmp_path: Path) -> None:
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(b"attempt_id\nb\n"))
    (tmp_path / "c.csv").write_bytes(b"attempt_id,attempt_id\nc,c\n")
    (tmp_path / "d.csv").write_bytes(b"")
    (tmp_path / "e.csv").write_bytes(b"\xef\xbb\xbfattempt_id\r\ne\r\n")
    with pa.CompressedOutputStream(str(tmp_path / "a.csv.zst"), "zstd") as stream:
        stream.write(b"attempt_id\na\n")
    attempts, rejects = read(tmp_path)
    assert attempts["attempt_id"].to_pylist() == ["a", "b", "e"]
    assert attempts["slice"].to_pylist() == ["a.csv.zst", "b.csv.gz", "e.csv"]
    assert rejects.select(["slice", "reason", "line"]).to_pylist() == [{"slice": "c.csv", "reason": "no-header", "line": 0}]


def test_a_source_that_cannot_be_read_says_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"no such file or folder; expected files that end in .csv, .csv.gz, .csv.zst"):
        csv.read([tmp_path / "absent.csv"], PARAMS)


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=6)


def _values(field: pa.Field) -> st.SearchStrategy[Any]:
    if field.name == "config":
        return st.sampled_from(['{"a":1}', '{"b":"x,\\"y"}'])
    if field.name == "eligible_hardware":
        return st.just('["T4"]')
    if pa.types.is_timestamp(field.type):
        return st.datetimes(datetime(1950, 1, 1), datetime(2150, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
    if pa.types.is_floating(field.type):
        return st.floats(allow_nan=False, allow_infinity=False)
    if pa.types.is_boolean(field.type):
        return st.booleans()
    return st.integers(-(2**31), 2**31 - 1) if pa.types.is_integer(field.type) else TEXTS


ROWS = st.fixed_dictionaries(
    {"segment_number": st.integers(1, 9)},
    optional={field.name: st.none() | _values(field) for field in ATTEMPT_SCHEMA if field.name != "segment_number"},
)


@given(rows=st.lists(ROWS, max_size=4))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_is_rendered_is_read_back(rows: list[dict[str, Any]]) -> None:
    table = pa.Table.from_pylist(rows, ATTEMPT_SCHEMA)
    with tempfile.TemporaryDirectory() as folder:
        batch = read_bytes(Path(folder), csv.render(table))
    # an empty text is no value
    expected = pa.Table.from_pylist([{name: None if v == "" else v for name, v in row.items()} for row in rows], ATTEMPT_SCHEMA)
    assert batch.rejects.num_rows == 0
    assert batch.attempts.select(ATTEMPT_SCHEMA.names).equals(expected)


CELLS = st.one_of(
    st.text("0123456789.eE+-naifx \u0663_", max_size=5),
    st.sampled_from(
        [
            "true",
            "True",
            "false",
            "1e5",
            "1e400",
            "-0",
            "2026-03-01T00:00:00Z",
            "2026-03-01 00:00+0100",
            "2026-03-01T00:00Z",
            "{}",
        ]
    ),
)
FIELDS = ("num_devices", "throughput", "pinned", "started_at", "config", "eligible_hardware")


@given(rows=st.lists(st.tuples(*(CELLS for _ in FIELDS)), min_size=1, max_size=3))
@settings(max_examples=80, deadline=None)
def test_a_row_is_read_alike_alone_and_beside_a_bad_one(rows: list[tuple[str, ...]]) -> None:
    # given rows that are read at once where they are good, and one that makes all be read one by one
    def table(*some: tuple[str, ...]) -> bytes:
        lines = [",".join(["attempt_id", *FIELDS]), *(",".join(["a", *row]) for row in some)]
        return ("\n".join(lines) + "\n").encode()

    with tempfile.TemporaryDirectory() as folder:
        together = read_bytes(Path(folder), table(*rows, ("x",) * len(FIELDS)))
        alone = [read_bytes(Path(folder), table(row)) for row in rows]
    # then each gives the same values
    attempts = pa.concat_tables([READ_SCHEMA.empty_table(), *(batch.attempts for batch in alone)])
    assert together.attempts.drop_columns(["line", "file"]).equals(attempts.drop_columns(["line", "file"]))
    assert together.rejects.num_rows == sum(batch.rejects.num_rows for batch in alone) + 1
