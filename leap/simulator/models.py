"""Model types of the simulated fleet: what is known of them at submission, and what only the law knows.

What lives here: families of models and the draw of model types from them. What does not: jobs (`jobs.py`), the law (`law.py`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Family(NamedTuple):
    """A family of models; sizes are tokens of a sequence or pixels of an image's side."""

    name: str
    stems: tuple[str, ...]
    task: str
    share: float  # of the fleet's model types
    has_sequence: bool
    has_image: bool
    sizes: tuple[int, ...]
    parameters_m: tuple[float, float, float, float]  # median, sigma of the logarithm, least, most
    flops_per_parameter: float  # forward and backward, of one sample at the first of `sizes`
    size_exponent: float  # how the work of a sample grows with its size
    flops_per_byte: float  # arithmetic intensity in 16 bits
    dense_share: float  # of the parameters, whose gradients are exchanged
    efficiency: float  # reached share of the peak rate, at best
    num_kernels: float  # launched per step
    device_batches: tuple[int, ...]


# Orders of magnitude: 6 FLOPs per parameter and token of a transformer (Kaplan et al. 2020), 4.1 G multiply-adds of ResNet-50
# forward at 224 pixels (He et al. 2015) times six, reached shares of the peak as in published MLPerf Training results.
# fmt: off
FAMILIES: tuple[Family, ...] = (
    Family("llm", ("gpt", "llama", "qwen"), task="language_modelling", share=0.24, has_sequence=True, has_image=False,
           sizes=(2048, 4096, 8192), parameters_m=(1500, 1.2, 60, 40000), flops_per_parameter=12300, size_exponent=1.08,
           flops_per_byte=260, dense_share=1.0, efficiency=0.46, num_kernels=900, device_batches=(1, 2, 4, 8)),
    Family("encoder", ("bert", "roberta", "t5"), task="text_understanding", share=0.14, has_sequence=True, has_image=False,
           sizes=(128, 256, 512), parameters_m=(220, 0.9, 20, 3000), flops_per_parameter=770, size_exponent=1.03,
           flops_per_byte=170, dense_share=1.0, efficiency=0.4, num_kernels=420, device_batches=(16, 32, 64, 128)),
    Family("cnn", ("resnet", "convnext", "unet"), task="image_classification", share=0.2, has_sequence=False, has_image=True,
           sizes=(224, 288, 384), parameters_m=(28, 0.8, 3, 300), flops_per_parameter=980, size_exponent=2.0,
           flops_per_byte=75, dense_share=1.0, efficiency=0.32, num_kernels=260, device_batches=(32, 64, 128, 256)),
    Family("vit", ("vit", "swin"), task="image_classification", share=0.1, has_sequence=False, has_image=True,
           sizes=(224, 384), parameters_m=(90, 0.9, 6, 1000), flops_per_parameter=1180, size_exponent=2.1,
           flops_per_byte=140, dense_share=1.0, efficiency=0.38, num_kernels=340, device_batches=(32, 64, 128)),
    Family("diffusion", ("sd", "dit"), task="image_generation", share=0.08, has_sequence=False, has_image=True,
           sizes=(256, 512), parameters_m=(800, 0.6, 100, 8000), flops_per_parameter=900, size_exponent=2.1,
           flops_per_byte=190, dense_share=1.0, efficiency=0.4, num_kernels=1100, device_batches=(4, 8, 16, 32)),
    Family("rnn", ("lstm", "rnnt"), task="speech_recognition", share=0.08, has_sequence=True, has_image=False,
           sizes=(256, 512, 1024), parameters_m=(45, 0.7, 4, 300), flops_per_parameter=1540, size_exponent=1.0,
           flops_per_byte=24, dense_share=1.0, efficiency=0.24, num_kernels=1300, device_batches=(32, 64, 128)),
    Family("dlrm", ("dlrm", "dcn"), task="recommendation", share=0.1, has_sequence=False, has_image=False,
           sizes=(1,), parameters_m=(4000, 0.9, 100, 60000), flops_per_parameter=0.03, size_exponent=0.0,
           flops_per_byte=22, dense_share=0.004, efficiency=0.3, num_kernels=180, device_batches=(1024, 2048, 4096, 8192)),
    Family("gnn", ("gat", "sage"), task="graph_learning", share=0.06, has_sequence=False, has_image=False,
           sizes=(1,), parameters_m=(8, 0.8, 1, 100), flops_per_parameter=900, size_exponent=0.0,
           flops_per_byte=9, dense_share=1.0, efficiency=0.2, num_kernels=220, device_batches=(64, 128, 256, 512)),
)
# fmt: on

