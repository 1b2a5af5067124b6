"""`assemble(submissions, candidates, state, nights)`: the only maker of model inputs, in training, nightly scoring and serving.

What lives here: how the history of a fleet is looked up at a cut, and which facts of submission, candidate and history become
features. What does not: how history is built (dbt, `marts.state_history`), how facts are encoded for one model
(`leap.predictors.gbdt`).

History is a table with one row per level, key and night at which the level's evidence changed. A row of night N holds what was
known at the cut of N, so that the newest row with ``night <= submission's night`` is what could be known: no row sees its future.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from leap.contracts import TIERS
from leap.gaussian_process import GaussianProcess

Floats = npt.NDArray[np.float64]
Nights = npt.NDArray[np.datetime64]
Levels = Mapping[str, Sequence[str]]

KEY_SEPARATOR = chr(31)  # ASCII unit separator: no name contains it
_NIGHT_BITS = 20  # days since 1970 fit many times over
_FEW_KEYS = 2048  # below this a dictionary beats building a hash set of all known keys

# What each level of history tells, beside its age.
EVIDENCE_COLUMNS = (
    "evidence_count",
    "last_log_throughput",
    "median_log_throughput",
    "spread_log_throughput",
    "mean_log_peak",
    "mean_log_devices",
    "mean_log_batch",
)

CATEGORICAL_FEATURES = (
    "model_type",
    "task",
    "framework",
    "precision",
    "optimizer",
    "team",
    "hardware_type",
    "vendor",
    "family",
    "form_factor",
)

SUBMISSION_FEATURES = (
    "log_global_batch_size",
    "log_gradient_accumulation_steps",
    "log_sequence_length",
    "log_image_size",
    "log_parameters_m",
    "log_data_parallel",
    "log_tensor_parallel",
    "log_pipeline_parallel",
    "framework_release",
)

CANDIDATE_FEATURES = (
    "log_num_devices",
    "log_batch_per_device",
    "log_roofline",
    "log_peak_tflops",
    "log_fp8_tflops",
    "log_memory_bytes",
    "log_memory_bandwidth_gbps",
    "log_interconnect_gbps",
    "log_tdp_watts",
    "release_year",
)

PROCESS_FEATURES = ("process_mean", "process_sd")

# From most to least specific: the first level with evidence gives the prior that the model corrects. A level keyed by the
# hardware type is taken as it is; another is scaled by the ratio of peak rates.
PRIOR_LEVELS = (
    ("job_hardware", False),
    ("configuration", False),
    ("exact", False),
    ("model_hardware", False),
    ("model_family_devices", True),
    ("model_family", True),
    ("model_devices", True),
    ("model", True),
    ("hardware", False),
)


@dataclass(frozen=True)
class Evidence:
    """What one level of history knows of n rows; arrays of shape (n,), NaN where it knows nothing. Natural logarithms."""

    age_days: Floats
    count: Floats
    last: Floats
    median: Floats
    spread: Floats
    mean_log_peak: Floats
    mean_log_devices: Floats
    mean_log_batch: Floats


class State:
    """The evidence of every level, over many nights (`marts.state_history`) or at one cut (`marts.state_current`)."""

    def __init__(self, levels: Levels, table_of: Callable[[str], _LevelTable], process: GaussianProcess | None = None) -> None:
        self.levels = {level: tuple(columns) for level, columns in levels.items()}
        self.process = process
        self._table_of = table_of

    @classmethod
    def from_table(cls, table: pa.Table, levels: Levels, process: GaussianProcess | None = None) -> State:
        """Index a table with the columns of `marts.state_history` by level, key and night.

        `process` is of the same examples as the table; without one its features are unknown.
        """
        table = table.sort_by([("level", "ascending"), ("key", "ascending"), ("night", "ascending")]).combine_chunks()
        names = table["level"].to_numpy(zero_copy_only=False).astype(str)
        tables = {}
        for level in levels:
            start, stop = np.searchsorted(names, level, "left"), np.searchsorted(names, level, "right")
            tables[level] = _LevelTable.from_sorted(table.slice(start, stop - start))
        return cls(levels, tables.__getitem__, process)

    @classmethod
    def from_reader(
        cls, read: Callable[[str], pa.Table], levels: Levels, process: GaussianProcess | None = None, *, is_held: bool = False
    ) -> State:
        """Look up in what `read` gives for a level: its rows by key and night.

        Unless `is_held`, no level is held for longer than one look and each look reads it anew: for a history that is larger
        than memory and is asked about once.
        """

        def table_of(level: str) -> _LevelTable:
            return _LevelTable.from_sorted(read(level))

        return cls(levels, cache(table_of) if is_held else table_of, process)

    def lookup(self, level: str, keys: pa.Array, nights: Nights) -> Evidence:
        """Return the evidence of `level` for each key (null = no key) as known at the cut of each night."""
        return self._table_of(level).lookup(keys, nights)


@dataclass(frozen=True)
class _LevelTable:
    keys: pa.Array  # unique, sorted
    positions: npt.NDArray[np.int64]  # key index and night in one sorted integer
    ended_at: Nights
    columns: Mapping[str, Floats]
    index: dict[str, int]

    @classmethod
    def from_sorted(cls, table: pa.Table) -> _LevelTable:
        encoded = pc.dictionary_encode(table["key"]).combine_chunks()
        if isinstance(encoded, pa.ChunkedArray):
            encoded = pa.concat_arrays(encoded.chunks) if encoded.num_chunks else pa.array([], pa.string()).dictionary_encode()
        nights = _days(table["night"])
        # Rows are sorted by key, so dictionary codes ascend and the composed integers are sorted too.
        positions = (encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64) << _NIGHT_BITS) + nights
        return cls(
            keys=encoded.dictionary,
            positions=positions,
            ended_at=table["last_ended_at"].to_numpy().astype("datetime64[s]"),
            columns={name: _floats(table[name]) for name in EVIDENCE_COLUMNS},
            index={},
        )

    def lookup(self, keys: pa.Array, nights: Nights) -> Evidence:
        found = self._find(keys)
        wanted = (found << _NIGHT_BITS) + nights.astype("datetime64[D]").astype(np.int64)
        row = np.searchsorted(self.positions, wanted, side="right") - 1
        known = (found >= 0) & (row >= 0)
        if len(self.positions):
            row = np.where(known, row, 0)
            known &= (self.positions[row] >> _NIGHT_BITS) == found
            known &= self.columns["evidence_count"][row] > 0

        def pick(values: Floats) -> Floats:
            if not len(values):
                return np.full(len(found), np.nan)
            return np.where(known, values[row], np.nan)

        if len(self.ended_at):
            seconds = (nights.astype("datetime64[s]") - self.ended_at[row]).astype("timedelta64[s]").astype(np.float64)
            age_days = np.where(known, seconds / 86_400, np.nan)
        else:
            age_days = np.full(len(found), np.nan)
        return Evidence(age_days, *[pick(self.columns[name]) for name in EVIDENCE_COLUMNS])

    def _find(self, keys: pa.Array) -> npt.NDArray[np.int64]:
        if not len(self.keys):
            return np.full(len(keys), -1, dtype=np.int64)
        if len(keys) < _FEW_KEYS:
            if not self.index:
                self.index.update(zip(self.keys.to_pylist(), range(len(self.keys)), strict=True))
            return np.fromiter((self.index.get(key, -1) for key in keys.to_pylist()), np.int64, len(keys))
        found = pc.index_in(keys, value_set=self.keys, skip_nulls=True)
        return np.asarray(pc.fill_null(found, -1).to_numpy(zero_copy_only=False), dtype=np.int64)


def assemble(submissions: pa.Table, candidates: pa.Table, state: State, nights: Nights) -> pa.Table:
    """Make one row of facts per pair of submission and candidate, as known at the cut of the pair's night.

    Args:
        submissions: n rows with the columns of `SUBMISSION_SCHEMA`; null = unknown.
        candidates: n rows with the columns of `CANDIDATE_SCHEMA`, row i is where submission i could run.
        state: the history to look up.
        nights: shape (n,), dates: the UTC day of submission; history is taken at its 00:00.

    Returns:
        A table of n rows: `feature_names(levels)` (doubles, NaN = unknown, and strings, null = unknown), `num_devices`,
        `prior` (natural log of samples/s per device from the most specific history), `prior_level` (its index in
        `PRIOR_LEVELS`, NaN = none), `process_mean` and `process_sd` (what the Gaussian process makes of all history) and `tier`
        (how much a prediction of this row rests on measurement).
    """
    count = submissions.num_rows
    if candidates.num_rows != count or len(nights) != count:
        raise ValueError(f"{count} submissions, {candidates.num_rows} candidates and {len(nights)} nights; they must pair up")
    facts = _Facts(submissions, candidates)
    columns: dict[str, Any] = {name: facts.text(name) for name in CATEGORICAL_FEATURES}
    columns |= _submission_features(facts)
    columns |= _candidate_features(facts)
    log_peak = columns["log_peak_tflops"]
    evidence = {level: state.lookup(level, facts.key(key_columns), nights) for level, key_columns in state.levels.items()}
    for level, known in evidence.items():
        columns |= _level_features(level, known, log_peak)
    columns["num_devices"] = facts.number("num_devices")
    columns["prior"], columns["prior_level"] = _prior(evidence, log_peak)
    columns["process_mean"], columns["process_sd"] = (
        state.process.predict(submissions, candidates, nights) if state.process else (np.full(count, np.nan),) * 2
    )
    columns["tier"] = pa.array(_tiers(evidence, log_peak), pa.string())
    return pa.table(columns)


def level_feature_names(level: str) -> tuple[str, ...]:
    """Name the features that one level of history gives."""
    return tuple(
        f"{level}_{fact}" for fact in ("log_count", "last", "median", "scaled_median", "spread", "devices", "batch", "age_days")
    )


def feature_names(levels: Levels) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Name the numeric and the categorical features, in the order in which a model takes them."""
    history = tuple(name for level in levels for name in level_feature_names(level))
    return (*SUBMISSION_FEATURES, *CANDIDATE_FEATURES, *history, "prior", "prior_level", *PROCESS_FEATURES), CATEGORICAL_FEATURES


