"""Any table as attempts or measurements, by a mapping file: text in, typed fields out, and each row that will not do told why.

What lives here: reading CSV, TSV, JSON lines and Parquet as columns of text, and a mapping as one SQL statement over them. What
does not: the mapping file itself (`leap.sources.mapping`), whether an attempt may be learned from (`leap.sources.admission`).

The statement runs in a private DuckDB in memory that can open no file and whose settings are locked: a mapping is data, and an
expression in it can compute and nothing else. One that fails on a row gives nothing for that row.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from leap.contracts import PROVENANCE_SCHEMA, REJECT_SCHEMA
from leap.sources import Progress, SourceError, no_progress
from leap.sources.delimited import BadRow, TextRows, decompressed, read_delimited
from leap.sources.fields import NESTED
from leap.sources.mapping import EPOCHS, SECONDS, FieldSpec, TableMapping

SUFFIXES = {
    "csv": (".csv", ".csv.gz", ".csv.zst", ".txt", ".txt.gz"),
    "tsv": (".tsv", ".tsv.gz", ".tsv.zst", ".txt", ".txt.gz"),
    "jsonl": (".jsonl", ".jsonl.gz", ".jsonl.zst", ".ndjson", ".ndjson.gz"),
    "parquet": (".parquet",),
}
_ROWS_AT_ONCE = 50_000
_BLOCK_BYTES = 8 << 20
_ROW, _RECORD = "leap row", "leap record"  # no column of a file is called so
_OFFSET = r"(Z|[+-]\d{2}(:?\d{2})?)$"


class MappedBatch(NamedTuple):
    """What rows became: ``rows`` has `PROVENANCE_SCHEMA` and the fields of the kind, ``rejects`` has `REJECT_SCHEMA`."""

    rows: pa.Table
    rejects: pa.Table


def read(mapping: TableMapping, paths: Sequence[Path], progress: Progress = no_progress) -> Iterator[MappedBatch]:
    """Read files, or folders of them, by a mapping; each row that is not blank is in exactly one of the two tables.

    Reasons of rejects: ``ragged-row``, ``not-utf8``, ``not-json``, ``not-csv``, ``unreadable-archive`` (line 0), ``filtered``,
    ``unmapped-value``, ``wrong-type``, ``bad-time``. A reject's ``record`` is the row as JSON, without the column of the user.

    Raises SourceError where a path is missing, a file has not the columns that the mapping names, or an expression is none.
    """
    files = _find_files(mapping, paths)
    return _read_files(mapping, files, progress)


def _read_files(mapping: TableMapping, files: Sequence[Path], progress: Progress) -> Iterator[MappedBatch]:
    total, before = sum(file.stat().st_size for file in files), 0
    for file in files:
        with _Statement(mapping, file) as statement:
            for rows in _text_rows(mapping, file):
                progress(file.name, before + rows.read_bytes, total)
                yield statement.apply(rows)
        before += file.stat().st_size
        progress(file.name, before, total)


def _find_files(mapping: TableMapping, paths: Sequence[Path]) -> list[Path]:
    suffixes = SUFFIXES[mapping.format]
    files: list[Path] = []
    for path in paths:
        if not path.exists():
            raise SourceError(f"{path}: there is no such file or folder.")
        if not path.is_dir():
            files.append(path)  # a file that is named is taken whatever its ending
            continue
        found = sorted(file for file in path.iterdir() if file.is_file() and file.name.endswith(suffixes))
        if not found:
            raise SourceError(f"{path}: this folder holds no file that ends in {', '.join(suffixes)}.")
        files += found
    if not files:
        raise SourceError("No path was given; name files or folders.")
    return files


# Files to columns of text


def _text_rows(mapping: TableMapping, path: Path) -> Iterator[TextRows]:
    if mapping.format == "parquet":
        return _parquet_rows(path)
    if mapping.format == "jsonl":
        return _json_rows(mapping, path)
    delimiter = mapping.delimiter or ("\t" if mapping.format == "tsv" else ",")
    return read_delimited(path, delimiter, mapping.encoding)


def _parquet_rows(path: Path) -> Iterator[TextRows]:
    try:
        with pq.ParquetFile(path) as file:
            line = 1
            for batch in file.iter_batches(_ROWS_AT_ONCE):
                rows = pa.Table.from_batches([batch])
                with duckdb.connect(":memory:") as connection:
                    connection.execute("set timezone = 'UTC'")
                    connection.register("batch", rows)
                    columns = ", ".join(
                        f"{'to_json' if pa.types.is_nested(field.type) else ''}({name})::varchar as {name}"
                        for field, name in ((field, _quoted(field.name)) for field in rows.schema)
                    )
                    text = connection.sql(f"select {columns} from batch").to_arrow_table()
                yield TextRows(text, np.arange(line, line + rows.num_rows), [], path.stat().st_size)
                line += rows.num_rows
    except (pa.ArrowException, OSError, duckdb.Error) as error:
        detail = f"The file cannot be read as Parquet ({error}); what was read before that is kept. Fetch it again."
        yield TextRows(pa.table({}), np.empty(0, np.int64), [BadRow(0, "unreadable-archive", detail, None)], 0)


def _json_rows(mapping: TableMapping, path: Path) -> Iterator[TextRows]:
    """Read lines of JSON objects: a column for each field that the mapping names, dots going into nested objects."""
    wanted = list(dict.fromkeys([*(spec.column for spec in mapping.fields.values() if spec.column), *mapping.columns]))
    with ExitStack() as stack:
        try:
            raw = stack.enter_context(path.open("rb"))
        except OSError as error:
            raise SourceError(f"{path}: cannot be opened ({error.strerror}); check its permissions.") from error
        source, number, pending = decompressed(path, raw, stack), 1, b""
        problem: Exception | None = None
        connection = stack.enter_context(duckdb.connect(":memory:"))
        while True:
            data = b""
            try:
                data = source.read(_BLOCK_BYTES)
            except (OSError, EOFError, ValueError, pa.ArrowException) as error:
                problem = error
            whole, _, rest = (pending + data).rpartition(b"\n")
            if not data and problem is None:
                whole, rest = pending, b""
            pending = rest
            if whole:
                lines = whole.split(b"\n")
                yield _json_block(connection, lines, number, wanted, raw.tell())
                number += len(lines)
            if not data:
                break
        if problem is not None:
            detail = f"The file cannot be read on from line {number} ({problem}); the lines before it are kept. Fetch it again."
            yield TextRows(pa.table({}), np.empty(0, np.int64), [BadRow(0, "unreadable-archive", detail, None)], raw.tell())


def _json_block(
    connection: duckdb.DuckDBPyConnection, lines: list[bytes], first: int, wanted: list[str], read_bytes: int
) -> TextRows:
    texts = [line.decode("utf-8", "replace").strip() for line in lines]
    bad = [
        BadRow(first + at, "not-utf8", "the line holds bytes that are no UTF-8.", text)
        for at, (line, text) in enumerate(zip(lines, texts, strict=True))
        if "\ufffd" in text and text.encode() != line.strip()
    ]
    is_bad = {row.line for row in bad}
    given = [(first + at, text) for at, text in enumerate(texts) if text and first + at not in is_bad]
    connection.register(
        "lines",
        pa.table(
            {"line": pa.array([one[0] for one in given], pa.int64()), "text": [one[1] for one in given]},
            schema=pa.schema([("line", pa.int64()), ("text", pa.string())]),
        ),
    )
    columns = "".join(f", json_extract_string(text, {_literal(_path_of(name))}) as {_quoted(name)}" for name in wanted)
    good = "json_valid(text) and json_type(case when json_valid(text) then text end) = 'OBJECT'"
    table = connection.sql(
        f"select line{columns}, text as {_quoted(_RECORD)} from lines where {good} order by line"
    ).to_arrow_table()
    wrong = connection.sql(f"select line, text from lines where not coalesce({good}, false) order by line").fetchall()
    bad += [BadRow(line, "not-json", "the line is no JSON object.", text) for line, text in wrong]
    return TextRows(table.drop_columns(["line"]), table["line"].to_numpy(), bad, read_bytes)


def _path_of(name: str) -> str:
    return "$" + "".join(f'."{part}"' for part in name.split("."))


# Columns of text to fields


class _Statement:
    """A mapping as SQL over the columns of one file, bound when the first rows tell which columns there are."""

    def __init__(self, mapping: TableMapping, path: Path) -> None:
        self._mapping = mapping
        self._path = path
        self._file = path.as_posix().encode("utf-8", "replace").decode()
        self._slice = path.name.encode("utf-8", "replace").decode()
        self._sql: str | None = None

    def __enter__(self) -> _Statement:
        self._connection = duckdb.connect(":memory:")
        self._connection.execute("set timezone = 'UTC'")
        self._connection.execute("set enable_external_access = false; set lock_configuration = true")
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def apply(self, given: TextRows) -> MappedBatch:
        """Give the rows as fields, or as rejects with a reason."""
        rejects = [self._reject(row, None) for row in given.bad]
        rows = self._empty()
        if given.table.num_rows:
            made = self._run(given)
            is_good = np.array([reason is None for reason in made["leap reason"].to_pylist()], dtype=bool)
            rows = made.filter(pa.array(is_good)).select(rows.column_names).cast(rows.schema)
            rejects += [self._refused(row) for row in made.filter(pa.array(~is_good)).to_pylist()]
        return MappedBatch(rows, pa.Table.from_pylist(rejects, REJECT_SCHEMA))

    def _run(self, given: TextRows) -> pa.Table:
        self._connection.register("given", given.table.append_column(_ROW, pa.array(given.line)))
        if self._sql is None:
            self._sql = self._compile([name for name in given.table.column_names if name != _RECORD])
        try:
            made: pa.Table = self._connection.sql(self._sql).to_arrow_table()
        except duckdb.Error as error:
            raise SourceError(f"{self._path}: the mapping {self._mapping.name} fails on it: {_first_line(error)}") from error
        for name, canonical in NESTED.items():
            if name in made.column_names:
                made = _canonical(made, name, canonical)
        return made

    def _empty(self) -> pa.Table:
        return pa.schema([*PROVENANCE_SCHEMA, *self._mapping.kind.schema]).empty_table()

    def _compile(self, columns: list[str]) -> str:
        mapping = self._mapping
        needed = {spec.column for spec in mapping.fields.values() if spec.column} | set(mapping.columns)
        absent = sorted(needed - set(columns))
        if absent:
            raise SourceError(
                f"{self._path}: has no column {', '.join(map(repr, absent))}, which the mapping {mapping.name} names; "
                f"its columns are {', '.join(map(repr, columns))}"
            )
        nulls = ", ".join(map(_literal, mapping.null))
        cleaned = ", ".join(
            f"case when trim({_quoted(name)}) not in ({nulls}) then trim({_quoted(name)}) end as {_quoted(name)}" if mapping.null
            else _quoted(name)
            for name in columns
        )  # fmt: skip
        hidden = {spec.column for name, spec in mapping.fields.items() if name == "user"}
        shown = [name for name in columns if name not in hidden]
        record = f"to_json({{{', '.join(f'{_literal(name)}: {_quoted(name)}' for name in shown)}}})::varchar" if shown else "'{}'"
        for name, spec in mapping.fields.items():
            self._bind(f"fields.{name}", spec.expression, columns)
        for number, one in enumerate(mapping.filters):
            self._bind(f"filters.{number}.leave_out", one.leave_out, columns)
        texts = ", ".join(f"{_text(spec)} as {_quoted('text ' + name)}" for name, spec in mapping.fields.items())
        typed = ", ".join(f"{_typed(mapping, name, spec)} as {_quoted(name)}" for name, spec in mapping.fields.items())
        filtered = " ".join(f"when try({one.leave_out}) then {_literal('filtered: ' + one.because)}" for one in mapping.filters)
        wrong = " ".join(
            f"when {_quoted('text ' + name)} is not null and {_quoted(name)} is null then {_literal(name)}"
            for name in mapping.fields
        )
        empty = [field for field in mapping.kind.schema if field.name not in mapping.fields]
        unknown = "".join(f", null::{_sql_type(field.type)} as {_quoted(field.name)}" for field in empty)
        provenance = (
            f"{_literal(mapping.source)} as source, {_literal(self._slice)} as slice, {_literal(self._file)} as file, "
            f"{_quoted(_ROW)} as line"
        )
        return f"""
            with
            cleaned as (select {cleaned}, {_quoted(_ROW)} from given),
            texts as (
                select *, {texts}, {record} as {_quoted(_RECORD)},
                    {f"case {filtered} end" if filtered else "null::varchar"} as "leap filtered"
                from cleaned
            ),
            typed as (select {_quoted(_ROW)}, {_quoted(_RECORD)}, "leap filtered", {typed},
                {", ".join(_quoted("text " + name) for name in mapping.fields)} from texts)
            select {provenance}, typed.*{unknown},
                case when "leap filtered" is not null then 'filtered' {wrong} end as "leap reason"
            from typed order by {_quoted(_ROW)}
        """

    def _bind(self, key: str, expression: str | None, columns: list[str]) -> None:
        """See that an expression is one, over these columns; what it says goes to the person who wrote it."""
        if expression is None:
            return
        empty = ", ".join(f"null::varchar as {_quoted(name)}" for name in columns)
        try:
            self._connection.sql(f"select try({expression}) from (select {empty})").fetchall()
        except duckdb.Error as error:
            raise SourceError(f"mapping {self._mapping.name}, {key}: {expression!r}: {_first_line(error)}") from error

    def _refused(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Make the reject of a row whose reason is ``filtered`` or the name of the field that will not do."""
        known = {name: row.get(name) for name in REJECT_SCHEMA.names if name in self._mapping.kind.schema.names}
        what = row["leap reason"]
        if what == "filtered":
            bad = BadRow(row["line"], "filtered", row["leap filtered"].removeprefix("filtered: "), row[_RECORD])
        else:
            bad = BadRow(row["line"], *_why(self._mapping, what, row["text " + what]), row[_RECORD])
        return self._reject(bad, known)

    def _reject(self, bad: BadRow, known: Mapping[str, Any] | None) -> dict[str, Any]:
        where = f"{self._file}, line {bad.line}" if bad.line else self._file
        return {
            **(known or {}),
            "source": self._mapping.source,
            "slice": self._slice,
            "file": self._file,
            "line": bad.line,
            "reason": bad.reason,
            "detail": f"{where}: {bad.detail}",
            "record": bad.text,
        }


