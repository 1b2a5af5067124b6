"""The law of the simulated fleet: the throughput, without noise, of any submission on any hardware type.

What lives here: a roofline of compute and memory bandwidth with launch overhead, saturation by batch size, memory pressure and
the cost of exchanging gradients; and hidden effects of model family, stem, framework, vendor, hardware type and job, drawn once
per fleet. What does not: the noise of single attempts (`runs.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from leap.simulator.models import FAMILIES, STEMS, Floats, Ints, ModelTypes, of_family

FRAMEWORKS: dict[str, tuple[str, ...]] = {
    "pytorch": ("2.7.1", "2.8.0", "2.9.1", "2.10.0"),
    "tensorflow": ("2.19.0", "2.20.0", "2.21.0"),
    "jax": ("0.7.2", "0.8.1", "0.9.0"),
}

NODE_DEVICES = 8  # devices that share the fast interconnect
_NETWORK_GBPS = 50.0  # between nodes, per device
_SLOWEST_LINK_GBPS = 12.0  # where the catalogue names no interconnect
_BYTES_PER_PARAMETER = 16.0  # weights, gradients and optimizer state in mixed precision
_FULL_SHARE = 0.75  # of memory, above which activations must be computed again or moved out
_FP8_GAIN = 1.35  # of the 16-bit rate, where the hardware has 8-bit units

_LAUNCH_SECONDS = {"NVIDIA": 6e-6, "AMD": 9e-6, "Google": 2e-6, "Intel": 8e-6, "AWS": 7e-6, "Huawei": 9e-6}
_OTHER_LAUNCH_SECONDS = 8e-6

# How well each framework serves each vendor's hardware; what is not named is at 0.8.
_MATURITY = {
    ("pytorch", "NVIDIA"): 1.0,
    ("pytorch", "AMD"): 0.88,
    ("pytorch", "Intel"): 0.9,
    ("pytorch", "Google"): 0.74,
    ("pytorch", "AWS"): 0.82,
    ("pytorch", "Huawei"): 0.78,
    ("tensorflow", "NVIDIA"): 0.9,
    ("tensorflow", "Google"): 0.95,
    ("tensorflow", "AMD"): 0.76,
    ("jax", "NVIDIA"): 0.94,
    ("jax", "Google"): 1.05,
    ("jax", "AMD"): 0.8,
}
_OTHER_MATURITY = 0.8


class HiddenEffects(NamedTuple):
    """Logarithms of factors that no log tells; index by the codes of `Law`."""

    family_type: Floats  # compute efficiency: model family x hardware type
    family_type_memory: Floats  # reached bandwidth: model family x hardware type
    stem_generation: Floats  # stem x hardware family
    model_type: Floats  # model type x hardware type
    version_vendor: Floats  # framework version x vendor
    job: Floats  # job
    job_type: Floats  # job x hardware type


class Law(NamedTuple):
    """What throughput follows; `throughput` is its only use."""

    models: ModelTypes
    job_ids: tuple[str, ...]
    hardware: pa.Table  # HARDWARE_SCHEMA, the fleet's types
    effects: HiddenEffects

    def throughput(self, submissions: pa.Table, candidates: pa.Table) -> Floats:
        """Give samples/s of the whole job for each row of `submissions` on the same row of `candidates`.

        NaN where the fleet has no such model type or hardware type. A job that the fleet does not know has no effect of its
        own.
        """
        model = _codes(submissions["model_type"], self.models.names)
        place = _codes(candidates["hardware_type"], self.hardware["hardware_type"].to_pylist())
        known = (model >= 0) & (place >= 0)
        asked = _Asked.of(submissions, candidates, self.models, np.maximum(model, 0))
        hardware = _Hardware.of(self.hardware, np.maximum(place, 0))
        rate = asked.global_batch / _step_seconds(asked, hardware, self._efficiency(asked, hardware, submissions))
        return np.where(known, rate * np.exp(self._job_effects(submissions, hardware)), np.nan)

    def _efficiency(self, asked: _Asked, hardware: _Hardware, submissions: pa.Table) -> tuple[Floats, Floats]:
        """Give the reached shares of the peak rate and of the peak bandwidth."""
        effects, family = self.effects, self.models.family[asked.model]
        generations = sorted(set(self.hardware["family"].to_pylist()))
        generation = _codes(self.hardware["family"], generations)[hardware.row]
        shared = (
            effects.stem_generation[self.models.stem[asked.model], generation] + effects.model_type[asked.model, hardware.row]
        )
        vendors = sorted(set(self.hardware["vendor"].to_pylist()))
        vendor = _codes(self.hardware["vendor"], vendors)[hardware.row]
        shared = shared + _log_software(submissions, vendors, vendor, effects.version_vendor)
        compute = of_family([f.efficiency for f in FAMILIES], family)
        compute = compute * np.exp(shared + effects.family_type[family, hardware.row])
        # Volta and Turing have no 16-bit brain floats and go by way of single precision.
        is_emulated = (hardware.vendor == "NVIDIA") & (hardware.release_year < 2020) & (asked.precision == "bf16")
        return np.where(is_emulated, 0.45, 1.0) * compute, 0.75 * np.exp(
            shared + effects.family_type_memory[family, hardware.row]
        )

    def _job_effects(self, submissions: pa.Table, hardware: _Hardware) -> Floats:
        job = _codes(submissions["job_id"], self.job_ids)
        at = np.maximum(job, 0)
        return np.where(job >= 0, self.effects.job[at] + self.effects.job_type[at, hardware.row], 0.0)


def draw_effects(rng: np.random.Generator, models: ModelTypes, num_jobs: int, hardware: pa.Table) -> HiddenEffects:
    """Draw the hidden effects of a fleet; their spreads are what a predictor can at best learn."""
    num_types = hardware.num_rows
    vendors, generations = (len(set(hardware[name].to_pylist())) for name in ("vendor", "family"))
    versions = sum(len(names) for names in FRAMEWORKS.values())

    def normal(spread: float, *shape: int) -> Floats:
        return spread * rng.standard_normal(shape)

    return HiddenEffects(
        family_type=normal(0.16, len(FAMILIES), num_types),
        family_type_memory=normal(0.10, len(FAMILIES), num_types),
        stem_generation=normal(0.08, len(STEMS), generations),
        model_type=normal(0.04, len(models.names), num_types),
        version_vendor=normal(0.03, versions, vendors),
        job=normal(0.05, num_jobs),
        job_type=normal(0.02, num_jobs, num_types),
    )


class _Asked(NamedTuple):
    """A submission in the law's own terms, with the devices that the candidate gives."""

    model: Ints
    precision: npt.NDArray[np.str_]
    num_devices: Floats
    global_batch: Floats
    accumulation: Floats
    tensor_parallel: Floats
    flops_per_sample: Floats
    bytes_per_sample: Floats
    num_kernels: Floats
    parameters: Floats
    exchanged_parameters: Floats

    @classmethod
    def of(cls, submissions: pa.Table, candidates: pa.Table, models: ModelTypes, model: Ints) -> _Asked:
        family = models.family[model]
        num_devices = _floats(candidates, "num_devices", 1.0)
        usual_batch = of_family([f.device_batches[0] for f in FAMILIES], family) * num_devices
        size = _floats(submissions, "sequence_length", _floats(submissions, "image_size", models.size[model]))
        work = (size / models.size[model]) ** of_family([f.size_exponent for f in FAMILIES], family)
        precision = np.asarray(pc.fill_null(submissions["precision"], "bf16").to_numpy(zero_copy_only=False), np.str_)
        parameters = _floats(submissions, "parameters_m", models.parameters_m[model]) * 1e6
        return cls(
            model=model,
            precision=precision,
            num_devices=num_devices,
            global_batch=_floats(submissions, "global_batch_size", usual_batch),
            accumulation=_floats(submissions, "gradient_accumulation_steps", 1.0),
            tensor_parallel=_floats(submissions, "tensor_parallel", 1.0),
            flops_per_sample=models.flops_per_sample[model] * work,
            bytes_per_sample=models.bytes_per_sample[model] * work * np.where(precision == "fp32", 2.0, 1.0),
            num_kernels=models.num_kernels[model],
            parameters=parameters,
            exchanged_parameters=parameters * of_family([f.dense_share for f in FAMILIES], family),
        )


