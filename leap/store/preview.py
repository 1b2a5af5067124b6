"""What a mapping would make of files: the first rows and the reasons of those that would go to quarantine; nothing is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from leap.params import IngestParams
from leap.sources.mapping import Kind, load_mapping
from leap.store.ingest import AdmissionGate
from leap.store.mapped_table import read

_SHOWN = 3


@dataclass
class Preview:
    """How many records were read and would be kept, the first of those, and per reason how many others and the first sentence."""

    records: int = 0
    kept: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)
    reasons: dict[str, tuple[int, str]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Give it as JSON values; times stay times."""
        reasons = {reason: {"records": count, "first": first} for reason, (count, first) in self.reasons.items()}
        return {**asdict(self), "reasons": reasons}


def preview(mapping: Path, paths: Sequence[Path], seeds: Path, params: IngestParams, received_at: datetime) -> Preview:
    """Read files by a mapping and admit what comes, as a load would. Raises SourceError."""
    declared, gate, seen = load_mapping(mapping), AdmissionGate.from_seeds(seeds, params), Preview()
    for batch in read(declared, paths):
        is_attempts = declared.kind is Kind.ATTEMPTS
        admission = gate.admit(batch.rows, received_at) if is_attempts else gate.admit_measurements(batch.rows)
        seen.records += batch.rows.num_rows + batch.rejects.num_rows
        seen.kept += admission.kept.num_rows
        seen.rows += admission.kept.slice(0, max(0, _SHOWN - len(seen.rows))).to_pylist()
        for rejects in (batch.rejects, admission.rejects):
            for reason in rejects["reason"].unique().to_pylist():
                of_reason = [one for one in rejects.select(["reason", "detail"]).to_pylist() if one["reason"] == reason]
                count, first = seen.reasons.get(reason, (0, of_reason[0]["detail"]))
                seen.reasons[reason] = (count + len(of_reason), first)
    return seen