def _why(mapping: TableMapping, name: str, text: str) -> tuple[str, str]:
    """Say why the text of a field will not do."""
    spec, kind = mapping.fields[name], mapping.kind.schema.field(name).type
    if spec.map is not None and text == _UNMAPPED:
        return "unmapped-value", f"{name}: the mapping's `map` does not name this value; add it, or a default."
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        how = f"of the format {spec.format}" if spec.format else "an ISO 8601 time"
        zone = "" if spec.timezone or mapping.timezone else " with its offset from UTC (or name a timezone in the mapping)"
        return "bad-time", f"{name} is {text!r}; it must be {how}{zone}."
    what = "a whole number" if pa.types.is_integer(kind) else "true or false" if pa.types.is_boolean(kind) else "a number"
    return "wrong-type", f"{name} is {text!r}; it must be {what if name not in NESTED else 'JSON'}."


_UNMAPPED = "\x00unmapped"


def _text(spec: FieldSpec) -> str:
    """Write a field as text: null where there is nothing."""
    if spec.value is not None:
        text = _literal(_plain(spec.value))
    elif spec.expression is not None:
        text = f"nullif(trim(try(({spec.expression})::varchar)), '')"
    else:
        assert spec.column is not None
        text = _quoted(spec.column)
    if spec.map is not None:
        cases = " ".join(f"when {_literal(one)} then {_literal(_plain(other))}" for one, other in spec.map.items())
        rest = "null" if spec.default is not None else f"case when ({text}) is not null then {_unmapped()} end"
        text = f"case {text} {cases} else {rest} end"
    return text if spec.default is None else f"coalesce({text}, {_literal(_plain(spec.default))})"


