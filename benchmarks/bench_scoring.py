"""What scoring all candidates costs beside LightGBM alone: `GbdtPredictor.predict` against `Booster.predict` of the same booster.

The bare side gets the ready matrix. LEAP's side encodes the assembled features, adds the base, and gives an interval and a tier
to each row. Assembling features from history is shown apart: both need it. Rounds alternate; the median decides.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import pyarrow as pa
import simulated

from leap.contracts import CANDIDATE_SCHEMA, SUBMISSION_SCHEMA
from leap.features import State, assemble
from leap.gaussian_process import GaussianProcess
from leap.predictors.gbdt import GbdtPredictor
from leap.store.examples import load_history

ROWS = 100_000  # the candidates are repeated up to so many


def main() -> None:
    """Run the rounds and print medians and their ratio."""
    options = simulated.parse_arguments(__doc__)
    params = simulated.params()
    with tempfile.TemporaryDirectory() as folder:
        dataset = simulated.night_dataset(options, Path(folder))
        history = load_history(dataset, params)
        candidates = dataset.table("ranking_candidates")
        state_table = dataset.table("state_current")
        process = GaussianProcess.from_examples(dataset.table("training_examples"))
    cut = np.datetime64(options.cut or dataset.manifest.night)
    examples = history.examples(history.known_at(cut, params.model.training_window_days), cut)
    predictor = GbdtPredictor(params.model, params.features.state_levels, params.validation.interval, params.seed).fit(examples)
    encoder, booster = predictor.encoder, predictor.booster
    assert encoder is not None
    assert booster is not None

    candidates = pa.concat_tables([candidates] * -(-ROWS // candidates.num_rows)).slice(0, ROWS).combine_chunks()
    start = perf_counter()
    features = assemble(
        candidates.select(SUBMISSION_SCHEMA.names),
        candidates.select(CANDIDATE_SCHEMA.names),
        State.from_table(state_table, params.features.state_levels, process),
        np.full(ROWS, np.datetime64(dataset.manifest.night)),
    )
    assemble_seconds = perf_counter() - start
    matrix = encoder.transform(features)

    leap_seconds, bare_seconds = [], []
    for _ in range(options.rounds):
        start = perf_counter()
        booster.predict(matrix, num_threads=params.model.num_threads)
        bare_seconds.append(perf_counter() - start)
        start = perf_counter()
        predictor.predict(features)
        leap_seconds.append(perf_counter() - start)
    figures = {
        "rows": ROWS,
        "assemble_s": assemble_seconds,
        "bare_s": median(bare_seconds),
        "leap_s": median(leap_seconds),
        "share_of_bare_speed": median(bare_seconds) / median(leap_seconds),
    }
    if options.json:
        print(json.dumps(figures, indent=1))
        return
    print(f"score {ROWS:,} candidates, {matrix.shape[1]} columns, {booster.num_trees()} trees, median of {options.rounds}")
    print(f"  Booster.predict on the ready matrix  {figures['bare_s'] * 1e3:7.0f} ms  1.00")
    share = figures["share_of_bare_speed"]
    print(f"  leap, predict                        {figures['leap_s'] * 1e3:7.0f} ms  {share:4.2f} of its speed")
    print(f"  apart: assemble the features         {assemble_seconds * 1e3:7.0f} ms")


if __name__ == "__main__":
    main()