class _Hardware(NamedTuple):
    """The catalogue's figures of each row's hardware type, in bytes and FLOPs per second."""

    row: Ints
    vendor: npt.NDArray[np.str_]
    release_year: Floats
    memory_bytes: Floats
    bandwidth: Floats
    half_rate: Floats
    single_rate: Floats
    has_fp8: npt.NDArray[np.bool_]
    link: Floats

    @classmethod
    def of(cls, hardware: pa.Table, row: Ints) -> _Hardware:
        single = _floats(hardware, "peak_fp32_tflops", np.nan)
        half = _floats(hardware, "peak_bf16_tflops", single)
        single = np.where(np.isnan(single), half / 8, single)
        return cls(
            row=row,
            vendor=np.asarray(hardware["vendor"].to_pylist(), np.str_)[row],
            release_year=_floats(hardware, "release_year", 2020.0)[row],
            memory_bytes=_floats(hardware, "memory_bytes", 32e9)[row],
            bandwidth=_floats(hardware, "memory_bandwidth_gbps", 500.0)[row] * 1e9,
            half_rate=half[row] * 1e12,
            single_rate=single[row] * 1e12,
            has_fp8=~np.isnan(_floats(hardware, "peak_fp8_tflops", np.nan)[row]),
            link=_floats(hardware, "interconnect_gbps", _SLOWEST_LINK_GBPS)[row] * 1e9,
        )


