"""The MLPerf reader end to end: checkouts and archives give the same attempts, bad input a reason, and nothing is lost."""

from __future__ import annotations

import io
import json
import random
import tarfile
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from leap.contracts import READ_SCHEMA, REJECT_SCHEMA
from leap.params import IngestParams
from leap.sources import ReadBatch, SourceError, mlperf

PARAMS = IngestParams(max_label_disagreement=0.05, min_steady_seconds=20)
START = datetime(2023, 5, 4, 10, 0, tzinfo=UTC)
START_MS = int(START.timestamp() * 1000)

SYSTEM = {
    "number_of_nodes": "2",
    "accelerators_per_node": "8",
    "accelerator_model_name": "NVIDIA H100-SXM5-80GB",
    "host_processors_per_node": "2",
    "framework": "PyTorch NVIDIA Release 23.04",
}

Files = dict[str, bytes]


def event(key: str, value: Any = None, second: float | None = 0.0, **metadata: Any) -> bytes:
    time = {} if second is None else {"time_ms": START_MS + int(second * 1000)}
    return b"0: :::MLLOG " + json.dumps({"key": key, "value": value, "metadata": metadata, **time}).encode()


def log(*, seconds: float = 300.0, samples: int = 2_250_000, reported: float = 7600.0, status: str = "success") -> bytes:
    """Make a BERT run's log: 2.25 million samples in 300 s unless said otherwise."""
    lines = [
        event("submission_benchmark", "bert", -9),
        event("submission_division", "closed", -9),
        event("seed", 7, -8),
        event("global_batch_size", 768, -8),
        event("gradient_accumulation_steps", 2, -8),
        event("max_sequence_length", 512, -8),
        event("opt_name", "LAMB", -8),
        event("opt_base_learning_rate", 0.002, -8),
        event("opt_learning_rate_decay_boundary_epochs", [3], -8),
        event("run_start"),
        event("tracked_stats", {"throughput": reported}, 10, step=1),
        event("eval_accuracy", 0.5, seconds / 15, epoch_num=samples / 15),
        event("eval_accuracy", 0.72, seconds, epoch_num=samples),
        event("run_stop", None, seconds, status=status),
    ]
    return b"\n".join(lines) + b"\n"


def checkout(runs: Mapping[str, bytes] | None = None, system: bytes | None = None) -> Files:
    """Make the files of a repository of one submission; `system` None leaves its description out."""
    runs = {"result_0.txt": log(), "result_1.txt": log(seconds=290)} if runs is None else runs
    files = {f"Acme/results/dgx_n2/bert/{name}": content for name, content in runs.items()}
    files["Acme/benchmarks/bert/README.md"] = b"# not a log\n"
    files["README.md"] = b"# results\n"
    if system is not None:
        files["Acme/systems/dgx_n2.json"] = system
    return files


GOOD = checkout(system=json.dumps(SYSTEM).encode())


