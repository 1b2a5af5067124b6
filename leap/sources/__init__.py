"""Readers of fleet logs: one module per kind of log, raw bytes in, attempts and rejects with a reason out.

What lives here: the shape that every reader has. What does not: field checks that all kinds share (`admission.py`), duplicates
and storage (`leap.store.warehouse`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa


class SourceError(Exception):
    """A source as a whole cannot be read: the path is missing, the folder is empty, nothing in it is a log."""


class ReadBatch(NamedTuple):
    """What a reader yields: each record read stands in exactly one of the two tables.

    ``attempts`` has `READ_SCHEMA`, ``rejects`` has `REJECT_SCHEMA` of `leap.contracts`.
    """

    attempts: pa.Table
    rejects: pa.Table


# Told what is being read, how much is done and how much there is (0 = unknown).
Progress = Callable[[str, int, int], None]


def no_progress(_what: str, _done: int, _total: int) -> None:
    """Say nothing."""
