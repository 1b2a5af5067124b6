"""History rebuilt outside the warehouse, by the very statement that dbt ran for `marts.state_history`.

What lives here: the statement that a night's dataset carries, and running it over other examples: some hidden, or with other
labels. What does not: what history is (dbt).
"""

from __future__ import annotations

import re
from pathlib import Path

import duckdb
import pyarrow as pa

from leap.store.warehouse import read

_EXAMPLES = "fct_training_examples"
# The relation as dbt writes it, with or without database and quotes.
_RELATION = re.compile(rf'("?\w+"?\.)?"?marts"?\."?{_EXAMPLES}"?')


def compiled_state(dbt_target: Path) -> str | None:
    """Give the statement of `state_history` that dbt compiled into the folder `dbt_target`, reading from `fct_training_examples`.

    None where dbt has compiled none there.
    """
    files = sorted(dbt_target.glob("compiled/*/models/marts/state_history.sql"))
    if not files:
        return None
    return _RELATION.sub(_EXAMPLES, files[0].read_text(encoding="utf-8"))


def rebuild_state(examples: pa.Table, statement: str) -> pa.Table:
    """Run the statement over `examples` (the columns of `marts.fct_training_examples`), in memory: rows as in `state_history`."""
    with duckdb.connect(":memory:") as connection:
        connection.execute("set timezone = 'UTC'")
        connection.register(_EXAMPLES, examples)
        return read(connection, statement)
