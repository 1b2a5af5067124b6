"""From log files to raw tables: read, admit, load, in one transaction per source.

What lives here: the order of the three. What does not: parsing (`leap.sources`), names (`leap.hardware`), SQL (`warehouse.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import duckdb
import pyarrow as pa

from leap.hardware.catalog import read_catalog
from leap.hardware.names import HardwareResolver, read_aliases
from leap.params import IngestParams
from leap.sources import Progress, ReadBatch, no_progress
from leap.sources.admission import Admission, admit
from leap.sources.mapping import Kind, TableMapping
from leap.sources.measurements import admit_measurements
from leap.sources.mlperf_checks import hold_to_roofline
from leap.sources.pseudonym import leave_out_user, pseudonymise
from leap.sources.readers import Reader
from leap.store.mapped_table import read as read_table
from leap.store.plugins import mapping_of, reader_of
from leap.store.warehouse import ATTEMPTS, MEASUREMENTS, SliceCount, load, pseudonym_key, read

_LOOKED_AT = 200_000
_SHOWN_SLICES = 100

# Jobs on the same hardware with the same model and device count differ by software and batch, seldom by more than this factor.
FAR_FROM_GROUP = 2.0
_FEWEST_JOBS = 3
_SHOWN_JOBS = 20


def ingest(
    connection: duckdb.DuckDBPyConnection,
    kind: str,
    paths: Sequence[Path],
    *,
    seeds: Path,
    params: IngestParams,
    received_at: datetime,
    load_id: str,
    progress: Progress = no_progress,
) -> list[SliceCount]:
    """Read logs of `kind`, quarantine what is not trusted, load the rest, and count both by slice.

    `seeds` is the folder of `hardware_types.csv` and `hardware_aliases.csv`. `received_at` is when the logs arrived (UTC);
    loading the same `load_id` again replaces what it loaded before. Raises SourceError where a path as a whole cannot be read or
    the kind is unknown; then nothing is loaded.
    """
    mapping = mapping_of(kind)
    reader = reader_of(kind) if mapping is None else mapped_reader(mapping)
    gate, key = AdmissionGate.from_seeds(seeds, params), pseudonym_key(connection)
    is_measured = mapping is not None and mapping.kind is Kind.MEASUREMENTS

    def admissions() -> Iterator[Admission]:
        for batch in reader(paths, params, progress):
            if is_measured:
                admission = gate.admit_measurements(batch.attempts)
            else:
                admission = gate.admit(pseudonymise(batch.attempts, key), received_at)
            yield Admission(admission.kept, leave_out_user(pa.concat_tables([batch.rejects, admission.rejects])))

    entity = MEASUREMENTS if is_measured else ATTEMPTS
    return load(connection, admissions(), received_at=received_at, load_id=load_id, entity=entity)


def mapped_reader(mapping: TableMapping) -> Reader:
    """Give the reader of a mapping, in the shape of any other."""

    def read_mapped(paths: Sequence[Path], _params: IngestParams, progress: Progress) -> Iterator[ReadBatch]:
        return (ReadBatch(batch.rows, batch.rejects) for batch in read_table(mapping, paths, progress))

    return read_mapped


@dataclass(frozen=True)
class AdmissionGate:
    """All that a record must pass: field checks, hardware that is known, no label above the roofline of that hardware."""

    resolver: HardwareResolver
    catalog: pa.Table
    params: IngestParams

    @classmethod
    def from_seeds(cls, seeds: Path, params: IngestParams) -> AdmissionGate:
        """Read hardware types and spellings as the seeds of today say them."""
        return cls(read_resolver(seeds), read_catalog(seeds / "hardware_types.csv").table, params)

    def admit(self, attempts: pa.Table, received_at: datetime) -> Admission:
        """Part attempts (`READ_SCHEMA`) into those that are kept and rejects with a reason."""
        spellings = attempts["hardware_name"].unique().to_pylist()
        admission = admit(attempts, self.resolver.resolve(spellings), self.params, received_at)
        return hold_to_roofline(admission, self.catalog)

    def admit_measurements(self, rows: pa.Table) -> Admission:
        """Part measurements (`MEASUREMENT_READ_SCHEMA`) likewise."""
        return admit_measurements(rows, self.resolver.resolve(rows["hardware_name"].unique().to_pylist()), self.catalog)


def read_resolver(seeds: Path) -> HardwareResolver:
    """Build the resolver of hardware spellings from the seeds."""
    return HardwareResolver.from_aliases(
        read_aliases(seeds / "hardware_aliases.csv"), read_catalog(seeds / "hardware_types.csv").types
    )


def counts_text(counts: Sequence[SliceCount]) -> str:
    """Say what became of the records read: the total, then a line for each slice, or for each source where slices are many."""
    slices = {f"{count.source} {count.slice}": count for count in counts}
    lines = [_count_line("records", counts)]
    if len(slices) <= _SHOWN_SLICES:
        lines += [_count_line(f"  {name}", [count]) for name, count in slices.items()]
    else:
        for source in dict.fromkeys(count.source for count in counts):
            of_source = [count for count in counts if count.source == source]
            lines.append(_count_line(f"  {source}, {len(of_source)} slices", of_source))
    return "\n".join(lines)


def _count_line(name: str, counts: Sequence[SliceCount]) -> str:
    read, kept, quarantined, duplicates = (
        sum(getattr(count, figure) for count in counts) for figure in ("records_read", "kept", "quarantined", "duplicates")
    )
    return f"{name}: read {read} = kept {kept} + quarantined {quarantined} + duplicates {duplicates}"


class Reason(NamedTuple):
    """Why records went to quarantine: a code, how many, and the sentence that the first of them, by file and line, got."""

    reason: str
    records: int
    first: str


def reasons_of(connection: duckdb.DuckDBPyConnection, load_ids: Sequence[str]) -> list[Reason]:
    """List why records of these loads went to quarantine, most frequent first."""
    sql = """
        select reason, count(*) as records, arg_min(detail, (file, line, content_hash)) as first
        from raw.quarantine where load_id in (select unnest(?)) group by reason order by records desc, reason
    """
    return [Reason(**row) for row in read(connection, sql, [list(load_ids)]).to_pylist()]


def reasons_text(reasons: Sequence[Reason]) -> str:
    """Say why records went to quarantine, a line for each reason; nothing where none did."""
    lines = [f"  {found.reason} {found.records}, the first: {' '.join(found.first.split())}" for found in reasons]
    return "\n".join(["new in quarantine:", *lines] if lines else [])


class Relabelled(NamedTuple):
    """Labels that a rule made or replaced: the rule, how many, and where the first of them stands."""

    rule: str
    records: int
    first: str


def relabelled(connection: duckdb.DuckDBPyConnection, load_ids: Sequence[str]) -> list[Relabelled]:
    """List by which rules labels of these loads are not the figure that was logged, most frequent first."""
    sql = """
        select
            label_rule as rule, count(*) as records,
            arg_min(file || ', line ' || line || ': ' || coalesce(throughput_as_logged::varchar, 'nothing') || ' logged, '
                || throughput || ' ' || throughput_unit || ' taken', (file, line, content_hash)) as first
        from raw.job_attempts
        where label_rule is not null and load_id in (select unnest(?))
        group by label_rule order by records desc, rule
    """
    return [Relabelled(**row) for row in read(connection, sql, [list(load_ids)]).to_pylist()]


def relabelled_text(found: Sequence[Relabelled]) -> str:
    """Say which labels a rule made or replaced, a line for each rule; nothing where none did."""
    lines = [f"  {one.rule} {one.records}, the first: {one.first}" for one in found]
    return "\n".join(["labels made or replaced by a rule:", *lines] if lines else [])


class OffGroup(NamedTuple):
    """A job whose middle throughput is `factor` times that of the jobs like it."""

    job: str
    attempts: int
    factor: float


def off_group(connection: duckdb.DuckDBPyConnection, load_ids: Sequence[str]) -> list[OffGroup]:
    """List the jobs of these loads that are far from the median of their group, farthest first; nothing is done to them.

    A group is all jobs with the same model type, hardware type, device count, unit and scope, at least three; far is a factor
    of `FAR_FROM_GROUP` either way.
    """
    sql = """
        with new as (
            select distinct model_type, hardware_type, num_devices from raw.job_attempts where load_id in (select unnest($loads))
        ),

        jobs as (
            select
                model_type, hardware_type, num_devices, throughput_unit, throughput_scope,
                coalesce(job_id, attempt_id) as job,
                count(*) as attempts,
                median(throughput) as throughput,
                bool_or(load_id in (select unnest($loads))) as is_new
            from raw.job_attempts semi join new using (model_type, hardware_type, num_devices)
            group by all
        ),

        compared as (
            select
                job, attempts, is_new,
                throughput / median(throughput) over same as factor,
                count(*) over same as jobs
            from jobs
            window same as (partition by model_type, hardware_type, num_devices, throughput_unit, throughput_scope)
        )

        select job, attempts, factor from compared
        where is_new and jobs >= $fewest and greatest(factor, 1 / factor) > $far
        order by greatest(factor, 1 / factor) desc, job
    """
    bound = {"loads": list(load_ids), "fewest": _FEWEST_JOBS, "far": FAR_FROM_GROUP}
    return [OffGroup(**row) for row in read(connection, sql, bound).to_pylist()]


def off_group_text(found: Sequence[OffGroup]) -> str:
    """Say which jobs are far from their group, at most `_SHOWN_JOBS` of them; nothing where none is."""
    if not found:
        return ""
    lines = [f"  {each.job}: {each.factor:.2f} times, {each.attempts} attempts" for each in found[:_SHOWN_JOBS]]
    more = [f"  and {len(found) - _SHOWN_JOBS} more"] if len(found) > _SHOWN_JOBS else []
    return "\n".join(["far from the median of jobs with the same model, hardware and device count:", *lines, *more])


def newest_attempts(connection: duckdb.DuckDBPyConnection) -> pa.Table:
    """Give what the newest arrival that added any attempts brought, at most `_LOOKED_AT` of them, the newest known."""
    sql = """
        select * from raw.job_attempts
        where received_at = (select max(received_at) from raw.job_attempts)
        order by known_at desc, attempt_id, segment_number, content_hash
        limit ?
    """
    return read(connection, sql, [_LOOKED_AT])


# The faulty among the records in quarantine.
FAULTY = """
    select rejected.content_hash, rejected.received_at
    from raw.quarantine as rejected
    where
        rejected.reason not in ('not-finished', 'too-short', 'filtered')
        and not (
            rejected.reason in ('missing-field', 'bad-throughput')
            and coalesce(rejected.outcome, 'succeeded') in ('failed', 'cancelled', 'preempted')
        )
        and not exists (select 1 from raw.job_attempts as kept where kept.attempt_id = rejected.attempt_id)
"""


def quarantined_share(connection: duckdb.DuckDBPyConnection) -> float:
    """Give the share of faulty records among all that could have been learned from, 0 to 1.

    Not faulty is a record whose attempt was admitted since, and one that has nothing to tell: an attempt that has not ended, that
    was measured too shortly, or that ended badly before it had a throughput.
    """
    sql = f"""
        select
            (select count(*) from ({FAULTY}))::double as faulty,
            (select count(*) from raw.job_attempts)::double as kept
    """
    counts = read(connection, sql).to_pylist()[0]
    total = counts["faulty"] + counts["kept"]
    return float(counts["faulty"] / total) if total else 0.0