def write_folder(root: Path, files: Files) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def tar_of(files: Files, mode: str, top: str = "training_results_v3.0") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:  # type: ignore[call-overload]
        for name, content in files.items():
            member = tarfile.TarInfo(f"{top}/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def read(*paths: Path) -> ReadBatch:
    batches = list(mlperf.read(paths, PARAMS))
    return ReadBatch(
        pa.concat_tables([READ_SCHEMA.empty_table(), *(batch.attempts for batch in batches)]),
        pa.concat_tables([REJECT_SCHEMA.empty_table(), *(batch.rejects for batch in batches)]),
    )


def read_files(folder: Path, files: Files) -> ReadBatch:
    return read(write_folder(folder / "training_results_v3.0", files))


def only_reject(batch: ReadBatch) -> dict[str, Any]:
    assert batch.rejects.num_rows == 1
    reject: dict[str, Any] = batch.rejects.to_pylist()[0]
    return reject


def test_a_run_becomes_an_attempt_with_what_was_submitted_where_it_ran_and_how_fast(tmp_path: Path) -> None:
    attempt = read_files(tmp_path, GOOD).attempts.to_pylist()[0]

    known = {name: value for name, value in attempt.items() if value is not None}
    assert known == {
        "source": "mlperf",
        "slice": "v3.0/bert",
        "file": "training_results_v3.0/Acme/results/dgx_n2/bert/result_0.txt",
        "line": 14,
        "attempt_id": "v3.0/Acme/dgx_n2/bert/result_0",
        "segment_number": 1,
        "job_id": "Acme/dgx_n2/bert/v3.0",
        "attempt_number": 1,
        "started_at": START,
        "ended_at": datetime(2023, 5, 4, 10, 5, tzinfo=UTC),
        "known_at": datetime(2023, 5, 4, 10, 5, tzinfo=UTC),
        "outcome": "succeeded",
        "cluster": "mlperf",
        "team": "acme",
        "model_type": "bert",
        "task": "language_modelling",
        "framework": "pytorch",
        "framework_version": "23.04",
        "global_batch_size": 768.0,
        "gradient_accumulation_steps": 2.0,
        "sequence_length": 512.0,
        "optimizer": "lamb",
        "num_nodes": 2,
        "num_devices": 16,
        "config": '{"division": "closed", "opt_base_learning_rate": 0.002}',
        "hardware_name": "NVIDIA H100-SXM5-80GB",
        "throughput": 7500.0,
        "throughput_unit": "samples/s",
        "throughput_scope": "job",
        "steady_seconds": 300.0,
        "warmup_seconds": 0.0,
    }


@pytest.mark.parametrize(("suffix", "mode"), [(".tar", "w"), (".tar.gz", "w:gz"), (".tar.xz", "w:xz"), (".tar.bz2", "w:bz2")])
@pytest.mark.parametrize("systems_first", [True, False])
def test_an_archive_gives_what_the_checkout_gives(tmp_path: Path, suffix: str, mode: str, systems_first: bool) -> None:
    # given: the same files as a folder and as an archive, in either order
    files = dict(sorted(GOOD.items(), key=lambda item: "systems" in item[0], reverse=systems_first))
    archive = tmp_path / f"training_results_v3.0{suffix}"
    archive.write_bytes(tar_of(files, mode))

    from_archive, from_folder = read(archive), read_files(tmp_path, GOOD)

    assert from_archive.rejects.num_rows == 0
    assert from_archive.attempts.drop_columns(["file"]).equals(from_folder.attempts.drop_columns(["file"]))
    assert (
        from_archive.attempts["file"][0].as_py()
        == f"training_results_v3.0{suffix}!/training_results_v3.0/Acme/results/dgx_n2/bert/result_0.txt"
    )


def test_a_folder_of_archives_and_checkouts_is_read_whole_and_progress_is_told(tmp_path: Path) -> None:
    (tmp_path / "training_results_v3.0.tar.xz").write_bytes(tar_of(GOOD, "w:xz"))
    write_folder(tmp_path / "training_results_v3.1", GOOD)
    (tmp_path / "notes.txt").write_bytes(b"not results")
    told: list[tuple[str, int, int]] = []

    batches = list(mlperf.read([tmp_path], PARAMS, lambda what, done, total: told.append((what, done, total))))

    assert [batch.attempts["slice"][0].as_py() for batch in batches] == ["v3.0/bert", "v3.1/bert"]
    assert told == [("training_results_v3.0.tar.xz", 0, 2), ("training_results_v3.1", 1, 2), ("MLPerf results", 2, 2)]


def test_the_round_comes_from_the_folder_in_the_archive_or_else_from_its_name(tmp_path: Path) -> None:
    (tmp_path / "results-v4.0.tar").write_bytes(tar_of(GOOD, "w", top="repository-main"))

    assert read(tmp_path / "results-v4.0.tar").attempts["slice"].to_pylist() == ["v4.0/bert"] * 2


@pytest.mark.parametrize(
    ("stem", "number"),
    [
        ("result_0", 1),
        ("result_09", 10),
        ("result_run7", 8),
        ("result_5753-240517062537491026015_4", 5),
        ("result_2_1n8r_32k_1592681001", 3),
        ("result_240517062537491026015", None),
    ],
)
def test_the_attempt_number_is_the_one_in_the_files_name(tmp_path: Path, stem: str, number: int | None) -> None:
    files = checkout({f"{stem}.txt": log()}, json.dumps(SYSTEM).encode())

    assert read_files(tmp_path, files).attempts["attempt_number"].to_pylist() == [number]


def test_a_folder_more_between_system_and_benchmark_is_passed_over(tmp_path: Path) -> None:
    files = GOOD | {"Acme/results/dgx_n2/resnet/bert/result_0.txt": log()}

    assert Counter(read_files(tmp_path, files).attempts["attempt_id"].to_pylist()) == {
        "v3.0/Acme/dgx_n2/bert/result_0": 2,  # the warehouse tells that they are the same
        "v3.0/Acme/dgx_n2/bert/result_1": 1,
    }


def test_a_run_that_did_not_reach_its_target_is_an_attempt_too(tmp_path: Path) -> None:
    attempts = read_files(tmp_path, checkout({"result_0.txt": log(status="aborted")}, json.dumps(SYSTEM).encode())).attempts

    assert attempts["outcome"].to_pylist() == ["failed"]
    assert attempts["throughput"].to_pylist() == [7500.0]


def without(content: bytes, key: str) -> bytes:
    return b"\n".join(line for line in content.split(b"\n") if f'"key": "{key}"'.encode() not in line)


def without_time(content: bytes, key: str) -> bytes:
    lines = content.split(b"\n")
    return b"\n".join(event(key, None, None, status="success") if f'"key": "{key}"'.encode() in line else line for line in lines)


@pytest.mark.parametrize(
    ("content", "reason", "line"),
    [
        (random.Random(1).randbytes(4096), "not-a-log", 0),
        (b"", "not-a-log", 0),
        (without(log(), "run_start"), "no-run-start", 0),
        (without(log(), "run_stop"), "no-run-stop", 10),
        (without_time(log(), "run_start"), "no-time", 10),
        (without_time(log(), "run_stop"), "no-time", 14),
        (without(log(), "eval_accuracy"), "no-samples", 12),
        (log(reported=760.0), "label-disagrees", 14),
    ],
)
def test_a_run_that_is_not_trusted_is_a_reject_and_the_others_are_kept(
    tmp_path: Path, content: bytes, reason: str, line: int
) -> None:
    # given: one bad run beside a good one
    batch = read_files(tmp_path, checkout({"result_0.txt": content, "result_1.txt": log()}, json.dumps(SYSTEM).encode()))

    reject = only_reject(batch)

    assert (reject["reason"], reject["line"], reject["slice"]) == (reason, line, "v3.0/bert")
    assert reject["attempt_id"] == "v3.0/Acme/dgx_n2/bert/result_0"
    assert (reject["job_id"], reject["model_type"]) == ("Acme/dgx_n2/bert/v3.0", "bert")
    assert (reject["hardware_name"], reject["num_devices"]) == ("NVIDIA H100-SXM5-80GB", 16)
    assert reject["detail"].startswith(f"{reject['file']}{f', line {line}' if line else ''}: ")
    assert batch.attempts["attempt_id"].to_pylist() == ["v3.0/Acme/dgx_n2/bert/result_1"]


def test_a_contradicted_label_shows_both_figures_and_still_counts_as_a_finished_run(tmp_path: Path) -> None:
    reject = only_reject(read_files(tmp_path, checkout({"result_0.txt": log(reported=760.0)}, json.dumps(SYSTEM).encode())))

    assert "reports a throughput of 760 " in reject["detail"]
    assert "7500 samples/s of 2250000 samples (evaluated samples) in 300.0 s" in reject["detail"]
    assert (reject["outcome"], reject["started_at"]) == ("succeeded", START)
    assert json.loads(reject["record"])["throughput"] == 7500.0


def test_what_is_no_log_is_kept_as_text(tmp_path: Path) -> None:
    reject = only_reject(read_files(tmp_path, checkout({"result_0.txt": b"404: Not Found\xff"}, json.dumps(SYSTEM).encode())))

    assert reject["record"] == "404: Not Found\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("system", "reason", "hardware_name"),
    [
        (None, "no-system-description", None),
        (b'{"number_of_nodes": ', "bad-system-description", None),
        (json.dumps(SYSTEM | {"accelerators_per_node": "many"}).encode(), "no-device-count", "NVIDIA H100-SXM5-80GB"),
        (json.dumps(SYSTEM | {"accelerator_model_name": "N/A"}).encode(), "no-accelerator", None),
    ],
)
def test_a_system_that_is_not_told_rejects_each_of_its_runs(
    tmp_path: Path, system: bytes | None, reason: str, hardware_name: str | None
) -> None:
    batch = read_files(tmp_path, checkout(system=system))

    assert batch.attempts.num_rows == 0
    assert batch.rejects["reason"].to_pylist() == [reason] * 2
    assert batch.rejects["hardware_name"].to_pylist() == [hardware_name] * 2
    assert batch.rejects["outcome"].to_pylist() == ["succeeded"] * 2


