"""Any bytes give attempts or rejects, never a crash, and what is rendered is read back: for every reader.

What is read here is mostly a good file with some bytes changed, cut or doubled: noise alone is refused at the first look. The
quick tests run always; the long one goes on for LEAP_FUZZ_SECONDS (ten minutes) in `make verify`. What it finds is printed as a
line to repeat it by, is kept in .hypothesis/, and then stands below as an example for good.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leap.contracts import ATTEMPT_SCHEMA, READ_SCHEMA, REJECT_SCHEMA
from leap.params import IngestParams
from leap.sources import SourceError, csv, jsonl, mlperf, parquet
from leap.sources.mapping import parse_mapping
from leap.store import mapped_table

PARAMS = IngestParams(max_label_disagreement=0.05, min_steady_seconds=20)
SECONDS = float(os.environ.get("LEAP_FUZZ_SECONDS", "600"))

ROWS = [
    {
        "attempt_id": f"a{number}",
        "segment_number": 1,
        "num_devices": 8,
        "started_at": datetime(2026, 3, 1, number, tzinfo=UTC),
        "team": 'quoted "x", é',
        "model_type": "bert\nlarge" if number == 2 else None,
        "config": '{"a":1,"b":[1,{"c":null}]}',
        "eligible_hardware": '["H200-SXM","T4"]',
        "throughput": 12.5 * number,
        "pinned": number % 2 == 0,
    }
    for number in range(4)
]
ATTEMPTS = pa.Table.from_pylist(ROWS, ATTEMPT_SCHEMA)


class Target(NamedTuple):
    """A reader, the ending of its files' names, and a good file."""

    read: Callable[[Path], Iterable[Any]]
    suffix: str
    good: bytes
    may_refuse: bool = False  # the file as a whole: an archive without a result, a table without the mapping's columns


def _mlperf_archive() -> bytes:
    def event(key: str, value: Any, second: int, **metadata: Any) -> str:
        told = {"key": key, "value": value, "metadata": metadata, "time_ms": 1_683_194_400_000 + second * 1000}
        return f"0: :::MLLOG {json.dumps(told)}\n"

    log = "".join(
        [
            event("submission_benchmark", "bert", -9),
            event("global_batch_size", 768, -8),
            event("run_start", None, 0),
            event("tracked_stats", {"throughput": 7600}, 10, step=1),
            event("eval_accuracy", 0.72, 300, epoch_num=2_250_000),
            event("run_stop", None, 300, status="success"),
        ]
    )
    system = {"number_of_nodes": "2", "accelerators_per_node": "8", "accelerator_model_name": "H100", "framework": "PyTorch"}
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as tar:
        for name, text in (("systems/dgx.json", json.dumps(system)), ("results/dgx/bert/result_0.txt", log)):
            content = text.encode()
            info = tarfile.TarInfo(f"training_results_v3.0/NVIDIA/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return sink.getvalue()


def _zstd(content: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return bytes(sink.getvalue().to_pybytes())


MAPPING = parse_mapping(
    """
version: 1
name: ours
kind: attempts
fields:
  attempt_id: attempt_id
  started_at: started_at
  num_devices: num_devices
  model_type: {expression: "lower(team)"}
  throughput: {expression: "try_cast(throughput as double) * 2"}
  config: config
""",
    "ours.yaml",
)
LINES = ("\n".join(jsonl.render(ATTEMPTS).to_pylist()) + "\n").encode()
TABLE = csv.render(ATTEMPTS)
TARGETS = {
    "jsonl": Target(lambda path: jsonl.read([path], PARAMS), ".jsonl", LINES),
    "jsonl.gz": Target(lambda path: jsonl.read([path], PARAMS), ".jsonl.gz", gzip.compress(LINES, mtime=0)),
    "jsonl.zst": Target(lambda path: jsonl.read([path], PARAMS), ".jsonl.zst", _zstd(LINES)),
    "csv": Target(lambda path: csv.read([path], PARAMS), ".csv", TABLE),
    "csv.gz": Target(lambda path: csv.read([path], PARAMS), ".csv.gz", gzip.compress(TABLE, mtime=0)),
    "csv.zst": Target(lambda path: csv.read([path], PARAMS), ".csv.zst", _zstd(TABLE)),
    "parquet": Target(lambda path: parquet.read([path], PARAMS), ".parquet", parquet.render(ATTEMPTS)),
    "mlperf": Target(lambda path: mlperf.read([path], PARAMS), ".tar", _mlperf_archive(), may_refuse=True),
    "table": Target(lambda path: mapped_table.read(MAPPING, [path]), ".csv", TABLE, may_refuse=True),
}

Edit = tuple[int, int, bytes]  # at, how many bytes go, what comes
PIECES = st.one_of(
    st.binary(max_size=6),
    st.sampled_from([b'"', b",", b"\n", b"\r", b"\x00", b"{", b"}", b"[", b":", b"NaN", b"null", b"\\u", b"1e999", b"\xff"]),
)
EDITS = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 12), PIECES), max_size=4)


def edited(good: bytes, edits: list[Edit]) -> bytes:
    """Change some bytes of a file; places count from its start and go round."""
    for at, gone, comes in edits:
        place = at % (len(good) + 1)
        good = good[:place] + comes + good[place + gone :]
    return good


def check(target: Target, content: bytes) -> tuple[int, int]:
    """Read a file and hold what comes against what every reader promises; give how many attempts and rejects came."""
    attempts, rejects = [READ_SCHEMA.empty_table()], [REJECT_SCHEMA.empty_table()]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"log{target.suffix}")
        path.write_bytes(content)
        try:
            for batch in target.read(path):
                attempts.append(batch[0])
                rejects.append(batch[1])
        except SourceError as error:
            if not target.may_refuse:
                raise AssertionError(str(error)) from error
    read, rejected = pa.concat_tables(attempts), pa.concat_tables(rejects)
    for table in (read, rejected):
        table.validate(full=True)
        for field in table.schema:
            assert field.nullable or table[field.name].null_count == 0, field
    lines = [*read["line"].to_pylist(), *(line for line in rejected["line"].to_pylist() if line)]
    assert target.suffix == ".tar" or len(set(lines)) == len(lines)
    return read.num_rows, rejected.num_rows


@pytest.mark.parametrize("kind", TARGETS)
def test_the_good_file_is_good(kind: str) -> None:
    found = check(TARGETS[kind], TARGETS[kind].good)
    assert found == ((1, 0) if kind == "mlperf" else (4, 0))


@pytest.mark.parametrize("kind", TARGETS)
@given(edits=EDITS)
@settings(max_examples=40, deadline=None)
def test_a_broken_file_gives_attempts_or_rejects(kind: str, edits: list[Edit]) -> None:
    check(TARGETS[kind], edited(TARGETS[kind].good, edits))


@pytest.mark.parametrize("kind", TARGETS)
@given(content=st.binary(max_size=200))
@settings(max_examples=20, deadline=None)
def test_noise_gives_rejects(kind: str, content: bytes) -> None:
    check(TARGETS[kind], content)


@pytest.mark.slow
@pytest.mark.parametrize("kind", TARGETS)
def test_long(kind: str) -> None:
    target = TARGETS[kind]

    @given(edits=EDITS)
    @settings(max_examples=500, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck))
    def some(edits: list[Edit]) -> None:
        check(target, edited(target.good, edits))

    end = monotonic() + SECONDS / len(TARGETS)
    while monotonic() < end:
        some()
