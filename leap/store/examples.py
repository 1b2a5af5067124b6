"""The examples of a dataset as training and evaluation take them: with features, and of a large fleet a sample of each night.

What lives here: which examples are taken, and the history of a dataset as `leap.evaluation` needs it. What does not: features
(`leap.features`), cutting (`leap.evaluation.history`), how datasets are kept (`datasets.py`).

A fleet of 50,000 attempts a day has nine million of them in half a year; their features would not fit the memory of a usual
machine, and a model learns little from the ten-thousandth attempt of a night. So of a night with more than
`features.max_attempts_a_night` attempts some are taken, chosen by a hash of the attempt's id: the same ones in every night, whole
with all versions of their label, and of the quarantined ones the same share, so that scores stay those of the whole. History
itself (`marts.state_history`) is of all attempts.
"""

from __future__ import annotations

from collections.abc import Sequence

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from leap.evaluation.history import History, training_matrix
from leap.features import State
from leap.gaussian_process import GaussianProcess
from leap.params import Params
from leap.sources.admission import EARLIEST
from leap.store.datasets import Dataset
from leap.store.night import NightStepMissing
from leap.store.warehouse import read

_STATE = "state_history"
# An attempt is taken where its hash, as a share of all hashes, is below the share of its night.
_SHARES = """
with shares as (
    select night, least(1.0, $most / count(distinct attempt_id)) as share
    from read_parquet($examples) group by night
)
"""
_IS_TAKEN = "md5_number_lower(attempt_id)::double / 18446744073709551616.0 < share"
_EXAMPLES = f"""
{_SHARES}
select examples.* from read_parquet($examples, file_row_number = true) as examples
inner join shares using (night)
where {_IS_TAKEN} or attempt_id in (select unnest($also))
order by file_row_number
"""
_QUARANTINE = f"""
{_SHARES}
select rejected.* from read_parquet($quarantine, file_row_number = true) as rejected
left join shares on rejected.started_at::date = shares.night
where attempt_id is null or coalesce({_IS_TAKEN}, true)
order by file_row_number
"""


def read_examples(dataset: Dataset, params: Params, also: Sequence[str] = ()) -> pa.Table:
    """Read `training_examples`, of a night about `features.max_attempts_a_night` attempts at most, in the dataset's order.

    `also` names attempts that must be among them.
    """
    bound = {"examples": str(dataset.path("training_examples")), "most": params.features.max_attempts_a_night}
    return _read(_EXAMPLES, bound | {"also": list(also)})


def read_quarantine(dataset: Dataset, params: Params) -> pa.Table:
    """Read the quarantine, of each night the share that `read_examples` takes of its attempts, where a start can be."""
    files = {name: str(dataset.path(table)) for name, table in (("examples", "training_examples"), ("quarantine", "quarantine"))}
    return with_possible_start(_read(_QUARANTINE, files | {"most": params.features.max_attempts_a_night}))


def with_possible_start(quarantine: pa.Table) -> pa.Table:
    """Leave out the rejects that say they started after they arrived, or long ago: such a time makes no night of its own."""
    started_at = quarantine["started_at"]
    earliest = pa.scalar(EARLIEST, started_at.type)
    possible = pc.and_(pc.greater_equal(started_at, earliest), pc.less_equal(started_at, quarantine["received_at"]))
    return quarantine.filter(pc.fill_null(possible, False))


def read_state(dataset: Dataset, params: Params, process: GaussianProcess | None) -> State:
    """Give the history of a dataset level by level, as each is asked for.

    Raises NightStepMissing where `params` names a level that the dataset was not built with.
    """
    levels = params.features.state_levels
    present = set(dataset.table(_STATE, ["level"])["level"].unique().to_pylist())
    absent = sorted(set(levels) - present)
    if absent and present:
        raise NightStepMissing(
            f"dataset {dataset.id} has no history of level {', '.join(absent)}; run `leap nightly` with these params first"
        )
    # Datasets are written in the order of level, key and night.
    return State.from_reader(lambda level: dataset.table(_STATE, filters=[("level", "=", level)]), levels, process)


def assemble_examples(dataset: Dataset, params: Params, also: Sequence[str] = ()) -> pa.Table:
    """Assemble the features of a dataset's examples, at the cut of each one's night: what `training_matrix` gives."""
    examples = read_examples(dataset, params, also)
    return training_matrix(examples, read_state(dataset, params, GaussianProcess.from_examples(examples)))


def load_history(dataset: Dataset, params: Params, also: Sequence[str] = ()) -> History:
    """Assemble the features of a dataset's examples, and give them ready to be cut at any night. Raises NightStepMissing."""
    return History.from_matrix(assemble_examples(dataset, params, also), read_quarantine(dataset, params))


def _read(sql: str, bound: dict[str, object]) -> pa.Table:
    with duckdb.connect(":memory:") as connection:
        connection.execute("set timezone = 'UTC'")
        return read(connection, sql, bound).drop_columns(["file_row_number"])