class _Facts:
    """The columns of submissions and candidates side by side, each turned into numbers, names or key parts once."""

    def __init__(self, submissions: pa.Table, candidates: pa.Table) -> None:
        self._tables = (candidates, submissions)
        self._key_parts: dict[str, pa.Array] = {}
        self.length = submissions.num_rows

    def column(self, name: str) -> pa.ChunkedArray | None:
        for table in self._tables:
            if name in table.column_names:
                return table[name]
        return None

    def number(self, name: str) -> Floats:
        column = self.column(name)
        return np.full(self.length, np.nan) if column is None else _floats(column)

    def log(self, name: str) -> Floats:
        return _log(self.number(name))

    def text(self, name: str) -> pa.Array:
        column = self.column(name)
        if column is None:
            return pa.nulls(self.length, pa.string())
        return _single(column if column.type == pa.string() else column.cast(pa.string()))

    def key(self, names: Sequence[str]) -> pa.Array:
        parts = [self._key_part(name) for name in names]
        if len(parts) == 1:
            return parts[0]
        return pc.binary_join_element_wise(*parts, KEY_SEPARATOR, null_handling="emit_null")

    def _key_part(self, name: str) -> pa.Array:
        if name not in self._key_parts:
            column = self.column(name)
            if column is not None and pa.types.is_floating(column.type):
                # Written as dbt writes it: the nearest whole number, halves up.
                number = self.number(name)
                whole = np.floor(number + 0.5)
                part = pc.cast(pa.array(np.nan_to_num(whole).astype(np.int64), mask=~np.isfinite(whole)), pa.string())
            elif column is not None and pa.types.is_integer(column.type):
                part = _single(pc.cast(column, pa.string()))
            else:
                part = self.text(name)
            self._key_parts[name] = part
        return self._key_parts[name]


