"""Any table by a mapping file: values right, every row accounted for, and a mapping that can do nothing but map."""

from __future__ import annotations

import gzip
import json
import sys
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leap.params import IngestParams
from leap.sources import SourceError
from leap.sources.mapping import load_mapping, parse_mapping
from leap.sources.mapping_guess import propose
from leap.store import warehouse
from leap.store.ingest import ingest
from leap.store.mapped_table import read
from leap.store.plugins import reader_of
from leap.store.preview import preview
from leap.store.warehouse import connect

PARAMS = IngestParams(max_label_disagreement=0.05, min_steady_seconds=5)
ARRIVED = datetime(2026, 4, 1, tzinfo=UTC)
MAPPING = """
version: 1
name: ours
kind: attempts
timezone: Europe/Berlin
"null": ["", "n/a"]
fields:
  attempt_id: Job
  user: Owner
  started_at: {column: Begin, format: "%d.%m.%Y %H:%M"}
  ended_at: {column: End, timezone: UTC}
  outcome: {column: State, map: {DONE: succeeded, KILLED: preempted}}
  model_type: {expression: "lower(Model)"}
  num_devices: Cards
  hardware_name: {value: NVIDIA H100-SXM5-80GB}
  throughput: {expression: "try_cast(Images as double) / try_cast(Minutes as double) / 60"}
  throughput_unit: {value: samples/s}
  throughput_scope: {value: job, default: job}
  steady_seconds: {column: Minutes, unit: min}
  parameters_m: {column: Params, scale: 1.0e-6}
  config: {expression: "json_object('queue', Queue)"}
filters:
  - leave_out: "Cards = '0'"
    because: no accelerator
"""
HEADER = "Job,Owner,Begin,End,State,Model,Cards,Images,Minutes,Params,Queue\n"
GOOD = "j1,ada,01.03.2026 10:00,2026-03-01 12:00,DONE,ResNet,8,600000,100,25500000,long\n"


