"""What a backtest has predicted, night by night, so that a run that was interrupted goes on, and a second look costs nothing.

What lives here: predictions as Parquet, kept under what they depend on. What does not: the backtest (`leap.evaluation`),
what is drawn from it.

The key of an answer is the dataset, the parameters, and the sources and libraries that make it. A change to how answers are
scored leaves them valid.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from leap.params import Params
from leap.predictors import Prediction
from leap.predictors.catalogue import make

# What every answer depends on, beside the module of the predictor's own class.
_SOURCES = (
    "leap.features",
    "leap.gaussian_process",
    "leap.evaluation.history",
    "leap.evaluation.retrain",
    "leap.predictors",
    "leap.predictors.gbdt",
    "leap.predictors.point",
)
_LIBRARIES = ("lightgbm", "numpy", "scikit-learn", "scipy", "xgboost-cpu")
_PARTS = ("p10", "p50", "p90")


class KeptPredictions:
    """The predictions of one dataset and one set of parameters, below a folder that is made when the first is kept."""

    def __init__(self, folder: Path, dataset_id: str, params: Params, *, forget: bool = False) -> None:
        """`forget` True recalls nothing of what was kept before."""
        self._folder = folder
        self._params = params
        self._basis = json.dumps([dataset_id, params.model_dump(mode="json")], sort_keys=True)
        self._places: dict[str, Path] = {}
        self._forget = forget

    def recall(self, predictor: str, night: np.datetime64, attempts: pa.ChunkedArray) -> Prediction | None:
        """Give what `predictor` answered for exactly these attempts of `night`; None where it did not."""
        path = self._place(predictor) / f"{night}.parquet"
        if self._forget or not path.is_file():
            return None
        kept = pq.read_table(path)
        if not kept["attempt_id"].combine_chunks().equals(_strings(attempts)):
            return None
        tier = np.asarray(kept["tier"].to_numpy(zero_copy_only=False), dtype=np.str_)
        p10, p50, p90 = (kept[part].to_numpy() for part in _PARTS)
        return Prediction(p10, p50, p90, tier)

    def keep(self, predictor: str, night: np.datetime64, attempts: pa.ChunkedArray, answer: Prediction) -> None:
        """Keep an answer, whole or not at all."""
        place = self._place(predictor)
        place.mkdir(parents=True, exist_ok=True)
        columns = {part: pa.array(getattr(answer, part)) for part in _PARTS}
        table = pa.table({"attempt_id": _strings(attempts), **columns, "tier": pa.array(answer.tier.tolist(), pa.string())})
        unfinished = place / f".tmp-{night}.parquet"
        pq.write_table(table, unfinished)
        unfinished.replace(place / f"{night}.parquet")

    def _place(self, predictor: str) -> Path:
        if predictor not in self._places:
            digest = hashlib.sha256(self._basis.encode())
            digest.update(json.dumps(_made_by(predictor, self._params), sort_keys=True).encode())
            self._places[predictor] = self._folder / digest.hexdigest()[:16] / predictor
        return self._places[predictor]


def _made_by(predictor: str, params: Params) -> Mapping[str, str]:
    """Give what the answers of `predictor` are made by: the hash of each source, and the version of each library."""
    own = type(make(predictor, params)).__module__
    modules = [*_SOURCES, own]
    if own == "leap.predictors.stack":
        modules += [f"leap.predictors.{name}" for name in ("catalogue", "history_alone", "neighbours", "regression")]
    found = {}
    for name in modules:
        source = importlib.import_module(name).__file__
        if source is not None:
            found[name] = hashlib.sha256(Path(source).read_bytes()).hexdigest()
    for library in _LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            found[library] = "none"
    return found


def _strings(names: pa.ChunkedArray) -> pa.Array:
    values = names.cast(pa.string())
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
