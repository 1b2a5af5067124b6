"""A Gaussian process over what a run is: what runs like this one, on hardware like this, tell of its throughput.

What lives here: the kernel (which runs are alike, and how much), the points known at each cut, and the prediction from them. What
does not: which features a model takes (`leap.features`), correcting the prediction (`leap.predictors.gbdt`).

History levels answer only where a key was seen before. The process answers everywhere: hardware that is new to a model type is
described by its specifications, a new device count by the others. Its components are stationary: model type, specifications,
scaling with devices and batch, team, time. The scales are those of the largest sum of marginal likelihood (Rasmussen and Williams
2006, chapter 5) and of the likelihood of each hardware type, and each type with one model, left out, on MLPerf logs of nights
before 2024-10-20. They are in natural logs, so that they hold for other fleets too.

Points are in the order in which they became known. The Cholesky factor of the first m points is the leading block of the factor
of all, so that one factor gives the exact weights at every cut: a night costs two triangular solves, and none sees its future.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from scipy.linalg import cholesky, solve_triangular

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Nights = npt.NDArray[np.datetime64]

# A factor takes time with the cube of its points: 4,000 take about a second. A large fleet's night must leave room for others.
MAX_POINTS = 4000
MAX_POINTS_A_NIGHT = 200

_DAYS_A_YEAR = 365.25
_NEVER = np.datetime64("9999-12-31")
_QUERIES_AT_ONCE = 512  # rows of the kernel matrix that are held at a time

# What a point or a query is described by; a number that is unknown is taken as typical, so that it tells nothing.
TEXT_COLUMNS = ("model_type", "hardware_type", "family", "vendor", "framework", "team")
NUMBER_COLUMNS = {
    "num_devices": 8.0,
    "global_batch_size": 512.0,
    "peak_bf16_tflops": 312.0,
    "peak_fp32_tflops": 312.0,
    "peak_fp8_tflops": 312.0,
    "memory_bytes": 80e9,
    "memory_bandwidth_gbps": 2000.0,
    "interconnect_gbps": 64.0,
    "release_year": 2021.0,
}
_SPECIFICATIONS = ("peak", "bandwidth", "fp8", "interconnect", "memory", "year")
POINT_SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in TEXT_COLUMNS),
        *((name, pa.float64()) for name in NUMBER_COLUMNS),
        ("night", pa.date32()),
        ("weight", pa.float64()),
    ]
)


@dataclass(frozen=True)
class Component:
    """One part of the kernel: its amplitude (log units) and the distance at which likeness fades, by what it is measured in."""

    amplitude: float
    scales: Mapping[str, float]


NOISE = 0.024
KERNEL = {
    "constant": Component(4.0, {}),
    "model": Component(4.4, {}),
    "specifications": Component(0.99, {"peak": 8.0, "bandwidth": 4.3, "fp8": 11.0, "interconnect": 14.0, "year": 4.3}),
    "model_specifications": Component(0.38, {"peak": 15.0, "bandwidth": 10.0, "fp8": 15.0, "interconnect": 2.3, "memory": 0.34}),
    "hardware": Component(0.081, {"years": 4.5}),
    "model_hardware": Component(0.014, {"years": 0.23}),
    "scaling": Component(0.56, {"devices": 2.9, "batch_per_device": 3.9, "peak": 8.4}),
    "model_scaling": Component(0.54, {"devices": 5.0, "batch_per_device": 2.0}),
    "family_scaling": Component(0.67, {"devices": 34.0, "batch_per_device": 13.0}),
    "framework": Component(0.27, {}),
    "team": Component(0.091, {"years": 8.8}),
    "team_model": Component(0.033, {"years": 1.5}),
    "team_configuration": Component(0.089, {"devices": 1.3, "batch": 1.2, "years": 0.053}),
    "configuration": Component(0.032, {"devices": 0.2, "batch": 5.3, "years": 0.097}),
}
_TOTAL_VARIANCE = sum(part.amplitude**2 for part in KERNEL.values())


@dataclass(frozen=True)
class _Inputs:
    """n runs as numbers: codes of names, logs of sizes, and years since 1970."""

    codes: Mapping[str, Integers]
    devices: Floats
    batch: Floats
    specifications: Floats  # (n, len(_SPECIFICATIONS))
    years: Floats

    def take(self, rows: npt.NDArray[np.int64] | slice) -> _Inputs:
        return _Inputs(
            {name: codes[rows] for name, codes in self.codes.items()},
            self.devices[rows],
            self.batch[rows],
            self.specifications[rows],
            self.years[rows],
        )


class GaussianProcess:
    """The points of a fleet's history, over many nights or at one cut."""

    def __init__(
        self, points: pa.Table, values: Floats, visible_from: Nights, visible_to: Nights, max_points: int, weights: Floats | None
    ) -> None:
        self._table = points
        self._vocabulary = {name: pc.unique(_text(points[name])) for name in TEXT_COLUMNS}
        self._points = self._inputs(points)
        self._residuals = values - _expected(self._points)
        self._noise = NOISE**2 * (0.3 + 0.7 / points["weight"].to_numpy())
        self._visible_from = visible_from
        self._visible_to = visible_to
        self._max_points = max_points
        self._weights = weights

    @classmethod
    def from_examples(
        cls, examples: pa.Table, max_points: int = MAX_POINTS, max_points_a_night: int = MAX_POINTS_A_NIGHT
    ) -> GaussianProcess:
        """Take the points of `marts.fct_training_examples`: attempts alike that became known on one night are one point.

        At a cut the newest `max_points` points are used, at most `max_points_a_night` of each night.
        """
        names = [*TEXT_COLUMNS, *NUMBER_COLUMNS, "night", "visible_from", "visible_to"]
        columns = {name: _text(examples[name]) for name in TEXT_COLUMNS}
        columns |= {name: _number(examples, name) for name in NUMBER_COLUMNS}
        columns |= {name: examples[name] for name in ("night", "visible_from", "visible_to")}
        columns["value"] = examples["log_throughput_per_device"]
        finite = pc.is_finite(columns["value"])
        rows = pa.table(columns).filter(pc.fill_null(finite, False))
        # The middle one of the values in order, so that the same rows in any order give the same point.
        rows = rows.sort_by([("value", "ascending")])
        grouped = rows.group_by(names, use_threads=False).aggregate([("value", "list"), ("value", "count")])
        values = grouped["value_list"].combine_chunks()
        offsets = np.asarray(values.offsets.to_numpy(), dtype=np.int64)
        flat = values.values.to_numpy()
        middle = (flat[(offsets[:-1] + offsets[1:] - 1) // 2] + flat[(offsets[:-1] + offsets[1:]) // 2]) / 2
        table = grouped.append_column("value", pa.array(middle))
        table = table.sort_by([("visible_from", "ascending"), *((name, "ascending") for name in names if name != "visible_from")])
        table = table.take(pa.array(_few_of_each(_days(table["visible_from"]), max_points_a_night)))
        visible_to = _days(table["visible_to"])
        return cls(
            points=pa.table(
                {name: table[name] for name in POINT_SCHEMA.names if name != "weight"}
                | {"weight": pc.cast(table["value_count"], pa.float64())}
            ),
            values=table["value"].to_numpy(),
            visible_from=_days(table["visible_from"]),
            visible_to=np.where(np.isnat(visible_to), _NEVER, visible_to),
            max_points=max_points,
            weights=None,
        )

    @classmethod
    def from_table(cls, table: pa.Table) -> GaussianProcess:
        """Read what `at` gave."""
        count = table.num_rows
        return cls(
            points=table.select(POINT_SCHEMA.names),
            values=np.zeros(count),
            visible_from=np.full(count, np.datetime64("1970-01-01")),
            visible_to=np.full(count, _NEVER),
            max_points=max(1, count),
            weights=table["process_weight"].to_numpy(),
        )

    def at(self, cut: np.datetime64) -> pa.Table:
        """Give the points known at `cut` with their weights in a prediction: all that scoring needs."""
        active, weights = next(self._by_night(np.array([cut], dtype="datetime64[D]")))
        return self._table.take(pa.array(active)).append_column("process_weight", pa.array(weights))

    def predict(self, submissions: pa.Table, candidates: pa.Table, nights: Nights) -> tuple[Floats, Floats]:
        """Predict n pairs, each from what was known at the cut of its night.

        Returns the mean and a standard deviation of the natural log of samples/s per device, shape (n,). The deviation is the
        one that the most telling point alone leaves: an upper bound of the exact one that needs no factor. NaN where no point
        was known.
        """
        count = submissions.num_rows
        mean, deviation = np.full(count, np.nan), np.full(count, np.nan)
        if not count:
            return mean, deviation
        pairs = {name: submissions[name] for name in submissions.column_names}
        pairs |= {name: candidates[name] for name in candidates.column_names}
        described = {name: _text(pairs[name]) if name in pairs else pa.array([""] * count) for name in TEXT_COLUMNS}
        table = pa.table(described | {name: _number(pairs, name) for name in NUMBER_COLUMNS} | {"night": pa.array(nights)})
        inputs = self._inputs(table)
        first, inverse = _distinct(inputs)
        distinct_nights = nights[first].astype("datetime64[D]")
        found, spread = np.full(len(first), np.nan), np.full(len(first), np.nan)
        wanted = np.unique(distinct_nights)
        for night, (active, weights) in zip(wanted, self._by_night(wanted), strict=True):
            if not len(active):
                continue
            known, noise = self._points.take(active), self._noise[active]
            rows = np.flatnonzero(distinct_nights == night)
            for start in range(0, len(rows), _QUERIES_AT_ONCE):
                some = rows[start : start + _QUERIES_AT_ONCE]
                covariance = _kernel(inputs.take(first[some]), known)
                # Summed row by row: a product of matrices rounds by how many rows it is given.
                found[some] = np.einsum("ij,j->i", covariance, weights) + _expected(inputs.take(first[some]))
                explained = (covariance**2 / (_TOTAL_VARIANCE + noise)).max(axis=1)
                spread[some] = np.sqrt(np.maximum(_TOTAL_VARIANCE - explained, 0.0))
        # A factor of more points rounds otherwise in its last digits: training and scoring should see the same number.
        return np.round(found[inverse], 6), np.round(spread[inverse], 6)

    def _by_night(self, nights: Nights) -> Iterator[tuple[Integers, Floats]]:
        """Give for each of the ascending `nights` the points known at its cut and their weights."""
        if self._weights is not None:
            everything = np.arange(len(self._weights))
            yield from ((everything, self._weights) for _ in nights)
            return
        stops = np.searchsorted(self._visible_from, nights, side="right")
        # The oldest points go a quarter at a time, so that many nights share a factor.
        step = max(1, self._max_points // 4)
        starts = np.maximum(0, -(-(stops - self._max_points) // step) * step)
        withdrawn = [
            np.flatnonzero(self._visible_to[start:stop] <= night) + start
            for start, stop, night in zip(starts, stops, nights, strict=True)
        ]
        position = 0
        while position < len(nights):
            last = position
            while (
                last + 1 < len(nights)
                and starts[last + 1] == starts[position]
                and np.array_equal(withdrawn[last + 1], withdrawn[position])
            ):
                last += 1
            active = np.setdiff1d(np.arange(starts[position], stops[last]), withdrawn[position], assume_unique=True)
            inputs = self._points.take(active)
            covariance = _kernel(inputs, inputs)
            covariance[np.diag_indices_from(covariance)] += self._noise[active]
            factor = cholesky(covariance, lower=True, overwrite_a=True, check_finite=False) if len(active) else covariance
            whitened = solve_triangular(factor, self._residuals[active], lower=True) if len(active) else np.empty(0)
            for index in range(position, last + 1):
                known = int(np.searchsorted(active, stops[index]))
                weights = (
                    solve_triangular(factor[:known, :known], whitened[:known], lower=True, trans="T", check_finite=False)
                    if known
                    else np.empty(0)
                )
                yield active[:known], weights
            position = last + 1

    def _inputs(self, table: pa.Table) -> _Inputs:
        codes = {
            name: np.asarray(
                pc.fill_null(pc.index_in(_text(table[name]), value_set=self._vocabulary[name]), -1).to_numpy(
                    zero_copy_only=False
                ),
                dtype=np.int64,
            )
            for name, known in self._vocabulary.items()
        }
        peak = table["peak_bf16_tflops"].to_numpy()
        peak = np.where(np.isfinite(peak), peak, table["peak_fp32_tflops"].to_numpy())
        fp8 = table["peak_fp8_tflops"].to_numpy()
        typical = NUMBER_COLUMNS
        logs = {
            "peak": _log(peak, typical["peak_bf16_tflops"]),
            "bandwidth": _log(table["memory_bandwidth_gbps"].to_numpy(), typical["memory_bandwidth_gbps"]),
            "fp8": _log(np.where(np.isfinite(fp8), fp8, peak), typical["peak_fp8_tflops"]),
            "interconnect": _log(table["interconnect_gbps"].to_numpy(), typical["interconnect_gbps"]),
            "memory": _log(table["memory_bytes"].to_numpy(), typical["memory_bytes"]),
            "year": np.nan_to_num(table["release_year"].to_numpy(), nan=typical["release_year"]),
        }
        days = _days(table["night"]).astype(np.int64).astype(np.float64)
        return _Inputs(
            codes=codes,
            devices=_log(table["num_devices"].to_numpy(), typical["num_devices"]),
            batch=_log(table["global_batch_size"].to_numpy(), typical["global_batch_size"]),
            specifications=np.column_stack([logs[name] for name in _SPECIFICATIONS]),
            years=days / _DAYS_A_YEAR,
        )


def _kernel(a: _Inputs, b: _Inputs) -> Floats:
    """Give the covariance of each run of `a` with each of `b`, shape (len(a), len(b))."""
    spec_a, place_a = np.unique(a.specifications, axis=0, return_inverse=True)
    spec_b, place_b = np.unique(b.specifications, axis=0, return_inverse=True)
    places = np.ix_(place_a.ravel(), place_b.ravel())
    apart = {name: spec_a[:, [index]] - spec_b[:, index] for index, name in enumerate(_SPECIFICATIONS)}
    per_device_a, per_device_b = a.batch - a.devices, b.batch - b.devices

    def squared(part: Component, distances: Mapping[str, Floats]) -> Floats:
        total: Floats = np.zeros(())
        for name, scale in part.scales.items():
            if name in distances:
                total = total + (distances[name] / scale) ** 2
        return total

    specifications = KERNEL["specifications"]
    covariance = (
        KERNEL["constant"].amplitude ** 2 + specifications.amplitude**2 * np.exp(-0.5 * squared(specifications, apart))
    )[places]
    scaling = KERNEL["scaling"]
    sizes = {"devices": a.devices[:, None] - b.devices, "batch_per_device": per_device_a[:, None] - per_device_b}
    covariance += scaling.amplitude**2 * np.exp(
        -0.5 * squared(scaling, {"peak": apart["peak"]})[places] - 0.5 * squared(scaling, sizes)
    )

    def fading(name: str, i: Integers, j: Integers, kind: str = "exponential") -> Floats:
        part = KERNEL[name]
        distances = {
            "years": a.years[i] - b.years[j],
            "devices": a.devices[i] - b.devices[j],
            "batch": a.batch[i] - b.batch[j],
            "batch_per_device": per_device_a[i] - per_device_b[j],
        }
        square = squared(part, distances)
        if kind == "squared":
            return np.asarray(part.amplitude**2 * np.exp(-0.5 * square))
        distance = np.sqrt(square)
        return np.asarray(part.amplitude**2 * np.exp(-distance) * (1 + distance if kind == "matern" else 1.0))

    def same(name: str) -> npt.NDArray[np.bool_]:
        return np.asarray(a.codes[name][:, None] == b.codes[name])

    i, j = np.nonzero(same("hardware_type"))
    covariance[i, j] += fading("hardware", i, j)
    i, j = np.nonzero(same("team"))
    covariance[i, j] += fading("team", i, j)
    i, j = np.nonzero(same("model_type"))

    def alike(*names: str) -> npt.NDArray[np.bool_]:
        return np.asarray(np.logical_and.reduce([a.codes[name][i] == b.codes[name][j] for name in names]))

    by_model = KERNEL["model_specifications"]
    pairs = KERNEL["model"].amplitude ** 2 + fading("model_scaling", i, j, "squared")
    pairs += (by_model.amplitude**2 * np.exp(-0.5 * squared(by_model, apart)))[place_a.ravel()[i], place_b.ravel()[j]]
    pairs += np.where(alike("family"), fading("family_scaling", i, j, "matern"), 0.0)
    pairs += np.where(alike("framework", "vendor"), KERNEL["framework"].amplitude ** 2, 0.0)
    pairs += np.where(alike("team"), fading("team_model", i, j), 0.0)
    hardware = alike("hardware_type")
    pairs += np.where(hardware, fading("model_hardware", i, j) + fading("configuration", i, j), 0.0)
    pairs += np.where(hardware & alike("team"), fading("team_configuration", i, j), 0.0)
    covariance[i, j] += pairs
    return np.asarray(covariance)


def _expected(runs: _Inputs) -> Floats:
    """Give what hardware promises before any run, relative to the typical, shape (n,): a roofline (Williams et al. 2009).

    A sample takes its arithmetic at the peak rate and its traffic at the memory's bandwidth, half of the time each on typical
    hardware. Runs then tell how each model and each type differ from that.
    """
    peak, bandwidth = (runs.specifications[:, _SPECIFICATIONS.index(name)] for name in ("peak", "bandwidth"))
    typical = NUMBER_COLUMNS
    arithmetic = typical["peak_bf16_tflops"] / np.exp(peak)
    traffic = typical["memory_bandwidth_gbps"] / np.exp(bandwidth)
    return np.asarray(-np.log((arithmetic + traffic) / 2))


def _distinct(inputs: _Inputs) -> tuple[Integers, Integers]:
    """Give the first row of each distinct run, and for each row the place of its own."""
    parts = [*inputs.codes.values(), inputs.devices, inputs.batch, *inputs.specifications.T, inputs.years]
    rows = np.ascontiguousarray(np.column_stack([np.asarray(part, dtype=np.float64) for part in parts]))
    keys = rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1]))).ravel()
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    return first, inverse.ravel()


def _few_of_each(nights: Nights, most: int) -> Integers:
    """Give the rows to keep, evenly spread over each night's, at most `most` of a night; `nights` ascends."""
    _, start, count = np.unique(nights, return_index=True, return_counts=True)
    place = np.arange(len(nights)) - np.repeat(start, count)
    size = np.repeat(count, count)
    share = np.minimum(1.0, most / size)
    return np.flatnonzero(np.floor((place + 1) * share + 1e-9) > np.floor(place * share + 1e-9))


def _text(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    values = pc.fill_null(column.cast(pa.string()), "")
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def _number(columns: Mapping[str, pa.ChunkedArray] | pa.Table, name: str) -> pa.Array:
    present = columns.column_names if isinstance(columns, pa.Table) else columns
    if name not in present:
        length = columns.num_rows if isinstance(columns, pa.Table) else len(next(iter(columns.values())))
        return pa.nulls(length, pa.float64())
    values = columns[name].cast(pa.float64())
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def _log(values: Floats, typical: float) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(values)
    return np.where(np.isfinite(logs), logs, np.log(typical))


def _days(column: pa.ChunkedArray) -> Nights:
    return np.asarray(column.to_numpy(), dtype="datetime64[D]")
