"""Spellings of hardware that nobody has named yet, with what they might be: for a person to decide.

What lives here: listing a dataset's quarantine by spelling. What does not: how a spelling resolves (`leap.hardware.names`).
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import duckdb

from leap.hardware.names import ALIAS_SEED, TYPE_SEED, HardwareResolver, is_slice, spelling_key
from leap.store.datasets import Dataset
from leap.store.warehouse import read

_NEAREST = 3


@dataclass(frozen=True)
class Candidate:
    """A hardware type that a spelling might mean, and what its name says otherwise."""

    hardware_type: str
    differs: str


@dataclass(frozen=True)
class UnknownSpelling:
    """A spelling that no seed names: how many records wait for it, where the first is, and what it might be."""

    hardware_name: str
    records: int
    first: str
    reason: str
    candidates: tuple[Candidate, ...]
    line_to_add: str

    def to_json(self) -> dict[str, Any]:
        """Give it as JSON values."""
        return asdict(self)


def list_unknown(dataset: Dataset, resolver: HardwareResolver, types: Sequence[str]) -> list[UnknownSpelling]:
    """List the spellings in a dataset's quarantine that still do not resolve, most records first."""
    sql = """
        select
            hardware_name, count(*) as records,
            arg_min(file || case when line > 0 then ', line ' || line else '' end, (file, line)) as first
        from read_parquet($quarantine)
        where reason = 'unknown-hardware' and hardware_name is not null
        group by hardware_name order by records desc, hardware_name
    """
    with duckdb.connect(":memory:") as connection:
        rows = read(connection, sql, {"quarantine": str(dataset.path("quarantine"))}).to_pylist()
    resolved = {one["hardware_name"]: one for one in resolver.resolve([row["hardware_name"] for row in rows]).to_pylist()}
    return [
        UnknownSpelling(
            **row,
            reason=resolved[row["hardware_name"]]["reason"],
            candidates=(near := _nearest(row["hardware_name"], types)),
            line_to_add=_line(row["hardware_name"], near),
        )
        for row in rows
        if resolved[row["hardware_name"]]["hardware_type"] is None
    ]


def _nearest(spelling: str, types: Sequence[str]) -> tuple[Candidate, ...]:
    keys = {name: spelling_key(name) for name in types}
    ours = spelling_key(spelling)
    scored = sorted(types, key=lambda name: (-difflib.SequenceMatcher(None, ours.name, keys[name].name).ratio(), name))
    return tuple(Candidate(name, _differs(ours, keys[name])) for name in scored[:_NEAREST])


def _differs(ours: Any, theirs: Any) -> str:
    parts = []
    if ours.name != theirs.name:
        parts.append(f"name {ours.name!r} for {theirs.name!r}")
    for what, unit in (("form", ""), ("memory", " GB")):
        here, there = (", ".join(getattr(key, what)) or "none" for key in (ours, theirs))
        if here != there:
            parts.append(f"{what} {here}{unit if here != 'none' else ''} for {there}{unit if there != 'none' else ''}")
    return "; ".join(parts) or "nothing that a name tells"


def _line(spelling: str, near: Sequence[Candidate]) -> str:
    if is_slice(spelling):
        alias = f"{ALIAS_SEED}: {_csv(spelling)},THAT-TYPE,where it was seen"
        return f"{TYPE_SEED}: a row for the slice, a type of its own; then {alias}"
    return f"{ALIAS_SEED}: {_csv(spelling)},{near[0].hardware_type if near else 'TYPE'},where it was seen (if that is what it is)"


def _csv(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if any(sign in text for sign in ',"\n') else text
