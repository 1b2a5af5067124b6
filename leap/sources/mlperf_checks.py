"""Whether a throughput of MLPerf Training is possible at all: against the work of a sample and the peak rate of the hardware.

What lives here: operations per sample of the benchmarks, and the check on admitted attempts. What does not: reported against
derived throughput (`mlperf_labels.py`), and a label against its group (`off_group` of `leap.store.ingest`).

The check finds wrong units and counts (batches for samples, one node for the job), not fine errors: the operations are at the
low end of what is published, and the peak is the highest that the hardware could have.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from leap.contracts import REJECT_SCHEMA
from leap.sources.admission import Admission
from leap.sources.jsonl import render

SOURCE: Final = "mlperf"

# Operations (2 per multiply-add) that training on one sample takes, forward and backward. Transformers: 6 x parameters x tokens
# (Kaplan et al., "Scaling laws for neural language models", 2020, section 2.1), with LoRA 4, as frozen weights have no gradient;
# of mixtures of experts the active parameters count. BERT: 200 tokens of 512 on average, as padding is left out. Images: 3 x
# forward of the reference model at the benchmark's size, rounded down. Left out: models whose work is not arithmetic.
TRAINING_OPERATIONS: Final[Mapping[str, float]] = MappingProxyType(
    {
        "bert": 6 * 0.303e9 * 200,
        "deepseekv3_671b": 6 * 37e9 * 4096,
        "gpt3": 6 * 175e9 * 2048,
        "llama2_70b_lora": 4 * 70e9 * 8192,
        "llama31_405b": 6 * 405e9 * 8192,
        "llama31_8b": 6 * 8e9 * 8192,
        "maskrcnn": 1.0e12,
        "resnet": 2.2e10,
        "retinanet": 4.5e11,
        "ssd": 3.0e10,
        "stable_diffusion": 1.5e12,
        "unet3d": 3.0e12,
    }
)

# No hardware computes 8-bit numbers at more than this many times its 16-bit rate; the catalogue does not know every 8-bit rate.
MOST_OVER_16_BIT: Final = 2.0

# Of the peak rate the best large matrix product reaches about this share, and a training run never more.
MOST_UTILISATION: Final = 0.8


def hold_to_roofline(admission: Admission, catalog: pa.Table) -> Admission:
    """Move attempts of MLPerf with an impossible throughput to the rejects, with reason ``beyond-roofline``.

    `catalog` is in `HARDWARE_SCHEMA`. Impossible is a throughput (samples/s of the job) x `TRAINING_OPERATIONS` above
    `MOST_UTILISATION` of the devices' peak: the higher of the 8-bit rate and `MOST_OVER_16_BIT` times the 16-bit rate. Where
    operations or peak are not known, nothing is said. Rows keep their order.
    """
    kept = admission.kept
    if not pc.any(pc.equal(kept["source"], SOURCE)).as_py():
        return admission
    operations = _look_up(kept["model_type"], list(TRAINING_OPERATIONS), pa.array(TRAINING_OPERATIONS.values(), pa.float64()))
    peak = _look_up(kept["hardware_type"], catalog["hardware_type"].to_pylist(), _peak_tflops(catalog))
    needed = pc.divide(pc.multiply(kept["throughput"], operations), 1e12)
    limit = pc.multiply(pc.multiply(peak, kept["num_devices"].cast(pa.float64())), MOST_UTILISATION)
    impossible = pc.and_(pc.fill_null(pc.greater(needed, limit), False), pc.equal(kept["source"], SOURCE))
    rejects = _rejects(kept.filter(impossible), needed.filter(impossible), limit.filter(impossible))
    return Admission(kept.filter(pc.invert(impossible)), pa.concat_tables([admission.rejects, rejects]))


def _look_up(names: pa.ChunkedArray, known: list[str], values: pa.Array) -> pa.ChunkedArray:
    """Give the value of each name, null where it is not among the known."""
    return pa.chunked_array([values.take(pc.index_in(names, value_set=pa.array(known)).combine_chunks())])


def _peak_tflops(catalog: pa.Table) -> pa.Array:
    sixteen_bit = pc.multiply(catalog["peak_bf16_tflops"], MOST_OVER_16_BIT)
    return pc.max_element_wise(sixteen_bit, catalog["peak_fp8_tflops"]).combine_chunks()


def _rejects(rows: pa.Table, needed: pa.ChunkedArray, limit: pa.ChunkedArray) -> pa.Table:
    if rows.num_rows == 0:
        return REJECT_SCHEMA.empty_table()
    texts = [pc.round(figure).cast(pa.int64()).cast(pa.string()) for figure in (needed, limit)]
    detail = pc.binary_join_element_wise(
        *(rows["file"], ", line ", rows["line"].cast(pa.string()), ": its throughput of "),
        *(rows["throughput"].cast(pa.string()), " samples/s needs at least ", texts[0], " TFLOP/s, and "),
        *(rows["num_devices"].cast(pa.string()), " x ", rows["hardware_type"], " give at most ", texts[1]),
        *("; samples or devices are miscounted.", ""),
    )
    made = {"reason": pa.repeat("beyond-roofline", rows.num_rows), "detail": detail, "record": render(rows)}
    return pa.table([made[name] if name in made else rows[name] for name in REJECT_SCHEMA.names], schema=REJECT_SCHEMA)
