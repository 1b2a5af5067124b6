"""The hardware catalogue: what is known of each hardware type, and whether a model's training state fits on it.

What lives here: reading the seed `hardware_types`, describing types by it, the memory estimate. What does not: how a raw
spelling becomes a type (`names.py`), prices (dbt takes them as of the cut), measured throughput.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from leap.contracts import HARDWARE_SCHEMA

# As HARDWARE_SCHEMA, but every column may be null: a type that the catalogue does not know has a name and nothing else.
DESCRIPTION_SCHEMA = pa.schema([field.with_nullable(True) for field in HARDWARE_SCHEMA])

# Mixed precision with Adam: 2 bytes of weights, 2 of gradients, 12 of 32-bit weights and two moments.
# Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", 2020, section 3.1.
BYTES_PER_PARAMETER = 16.0


class CatalogError(ValueError):
    """The catalogue file is not what HARDWARE_SCHEMA asks for; the message names the file, the fault and what to do."""


@dataclass(frozen=True)
class HardwareCatalog:
    """The known hardware types and their specifications, one row each, in HARDWARE_SCHEMA."""

    table: pa.Table

    @property
    def types(self) -> tuple[str, ...]:
        """Name the known types, in the order of the file."""
        return tuple(self.table["hardware_type"].to_pylist())

    def describe(self, hardware_types: pa.Array | pa.ChunkedArray | Sequence[str | None]) -> pa.Table:
        """Describe each given type: the columns of HARDWARE_SCHEMA, one row per input row and in its order.

        The name stays as given; every other column is null where the catalogue does not know the type.
        """
        names = _strings(hardware_types)
        rows = pc.index_in(names, value_set=self.table["hardware_type"].combine_chunks(), skip_nulls=True)
        known = self.table.cast(DESCRIPTION_SCHEMA).take(rows)
        return known.set_column(0, DESCRIPTION_SCHEMA.field(0), names)


def read_catalog(path: Path) -> HardwareCatalog:
    """Read the seed `hardware_types`; bytes are 10^9 to the gigabyte, rates as in HARDWARE_SCHEMA, an empty cell is null.

    Raises CatalogError where a column is missing, a cell has the wrong type, a name, vendor or family is empty, or a type
    stands twice; FileNotFoundError where the file is not there.
    """
    try:
        table = csv.read_csv(
            path,
            convert_options=csv.ConvertOptions(
                column_types=HARDWARE_SCHEMA, include_columns=HARDWARE_SCHEMA.names, strings_can_be_null=True, null_values=[""]
            ),
        )
    except (KeyError, pa.ArrowInvalid) as error:
        raise CatalogError(f"{path}: {error}; the columns are {', '.join(HARDWARE_SCHEMA.names)}, then source") from error
    for column in ("hardware_type", "vendor", "family"):
        if table[column].null_count:
            raise CatalogError(f"{path}: {column} is empty in {table[column].null_count} row(s); every type needs one")
    counts = pc.value_counts(table["hardware_type"].combine_chunks())
    twice = counts.field("values").filter(pc.greater(counts.field("counts"), 1)).to_pylist()
    if twice:
        raise CatalogError(f"{path}: {', '.join(sorted(twice))} stands more than once; keep one row per type")
    return HardwareCatalog(table.select(HARDWARE_SCHEMA.names).cast(HARDWARE_SCHEMA))


def _strings(values: pa.Array | pa.ChunkedArray | Sequence[str | None]) -> pa.ChunkedArray:
    """Give the values as one type of text, whether they came as a list, plain, large or dictionary-encoded."""
    if not isinstance(values, pa.Array | pa.ChunkedArray):
        values = pa.array(values, pa.string())
    return (values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([values])).cast(pa.string())
