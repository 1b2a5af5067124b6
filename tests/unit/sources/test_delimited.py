"""Separated text as columns of text, each row with the line where it begins, and nothing lost on the way."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from leap.sources import SourceError
from leap.sources.delimited import BadRow, read_delimited

RAGGED = b'a,b\n1,2\n"x\ny",3\n1,2,3\n\n4,5\nz\xff,6\nlast,7'


def read_all(
    path: Path, block_bytes: int = 1 << 20, delimiter: str = ","
) -> tuple[list[tuple[int, dict[str, str]]], list[BadRow]]:
    rows: list[tuple[int, dict[str, str]]] = []
    bad: list[BadRow] = []
    for batch in read_delimited(path, delimiter, "utf-8", block_bytes):
        rows += list(zip(batch.line.tolist(), batch.table.to_pylist(), strict=True))
        bad += batch.bad
    return rows, bad


@pytest.mark.parametrize("block_bytes", [12, 20, 1 << 20])
def test_lines_are_right_around_line_breaks_in_values_and_bad_rows(tmp_path: Path, block_bytes: int) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(RAGGED)

    rows, bad = read_all(path, block_bytes)

    assert rows == [
        (2, {"a": "1", "b": "2"}),
        (3, {"a": "x\ny", "b": "3"}),
        (7, {"a": "4", "b": "5"}),
        (9, {"a": "last", "b": "7"}),
    ]
    assert sorted((one.line, one.reason) for one in bad) == [(5, "ragged-row"), (8, "not-utf8")]
    assert "3 values and the header 2" in next(one.detail for one in bad if one.line == 5)


def test_a_file_cut_short_keeps_its_whole_lines(tmp_path: Path) -> None:
    lines = b"a,b\n" + b"".join(b"%d,%d\n" % (number, number**3) for number in range(50_000))
    whole, cut = tmp_path / "whole.csv.gz", tmp_path / "cut.csv.gz"
    whole.write_bytes(gzip.compress(lines))
    cut.write_bytes(whole.read_bytes()[:-5000])

    rows, bad = read_all(cut, 1 << 16)

    assert 30_000 < len(rows) < 50_000
    assert all(int(row["b"]) == int(row["a"]) ** 3 for _, row in rows)  # no half number at the end
    assert [(one.line, one.reason) for one in bad] == [(0, "unreadable-archive")]


@pytest.mark.parametrize("content", [b"", b"\n\n", b"a,a\n1,2\n", b",\n1,2\n"])
def test_a_file_without_a_header_of_distinct_names_is_an_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(SourceError, match="must be a header of distinct names"):
        read_all(path)


def test_an_open_quote_loses_nothing_before_it(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b'a,b\n1,2\n3,"4\n' + b"5,6\n" * 20)
    rows, bad = read_all(path)
    assert rows[:1] == [(2, {"a": "1", "b": "2"})]
    assert bad or len(rows) == 2


values = st.text(st.characters(codec="utf-8", exclude_characters="\r\x00\ufeff"), max_size=8)


@given(st.lists(st.tuples(values, values), max_size=12), st.integers(24, 200))
@example([("", "0")], 24)
def test_what_is_written_is_read_back(rows: list[tuple[str, str]], block_bytes: int) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerow(["a", "b"])
    writer.writerows(rows)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "t.csv")
        path.write_text(text.getvalue(), encoding="utf-8", newline="")
        read, bad = read_all(path, max(block_bytes, 2 + max((len(str(row).encode()) * 4 for row in rows), default=0)))
    assert bad == []
    assert [(row["a"], row["b"]) for _, row in read] == [row for row in rows if row != ("", "")]


@given(st.binary(max_size=300))
@example(b'"')
@example(b"a,b\n\x00,\xff")
@example(b"a\n\n")
def test_any_bytes_give_rows_or_reasons(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in ("t.csv", "t.csv.gz", "t.csv.zst"):
            path = Path(folder, name)
            path.write_bytes(content)
            with contextlib.suppress(SourceError):
                read_all(path, 64)
