"""The canonical attempt as a JSON Schema (draft 2020-12), and as a list of fields: what a site's exporter writes.

What lives here: the schema, made from `ATTEMPT_SCHEMA` and the glossary. What does not: reading records (`leap.sources`), which
takes some more spellings than the schema recommends; whether a record is trusted (`leap.sources.admission`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from leap.contracts import ATTEMPT_SCHEMA, ATTEMPT_SCHEMA_VERSION, Outcome, ThroughputScope, ThroughputUnit
from leap.store.dictionary import read_glossary

# An attempt without one of these is quarantined.
REQUIRED = ("attempt_id", "started_at", "outcome", "model_type", "num_devices", "hardware_name")

# What a log says differs from what LEAP's tables say under the same name.
_AS_LOGGED = {
    "throughput": ("as throughput_unit says", "measured in steady state, over what throughput_scope says"),
    "user": ("", "who submitted the job; replaced by a pseudonym as it is read"),
    "hardware_name": ("", "the hardware as the machine spells it, with form factor and memory size"),
}
_CHOICES = {"outcome": Outcome, "throughput_unit": ThroughputUnit, "throughput_scope": ThroughputScope}
_NESTED: dict[str, dict[str, Any]] = {
    "config": {"type": ["object", "string"]},
    "eligible_hardware": {"type": ["array", "string"], "items": {"type": "string"}},
}
_TIME = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:\d{2})$"


class FieldRow(NamedTuple):
    """A field as a person reads of it."""

    name: str
    type: str
    unit: str
    required: bool
    meaning: str


def field_rows() -> list[FieldRow]:
    """Describe each field of the canonical attempt, in the schema's order."""
    meanings = read_glossary(Path(__file__).with_name("glossary.yaml")) | _AS_LOGGED
    return [FieldRow(field.name, _type_of(field), *_described(field.name, meanings)) for field in ATTEMPT_SCHEMA]


def json_schema() -> dict[str, Any]:
    """Give the JSON Schema of one record; `$id` ends in the version of the schema, ``unit`` is an annotation."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:leap:attempt:{ATTEMPT_SCHEMA_VERSION}",
        "title": "Attempt",
        "description": "One attempt of a training job on constant hardware and device count. Unknown is null, or left out.",
        "type": "object",
        "properties": {row.name: _property(row) for row in field_rows()},
        "required": list(REQUIRED),
        "additionalProperties": False,
    }


def _described(name: str, meanings: dict[str, tuple[str, str]]) -> tuple[str, bool, str]:
    unit, meaning = meanings[name]
    return unit, name in REQUIRED, meaning


def _type_of(field: pa.Field) -> str:
    if field.name in _NESTED:
        return str(_NESTED[field.name]["type"][0])
    if pa.types.is_timestamp(field.type):
        return "time"
    if pa.types.is_integer(field.type):
        return "integer"
    if pa.types.is_floating(field.type):
        return "number"
    return "boolean" if pa.types.is_boolean(field.type) else "string"


def _property(row: FieldRow) -> dict[str, Any]:
    described = {"description": f"{row.meaning[:1].upper()}{row.meaning[1:]}."} | ({"unit": row.unit} if row.unit else {})
    return described | _or_null(_values(row), row.required)


def _values(row: FieldRow) -> dict[str, Any]:
    if row.name in _NESTED:
        return _NESTED[row.name]
    if row.name in _CHOICES:
        return {"type": ["string"], "enum": [choice.value for choice in _CHOICES[row.name]]}
    if row.type == "time":
        return {"type": ["string"], "format": "date-time", "pattern": _TIME}
    if row.type == "integer":
        return {"type": ["integer"], "minimum": -(2**31), "maximum": 2**31 - 1}
    return {"type": [row.type]}


def _or_null(values: dict[str, Any], required: bool) -> dict[str, Any]:
    if required:
        return values | {"type": values["type"][0] if len(values["type"]) == 1 else values["type"]}
    choices = {"enum": [*values["enum"], None]} if "enum" in values else {}
    return values | {"type": [*values["type"], "null"]} | choices