def _unmapped() -> str:
    return f"chr(0) || {_literal(_UNMAPPED[1:])}"


def _typed(mapping: TableMapping, name: str, spec: FieldSpec) -> str:
    """Write the value of a field by its type; null where the text will not do."""
    kind, text = mapping.kind.schema.field(name).type, _quoted("text " + name)
    if spec.map is not None:
        text = f"case when {text} != {_unmapped()} then {text} end"
    if pa.types.is_timestamp(kind):
        return _time(spec, spec.timezone or mapping.timezone, text)
    if pa.types.is_date(kind):
        return f"try_strptime({text}, {_literal(spec.format)})::date" if spec.format else f"try_cast({text} as date)"
    if pa.types.is_floating(kind) or pa.types.is_integer(kind):
        factor = SECONDS[spec.unit] if spec.unit is not None else spec.scale
        number = f"try_cast({text} as double)" + (f" * {factor!r}" if factor is not None else "")
        if pa.types.is_floating(kind):
            return number
        return f"case when {number} = floor({number}) and abs({number}) < 2147483648 then ({number})::integer end"
    return f"try_cast({text} as boolean)" if pa.types.is_boolean(kind) else text


def _time(spec: FieldSpec, zone: str | None, text: str) -> str:
    if spec.format in EPOCHS:
        return f"try(to_timestamp(try_cast({text} as double) * {EPOCHS[spec.format]!r}))"
    if spec.format is not None:
        parsed = f"try_strptime({text}, {_literal(spec.format)})"
        if "%z" in spec.format:
            return f"try(({parsed})::timestamptz)"
        return f"try(({parsed}) at time zone {_literal(zone)})" if zone else "null::timestamptz"
    naive = f"try(try_cast({text} as timestamp) at time zone {_literal(zone)})" if zone else "null::timestamptz"
    return (
        f"case when regexp_matches({text}, {_literal('[T ].*' + _OFFSET)}) then try_cast({text} as timestamptz) else {naive} end"
    )


