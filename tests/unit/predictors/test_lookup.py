"""The lookup table answers with the median of the exact triple, else of model and hardware type, else not at all."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from leap.predictors import Examples
from leap.predictors.lookup import LookupTable


def test_it_takes_the_exact_triple_then_model_and_hardware_then_nothing():
    # given
    features = pa.table({"exact_median": [1.0, np.nan, np.nan], "model_hardware_median": [9.0, 2.0, np.nan]})
    table = LookupTable(0.8).fit(Examples(features, np.array([1.1, 2.1, 3.0]), np.zeros(3)))
    # when
    answer = table.predict(features)
    # then
    np.testing.assert_array_equal(answer.p50, [1.0, 2.0, np.nan])
    assert answer.tier.tolist() == ["learned", "learned", "none"]
    assert (answer.p10[:2] <= answer.p50[:2]).all()
    assert (answer.p90[:2] >= answer.p50[:2]).all()
