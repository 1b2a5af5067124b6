"""The fields of one attempt: values as JSON has them, each to its own type, or a sentence that says what is wrong.

What lives here: one record at a time; it decides what every reader accepts. What does not: whole columns at once, which must give
the same values (`columns.py`), and files (`files.py`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from leap.contracts import ATTEMPT_SCHEMA


class BadRecord(Exception):
    """A record is not an attempt: a code, a sentence, and what could be read of it."""

    def __init__(self, reason: str, detail: str, known: dict[str, Any] | None = None) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.known = known or {}


_KNOWN = ("attempt_id", "job_id", "model_type", "hardware_name", "num_devices", "started_at", "ended_at", "outcome")


def parse_record(value: dict[str, Any]) -> dict[str, Any]:
    """Give the fields of an attempt from values as JSON has them, each in its own type. Raises BadRecord."""
    unknown = [name for name in value if name not in FIELDS]
    if unknown:
        detail = f"Field {unknown[0]!r} is not one of an attempt; move settings of your own into `config`."
        raise BadRecord("unknown-field", detail, known_of(value))
    return {name: parse_field(name, raw, value) for name, raw in value.items()}


def parse_field(name: str, raw: Any, record: dict[str, Any]) -> Any:
    """Give one field of a record. Raises BadRecord, which names the field, what it is and what it must be."""
    if raw is None:
        return None
    reason = "bad-time" if FIELDS[name] is _time and isinstance(raw, str) else "wrong-type"
    try:
        return FIELDS[name](raw)
    except (ValueError, OverflowError, RecursionError) as error:
        raise BadRecord(reason, f"Field {name!r} is {_shown(raw)}; it must be {error}.", known_of(record)) from error


def known_of(record: dict[str, Any]) -> dict[str, Any]:
    """Give those fields of a bad record that a reject carries, null where they cannot be read."""
    known = {}
    for name in _KNOWN:
        try:
            known[name] = None if record.get(name) is None else FIELDS[name](record[name])
        except (ValueError, OverflowError):
            known[name] = None
    return known


def parse_json(text: str) -> Any:
    """Parse JSON strictly. Raises BadRecord where a key stands twice or text is none, ValueError and RecursionError else."""
    value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_without_duplicates)
    if "\\u" in text:
        _require_text(json.dumps(value, ensure_ascii=False))
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise BadRecord("duplicate-field", f"Field {twice!r} stands twice in one object; which value holds is not known.")
    return record


def _require_text(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadRecord("not-utf8", "A string holds half of a surrogate pair; write the log in UTF-8.") from error


def _shown(value: Any) -> str:
    return kind_of(value) if isinstance(value, dict | list) else json.dumps(value, ensure_ascii=False)[:200]


def kind_of(value: Any) -> str:
    """Name what kind of JSON a value is, for a sentence."""
    kinds = {dict: "an object", list: "an array", str: "a string", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")


def _text(raw: Any) -> str:
    if not isinstance(raw, str):
        raise ValueError("a string")
    return raw


def _flag(raw: Any) -> bool:
    if not isinstance(raw, bool):
        raise ValueError("true or false")
    return raw


def _number(raw: Any) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        raise ValueError("a number")
    try:
        number = float(raw)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError("a finite number")
    return number


def _integer(raw: Any) -> int:
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        raise ValueError("a whole number")
    if raw != raw // 1 or not -(2**31) <= raw < 2**31:
        raise ValueError("a whole number of at most 32 bits")
    return int(raw)


def _time(raw: Any) -> datetime:
    expected = "a time in ISO 8601 with its offset from UTC, such as 2026-03-01T09:30:00Z"
    try:
        time = datetime.fromisoformat(_text(raw))
        offset = time.utcoffset()
        utc = time.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise ValueError(expected) from error
    if offset is None:
        raise ValueError(expected)
    return utc


def _settings(raw: Any) -> str:
    value = _nested(raw)
    if not isinstance(value, dict):
        raise ValueError("an object, or a string that holds one")
    return _canonical(value)


def _names(raw: Any) -> str:
    value = _nested(raw)
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValueError("an array of names of hardware types, or a string that holds one")
    return _canonical(value)


def _nested(raw: Any) -> Any:
    """Give the value of a field that may be written as JSON or as a string that holds JSON."""
    if not isinstance(raw, str):
        return raw
    try:
        return parse_json(raw)
    except (BadRecord, ValueError, RecursionError) as error:
        raise ValueError("JSON, or a string that holds JSON") from error


def _canonical(value: Any) -> str:
    """Write JSON in one way, so that the same settings give the same content hash."""
    try:
        return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError as error:
        raise ValueError("made of finite numbers") from error


NESTED: dict[str, Callable[[Any], str]] = {"config": _settings, "eligible_hardware": _names}


def _field_parser(field: pa.Field) -> Callable[[Any], Any]:
    if field.name in NESTED:
        return NESTED[field.name]
    if pa.types.is_timestamp(field.type):
        return _time
    if pa.types.is_integer(field.type):
        return _integer
    if pa.types.is_floating(field.type):
        return _number
    return _flag if pa.types.is_boolean(field.type) else _text


FIELDS = {field.name: _field_parser(field) for field in ATTEMPT_SCHEMA}