def many_runs() -> Files:
    noise = random.Random(5)  # does not shrink, so that a cut falls among the runs
    padding = [noise.randbytes(3000).hex().encode() for _ in range(40)]
    runs = {f"result_{number}.txt": log() + padding[number] for number in range(40)}
    system = json.dumps(SYSTEM).encode()
    return {"Acme/systems/dgx_n2.json": system} | checkout(runs)


@pytest.mark.parametrize(("suffix", "mode"), [(".tar", "w"), (".tar.gz", "w:gz"), (".tar.xz", "w:xz")])
@pytest.mark.parametrize("share", [0.25, 0.5, 0.9])
def test_a_cut_archive_keeps_what_was_read_and_says_so_once(tmp_path: Path, suffix: str, mode: str, share: float) -> None:
    # given: an archive cut short, and a whole one after it
    whole = tar_of(many_runs(), mode)
    (tmp_path / f"training_results_v1.0{suffix}").write_bytes(whole[: int(len(whole) * share)])
    (tmp_path / "training_results_v2.0.tar").write_bytes(tar_of(GOOD, "w"))

    batch = read(tmp_path)

    kept = Counter(batch.attempts["file"].to_pylist()[row].split("!")[0] for row in range(batch.attempts.num_rows))
    assert kept["training_results_v2.0.tar"] == 2
    assert 5 <= kept[f"training_results_v1.0{suffix}"] < 40
    reject = only_reject(batch)
    assert (reject["reason"], reject["line"], reject["file"]) == ("unreadable-archive", 0, f"training_results_v1.0{suffix}")
    assert f"{kept[f'training_results_v1.0{suffix}']} runs were read before that. Fetch it again" in reject["detail"]