def apply(
    tmp_path: Path, *rows: str, mapping: str = MAPPING, header: str = HEADER
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    path = tmp_path / "export.csv"
    path.write_text(header + "".join(rows), encoding="utf-8")
    batches = list(read(parse_mapping(mapping, "m.yaml"), [path]))
    return [row for batch in batches for row in batch.rows.to_pylist()], [
        row for batch in batches for row in batch.rejects.to_pylist()
    ]


def test_values_come_in_the_units_and_times_of_the_contract(tmp_path: Path) -> None:
    (row,), rejects = apply(tmp_path, GOOD)

    assert rejects == []
    assert {name: value for name, value in row.items() if value is not None} == {
        "source": "table:ours",
        "slice": "export.csv",
        "file": (tmp_path / "export.csv").as_posix(),
        "line": 2,
        "attempt_id": "j1",
        "user": "ada",
        "started_at": datetime(2026, 3, 1, 9, tzinfo=UTC),  # Berlin's winter
        "ended_at": datetime(2026, 3, 1, 12, tzinfo=UTC),
        "outcome": "succeeded",
        "model_type": "resnet",
        "num_devices": 8,
        "hardware_name": "NVIDIA H100-SXM5-80GB",
        "throughput": 100.0,
        "throughput_unit": "samples/s",
        "throughput_scope": "job",
        "steady_seconds": 6000.0,
        "parameters_m": 25.5,
        "config": '{"queue":"long"}',
    }


@pytest.mark.parametrize(
    ("change", "reason", "said"),
    [
        (
            ("01.03.2026 10:00", "2026-03-01 10:00"),
            "bad-time",
            "started_at is '2026-03-01 10:00'; it must be of the format %d.%m.%Y",
        ),
        (("2026-03-01 12:00", "noon"), "bad-time", "ended_at is 'noon'; it must be an ISO 8601 time"),
        (("DONE", "LOST"), "unmapped-value", "outcome: the mapping's `map` does not name this value"),
        ((",8,", ",8.5,"), "wrong-type", "num_devices is '8.5'; it must be a whole number"),
        ((",8,", ",x,"), "wrong-type", "num_devices is 'x'; it must be a whole number"),
        ((",8,", ",0,"), "filtered", "no accelerator"),
        ((",long", ",long,more"), "ragged-row", "the row has 12 values and the header 11"),
    ],
)
def test_a_row_that_will_not_do_is_told_with_its_line(tmp_path: Path, change: tuple[str, str], reason: str, said: str) -> None:
    rows, (reject,) = apply(tmp_path, GOOD, GOOD.replace(*change))

    assert len(rows) == 1
    assert (reject["line"], reject["reason"], reject["source"]) == (3, reason, "table:ours")
    assert said in reject["detail"]
    assert f"{(tmp_path / 'export.csv').as_posix()}, line 3: " in reject["detail"]
    if reason != "ragged-row":
        assert json.loads(reject["record"])["Job"] == "j1"
        assert "Owner" not in reject["record"]  # who it was is nobody's business


def test_nothing_is_null_wherever_a_mapping_says_so(tmp_path: Path) -> None:
    (row,), rejects = apply(tmp_path, GOOD.replace("25500000", "n/a").replace("long", "").replace("600000", "many"))
    assert rejects == []
    assert row["parameters_m"] is row["throughput"] is None
    assert row["config"] == '{"queue":null}'


def test_times_without_offset_need_a_zone(tmp_path: Path) -> None:
    bare = MAPPING.replace("timezone: Europe/Berlin\n", "").replace(", timezone: UTC", "")
    iso = bare.replace('{column: Begin, format: "%d.%m.%Y %H:%M"}', "Begin")
    with_offset = GOOD.replace("01.03.2026 10:00", "2026-03-01T10:00:00+01:00").replace("2026-03-01 12:00", "2026-03-01T12:00Z")
    (row,), _ = apply(tmp_path, with_offset, mapping=iso)
    assert (row["started_at"], row["ended_at"]) == (datetime(2026, 3, 1, 9, tzinfo=UTC), datetime(2026, 3, 1, 12, tzinfo=UTC))
    rows, (reject,) = apply(tmp_path, GOOD, mapping=iso)
    assert rows == []
    assert "with its offset from UTC (or name a timezone in the mapping)" in reject["detail"]
    epoch = iso.replace("started_at: Begin", "started_at: {column: Begin, format: epoch_ms}").replace(
        "fields:", "timezone: UTC\nfields:"
    )
    (row,), _ = apply(tmp_path, GOOD.replace("01.03.2026 10:00", "1772355600000"), mapping=epoch)
    assert row["started_at"] == datetime(2026, 3, 1, 9, tzinfo=UTC)


@pytest.mark.parametrize("form", ["csv.gz", "jsonl", "jsonl.gz", "parquet"])
def test_the_same_rows_in_other_formats_are_the_same(tmp_path: Path, form: str) -> None:
    (expected,), _ = apply(tmp_path, GOOD)
    names, values = HEADER.strip().split(","), GOOD.strip().split(",")
    path = tmp_path / f"other.{form}"
    if form == "parquet":
        table = pa.table({name: [value] for name, value in zip(names, values, strict=True)})
        pq.write_table(table.set_column(6, "Cards", pa.array([8])), path)
    else:
        text = HEADER + GOOD if form == "csv.gz" else json.dumps(dict(zip(names, values, strict=True))) + "\n"
        path.write_bytes(gzip.compress(text.encode()) if form.endswith(".gz") else text.encode())
    columns = f"columns: [{', '.join(names)}]\n"
    mapping = parse_mapping(MAPPING.replace("fields:", f"format: {form.split('.')[0]}\n{columns}fields:"), "m.yaml")
    (row,) = [row for batch in read(mapping, [path]) for row in batch.rows.to_pylist()]
    where = {"slice", "file", "line"}
    assert {name: value for name, value in row.items() if name not in where} == {
        name: value for name, value in expected.items() if name not in where
    }


def test_nested_json_lines_and_bad_ones(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"job": {"id": "a"}, "n": 8}\n\nnot json\n[1]\n{"job": {"id": "b"}}\n{"job": "\xff"}\n{"job": {"id": "c"')
    mapping = parse_mapping("{version: 1, name: nested, format: jsonl, fields: {attempt_id: job.id, num_devices: n}}", "m.yaml")
    batches = list(read(mapping, [path]))
    rows = [row for batch in batches for row in batch.rows.to_pylist()]
    rejects = [row for batch in batches for row in batch.rejects.to_pylist()]
    assert [(row["line"], row["attempt_id"], row["num_devices"]) for row in rows] == [
        (1, "a", 8),
        (5, "b", None),
    ]
    assert sorted((row["line"], row["reason"]) for row in rejects) == [
        (3, "not-json"), (4, "not-json"), (6, "not-utf8"), (7, "not-json"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            ("attempt_id: Job", "attempt_id: Jobb"),
            "has no column 'Jobb', which the mapping ours names; its columns are 'Job', 'Owner'",
        ),
        (('"lower(Model)"', '"lower(Modell)"'), "fields.model_type: 'lower(Modell)': Binder Error"),
        (('"lower(Model)"', '"lower("'), "fields.model_type: 'lower('"),
        (("\"Cards = '0'\"", '"Cards ="'), "filters.0.leave_out"),
        (('"lower(Model)"', "\"(select content from read_text('/etc/passwd'))\""), "fields.model_type"),
    ],
)
def test_a_mapping_that_does_not_fit_says_where(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    with pytest.raises(SourceError) as caught:
        apply(tmp_path, GOOD, mapping=MAPPING.replace(*change))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- a", "a mapping has the keys version, name, kind, format and fields"),
        ("a: [", "not YAML"),
        ("{version: 2, name: a, fields: {}}", "version: Input should be 1"),
        ("{version: 1, name: a, fields: {gpus: x}}", "gpus is none of attempt_id, segment_number"),
        ("{version: 1, name: a, fields: {team: {column: x, value: y}}}", "give one of column, expression and value"),
        ("{version: 1, name: a, fields: {team: {column: x, unit: s}}}", "fields.team: unit and scale are for numbers"),
        ("{version: 1, name: a, fields: {throughput: {column: x, unit: s}}}", "unit is for times that last"),
        ("{version: 1, name: a, fields: {steady_seconds: {column: x, unit: days}}}", "must be one of us, ms, s, min, h"),
        ("{version: 1, name: a, timezone: Mars/Olympus, fields: {}}", "timezone 'Mars/Olympus' is not known"),
        ("{version: 1, name: A B, fields: {}}", "name: String should match pattern"),
        ("{version: 1, name: a, fields: {}, field: {}}", "field: Extra inputs are not permitted"),
    ],
)
def test_a_mapping_that_is_none_says_which_key(text: str, said: str) -> None:
    with pytest.raises(SourceError) as caught:
        parse_mapping(text, "m.yaml")
    assert str(caught.value).startswith("m.yaml: ")
    assert said in str(caught.value)


def test_a_mapped_log_loads_once_and_reconciles(tmp_path: Path, repository: Path) -> None:
    mapping, log = tmp_path / "m.yaml", tmp_path / "export.csv"
    mapping.write_text(MAPPING, encoding="utf-8")
    log.write_text(HEADER + GOOD + GOOD.replace("j1", "j2") + GOOD.replace("DONE", "LOST") + GOOD, encoding="utf-8")
    seeds = repository / "dbt_project" / "seeds"
    with connect(tmp_path / "w.duckdb") as con:
        for load_id in ("first", "again"):
            ingest(con, f"table:{mapping}", [log], seeds=seeds, params=PARAMS, received_at=ARRIVED, load_id=load_id)
        assert [row["is_reconciled"] for row in warehouse.reconciliation(con).to_pylist()] == [True]
        assert con.execute("select records_read, kept, quarantined, duplicates from raw.loads order by load_id").fetchall() == [
            (4, 0, 0, 4),
            (4, 2, 1, 1),
        ]
        assert con.execute("""select count(*) from raw.job_attempts where "user" like 'user-%'""").fetchall() == [(2,)]
    seen = preview(mapping, [log], seeds, PARAMS, ARRIVED)
    assert (seen.records, seen.kept, list(seen.reasons)) == (4, 3, ["unmapped-value"])


def test_a_proposed_mapping_can_be_loaded_and_reads_the_file(tmp_path: Path) -> None:
    log = tmp_path / "Our Export.csv"
    log.write_text(
        "JobID;User;State;Start;End;Model;nGPUs;GPU Type;tokens_per_sec;SeqLen\n"
        "17;ada;COMPLETED;2026-03-01 10:00:00;2026-03-01 12:00:00;llama;8;NVIDIA H100-SXM5-80GB;51200;4096\n"
        "18;ada;OUT_OF_MEMORY;2026-03-01 10:00:00;2026-03-01 12:00:00;llama;8;NVIDIA H100-SXM5-80GB;51200;4096\n",
        encoding="utf-8",
    )
    proposed = tmp_path / "m.yaml"
    proposed.write_text(propose(log), encoding="utf-8")

    rows = [row for batch in read(load_mapping(proposed), [log]) for row in batch.rows.to_pylist()]

    wanted = ("attempt_id", "outcome", "started_at", "num_devices", "throughput", "throughput_unit", "sequence_length")
    assert [tuple(row[name] for name in wanted) for row in rows] == [
        (job, outcome, datetime(2026, 3, 1, 10, tzinfo=UTC), 8, 51200.0, "tokens/s", 4096.0)
        for job, outcome in (("17", "succeeded"), ("18", "failed"))
    ]
    assert "assumed" in proposed.read_text()


@pytest.fixture
def throughput(shared_data: Path) -> Path:
    return shared_data / "throughput"


def test_published_measurements_load_with_their_traps_handled(throughput: Path, repository: Path, tmp_path: Path) -> None:
    mappings = sorted((repository / "examples" / "mappings").glob("*.yaml"))
    assert [path.stem for path in mappings] == sorted(path.stem for path in throughput.glob("*.csv"))
    seeds = repository / "dbt_project" / "seeds"
    with connect(tmp_path / "w.duckdb") as con:
        for mapping in mappings:
            ingest(
                con, f"table:{mapping}", [throughput / f"{mapping.stem}.csv"], seeds=seeds, params=PARAMS, received_at=ARRIVED,
                load_id=mapping.stem,
            )  # fmt: skip
        assert all(row["is_reconciled"] for row in warehouse.reconciliation(con).to_pylist())
        assert con.execute("select count(*) from raw.job_attempts").fetchall() == [(0,)]

        def kept(source: str, where: str = "true") -> list[tuple[Any, ...]]:
            sql = f"""
                select throughput, throughput_unit, throughput_scope from raw.measurements
                where source = ? and {where} order by line
            """
            return con.execute(sql, [f"table:{source}"]).fetchall()

        def refused(source: str) -> dict[str, int]:
            sql = "select reason, count(*) from raw.quarantine where source = ? group by reason"
            return dict(con.execute(sql, [f"table:{source}"]).fetchall())

        # tokens/s per device here, of the whole job there
        assert kept("megatron-bridge")[0] == (6288.0, "tokens/s", "device")
        assert kept("llm-foundry")[0] == (515636.0, "tokens/s", "job")
        assert {row[2] for row in kept("flagperf", "throughput_unit = 'tokens/s'")} == {"device"}
        # steps/s of the job; epochs/s by the samples/s of the notes, at the highest power limit alone
        assert kept("gavel")[0] == (pytest.approx(4.795294551566172), "steps/s", "job")
        assert {row[1] for row in kept("zeus")} == {"samples/s"}
        assert refused("zeus")["filtered"] == 1391
        # thousands of molecules a second; what is no sample is no sample
        assert refused("nvidia-dle")["unmapped-value"] == 55
        # rates in TFLOP/s, and the row that contradicts its own utilisation
        assert refused("google-tpu") == {"unknown-unit": 51}
        assert refused("flagperf")["utilisation-disagrees"] == 1
        # two figures in a cell: 32 samples on 8 cards
        assert con.execute(
            "select count(*) from raw.quarantine where source = 'table:mindspore-cv' and reason = 'wrong-type'"
        ).fetchall() == [(0,)]
        # different chips stay different
        types = dict(
            con.execute(
                "select hardware_name, hardware_type from raw.measurements where source = 'table:mindspore-cv'"
            ).fetchall()
        )
        assert (types["Ascend 910"], types["Ascend 910*"]) == ("Ascend910", "Ascend910B")
        assert con.execute("select min(measured_on) from raw.measurements where source = 'table:gavel'").fetchall() == [
            (date(2020, 1, 1),)
        ]


def install(folder: Path, name: str, points: str, code: str = "") -> None:
    """Install a distribution as pip leaves one."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[leap.readers]\n{points}\n")
    (folder / f"{name}.py").write_text(code)


def test_readers_of_other_packages_are_found_and_broken_ones_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repository: Path
) -> None:
    install(tmp_path, "plugged_reader", "ours = plugged_reader:read\njsonl = plugged_reader:read", """
from leap.sources.jsonl import read as read_lines

def read(paths, params, progress):
    for batch in read_lines(paths, params, progress):
        yield batch
""")  # fmt: skip
    install(tmp_path, "broken_reader", "broken = broken_reader:read", "raise RuntimeError('no licence')")
    install(tmp_path, "twice_one", "twice = twice_one:read")
    install(tmp_path, "twice_two", "twice = twice_two:read")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    assert reader_of("ours").__module__ == "plugged_reader"
    assert reader_of("jsonl").__module__ == "leap.sources.jsonl"  # nothing stands in the place of LEAP's own
    for kind, said in (
        ("broken", "the reader 'broken' of broken-reader cannot be loaded: no licence"),
        ("twice", "is offered by twice-one, twice-two; uninstall all but one"),
        ("unheard", "LEAP reads broken, csv, jsonl, mlperf, ours, parquet, twice, table:MAPPING.yaml"),
    ):
        with pytest.raises(SourceError) as caught:
            reader_of(kind)
        assert said in str(caught.value).replace("_", "-").replace("broken-reader:", "broken_reader:")
    log = tmp_path / "log.jsonl"
    log.write_text("not json\n")
    with connect(tmp_path / "w.duckdb") as con:
        seeds = repository / "dbt_project" / "seeds"
        counts = ingest(con, "ours", [log], seeds=seeds, params=PARAMS, received_at=ARRIVED, load_id="load")
    assert [(count.records_read, count.quarantined) for count in counts] == [(1, 1)]
