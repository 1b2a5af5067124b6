"""Which measurements may be kept: field checks, known hardware, and figures that do not contradict themselves.

What lives here: one list of rules for `MEASUREMENT_SCHEMA`. What does not: reading (`leap.store.mapped_table`), attempts
(`admission.py`).
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from leap.contracts import MEASUREMENT_READ_SCHEMA, REJECT_SCHEMA, ThroughputScope, ThroughputUnit
from leap.sources.admission import Admission

ADMITTED_MEASUREMENT_SCHEMA = pa.schema([*MEASUREMENT_READ_SCHEMA, pa.field("hardware_type", pa.string())])

# A stated utilisation and the one that throughput and parameters give differ by what is counted (attention, recomputation, active
# experts, 8-bit peaks), never by this factor.
MOST_APART: Final = 10.0
# Of hardware whose peak is not known: no device computes faster than this (TFLOP/s, dense, 16 bits; the year is 2026).
FASTEST_TFLOPS: Final = 5000.0
_OPERATIONS = 6.0  # per parameter and token (Kaplan et al. 2020)
_LIMITS = {"throughput": (1e-9, 1e15), "num_devices": (1.0, 1e7)}

Rows = npt.NDArray[np.bool_]


def admit_measurements(rows: pa.Table, hardware: pa.Table, catalog: pa.Table) -> Admission:
    """Part measurements (`MEASUREMENT_READ_SCHEMA`) into those that are kept and rejects with a reason.

    `hardware` is what the resolver says of each spelling, `catalog` is in `HARDWARE_SCHEMA`. Reasons, in the order they are
    tried: ``missing-field``, ``bad-device-count``, ``unknown-hardware``, ``bad-throughput``, ``unknown-unit``,
    ``unknown-scope``, ``utilisation-disagrees``. Kept rows have ``hardware_type`` besides.
    """
    at = pc.index_in(rows["hardware_name"], value_set=hardware["hardware_name"].combine_chunks(), skip_nulls=True)
    hardware_type, unknown = hardware["hardware_type"].take(at), hardware["reason"].take(at)
    units, scopes = ([value.value for value in kind] for kind in (ThroughputUnit, ThroughputScope))
    implied = _implied_peak(rows)
    counted, made, unit, scope = (rows[name] for name in ("num_devices", "throughput", "throughput_unit", "throughput_scope"))
    rules: list[tuple[str, Rows, pa.ChunkedArray | str]] = [
        *(("missing-field", _is_empty(rows[name]), f"{name} is empty; a measurement without it says nothing.")
          for name in ("model_type", "hardware_name")),
        ("bad-device-count", _is_out(rows, "num_devices"), _said("num_devices is ", counted, "; it must be 1 or more.")),
        ("unknown-hardware", ~np.asarray(hardware_type.is_valid().to_numpy(), bool), _said("hardware_name: ", unknown, ".")),
        ("bad-throughput", _is_out(rows, "throughput"), _said("throughput is ", made, "; it must be a number above 0.")),
        ("unknown-unit", ~_is_among(unit, units), _said("throughput_unit is ", unit, f"; it must be one of {', '.join(units)}.")),
        ("unknown-scope", ~_is_among(scope, scopes),
         _said("throughput_scope is ", scope, f"; it must be one of {', '.join(scopes)}.")),
        ("utilisation-disagrees", _contradicts(implied, _peak(hardware_type, catalog)), _said(
            "throughput and utilisation imply a peak of ", pa.chunked_array([pa.array(np.round(implied, 1))]),
            " TFLOP/s a device, which this hardware has not; one of the two is wrong.")),
    ]  # fmt: skip
    broken = np.full(rows.num_rows, -1)
    for number, (_, breaks, _) in reversed(list(enumerate(rules))):
        broken = np.where(breaks, number, broken)
    kept = rows.append_column("hardware_type", hardware_type).filter(pa.array(broken < 0)).cast(ADMITTED_MEASUREMENT_SCHEMA)
    rejects = [_rejects(rows, np.flatnonzero(broken == number), *rules[number][::2]) for number in np.unique(broken[broken >= 0])]
    return Admission(kept, pa.concat_tables([REJECT_SCHEMA.empty_table(), *rejects]))


def _rejects(rows: pa.Table, at: npt.NDArray[np.int64], reason: str, detail: pa.ChunkedArray | str) -> pa.Table:
    some = rows.take(pa.array(at))
    said = pa.repeat(detail, len(at)) if isinstance(detail, str) else detail.take(pa.array(at))
    where = pc.binary_join_element_wise(some["file"], ", line ", some["line"].cast(pa.string()), ": ", "")
    given = some.select([name for name in some.column_names if name not in ("source", "slice", "file", "line")])
    made = {
        "reason": pa.repeat(reason, len(at)),
        "detail": pc.binary_join_element_wise(where, said, ""),
        "record": pa.array(given.to_pandas().to_json(orient="records", lines=True, date_format="iso").splitlines(), pa.string()),
    }
    columns = [
        made[name] if name in made else some[name].cast(kind) if name in some.column_names else pa.nulls(len(at), kind)
        for name, kind in ((field.name, field.type) for field in REJECT_SCHEMA)
    ]
    return pa.table(columns, schema=REJECT_SCHEMA)


def _implied_peak(rows: pa.Table) -> npt.NDArray[np.float64]:
    """Give the peak rate of a device (TFLOP/s) that throughput, parameters and stated utilisation imply; NaN where not stated."""
    is_per_device = _is_among(rows["throughput_scope"], [ThroughputScope.DEVICE.value])
    with np.errstate(divide="ignore", invalid="ignore"):
        per_device = np.where(is_per_device, 1.0, 1.0 / _number(rows, "num_devices"))
    tokens = np.where(_is_among(rows["throughput_unit"], [ThroughputUnit.TOKENS.value]), 1.0, np.nan)
    work = _OPERATIONS * _number(rows, "parameters_m") * 1e6 * _number(rows, "throughput") * per_device * tokens
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(work / _number(rows, "utilisation") / 1e12)


def _peak(hardware_type: pa.ChunkedArray, catalog: pa.Table) -> npt.NDArray[np.float64]:
    at = pc.index_in(hardware_type, value_set=catalog["hardware_type"].combine_chunks(), skip_nulls=True)
    return np.asarray(catalog["peak_bf16_tflops"].take(at).cast(pa.float64()).to_numpy(), dtype=np.float64)


def _contradicts(implied: npt.NDArray[np.float64], peak: npt.NDArray[np.float64]) -> Rows:
    with np.errstate(divide="ignore", invalid="ignore"):
        off = implied / peak
    return np.asarray(
        np.isfinite(implied) & np.where(np.isfinite(peak), (off > MOST_APART) | (off < 1 / MOST_APART), implied > FASTEST_TFLOPS)
    )


def _number(rows: pa.Table, name: str) -> npt.NDArray[np.float64]:
    return np.asarray(rows[name].cast(pa.float64()).to_numpy(), dtype=np.float64)


def _is_out(rows: pa.Table, name: str) -> Rows:
    values, (least, most) = _number(rows, name), _LIMITS[name]
    with np.errstate(invalid="ignore"):
        return ~((values >= least) & (values <= most))


def _is_empty(column: pa.ChunkedArray) -> Rows:
    return np.asarray(pc.equal(pc.utf8_trim_whitespace(pc.fill_null(column, "")), "").to_numpy(), dtype=bool)


def _is_among(column: pa.ChunkedArray, values: list[str]) -> Rows:
    return np.asarray(pc.is_in(column, value_set=pa.array(values)).to_numpy(), dtype=bool)


def _said(before: str, column: pa.ChunkedArray, after: str) -> pa.ChunkedArray:
    text = pc.fill_null(column.cast(pa.string()), "empty")
    return pc.binary_join_element_wise(before, text, after, "")