def _canonical(made: pa.Table, name: str, canonical: Callable[[Any], str]) -> pa.Table:
    """Write a field of JSON in one way; one that is none is told as a wrong type."""
    encoded = made[name].combine_chunks().dictionary_encode()
    texts = [_try(canonical, text) for text in encoded.dictionary.to_pylist()]
    values = pa.array(texts, pa.string()).take(encoded.indices)
    reasons = [
        reason if reason is not None or value is not None or text is None else name
        for reason, value, text in zip(made["leap reason"].to_pylist(), values.to_pylist(), made[name].to_pylist(), strict=True)
    ]
    made = made.set_column(made.column_names.index(name), name, values)
    return made.set_column(made.column_names.index("leap reason"), "leap reason", pa.array(reasons, pa.string()))


def _try(canonical: Callable[[Any], str], text: str) -> str | None:
    try:
        return canonical(text)
    except (ValueError, RecursionError):
        return None


def _plain(value: str | float | bool) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _literal(text: str | None) -> str:
    assert text is not None
    return "'" + text.replace("'", "''") + "'"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _sql_type(kind: pa.DataType) -> str:
    if pa.types.is_timestamp(kind):
        return "timestamptz"
    if pa.types.is_date(kind):
        return "date"
    if pa.types.is_integer(kind):
        return "integer"
    if pa.types.is_floating(kind):
        return "double"
    return "boolean" if pa.types.is_boolean(kind) else "varchar"


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
