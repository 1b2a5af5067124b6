"""The reader of Parquet: columns of any type that can be cast, the file or the row named where one cannot."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leap.contracts import ATTEMPT_SCHEMA, READ_SCHEMA, REJECT_SCHEMA
from leap.params import IngestParams
from leap.sources import ReadBatch, SourceError, parquet

PARAMS = IngestParams(max_label_disagreement=0.05, min_steady_seconds=20)
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def read(*paths: Path) -> ReadBatch:
    batches = list(parquet.read(paths, PARAMS))
    return ReadBatch(
        pa.concat_tables([READ_SCHEMA.empty_table(), *(batch.attempts for batch in batches)]),
        pa.concat_tables([REJECT_SCHEMA.empty_table(), *(batch.rejects for batch in batches)]),
    )


def read_table(folder: Path, table: pa.Table) -> ReadBatch:
    path = folder / "log.parquet"
    pq.write_table(table, path)
    return read(path)


@pytest.mark.parametrize(
    ("field", "column", "value"),
    [
        ("num_devices", pa.array([8], pa.int64()), 8),
        ("num_devices", pa.array([8], pa.uint8()), 8),
        ("num_devices", pa.array([8.0], pa.float32()), 8),
        ("num_devices", pa.array([Decimal("8.0")], pa.decimal128(5, 1)), 8),
        ("throughput", pa.array([7], pa.int16()), 7.0),
        ("throughput", pa.array([0.5], pa.float32()), 0.5),
        ("throughput", pa.array([None], pa.null()), None),
        ("team", pa.array(["a"]).dictionary_encode(), "a"),
        ("team", pa.array(["a"], pa.large_string()), "a"),
        ("started_at", pa.array([NOON], pa.timestamp("s", "UTC")), NOON),
        ("started_at", pa.array([NOON], pa.timestamp("ms", "Europe/Berlin")), NOON),
        ("started_at", pa.array([1_772_366_400_000_000_999], pa.timestamp("ns", "UTC")), NOON),
        ("started_at", pa.array(["2026-03-01T14:00:00+02:00"]), NOON),
        ("pinned", pa.array([True]), True),
        ("config", pa.array(['{"b": 1, "a": [2]}']), '{"a":[2],"b":1}'),
        ("eligible_hardware", pa.array(['["T4"]']), '["T4"]'),
        ("eligible_hardware", pa.array([['H "2"', "T4"]]), '["H \\"2\\"","T4"]'),
        ("eligible_hardware", pa.array([[]], pa.list_(pa.string())), "[]"),
    ],
)
def test_a_column_that_can_be_cast_is(tmp_path: Path, field: str, column: pa.Array, value: Any) -> None:
    attempts, rejects = read_table(tmp_path, pa.table({"attempt_id": ["a"], field: column}))
    assert (attempts.schema, rejects.num_rows) == (READ_SCHEMA, 0)
    (row,) = attempts.to_pylist()
    assert (row[field], row["source"], row["slice"], row["line"]) == (value, "parquet", "log.parquet", 1)


@pytest.mark.parametrize(
    ("column", "reason", "words"),
    [
        ({"speed": pa.array([1, 2])}, "unknown-field", ("'speed'", "`config`")),
        ({"num_devices": pa.array(["8", "8"])}, "wrong-type", ("'num_devices' is string", "a number")),
        (
            {"started_at": pa.array([NOON, NOON], pa.timestamp("us"))},
            "wrong-type",
            ("'started_at' is timestamp[us]", "time zone"),
        ),
        ({"started_at": pa.array([1, 2])}, "wrong-type", ("'started_at' is int64", "timestamp with a time zone")),
        ({"team": pa.array([b"a", b"b"])}, "wrong-type", ("'team' is binary", "text")),
        ({"pinned": pa.array([1, 0])}, "wrong-type", ("'pinned' is int64", "boolean")),
        ({"config": pa.array([{"a": 1}, None])}, "wrong-type", ("'config' is struct<a: int64>", "text")),
    ],
)
def test_a_column_that_cannot_be_a_field_rejects_the_file_by_name(
    tmp_path: Path, column: dict[str, pa.Array], reason: str, words: tuple[str, ...]
) -> None:
    attempts, rejects = read_table(tmp_path, pa.table({"attempt_id": ["a", "b"], **column}))
    assert attempts.num_rows == 0
    (reject,) = rejects.to_pylist()
    assert (reject["reason"], reject["line"], reject["record"]) == (reason, 0, None)
    assert "none of the file's 2 rows is read" in reject["detail"]
    assert all(word in reject["detail"] for word in words), reject["detail"]


@pytest.mark.parametrize(
    ("field", "column", "reason"),
    [
        ("num_devices", pa.array([8, 2.5, 8]), "wrong-type"),
        ("num_devices", pa.array([8, 2**40, 8]), "wrong-type"),
        ("throughput", pa.array([8, float("nan"), 8]), "wrong-type"),
        ("started_at", pa.array(["2026-03-01T12:00Z", "2026-03-01T12:00", None]), "bad-time"),
        ("started_at", pa.array([0, 2**62, 0], pa.timestamp("ms", "UTC")), "bad-time"),
        ("config", pa.array([None, "{", "{}"]), "wrong-type"),
        ("eligible_hardware", pa.array([["a"], [None], []]), "wrong-type"),
    ],
)
def test_a_bad_row_is_named_and_its_neighbours_are_kept(tmp_path: Path, field: str, column: pa.Array, reason: str) -> None:
    attempts, rejects = read_table(tmp_path, pa.table({"attempt_id": ["a", "b", "c"], field: column}))
    assert attempts.select(["line", "attempt_id"]).to_pylist() == [
        {"line": 1, "attempt_id": "a"},
        {"line": 3, "attempt_id": "c"},
    ]
    (reject,) = rejects.to_pylist()
    assert (reject["reason"], reject["line"], reject["attempt_id"]) == (reason, 2, "b")
    assert f"log.parquet, line 2: Field '{field}'" in reject["detail"]


def test_text_that_is_no_utf8_rejects_its_row(tmp_path: Path) -> None:
    team = pa.Array.from_buffers(pa.string(), 2, pa.array([b"a", b"\xff"], pa.binary()).buffers())
    attempts, rejects = read_table(tmp_path, pa.table({"attempt_id": ["a", "b"], "team": team}))
    assert attempts["team"].to_pylist() == ["a"]
    assert rejects.select(["line", "reason", "attempt_id"]).to_pylist() == [{"line": 2, "reason": "not-utf8", "attempt_id": "b"}]


def test_few_bad_rows_among_many_cost_no_good_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a file of several batches
    monkeypatch.setattr(parquet, "BATCH_ROWS", 1000)
    devices = [float(line) for line in range(1, 5_001)]
    for line in (7, 2_500, 5_000):
        devices[line - 1] = 0.5
    attempts, rejects = read_table(tmp_path, pa.table({"num_devices": devices}))
    assert rejects["line"].to_pylist() == [7, 2_500, 5_000]
    assert attempts["line"].to_pylist() == attempts["num_devices"].to_pylist()
    assert attempts.num_rows == 4_997


def test_a_cut_or_foreign_file_is_one_reject_and_stops_no_other(tmp_path: Path) -> None:
    whole = parquet.render(pa.table({"attempt_id": ["a"]}))
    (tmp_path / "a.parquet").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "b.parquet").write_bytes(whole)
    (tmp_path / "c.parquet").write_bytes(b"attempt_id\nc\n")
    (tmp_path / "d.parquet").write_bytes(b"")
    attempts, rejects = read(tmp_path)
    assert attempts["slice"].to_pylist() == ["b.parquet"]
    assert rejects["slice"].to_pylist() == ["a.parquet", "c.parquet", "d.parquet"]
    assert set(rejects["reason"].to_pylist()) == {"unreadable-archive"}


def test_a_page_that_is_broken_keeps_the_rows_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a file whose second row group is overwritten
    monkeypatch.setattr(parquet, "BATCH_ROWS", 100)
    path = tmp_path / "log.parquet"
    pq.write_table(pa.table({"attempt_id": [f"a{n}" for n in range(200)]}), path, row_group_size=100, compression="zstd")
    second = pq.ParquetFile(path).metadata.row_group(1).column(0)
    content = bytearray(path.read_bytes())
    start = second.dictionary_page_offset or second.data_page_offset
    content[start : start + second.total_compressed_size] = b"\xff" * second.total_compressed_size
    path.write_bytes(content)
    # when it is read
    attempts, rejects = read(path)
    # then the first is there, and the file is told
    assert attempts["attempt_id"].to_pylist() == [f"a{n}" for n in range(100)]
    (reject,) = rejects.to_pylist()
    assert (reject["reason"], reject["line"]) == ("unreadable-archive", 0)
    assert "from line 101" in reject["detail"]


def test_a_source_that_cannot_be_read_says_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"this folder holds no Parquet; expected files that end in .parquet"):
        parquet.read([tmp_path], PARAMS)


def _values(field: pa.Field) -> st.SearchStrategy[Any]:
    if field.name == "config":
        return st.sampled_from(['{"a":1}', '{"b":"x"}'])
    if field.name == "eligible_hardware":
        return st.just('["T4"]')
    if pa.types.is_timestamp(field.type):
        return st.datetimes(datetime(1850, 1, 1), datetime(2150, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
    if pa.types.is_floating(field.type):
        return st.floats(allow_nan=False, allow_infinity=False)
    if pa.types.is_boolean(field.type):
        return st.booleans()
    if pa.types.is_integer(field.type):
        return st.integers(-(2**31), 2**31 - 1)
    return st.text(st.characters(codec="utf-8"), max_size=6)


ROWS = st.fixed_dictionaries({}, optional={field.name: st.none() | _values(field) for field in ATTEMPT_SCHEMA})


@given(rows=st.lists(ROWS, max_size=4))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_is_rendered_is_read_back(rows: list[dict[str, Any]]) -> None:
    table = pa.Table.from_pylist(rows, ATTEMPT_SCHEMA)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "log.parquet")
        path.write_bytes(parquet.render(table))
        batch = read(path)
    assert batch.rejects.num_rows == 0
    assert batch.attempts.select(ATTEMPT_SCHEMA.names).equals(table)
