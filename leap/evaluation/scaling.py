"""Two simple answers for hardware that a model never ran on: its history elsewhere, scaled.

What lives here: the arithmetic on labels known at a cut. What does not: what is hidden from whom, and scores (`holdout.py`).

Both start at the runs of the same model type on other hardware at the nearest device count. One scales them by the ratio of peak
rates, the other by the median ratio of the two hardware types on the models that both have run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from leap.evaluation.groups import TIED
from leap.evaluation.history import Rows, days
from leap.features import Floats, Nights

Codes = npt.NDArray[np.int64]
_Cells = dict[tuple[int, ...], float]


@dataclass(frozen=True)
class Runs:
    """Runs of known models, hardware and labels, arrays of shape (n,); rates and labels as natural logarithms."""

    model: Codes
    hardware: Codes
    devices: Floats
    log_peak: Floats
    label: Floats
    night: Nights
    visible_from: Nights
    visible_to: Nights

    @classmethod
    def of(cls, examples: pa.Table) -> Runs:
        """Index `marts.fct_training_examples`; names are numbered, the same in every part that `take` gives."""
        peak = pc.coalesce(examples["peak_bf16_tflops"], examples["peak_fp32_tflops"]).cast(pa.float64()).to_numpy()
        visible_to = days(examples["visible_to"])
        with np.errstate(divide="ignore", invalid="ignore"):
            log_peak = np.log(peak)
        return cls(
            model=_numbered(examples["model_type"]),
            hardware=_numbered(examples["hardware_type"]),
            devices=np.asarray(examples["num_devices"].cast(pa.float64()).to_numpy(), dtype=np.float64),
            log_peak=np.where(np.isfinite(log_peak), log_peak, np.nan),
            label=np.asarray(examples["log_throughput_per_device"].to_numpy(), dtype=np.float64),
            night=days(examples["night"]),
            visible_from=days(examples["visible_from"]),
            visible_to=np.where(np.isnat(visible_to), np.datetime64("9999-12-31"), visible_to),
        )

    def take(self, rows: Rows) -> Runs:
        """Keep the rows where `rows` (shape (n,)) is true."""
        return Runs(**{name: getattr(self, name)[rows] for name in self.__dataclass_fields__})

    def known_at(self, night: np.datetime64) -> Runs:
        """Keep the label versions that the cut of `night` knew."""
        return self.take((self.visible_from <= night) & (night < self.visible_to))


def scaled_by_peak_rate(evidence: Runs, asked: Runs) -> Floats:
    """Answer each asked run with the median of its model's runs elsewhere, per device and unit of peak rate, times its own rate.

    Of the runs known at its night those at the nearest device count (by ratio) count. Shape (len(asked),); NaN = no such run.
    """
    answer = np.full(len(asked.label), np.nan)
    for known, rows, model, _, devices in _questions(evidence, asked):
        elsewhere = known.take((known.model == model) & np.isfinite(known.log_peak))
        if len(elsewhere.label):
            near = elsewhere.take(_nearest(elsewhere.devices, devices))
            answer[rows] = np.median(near.label - near.log_peak) + asked.log_peak[rows]
    return answer


def scaled_by_ratio(evidence: Runs, asked: Runs) -> Floats:
    """Answer each asked run with its model's runs elsewhere times the median ratio of the two hardware types on other models.

    The ratio is the median over the models and device counts that both types have run; where no device count is shared, over
    the models. Where several types can be scaled from, the answer is the median of what each gives. Shape (len(asked),); NaN =
    no type ran both this model and one that the asked type ran too.
    """
    answer = np.full(len(asked.label), np.nan)
    ratios: dict[tuple[np.datetime64, int], dict[int, float]] = {}
    for known, rows, model, hardware, devices in _questions(evidence, asked):
        night = asked.night[rows][0]
        if (night, hardware) not in ratios:
            ratios[night, hardware] = _ratios(known, hardware)
        own = known.take(known.model == model)
        given = [
            float(np.median(near.label)) + ratio
            for other, ratio in ratios[night, hardware].items()
            for runs in [own.take(own.hardware == other)]
            if len(runs.label)
            for near in [runs.take(_nearest(runs.devices, devices))]
        ]
        if given:
            answer[rows] = np.median(given)
    return answer


def order_against_known(evidence: Runs, asked: Runs, predicted: Floats) -> tuple[Floats, Floats]:
    """Count for each asked run the other hardware types that it was put on the right side of, and all of them.

    Compared is with the median label that each type was known to have, at the asked night, for the same model and device count;
    types within `TIED` of the run's own label are left out. An unanswered run is on no right side.
    """
    right, total = np.zeros(len(asked.label)), np.zeros(len(asked.label))
    for known, rows, model, hardware, devices in _questions(evidence, asked):
        same = known.take((known.model == model) & (known.devices == devices) & (known.hardware != hardware))
        medians = np.array(list(_medians((same.hardware,), same.label).values()))
        if not len(medians):
            continue
        truth = asked.label[rows][:, None] - medians
        guess = predicted[rows][:, None] - medians
        counted = np.abs(truth) > TIED
        total[rows] = counted.sum(axis=1)
        right[rows] = (counted & (np.sign(truth) == np.sign(guess))).sum(axis=1)
    return right, total


def order_among(asked: Runs, predicted: Floats) -> tuple[float, float]:
    """Count the pairs of hardware types that ran the same model at the same device count and are ordered rightly, and all pairs.

    Each type stands with the medians of its labels and of its predictions; pairs within `TIED` are left out.
    """
    right = total = 0.0
    keys = (asked.model, asked.devices, asked.hardware)
    labels, guesses = _medians(keys, asked.label), _medians(keys, predicted)
    groups: dict[tuple[int, ...], list[tuple[float, float]]] = {}
    for key, label in labels.items():
        groups.setdefault(key[:2], []).append((label, guesses[key]))
    for pairs in groups.values():
        upper = np.triu_indices(len(pairs), 1)
        truth, order = (np.subtract.outer(values, values)[upper] for values in np.array(pairs).T)
        counted = np.abs(truth) > TIED
        total += float(counted.sum())
        right += float((counted & (np.sign(truth) == np.sign(order))).sum())
    return right, total


def _questions(evidence: Runs, asked: Runs) -> Iterator[tuple[Runs, Codes, int, int, float]]:
    """Give for each distinct question of a night what was known then, the rows that ask it, and model, hardware and devices."""
    for night in np.unique(asked.night):
        known = evidence.known_at(night)
        of_night = np.flatnonzero(asked.night == night)
        keys = np.stack([asked.model[of_night], asked.hardware[of_night], asked.devices[of_night]])
        distinct, member = np.unique(keys, axis=1, return_inverse=True)
        for number, (model, hardware, devices) in enumerate(distinct.T):
            yield known, of_night[member.ravel() == number], int(model), int(hardware), float(devices)


def _ratios(known: Runs, hardware: int) -> dict[int, float]:
    """Give the log of how many times as fast `hardware` is as each other type that shares a model with it."""
    by_devices = _medians((known.hardware, known.model, known.devices), known.label)
    by_model = _medians((known.hardware, known.model), known.label)
    ratios = {}
    for other in np.unique(known.hardware[known.hardware != hardware]).tolist():
        for cells in (by_devices, by_model):
            shared = [
                value - cells[(other, *key[1:])]
                for key, value in cells.items()
                if key[0] == hardware and (other, *key[1:]) in cells
            ]
            if shared:
                ratios[other] = float(np.median(shared))
                break
    return ratios


def _medians(keys: tuple[npt.NDArray[np.generic], ...], values: Floats) -> _Cells:
    """Give the median of `values` for each distinct combination of `keys`."""
    if not len(values):
        return {}
    distinct, member = np.unique(np.stack([key.astype(np.float64) for key in keys]), axis=1, return_inverse=True)
    order = np.argsort(member.ravel(), kind="stable")
    parts = np.split(values[order], np.cumsum(np.bincount(member.ravel()))[:-1])
    return {tuple(int(part) for part in key): float(np.median(part)) for key, part in zip(distinct.T, parts, strict=True)}


def _nearest(devices: Floats, wanted: float) -> Rows:
    distance = np.abs(np.log(devices / wanted))
    return np.asarray(distance <= distance.min() + 1e-9)


def _numbered(names: pa.ChunkedArray) -> Codes:
    encoded = pc.dictionary_encode(names).combine_chunks()
    indices = encoded.indices if isinstance(encoded, pa.DictionaryArray) else pa.concat_arrays(encoded.chunks).indices
    return np.asarray(pc.fill_null(indices, -1).to_numpy(zero_copy_only=False), dtype=np.int64)
