"""The scoring code that a registered version carries (MLflow models-from-code): no pickle.

MLflow runs this file where a version is logged and where it is loaded. What lives here: turning a frame
as it comes from Arrow, from a person or from JSON, into the tables that the scorer takes. What does not: scoring
(`leap.serving.scorer`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
import pyarrow as pa
from mlflow.pyfunc.model import PythonModel, PythonModelContext

from leap.contracts import CANDIDATE_SCHEMA, SUBMISSION_SCHEMA
from leap.serving.scorer import Scorer

ANSWER_COLUMNS = ("throughput_p10", "throughput", "throughput_p90", "tier")
CANDIDATE_COLUMNS = pa.schema([CANDIDATE_SCHEMA.field(name) for name in ("hardware_type", "num_devices", "pool")])


class ThroughputModel(PythonModel):
    """Predicts the throughput of submissions on candidates with the scorer of the version's bundle."""

    def load_context(self, context: PythonModelContext) -> None:
        """Load the bundle's scorer."""
        self._scorer = Scorer.load(Path(context.artifacts["bundle"]))

    def predict(
        self,
        context: PythonModelContext,  # noqa: ARG002 (MLflow's signature)
        model_input: pd.DataFrame,
        params: dict[str, Any] | None = None,  # noqa: ARG002 (MLflow's signature)
    ) -> pd.DataFrame:
        """Predict each row: `throughput_p10`, `throughput`, `throughput_p90` (samples/s, whole job) and `tier`.

        `model_input` has the columns of `SUBMISSION_SCHEMA`, `hardware_type`, `num_devices` and `pool`; one that is missing is
        unknown. ValueError where a value is not of its column's kind.
        """
        answer = self._scorer.predict(_table(model_input, SUBMISSION_SCHEMA), _table(model_input, CANDIDATE_COLUMNS))
        frame: pd.DataFrame = answer.select(list(ANSWER_COLUMNS)).to_pandas()
        return frame.set_index(model_input.index)


def _table(frame: pd.DataFrame, schema: pa.Schema) -> pa.Table:
    return pa.table({field.name: _column(frame, field) for field in schema})


def _column(frame: pd.DataFrame, field: pa.Field) -> pa.Array:
    if field.name not in frame.columns:
        return pa.nulls(len(frame), field.type)
    values = frame[field.name]
    try:
        if pa.types.is_floating(field.type):
            # JSON writes 8 and 8.0 alike, and null makes a column of objects.
            numbers = pd.to_numeric(values.astype(object)).to_numpy(dtype="float64", na_value=float("nan"))
            return pa.array(numbers, field.type, from_pandas=True)
        return pa.array(values.astype(object), field.type, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, ValueError) as error:
        raise ValueError(f"column {field.name!r} must hold {field.type} or nothing: {error}") from error


mlflow.models.set_model(ThroughputModel())
