"""A mapping proposed for a file: from the names of its columns and its first rows, for a person to look over.

What lives here: which names usually mean which field, and writing the YAML. What does not: reading by a mapping
(`leap.store.mapped_table`).
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pyarrow.parquet as pq

from leap.contracts import ATTEMPT_SCHEMA, Outcome
from leap.sources import SourceError
from leap.sources.delimited import decompressed

_LOOKED_AT = 256 << 10
_ROWS = 200
# Names by field, most telling first, with all but letters and digits left out.
_SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "attempt_id": ("attemptid", "jobidraw", "runid", "executionid", "trialid", "taskid"),
    "job_id": ("jobid", "jobname", "job", "workload", "experiment", "name"),
    "submitted_at": ("submittedat", "submit", "submittime", "submitted", "queuedat", "createdat"),
    "started_at": ("startedat", "start", "starttime", "begin", "begintime"),
    "ended_at": ("endedat", "end", "endtime", "finishedat", "finish", "finishtime", "stop", "stoptime"),
    "known_at": ("knownat", "updatedat", "loggedat", "recordedat"),
    "outcome": ("outcome", "state", "status", "finalstate", "result", "exitstatus"),
    "cluster": ("cluster", "site", "datacenter"),
    "pool": ("pool", "partition", "queue"),
    "team": ("team", "account", "project", "group", "organization", "tenant"),
    "user": ("user", "username", "owner", "submitter"),
    "model_type": ("modeltype", "model", "modelname", "architecture", "arch", "network", "benchmark"),
    "task": ("task", "domain"),
    "framework": ("framework", "library"),
    "framework_version": ("frameworkversion", "version"),
    "precision": ("precision", "dtype", "mixedprecision"),
    "global_batch_size": ("globalbatchsize", "globalbatch", "totalbatchsize", "batchsize", "batch"),
    "per_device_batch_size": ("perdevicebatchsize", "perdevicebatch", "microbatchsize", "localbatchsize", "pergpubatch"),
    "gradient_accumulation_steps": ("gradientaccumulationsteps", "accumulationsteps", "gradaccum"),
    "sequence_length": ("sequencelength", "seqlen", "contextlength", "maxlength"),
    "image_size": ("imagesize", "resolution", "inputsize"),
    "parameters_m": ("parametersm", "paramsm"),
    "optimizer": ("optimizer", "optim"),
    "num_nodes": ("numnodes", "nodes", "nnodes", "nodecount"),
    "num_devices": ("numdevices", "devices", "gpus", "ngpus", "numgpus", "gpucount", "accelerators", "worldsize", "cards"),
    "hardware_name": ("hardwarename", "hardware", "gputype", "gpuname", "gpumodel", "accelerator", "devicetype", "gpu", "device"),
    "throughput": ("throughput", "samplespersecond", "samplespersec", "tokenspersecond", "tokenspersec", "itemspersec", "speed"),
    "throughput_unit": ("throughputunit", "unit"),
    "throughput_scope": ("throughputscope", "scope"),
    "steady_seconds": ("steadyseconds", "measuredseconds"),
    "warmup_seconds": ("warmupseconds", "warmup"),
    "step_seconds": ("stepseconds", "steptime", "secondsperstep"),
    "start_step": ("startstep", "firststep"),
    "end_step": ("endstep", "laststep"),
}
_REQUIRED = (
    *("attempt_id", "model_type", "started_at", "ended_at", "outcome", "num_devices", "hardware_name"),
    *("throughput", "throughput_unit", "throughput_scope"),
)
_OUTCOMES = {
    Outcome.SUCCEEDED: ("succeeded", "success", "completed", "complete", "done", "ok", "finished", "pass", "passed"),
    Outcome.FAILED: ("failed", "failure", "error", "oom", "outofmemory", "timeout", "nodefail", "crashed"),
    Outcome.CANCELLED: ("cancelled", "canceled", "killed", "aborted", "stopped"),
    Outcome.PREEMPTED: ("preempted", "evicted"),
    Outcome.RUNNING: ("running", "pending", "queued", "active"),
}
_UNIT_OF_NAME = {"samples": "samples/s", "items": "samples/s", "images": "samples/s", "tokens": "tokens/s", "steps": "steps/s"}


def propose(path: Path) -> str:
    """Give a mapping for a CSV, TSV, JSON-lines or Parquet file as YAML that can be loaded; what is unsure is said in comments.

    Raises SourceError where the file cannot be read as any of them.
    """
    form, delimiter, rows = _first_rows(path)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    if not columns:
        raise SourceError(f"{path}: no columns were found; is it CSV, TSV, JSON lines or Parquet?")
    chosen = _choose(columns)
    lines = [
        f"# Proposed for {path.name}; look over every line. Columns without a field: "
        f"{', '.join(name for name in columns if name not in chosen.values()) or 'none'}.",
        "version: 1",
        f"name: {_name(path)}",
        "kind: attempts",
        f"format: {form}",
        *([f"delimiter: {json.dumps(delimiter)}"] if delimiter is not None else []),
        "# timezone: UTC   # of times without an offset; without it they are quarantined",
        "fields:",
    ]
    for field in ATTEMPT_SCHEMA.names:
        if field in chosen:
            values = [str(row.get(chosen[field], "")) for row in rows]
            lines += _line(field, chosen[field], values)
        elif field in _REQUIRED:
            lines += _missing(field, chosen)
    text = "\n".join(lines) + "\n"
    if any(_is_naive(str(row.get(chosen.get(field, ""), ""))) for row in rows for field in ("started_at", "ended_at")):
        text = text.replace("# timezone: UTC   #", "timezone: UTC   # assumed: times here have no offset;")
    return text


def _first_rows(path: Path) -> tuple[str, str | None, list[dict[str, object]]]:
    if path.name.endswith(".parquet"):
        try:
            with pq.ParquetFile(path) as file:
                batch = next(file.iter_batches(_ROWS), None)
        except (OSError, ValueError) as error:
            raise SourceError(f"{path}: cannot be read as Parquet ({error}).") from error
        return "parquet", None, [] if batch is None else batch.to_pylist()
    with ExitStack() as stack:
        try:
            raw = stack.enter_context(path.open("rb"))
            text = decompressed(path, raw, stack).read(_LOOKED_AT).decode("utf-8", "replace")
        except (OSError, EOFError, ValueError) as error:
            raise SourceError(f"{path}: cannot be read ({error}).") from error
    lines = text.splitlines()[:_ROWS]
    if lines and lines[0].lstrip().startswith("{"):
        objects = [_object(line) for line in lines]
        return "jsonl", None, [one for one in objects if one]
    delimiter = max(",\t;|", key=(lines[0] if lines else "").count)
    rows = csv.DictReader(io.StringIO("\n".join(lines)), delimiter=delimiter)
    try:
        found: list[dict[str, object]] = [{str(key): value for key, value in row.items() if key} for row in rows]
    except csv.Error as error:
        raise SourceError(f"{path}: cannot be read as a table ({error}).") from error
    form = "tsv" if delimiter == "\t" else "csv"
    return form, None if delimiter in ",\t" else delimiter, found or [dict.fromkeys(rows.fieldnames or (), "")]


def _object(line: str) -> dict[str, object]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _choose(columns: Sequence[str]) -> dict[str, str]:
    """Give a column for each field that one seems to hold; a column feeds one field."""
    plain = {name: re.sub(r"[^a-z0-9]", "", name.lower()) for name in columns}
    chosen: dict[str, str] = {}
    most = max(len(names) for names in _SYNONYMS.values())
    for place in range(most):
        for field, names in _SYNONYMS.items():
            if field in chosen or place >= len(names):
                continue
            found = [name for name in columns if plain[name] == names[place] and name not in chosen.values()]
            if found:
                chosen[field] = found[0]
    return chosen


def _line(field: str, column: str, values: Sequence[str]) -> list[str]:
    quoted = json.dumps(column, ensure_ascii=False)
    if field == "outcome":
        found = {value: _outcome(value) for value in dict.fromkeys(values) if value}
        pairs = ", ".join(f"{json.dumps(value, ensure_ascii=False)}: {outcome or 'failed'}" for value, outcome in found.items())
        unsure = [value for value, outcome in found.items() if outcome is None]
        note = [f"  # not known, taken for failed: {', '.join(unsure)}"] if unsure else []
        return [*note, f"  outcome: {{column: {quoted}, map: {{{pairs}}}}}"] if found else [f"  outcome: {quoted}"]
    if field.endswith("_at") and values and all(re.fullmatch(r"\d{10}(\.\d+)?|\d{13}", value) for value in values if value):
        unit = "epoch_ms" if any(len(value) == 13 for value in values) else "epoch_s"
        return [f"  {field}: {{column: {quoted}, format: {unit}}}"]
    return [f"  {field}: {quoted}"]


def _missing(field: str, chosen: Mapping[str, str]) -> list[str]:
    if field == "throughput_unit":
        name = chosen.get("throughput", "").lower()
        unit = next((unit for word, unit in _UNIT_OF_NAME.items() if word in name), "samples/s")
        return ["  # assumed: samples/s, tokens/s or steps/s", f"  throughput_unit: {{value: {unit}}}"]
    if field == "throughput_scope":
        return ["  # assumed: of the whole job; else node or device", "  throughput_scope: {value: job}"]
    if field == "attempt_id" and "job_id" in chosen:
        job = chosen["job_id"].replace('"', '""')
        return [
            "  # assumed: one row per job; an attempt needs a name of its own",
            f"  attempt_id: {json.dumps(chosen['job_id'], ensure_ascii=False)}" if job else "",
        ]
    return [f"  # {field}: no column found; without it every row is quarantined"]


def _outcome(value: str) -> str | None:
    plain = re.sub(r"[^a-z]", "", value.lower())
    return next((outcome.value for outcome, names in _OUTCOMES.items() if any(plain.startswith(name) for name in names)), None)


def _is_naive(value: str) -> bool:
    return bool(re.match(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d", value)) and not re.search(r"(Z|[+-]\d\d:?\d\d)$", value)


def _name(path: Path) -> str:
    stem = re.sub(r"[^a-z0-9._-]", "-", path.name.split(".")[0].lower()).strip("-._")
    return stem[:60] or "export"