def _submission_features(facts: _Facts) -> dict[str, Floats]:
    features = {name: facts.log(name.removeprefix("log_")) for name in SUBMISSION_FEATURES if name != "framework_release"}
    features["framework_release"] = _release(facts.text("framework_version"))
    return features


def _candidate_features(facts: _Facts) -> dict[str, Floats]:
    peak = facts.number("peak_bf16_tflops")
    peak = np.where(np.isfinite(peak), peak, facts.number("peak_fp32_tflops"))
    return {
        "log_num_devices": facts.log("num_devices"),
        "log_batch_per_device": facts.log("global_batch_size") - facts.log("num_devices"),
        # Samples/s of a device that computes at its peak rate: 6 operations per parameter and token (Kaplan et al. 2020).
        "log_roofline": _log(peak) + np.log(1e6) - np.log(6.0) - facts.log("parameters_m") - facts.log("sequence_length"),
        "log_peak_tflops": _log(peak),
        "log_fp8_tflops": facts.log("peak_fp8_tflops"),
        "log_memory_bytes": facts.log("memory_bytes"),
        "log_memory_bandwidth_gbps": facts.log("memory_bandwidth_gbps"),
        "log_interconnect_gbps": facts.log("interconnect_gbps"),
        "log_tdp_watts": facts.log("tdp_watts"),
        "release_year": facts.number("release_year"),
    }