def test_a_tar_cut_between_two_members_is_noticed(tmp_path: Path) -> None:
    # given: a tar without its end mark, which tarfile itself takes for whole
    content = tar_of(GOOD, "w").rstrip(b"\0")
    (tmp_path / "training_results_v1.0.tar").write_bytes(content + b"\0" * (-len(content) % 512))

    batch = read(tmp_path)

    assert batch.attempts.num_rows == 2
    assert only_reject(batch)["reason"] == "unreadable-archive"


def test_an_archive_without_results_does_not_keep_the_others_out(tmp_path: Path) -> None:
    (tmp_path / "notes_v2.0.tar.xz").write_bytes(tar_of({"readme.md": b"no results"}, "w:xz"))
    write_folder(tmp_path / "training_results_v3.1", GOOD)

    none, good = mlperf.read([tmp_path], PARAMS)

    reject = only_reject(none)
    assert (reject["reason"], reject["slice"], reject["file"]) == ("no-results", "v2.0", "notes_v2.0.tar.xz")
    assert good.attempts["slice"].unique().to_pylist() == ["v3.1/bert"]


def test_random_bytes_under_an_archives_name_are_one_reject(tmp_path: Path) -> None:
    (tmp_path / "training_results_v1.0.tar.xz").write_bytes(random.Random(2).randbytes(9000))

    batch = read(tmp_path)

    assert batch.attempts.num_rows == 0
    reject = only_reject(batch)
    assert (reject["reason"], reject["slice"]) == ("unreadable-archive", "v1.0")


def test_a_link_to_nowhere_is_a_reject(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "training_results_v3.0", GOOD)
    (root / "Acme/results/dgx_n2/bert/result_2.txt").symlink_to(root / "gone.txt")

    batch = read(root)

    assert batch.attempts.num_rows == 2
    assert only_reject(batch)["reason"] == "not-a-log"


def test_names_that_are_no_text_can_be_stored(tmp_path: Path) -> None:
    archive = tmp_path / "training_results_v3.0.tar"
    archive.write_bytes(tar_of(GOOD | {"Acme/results/dgx_n2/bert/result_\udcff.txt": log()}, "w"))

    assert read(archive).attempts["attempt_id"].to_pylist()[-1] == "v3.0/Acme/dgx_n2/bert/result_?"


