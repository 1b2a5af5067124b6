"""Readers of other packages, found by the entry point `leap.readers`.

What lives here: finding and loading them. What does not: the readers that LEAP has (`leap.sources.readers`).

A package offers a reader with `[project.entry-points."leap.readers"] slurm = "my_package:read"`; what it names is called as
`leap.sources.readers.Reader` says. One that cannot be loaded is told when its kind is asked for, and stands in no other's way.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from leap.sources import SourceError
from leap.sources.mapping import TableMapping, load_mapping
from leap.sources.readers import READERS, Reader

READER_GROUP = "leap.readers"
TABLE = "table"


def reader_of(kind: str) -> Reader:
    """Give the reader of a kind of log: LEAP's own, else the one that a package offers.

    Raises SourceError where no reader has the name, two packages offer it, or it cannot be loaded.
    """
    if kind in READERS:
        return READERS[kind]
    offered = _offered().get(kind, [])
    if not offered:
        known = ", ".join([*sorted({*READERS, *_offered()}), f"{TABLE}:MAPPING.yaml"])
        raise SourceError(f"unknown kind of log {kind!r}; LEAP reads {known}: name a source as KIND=PATH")
    if len(offered) > 1:
        packages = ", ".join(sorted(_package(one) for one in offered))
        raise SourceError(f"kind of log {kind!r} is offered by {packages}; uninstall all but one")
    try:
        reader = offered[0].load()
    except Exception as error:  # whatever a package raises when it is imported is its fault to tell
        raise SourceError(f"the reader {kind!r} of {_package(offered[0])} cannot be loaded: {error}") from error
    if not callable(reader):
        raise SourceError(f"the reader {kind!r} of {_package(offered[0])} is no function: {offered[0].value}")
    loaded: Reader = reader
    return loaded


def mapping_of(kind: str) -> TableMapping | None:
    """Give the mapping that a kind `table:FILE` names; None for another kind. Raises SourceError."""
    name, colon, file = kind.partition(":")
    if name != TABLE:
        return None
    if not colon or not file:
        raise SourceError("kind `table` needs a mapping file: table:MAPPING.yaml=PATH, or `leap ingest table --mapping FILE`")
    return load_mapping(Path(file))


def _offered() -> dict[str, list[EntryPoint]]:
    found: dict[str, list[EntryPoint]] = {}
    for one in entry_points(group=READER_GROUP):
        found.setdefault(one.name, []).append(one)
    return found


def _package(one: EntryPoint) -> str:
    return one.dist.name if one.dist is not None else one.value
