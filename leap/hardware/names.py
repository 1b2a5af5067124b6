"""Hardware names: a machine's raw spelling of its accelerator -> the fleet's hardware type, or none and the reason.

What lives here: how a spelling is normalised, the alias table, and what is never guessed (form factor, memory size, a slice
taken for the whole). What does not: facts about types (`catalog.py`), the aliases themselves (`hardware_aliases.csv` among the
dbt seeds), and quarantine (`leap.sources.admission`).
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from pyarrow import csv

ALIAS_SCHEMA = pa.schema([pa.field("spelling", pa.string()), pa.field("hardware_type", pa.string())])

RESOLUTION_SCHEMA = pa.schema(
    [
        pa.field("hardware_name", pa.string(), nullable=False),
        pa.field("hardware_type", pa.string()),  # null = not resolved
        pa.field("reason", pa.string()),  # null = resolved
    ]
)

ALIAS_SEED = "dbt_project/seeds/hardware_aliases.csv"
TYPE_SEED = "dbt_project/seeds/hardware_types.csv"

_TRADEMARK = re.compile(r"[™®©]|\((?:r|tm|c)\)", re.IGNORECASE)
# A cap changes how fast the chip runs, not which chip it is; the raw spelling keeps it. A capped slice is still a slice.
_POWER_CAP = re.compile(r"\(\s*\d+\s*w(?:atts?)?\s*\)")
_CLOCK = re.compile(r"@\s*\d+(?:\.\d+)?\s*[gm]hz")
_MEMORY = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)\s*(?:gib|gb|g)(?![a-z0-9])")
_FORM = re.compile(r"(?<![a-z])(sxm[2-6]?|pci[- ]?e|nvl\d*|oam)(?![a-z0-9])")
_SLICE = re.compile(r"(?<![a-z])mig(?![a-z])|(?<![a-z0-9])\d+g\.\d+gb")
_TOKEN = re.compile(r"[^\W\d_]+|\d+(?:\.\d+)?|[*+]")

# Words that never tell two chips apart. "Quadro", "Ada", "Pro", "Ti", "HBM3" and the like do, and stay.
_NOISE = frozenset(
    (
        *("nvidia", "amd", "intel", "habana", "graphcore", "huawei", "google", "aws", "amazon"),
        *("tesla", "geforce", "instinct", "radeon", "tensor", "core", "ai", "generation"),
        *("gpu", "gpus", "cpu", "accelerator", "card"),
        *("cts", "dlc", "liquid", "air", "cooled", "cooling"),
    )
)


class AliasError(ValueError):
    """The alias table contradicts itself or the catalogue; the message names the spellings and what to change."""


class SpellingKey(NamedTuple):
    """What is left of a spelling when the words that do not tell chips apart are gone; equal keys mean the same hardware."""

    name: str
    form: tuple[str, ...]
    memory: tuple[str, ...]


def spelling_key(spelling: str) -> SpellingKey:
    """Normalise a spelling: case, spaces, punctuation, trademark marks, vendor and cooling words, power caps, word order.

    Form factor and memory size are taken out wherever they stand, so `A100-80GB-SXM4` and `A100-SXM4-80GB` have one key.
    """
    text = unicodedata.normalize("NFKC", _TRADEMARK.sub(" ", spelling)).casefold()
    text = _CLOCK.sub(" ", _POWER_CAP.sub(" ", text))
    memory = {match.group(1) for match in _MEMORY.finditer(text)}
    text = _MEMORY.sub(" ", text)
    form = {re.sub(r"[- ]", "", match.group(1)) for match in _FORM.finditer(text)}
    words = [word for word in _TOKEN.findall(_FORM.sub(" ", text)) if word not in _NOISE]
    return SpellingKey(" ".join(words), tuple(sorted(form)), tuple(sorted(memory)))


def is_slice(spelling: str) -> bool:
    """Say whether a spelling names a MIG slice, which is a part of a GPU and never the whole."""
    return _SLICE.search(spelling.casefold()) is not None


def read_aliases(path: Path) -> pa.Table:
    """Read the alias seed: columns `spelling` and `hardware_type`, both text; other columns are left out.

    Raises AliasError where a column is missing or a row does not parse, FileNotFoundError where the file is not there.
    """
    try:
        options = csv.ConvertOptions(column_types=ALIAS_SCHEMA, include_columns=ALIAS_SCHEMA.names)
        return csv.read_csv(path, convert_options=options)
    except (KeyError, pa.ArrowInvalid) as error:
        raise AliasError(f"{path}: {error}; the columns are spelling,hardware_type,source") from error


@dataclass(frozen=True)
class HardwareResolver:
    """Finds the hardware type of a raw spelling by exact look-up of its normalised form; it never guesses."""

    _types: Mapping[SpellingKey, str]
    _spellings: Mapping[SpellingKey, str]

    @classmethod
    def from_aliases(cls, aliases: pa.Table | Iterable[tuple[str, str]], known_types: Iterable[str]) -> HardwareResolver:
        """Build a resolver from `(spelling, hardware_type)` rows; each known type is a spelling of itself.

        Raises AliasError where an alias names an unknown type, has no words, maps a slice to a whole GPU, or where two
        spellings that normalise alike name different types.
        """
        known = list(known_types)
        rows = _rows(aliases) if isinstance(aliases, pa.Table) else list(aliases)
        types: dict[SpellingKey, str] = {}
        spellings: dict[SpellingKey, str] = {}
        for spelling, hardware_type in [*((name, name) for name in known), *rows]:
            key = spelling_key(spelling)
            _check_alias(spelling, hardware_type, key, known)
            if types.setdefault(key, hardware_type) != hardware_type:
                raise AliasError(
                    f"{ALIAS_SEED}: {spelling!r} is said to be {hardware_type}, but {spellings[key]!r}, which normalises "
                    f"alike, is {types[key]}; keep one of the two lines"
                )
            spellings.setdefault(key, spelling)
        return cls(types, spellings)

    def resolve(self, spellings: Iterable[str | None]) -> pa.Table:
        """Resolve each distinct spelling, in order of first appearance: RESOLUTION_SCHEMA, one row each; nulls are left out."""
        names = [name for name in dict.fromkeys(spellings) if name is not None]
        found = [self._resolve_one(name) for name in names]
        columns = [names, [hardware_type for hardware_type, _ in found], [reason for _, reason in found]]
        return pa.table([pa.array(column, pa.string()) for column in columns], schema=RESOLUTION_SCHEMA)

    def _resolve_one(self, spelling: str) -> tuple[str | None, str | None]:
        key = spelling_key(spelling)
        hardware_type = self._types.get(key)
        if hardware_type is not None:
            return hardware_type, None
        if not key.name:
            return None, f"{spelling!r} names no hardware; log the name that the machine itself reports"
        if is_slice(spelling):
            return None, (
                f"{spelling!r} is a MIG slice, a part of a GPU: it is never taken for the whole. Give the slice a type of its "
                f"own in {TYPE_SEED} and a line in {ALIAS_SEED}, or keep it out"
            )
        candidates = self._completions(key)
        if candidates:
            return None, (
                f"{spelling!r} does not say enough: it may be {' or '.join(candidates)}; form factor and memory size are not "
                f"guessed. Log the full name, or add a line to {ALIAS_SEED} if this fleet has only one kind"
            )
        return None, f"{spelling!r} is unknown; {self._nearest(key)}add a line to {ALIAS_SEED} that says what it is"

    def _completions(self, key: SpellingKey) -> list[str]:
        """List the types whose spelling says all that this one says, and more of form factor or memory size."""
        return sorted(
            {
                hardware_type
                for known, hardware_type in self._types.items()
                if known.name == key.name and set(key.form) <= set(known.form) and set(key.memory) <= set(known.memory)
            }
        )

    def _nearest(self, key: SpellingKey) -> str:
        known = {_flat(other): (spelling, self._types[other]) for other, spelling in self._spellings.items()}
        close = difflib.get_close_matches(_flat(key), known, n=3, cutoff=0.6)
        if not close:
            return ""
        return f"nearest known: {', '.join(f'{known[flat][0]!r} ({known[flat][1]})' for flat in close)}; "


def _rows(aliases: pa.Table) -> list[tuple[str, str]]:
    return list(zip(aliases["spelling"].to_pylist(), aliases["hardware_type"].to_pylist(), strict=True))


def _check_alias(spelling: str, hardware_type: str, key: SpellingKey, known: list[str]) -> None:
    if hardware_type not in known:
        raise AliasError(
            f"{ALIAS_SEED}: {spelling!r} is said to be {hardware_type!r}, which is no known type; add it to {TYPE_SEED} first"
        )
    if not key.name:
        raise AliasError(f"{ALIAS_SEED}: {spelling!r} holds no word that tells one chip from another; remove the line")
    if is_slice(spelling) and not is_slice(hardware_type):
        raise AliasError(
            f"{ALIAS_SEED}: {spelling!r} is a MIG slice and {hardware_type} is a whole GPU; give the slice a type of its own"
        )


def _flat(key: SpellingKey) -> str:
    return " ".join([key.name, *key.form, *key.memory])