def test_a_source_that_cannot_be_read_at_all_is_an_error_that_says_what_was_expected(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    write_folder(tmp_path / "other", {"README.md": b"no results", "src/main.py": b""})
    write_folder(tmp_path / "hollow", {"Acme/results/dgx_n2/README.md": b"no results"})
    (tmp_path / "hollow.tar").write_bytes(tar_of({"README.md": b"no results"}, "w"))
    (tmp_path / "log.txt").write_bytes(log())

    for name, message in {
        "missing": "no such file or folder",
        "empty": "the folder is empty; expected <submitter>/results/<system>/<benchmark>/result_<n>.txt",
        "other": "no results in it; expected <submitter>/results/",
        "hollow": "no result file in it; expected <submitter>/results/",
        "hollow.tar": "no result file in it; expected <submitter>/results/",
        "log.txt": "neither a folder nor an archive",
    }.items():
        with pytest.raises(SourceError, match=f"{name}: {message}"):
            read(tmp_path / name)
    with pytest.raises(SourceError, match="no path was given"):
        mlperf.read([], PARAMS)


def test_more_runs_than_a_batch_holds_come_in_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlperf, "BATCH_RUNS", 3)
    root = write_folder(tmp_path / "training_results_v3.0", many_runs())

    sizes = [batch.attempts.num_rows for batch in mlperf.read([root], PARAMS)]

    assert sizes == [3] * 13 + [1]


def test_the_published_results_of_v5_are_kept_but_for_runs_that_did_not_end(shared_data: Path) -> None:
    batch = read(shared_data / "mlperf" / "training_results_v5.0.tar.xz")

    succeeded = pc.sum(pc.equal(batch.attempts["outcome"], "succeeded")).as_py()
    lost = pc.sum(pc.fill_null(pc.equal(batch.rejects["outcome"], "succeeded"), False)).as_py()
    assert batch.attempts.num_rows + batch.rejects.num_rows == 1717
    assert succeeded / (succeeded + lost) > 0.99
    assert Counter(batch.rejects["reason"].to_pylist()) == {"no-run-stop": 5}


def test_runs_of_one_published_job_agree_on_its_throughput(shared_data: Path) -> None:
    attempts = read(shared_data / "mlperf" / "training_results_v4.1.tar.xz").attempts

    logs = pc.ln(attempts["throughput"])
    spread = attempts.append_column("log", logs).group_by("job_id").aggregate([("log", "stddev"), ("log", "count")])
    several = spread.filter(pc.greater(spread["log_count"], 1))
    assert several.num_rows > 100
    assert pc.mean(several["log_stddev"]).as_py() < 0.012


def test_the_software_stack_and_the_rule_that_made_the_label_stand_in_the_configuration(tmp_path: Path) -> None:
    system = SYSTEM | {"other_software_stack": {"cuda_version": "12.1.0.023", "cuda_driver_version": "530.30.02"}}
    stalled = log(reported=20_000.0).replace(
        event("tracked_stats", {"throughput": 20_000.0}, 10, step=1),
        b"\n".join(event("tracked_stats", {"throughput": rate}, 10, step=1) for rate in (4_000.0, 20_000.0, 20_000.0)),
    )
    files = checkout({"result_0.txt": log(), "result_1.txt": stalled}, json.dumps(system).encode())

    configs = [json.loads(each) for each in read_files(tmp_path, files).attempts["config"].to_pylist()]

    assert [each["cuda_version"] for each in configs] == ["12.1", "12.1"]
    assert [each.get("label_rule") for each in configs] == [None, "reports-vary"]


def test_a_log_of_round_v06_becomes_an_attempt(tmp_path: Path) -> None:
    def old(second: float, key: str, value: Any = None, **metadata: Any) -> str:
        return f":::MLL {START_MS / 1000 + second:.3f} {key}: {json.dumps({'value': value, 'metadata': metadata})}"

    lines = [
        old(-5, "global_batch_size", 2048),
        old(0, "run_start"),
        *(old(60 * epoch, "eval_accuracy", 20.0, epoch_num=epoch) for epoch in (1, 2, 3, 4)),
        old(240, "run_stop", None, status="success"),
    ]
    nodes = "{'num_nodes': '2', 'accelerator': 'Tesla V100-SXM2-16GB', 'num_accelerators': '8'}"
    entry = f"entry: {json.dumps({'value': str({'framework': 'PyTorch NVIDIA Release 19.05', 'nodes': nodes})})}"
    root = tmp_path / "training_results_v0.6"
    files = {
        "Acme/results/dgx1_n2/transformer/result_0.txt": "\n".join(lines).encode(),
        "Acme/systems/dgx1_n2.json": entry.encode(),
    }

    (attempt,) = read(write_folder(root, files)).attempts.to_pylist()

    assert (attempt["started_at"], attempt["outcome"], attempt["framework_version"]) == (START, "succeeded", "19.05")
    assert (attempt["hardware_name"], attempt["num_devices"]) == ("Tesla V100-SXM2-16GB", 16)
    assert attempt["throughput"] == pytest.approx(4 * 4_590_101 / 240)
