"""A mapping file: which columns of a table of any fleet feed which fields of LEAP, declared in YAML.

What lives here: the typed model of such a file, and reading it with errors that name file and key. What does not: applying it to
rows (`leap.store.mapped_table`), proposing one (`mapping_guess.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

import pyarrow as pa
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from leap.contracts import ATTEMPT_SCHEMA, MEASUREMENT_SCHEMA
from leap.sources import SourceError

MAPPING_VERSION = 1

# Seconds in a unit of time, for columns that hold how long something took.
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
EPOCHS = {"epoch_s": 1.0, "epoch_ms": 1e-3, "epoch_us": 1e-6}


class Kind(StrEnum):
    """What a row of the table is."""

    ATTEMPTS = "attempts"
    MEASUREMENTS = "measurements"

    @property
    def schema(self) -> pa.Schema:
        """The fields that a row may have."""
        return ATTEMPT_SCHEMA if self is Kind.ATTEMPTS else MEASUREMENT_SCHEMA


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FieldSpec(_Frozen):
    """Where the value of a field comes from: exactly one of `column`, `expression` and `value`.

    `map` replaces texts (a text that it does not name is an error, or `default`); `default` stands in for nothing. `unit` and
    `scale` turn a number into the field's own unit; `format` and `timezone` read a time.
    """

    column: str | None = None
    expression: str | None = None
    value: str | float | bool | None = None
    map: dict[str, str | float | bool] | None = None
    default: str | float | bool | None = None
    unit: str | None = None
    scale: float | None = None
    format: str | None = None
    timezone: str | None = None

    @model_validator(mode="after")
    def _has_one_origin(self) -> FieldSpec:
        given = [name for name in ("column", "expression", "value") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give one of column, expression and value; there are {given or 'none'}")
        if self.unit is not None and self.unit not in SECONDS:
            raise ValueError(f"unit {self.unit!r}: must be one of {', '.join(SECONDS)}")
        if self.unit is not None and self.scale is not None:
            raise ValueError("give unit or scale, not both")
        return self

    @field_validator("timezone")
    @classmethod
    def _zone_is_known(cls, zone: str | None) -> str | None:
        return _known_zone(zone)


class Filter(_Frozen):
    """Rows that are no attempts to learn from: they go to quarantine with reason ``filtered`` and this sentence."""

    leave_out: str
    because: str


class TableMapping(_Frozen):
    """A mapping file."""

    version: Literal[1]
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,60}$")]
    kind: Kind = Kind.ATTEMPTS
    format: Literal["csv", "tsv", "jsonl", "parquet"] = "csv"
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] | None = None
    encoding: str = "utf-8"
    null: tuple[str, ...] = ("",)
    timezone: str | None = None
    columns: tuple[str, ...] = ()
    fields: dict[str, FieldSpec]
    filters: tuple[Filter, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, data: Any) -> Any:
        """`field: Column` is short for `field: {column: Column}`."""
        if isinstance(data, dict) and isinstance(data.get("fields"), dict):
            fields = {name: {"column": spec} if isinstance(spec, str) else spec for name, spec in data["fields"].items()}
            return {**data, "fields": fields}
        return data

    @field_validator("timezone")
    @classmethod
    def _zone_is_known(cls, zone: str | None) -> str | None:
        return _known_zone(zone)

    @model_validator(mode="after")
    def _fields_are_known(self) -> TableMapping:
        known = {field.name: field.type for field in self.kind.schema}
        unknown = sorted(set(self.fields) - set(known))
        if unknown:
            raise ValueError(f"fields: {', '.join(unknown)} {'is' if len(unknown) == 1 else 'are'} none of {', '.join(known)}")
        for name, spec in self.fields.items():
            is_number = pa.types.is_floating(known[name]) or pa.types.is_integer(known[name])
            if (spec.unit is not None or spec.scale is not None) and not is_number:
                raise ValueError(f"fields.{name}: unit and scale are for numbers")
            if (spec.format is not None or spec.timezone is not None) and not _is_time(known[name]):
                raise ValueError(f"fields.{name}: format and timezone are for times")
            if spec.unit is not None and not name.endswith("_seconds"):
                raise ValueError(f"fields.{name}: unit is for times that last, in fields that end in _seconds; use scale")
        if self.delimiter is not None and self.format not in ("csv", "tsv"):
            raise ValueError(f"delimiter: format {self.format} has none")
        return self

    @property
    def source(self) -> str:
        """What records of this mapping call their source."""
        return f"table:{self.name}"


def load_mapping(path: Path) -> TableMapping:
    """Read a mapping file. Raises SourceError that names file, key and what is expected."""
    try:
        return parse_mapping(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise SourceError(f"{path}: the mapping cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise SourceError(f"{path}: a mapping is YAML in UTF-8 ({error}).") from error


def parse_mapping(text: str, name: str) -> TableMapping:
    """Read the text of a mapping file called `name`. Raises SourceError."""
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SourceError(f"{name}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(data, Mapping):
        raise SourceError(
            f"{name}: a mapping has the keys version, name, kind, format and fields; see docs/bring-your-own-logs.md"
        )
    try:
        return TableMapping.model_validate(dict(data))
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, problem['loc'])) or 'the file'}: {problem['msg'].removeprefix('Value error, ')}"
            for problem in error.errors()
        ]
        raise SourceError(f"{name}: {'; '.join(problems)}") from None


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def _known_zone(zone: str | None) -> str | None:
    if zone is not None:
        try:
            ZoneInfo(zone)
        except (ValueError, OSError, KeyError):
            raise ValueError(f"timezone {zone!r} is not known; write it as Europe/Berlin or UTC") from None
    return zone
