"""What the columns of a training matrix mean, for whoever reads it outside LEAP.

What lives here: a unit and a sentence for each column. What does not: how a feature is made (`leap.features`), and the columns of
LEAP's tables (`leap/store/glossary.yaml`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from leap.contracts import TIERS
from leap.features import PRIOR_LEVELS, Levels, level_feature_names

LOG_RATE: Final = "ln(samples/s per device)"

_ROW: Final = {
    "attempt_id": ("", "the attempt"),
    "segment_number": ("", "stretch of the attempt with constant hardware and device count"),
    "version": ("", "version of the attempt's record, 1 the first that was known"),
    "is_newest": ("", "true for the newest version: score on these, train on those that the cut knew"),
    "job": ("", "the job's name, else the attempt's: resample by it, attempts of one job are alike"),
    "outcome": ("", "how the attempt ended"),
    "has_succeeded": ("", "true where the attempt succeeded: the denominator of LEAP's scores"),
    "night": ("UTC day", "the day that the attempt started; every feature is as known at 00:00 of it"),
    "visible_from": ("UTC day", "the first night whose cut knew this label"),
    "visible_to": ("UTC day", "the first night whose cut knew a newer version; null = none does"),
    "throughput": ("samples/s", "the label of the whole job"),
    "log_throughput_per_device": (LOG_RATE, "the label that LEAP learns"),
    "num_devices": ("devices", "how many accelerators the attempt ran on"),
    "prior": (LOG_RATE, "the most specific history there is: what LEAP's model corrects"),
    "prior_level": ("", f"where the prior comes from: index into {', '.join(level for level, _ in PRIOR_LEVELS)}"),
    "tier": ("", f"how much a prediction of this row rests on measurement: {', '.join(TIERS)}"),
    "process_mean": (LOG_RATE, "what a Gaussian process makes of all history known at the cut"),
    "process_sd": ("ln", "standard deviation of process_mean"),
    "framework_release": ("", "the first number in the framework's version"),
    "release_year": ("year", "year in which the accelerator came out"),
    "log_num_devices": ("ln(devices)", "how many accelerators are asked for"),
    "log_batch_per_device": ("ln(samples)", "global batch per device"),
    "log_roofline": ("ln(samples/s)", "samples per second per device at the peak rate, 6 operations per parameter and token"),
    "log_global_batch_size": ("ln(samples)", "samples per optimizer step, over all devices"),
    "log_peak_tflops": ("ln(TFLOP/s)", "dense peak rate in 16 bits of one device, in 32 where it has none"),
    "log_fp8_tflops": ("ln(TFLOP/s)", "dense peak rate in 8 bits of one device"),
    "log_memory_bytes": ("ln(bytes)", "memory of one device"),
    "log_memory_bandwidth_gbps": ("ln(GB/s)", "memory bandwidth of one device"),
    "log_interconnect_gbps": ("ln(GB/s)", "bandwidth between devices of a node"),
    "log_tdp_watts": ("ln(W)", "thermal design power of one device"),
}
_FACTS: Final = {
    "log_count": ("ln(1 + runs)", "runs known"),
    "last": (LOG_RATE, "the newest run"),
    "median": (LOG_RATE, "the median of the runs"),
    "scaled_median": (LOG_RATE, "the median times the ratio of this row's peak rate to the runs' mean"),
    "spread": ("ln", "the standard deviation of the runs"),
    "devices": ("ln(devices)", "the mean device count of the runs"),
    "batch": ("ln(samples)", "the mean global batch of the runs"),
    "age_days": ("days", "from the end of the newest run to the cut"),
}


def describe(columns: Sequence[str], levels: Levels) -> dict[str, tuple[str, str]]:
    """Give unit (empty = none) and meaning of each column of a training matrix."""
    of_level = {name: (level, name.removeprefix(f"{level}_")) for level in levels for name in level_feature_names(level)}

    def one(name: str) -> tuple[str, str]:
        if name in of_level:
            level, fact = of_level[name]
            unit, meaning = _FACTS.get(fact, ("", fact))
            return unit, f"{meaning} with the same {', '.join(levels[level])}, known at the cut"
        if name in _ROW:
            return _ROW[name]
        if name.startswith("log_"):
            return "ln", f"natural log of {name.removeprefix('log_')} as submitted"
        return "", f"{name}, as submitted or as the catalogue has it; `leap/features.py` makes it"

    return {name: one(name) for name in columns}