def _step_seconds(asked: _Asked, hardware: _Hardware, efficiency: tuple[Floats, Floats]) -> Floats:
    """Give the time between two updates of the weights."""
    compute = asked.flops_per_sample / (_peak_rate(asked, hardware) * efficiency[0])
    memory = asked.bytes_per_sample / (hardware.bandwidth * efficiency[1])
    sample = (compute**3 + memory**3) ** (1 / 3) * _pressure(asked, hardware) * _splitting(asked, hardware)
    launch = asked.num_kernels * _launch_seconds(hardware.vendor)
    micro_batch = asked.global_batch / (asked.num_devices * asked.accumulation)
    waiting = 1 + 0.012 * np.log2(asked.num_devices)
    return (asked.accumulation * (launch + micro_batch * sample) + _exposed_exchange(asked, hardware)) * waiting


def _peak_rate(asked: _Asked, hardware: _Hardware) -> Floats:
    eight_bit = np.where(hardware.has_fp8, _FP8_GAIN, 1.0) * hardware.half_rate
    by_precision = [asked.precision == "fp32", asked.precision == "fp8"]
    return np.select(by_precision, [hardware.single_rate, eight_bit], hardware.half_rate)


def _pressure(asked: _Asked, hardware: _Hardware) -> Floats:
    """Give how many times slower a sample is where the state of training, spread over all devices, fills their memory."""
    share = _BYTES_PER_PARAMETER * asked.parameters / (asked.num_devices * hardware.memory_bytes)
    return np.maximum(share / _FULL_SHARE, 1.0) ** 1.2


def _splitting(asked: _Asked, hardware: _Hardware) -> Floats:
    """Give the loss by splitting each layer over devices, which a slow link makes dear."""
    return 1 + np.log2(asked.tensor_parallel) * np.where(hardware.link < 150e9, 0.18, 0.04)


def _launch_seconds(vendor: npt.NDArray[np.str_]) -> Floats:
    names, code = np.unique(vendor, return_inverse=True)
    return np.array([_LAUNCH_SECONDS.get(name, _OTHER_LAUNCH_SECONDS) for name in names.tolist()], np.float64)[code]


def _exposed_exchange(asked: _Asked, hardware: _Hardware) -> Floats:
    """Give the time for exchanging gradients (a ring in the node, then between nodes) that computing does not hide."""
    size = np.where(asked.precision == "fp32", 4.0, 2.0) * asked.exchanged_parameters / asked.tensor_parallel
    inside = np.minimum(asked.num_devices, NODE_DEVICES)
    nodes = np.ceil(asked.num_devices / NODE_DEVICES)
    within = 2 * (inside - 1) / inside * size / (0.7 * hardware.link)
    between = 2 * (nodes - 1) / nodes * size / inside / (0.8 * _NETWORK_GBPS * 1e9)
    return 0.35 * (within + between)


def _log_software(submissions: pa.Table, vendors: Sequence[str], vendor: Ints, version_vendor: Floats) -> Floats:
    """Give the logarithm of the factor of framework and version on each vendor's hardware; later versions are faster."""
    frameworks = list(FRAMEWORKS)
    maturity = np.log([[_MATURITY.get((name, at), _OTHER_MATURITY) for at in vendors] for name in frameworks])
    framework = np.maximum(_codes(submissions["framework"], frameworks), 0)
    releases = [f"{name} {version}" for name in frameworks for version in FRAMEWORKS[name]]
    age = np.array([at for name in frameworks for at in range(len(FRAMEWORKS[name]))], np.float64)
    release = _codes(pc.binary_join_element_wise(submissions["framework"], submissions["framework_version"], " "), releases)
    gain = np.where(release >= 0, 0.03 * age[release] + version_vendor[release, vendor], 0.0)
    return np.asarray(maturity[framework, vendor] + gain, np.float64)


def _codes(column: pa.ChunkedArray, names: Sequence[str]) -> Ints:
    """Give each value's place in `names`, -1 where it is not among them."""
    found = pc.fill_null(pc.index_in(column, value_set=pa.array(names, pa.string()), skip_nulls=True), -1)
    return np.asarray(found.to_numpy(), np.int64)


def _floats(table: pa.Table, name: str, default: float | Floats) -> Floats:
    """Give a column as doubles with `default` for null."""
    values = np.asarray(table[name].cast(pa.float64()).to_numpy(zero_copy_only=False), np.float64)
    return np.where(np.isnan(values), default, values)
