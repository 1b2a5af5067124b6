"""Who submitted a job, as a name that tells one person from another and not who it is.

What lives here: the keyed hash, and leaving a name out of a record that could not be read. What does not: where the key is kept
(`leap.store.warehouse`).
"""

from __future__ import annotations

import hashlib
import hmac

import pyarrow as pa
import pyarrow.compute as pc

from leap.contracts import REJECT_SCHEMA

LEFT_OUT = "(left out)"
_DIGITS = 16  # of the hash, as hex: a million users share none but by a chance of one in forty million
# The field of the canonical log, in a line of JSON that need not be whole.
_USER = r'("user"\s*:\s*)"(?:[^"\\]|\\.)*"?'


def pseudonymise(attempts: pa.Table, key: bytes) -> pa.Table:
    """Put in place of ``user`` a pseudonym that is the same for the same name and `key`; null stays null.

    A keyed hash (RFC 2104): without the key nobody finds a name by trying all that there are.
    """
    names = attempts["user"].combine_chunks().dictionary_encode()
    known = [hmac.new(key, name.encode(), hashlib.sha256).hexdigest()[:_DIGITS] for name in names.dictionary.to_pylist()]
    pseudonyms = pa.array([f"user-{digits}" for digits in known], pa.string()).take(names.indices)
    return attempts.set_column(attempts.column_names.index("user"), "user", pseudonyms)


def leave_out_user(rejects: pa.Table) -> pa.Table:
    """Leave the user out of the records of `rejects` (`REJECT_SCHEMA`), which may be no valid JSON."""
    record = pc.replace_substring_regex(rejects["record"], _USER, rf'\1"{LEFT_OUT}"')
    return rejects.set_column(rejects.column_names.index("record"), REJECT_SCHEMA.field("record"), record)