def _level_features(level: str, known: Evidence, log_peak: Floats) -> dict[str, Floats]:
    values = (
        np.log1p(known.count),
        known.last,
        known.median,
        known.median + (log_peak - known.mean_log_peak),
        known.spread,
        known.mean_log_devices,
        known.mean_log_batch,
        known.age_days,
    )
    return dict(zip(level_feature_names(level), values, strict=True))


def _prior(evidence: Mapping[str, Evidence], log_peak: Floats) -> tuple[Floats, Floats]:
    prior = np.full(len(log_peak), np.nan)
    source = np.full(len(log_peak), np.nan)
    for index, (level, scaled) in enumerate(PRIOR_LEVELS):
        if level not in evidence:
            continue
        known = evidence[level]
        # Where a peak rate is unknown the evidence is still worth more than nothing: taken unscaled.
        scale = np.nan_to_num(log_peak - known.mean_log_peak) if scaled else 0.0
        value = (known.last if level == "job_hardware" else known.median) + scale
        take = np.isnan(prior) & np.isfinite(value)
        prior = np.where(take, value, prior)
        source = np.where(take, index, source)
    return prior, source


def _tiers(evidence: Mapping[str, Evidence], log_peak: Floats) -> npt.NDArray[np.str_]:
    def seen(level: str) -> npt.NDArray[np.bool_]:
        return evidence[level].count > 0

    measured, learned, family, analytic, none = TIERS
    # The process answers from specifications alone; without them something of model type or hardware must be known.
    guess = seen("model") | seen("hardware") | np.isfinite(log_peak)
    return np.select(
        [seen("job_hardware"), seen("model_hardware"), seen("model_family"), guess],
        [measured, learned, family, analytic],
        default=none,
    )


def _release(versions: pa.Array) -> Floats:
    """Turn `23.04-tf2` into 23.04: the first number with at most one fraction; NaN where there is none."""
    parts = pc.extract_regex(versions, r"(?P<release>\d{1,4}(?:\.\d{1,3})?)")
    return _floats(pc.cast(pc.struct_field(parts, "release"), pa.float64()))


def _log(values: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(values)
    return np.where(np.isfinite(logs), logs, np.nan)


def _floats(column: pa.ChunkedArray | pa.Array) -> Floats:
    values = (
        pc.cast(column, pa.float64()).to_numpy(zero_copy_only=False)
        if isinstance(column, pa.Array)
        else column.cast(pa.float64()).to_numpy()
    )
    return np.asarray(values, dtype=np.float64)


def _days(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    return np.asarray(column.to_numpy().astype("datetime64[D]").astype(np.int64))


def _single(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    if isinstance(column, pa.Array):
        return column
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.array([], column.type)])
