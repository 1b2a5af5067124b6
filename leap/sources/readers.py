"""Which reader reads which kind of log.

What lives here: the one table of kinds. What does not: reading (one module per kind).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from leap.params import IngestParams
from leap.sources import Progress, ReadBatch, csv, jsonl, mlperf, parquet
from leap.sources.mlperf_files import ARCHIVE_SUFFIXES

Reader = Callable[[Sequence[Path], IngestParams, Progress], Iterator[ReadBatch]]

READERS: dict[str, Reader] = {"csv": csv.read, "jsonl": jsonl.read, "mlperf": mlperf.read, "parquet": parquet.read}

# How the names of a kind's files end, where a folder of them may hold others too.
SUFFIXES: dict[str, tuple[str, ...]] = {
    "csv": csv.SUFFIXES,
    "jsonl": jsonl.SUFFIXES,
    "mlperf": ARCHIVE_SUFFIXES,
    "parquet": parquet.SUFFIXES,
}