STEMS: tuple[str, ...] = tuple(stem for family in FAMILIES for stem in family.stems)


class ModelTypes(NamedTuple):
    """Model types, one per row of each array; ``size`` is the one that the type is usually trained at."""

    names: tuple[str, ...]
    family: Ints  # index into FAMILIES
    stem: Ints  # index into STEMS
    parameters_m: Floats
    size: Floats
    flops_per_sample: Floats  # at `size`
    bytes_per_sample: Floats  # at `size`, in 16 bits
    num_kernels: Floats


def of_family(values: list[float], family: Ints) -> Floats:
    """Give each row the value of its family; ``values`` follows FAMILIES."""
    return np.asarray(values, np.float64)[family]


def draw_model_types(rng: np.random.Generator, count: int) -> ModelTypes:
    """Draw `count` model types; every family has its share of them."""
    family = _family_of_each(rng, count)
    stem = _stem_of_each(rng, family)
    parameters_m = _draw_parameters(rng, family)
    size, first_size = _draw_sizes(rng, family)
    flops = parameters_m * 1e6 * of_family([f.flops_per_parameter for f in FAMILIES], family)
    flops *= rng.lognormal(0.0, 0.15, count) * (size / first_size) ** of_family([f.size_exponent for f in FAMILIES], family)
    intensity = of_family([f.flops_per_byte for f in FAMILIES], family) * rng.lognormal(0.0, 0.25, count)
    kernels = of_family([f.num_kernels for f in FAMILIES], family) * rng.lognormal(0.0, 0.3, count)
    names = tuple(f"{STEMS[at]}-{number:03d}" for number, at in enumerate(stem.tolist()))
    return ModelTypes(names, family, stem, parameters_m, size, flops, flops / intensity, kernels)


def _family_of_each(rng: np.random.Generator, count: int) -> Ints:
    shares = np.cumsum([f.share for f in FAMILIES])
    family = np.searchsorted(shares / shares[-1], (np.arange(count) + 0.5) / count)
    return rng.permutation(family).astype(np.int64)


def _stem_of_each(rng: np.random.Generator, family: Ints) -> Ints:
    first = np.cumsum([0, *(len(f.stems) for f in FAMILIES)])
    return np.asarray(first[family] + (rng.random(len(family)) * (first[family + 1] - first[family])), np.int64)


def _draw_parameters(rng: np.random.Generator, family: Ints) -> Floats:
    median, sigma, least, most = (of_family([f.parameters_m[at] for f in FAMILIES], family) for at in range(4))
    drawn = np.clip(median * np.exp(sigma * rng.standard_normal(len(family))), least, most)
    return np.maximum(np.round(drawn), 1.0)


def _draw_sizes(rng: np.random.Generator, family: Ints) -> tuple[Floats, Floats]:
    """Give the size of each model type, the first of the family's sizes more often than the others, and that first size."""
    widest = max(len(f.sizes) for f in FAMILIES)
    table = np.array([[f.sizes[min(at, len(f.sizes) - 1)] for at in range(widest)] for f in FAMILIES], np.float64)
    column = rng.choice(widest, len(family), p=np.array([0.6, 0.25, 0.15]))
    return table[family, column], table[family, 0]
