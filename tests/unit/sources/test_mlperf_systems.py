"""System descriptions: the accelerator as spelled, how many, and the framework of a run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from leap.sources.mlperf_systems import Framework, System, choose_framework, find_frameworks, read_system

GPU_SYSTEM = {
    "number_of_nodes": "2",
    "accelerators_per_node": " 8 ",
    "accelerator_model_name": " NVIDIA A100-SXM4-80GB (400W) ",
    "host_processors_per_node": "2",
    "host_processor_model_name": "AMD EPYC 7742",
    "framework": "PyTorch NVIDIA Release 23.04",
    "system_name": "machine",
}


def described(**changes: Any) -> System:
    return read_system("folder", json.dumps(GPU_SYSTEM | changes).encode())


def test_hardware_is_the_accelerator_as_spelled_and_devices_are_nodes_times_accelerators() -> None:
    assert described() == System("NVIDIA A100-SXM4-80GB (400W)", 2, 16, (Framework("pytorch", "23.04"),))


@pytest.mark.parametrize(("nodes", "per_node", "devices"), [(1.0, "4", 4), ("16", 8, 128), (" 8 ", "16", 128)])
def test_counts_may_be_numbers_or_text(nodes: object, per_node: object, devices: int) -> None:
    assert described(number_of_nodes=nodes, accelerators_per_node=per_node).num_devices == devices


@pytest.mark.parametrize(
    "changes",
    [
        {"accelerators_per_node": "0"},
        {"accelerators_per_node": "2x8"},
        {"number_of_nodes": None},
        {"number_of_nodes": "1.5"},
        {"number_of_nodes": "-1"},
        {"number_of_nodes": "10000000", "accelerators_per_node": "1000000"},
    ],
)
def test_a_count_that_is_none_is_a_problem_with_the_values_in_it(changes: dict[str, Any]) -> None:
    system = described(**changes)

    assert system.num_devices is None
    assert system.hardware_name == "NVIDIA A100-SXM4-80GB (400W)"
    assert system.problem is not None
    assert system.problem[0] == "no-device-count"
    assert json.dumps(next(iter(changes.values()))) in system.problem[1]


@pytest.mark.parametrize("name", ["N/A", "", "none", None])
def test_without_an_accelerator_the_sockets_are_the_devices(name: str | None) -> None:
    system = described(accelerator_model_name=name, accelerators_per_node="0")

    assert (system.hardware_name, system.num_devices, system.problem) == ("CPU: AMD EPYC 7742", 4, None)


def test_neither_accelerator_nor_processor_is_a_problem() -> None:
    system = described(accelerator_model_name="N/A", host_processor_model_name="")

    assert system.problem is not None
    assert system.problem[0] == "no-accelerator"


def test_a_bare_tpu_gets_the_name_of_its_system() -> None:
    assert described(accelerator_model_name="TPU", system_name="tpu-v4-128").hardware_name == "TPU v4"
    assert described(accelerator_model_name="TPU", system_name="TPU v5p slice").hardware_name == "TPU v5p"
    assert read_system("tpu-v3-32", json.dumps(GPU_SYSTEM | {"accelerator_model_name": "TPU"}).encode()).hardware_name == "TPU v3"
    assert described(accelerator_model_name="TPU", system_name="a pod").hardware_name == "TPU (a pod)"
    assert described(accelerator_model_name="TPU", system_name=None).hardware_name == "TPU (folder)"
    assert described(accelerator_model_name="TPU-v5p").hardware_name == "TPU-v5p"


def test_a_byte_order_mark_a_trailing_comma_and_a_raw_line_break_are_read_over() -> None:
    text = json.dumps(GPU_SYSTEM | {"sw_notes": "a,}"})[:-1] + ',\n "hw_notes": "two\nlines", \n }'

    assert read_system("folder", b"\xef\xbb\xbf" + text.encode()) == described()


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff\xfe\x00", b"[1]", b'{"number_of_nodes": 1 "x"}'])
def test_what_does_not_parse_is_a_problem(raw: bytes) -> None:
    problem = read_system("folder", raw).problem

    assert problem is not None
    assert problem[0] == "bad-system-description"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("NVIDIA Merlin HugeCTR Release 23.04", [("hugectr", "23.04")]),
        ("PyTorch NVIDIA Release 23.04", [("pytorch", "23.04")]),
        ("NGC MXNet 22.04 , NGC TensorFlow 22.04-tf1", [("mxnet", "22.04"), ("tensorflow", "22.04-tf1")]),
        ("NVIDIA Release 23.04 MxNet, 23.09 pytorch", [("mxnet", "23.04"), ("pytorch", "23.09")]),
        ("NVIDIA Release 22.04 Tensorflow, MxNet", [("tensorflow", "22.04"), ("mxnet", "22.04")]),
        (
            "DGL, Merlin HugeCTR Release 25.03; PyTorch Release 25.04",
            [("dgl", "25.03"), ("hugectr", "25.03"), ("pytorch", "25.04")],
        ),
        ("TensorFlow 1.15 Poplar SDK 2.3.0", [("tensorflow", "1.15")]),
        ("PopART Poplar SDK 2.3.0", [("popart", "2.3.0")]),
        ("MXNet NGC21.04", [("mxnet", "21.04")]),
        ("Mindspore v1.2.1", [("mindspore", "1.2.1")]),
        ("PaddlePaddle (branch: develop, commitID: b2d8f6d)", [("paddlepaddle", None)]),
        ("tinygrad, branch mlperf_training_v5.0", [("tinygrad", None)]),
        ("maxtext", [("jax", None)]),
        ("NVIDIA NeMo Megatron Release 23.04", [("nemo", "23.04")]),
        ("CUDA 12.0", []),
        ("", []),
    ],
)
def test_frameworks_get_one_name_and_the_version_beside_them(text: str, found: list[tuple[str, str | None]]) -> None:
    assert find_frameworks(text) == [Framework(*each) for each in found]


def test_a_runs_framework_is_the_only_one_or_the_folders_or_the_usual_one() -> None:
    several = (Framework("mxnet", "22.04"), Framework("pytorch", "22.04"), Framework("pytorch", "21.09"))

    assert choose_framework((Framework("jax", None),), "tpu_pytorch", "bert") == Framework("jax", None)
    assert choose_framework(several, "dgxa100_ngc22.04_mxnet", "bert") == Framework("mxnet", "22.04")
    assert choose_framework(several, "dgxa100", "bert") == Framework("pytorch", None)  # which of two versions is not said
    assert choose_framework(several, "dgxa100", "dlrm") is None
    assert choose_framework((), "nf5688m6_pytorch", "bert") == Framework("pytorch", None)
    assert choose_framework((), "nf5688m6", "bert") is None


def test_a_release_in_the_folders_name_stands_in_for_a_version_that_is_not_said_and_never_for_another() -> None:
    unsaid, said = (Framework("pytorch", None),), (Framework("pytorch", "22.04"),)
    several = (Framework("pytorch", "23.09"), Framework("pytorch", "24.04"))

    assert choose_framework(unsaid, "nd96_n8_ngc21.09_pytorch", "bert") == Framework("pytorch", "21.09")
    assert choose_framework(unsaid, "gx_NGC_22.04", "bert") == Framework("pytorch", "22.04")
    assert choose_framework(said, "dgx_ngc22.09", "bert") == Framework("pytorch", "22.04")
    assert choose_framework(several, "eos_ngc24.04", "bert") == Framework("pytorch", "24.04")
    assert choose_framework(several, "eos_ngc24.09", "bert") == Framework("pytorch", None)


def test_versions_of_the_software_stack_are_found_in_what_submitters_write() -> None:
    as_text = "{'cuda_version': '11.6.2.010', 'cuda_driver_version': '510.47.03', 'nccl_version': 'v2.12.9', 'dali': '1.12'}"
    as_object = {"cuda_version": "12.4.1.003", "cudnn_version": "9.1.0.69", "cuda_driver_version": "550.54.15"}

    assert described(other_software_stack=as_text).software == {"cuda_version": "11.6", "nccl_version": "2.12"}
    assert described(other_software_stack=as_object).software == {"cuda_version": "12.4", "cudnn_version": "9.1"}
    assert described(other_software_stack="CUDA Driver Version: 470.57").software == {}
    assert described().software == {}


def test_a_description_in_the_lines_of_round_v06_is_read() -> None:
    entry = (
        "{'hardware': 'DGX-2H', 'framework': 'PyTorch NVIDIA Release 19.05', 'libraries': \"{'cuda_version': '10.1.163'}\", "
        "'nodes': \"{'num_nodes': '10', 'cpu': '2x Xeon 8174', 'accelerator': 'Tesla V100-SXM3-32GB-H', "
        "'num_accelerators': '16'}\"}"
    )
    lines = [f"{key}: {json.dumps({'value': value})}" for key, value in (("org", "Acme"), ("entry", entry))]

    system = read_system("dgx2h_n10", "\n".join(lines).encode())

    assert system == System(
        "Tesla V100-SXM3-32GB-H", 10, 160, (Framework("pytorch", "19.05"),), software={"cuda_version": "10.1"}
    )


def test_a_list_of_one_kind_of_node_is_read_and_current_names_win() -> None:
    nodes = [{"num_nodes": 32, "cpu": "Xeon 8260L", "accelerator": "NA", "num_accelerators": 0}]
    old = {"host_processors_per_node": "2", "nodes": nodes, "framework": "TensorFlow 1.13.1"}

    assert read_system("clx", json.dumps(old).encode()).hardware_name == "CPU: Xeon 8260L"
    assert read_system("clx", json.dumps(old).encode()).num_devices == 64
    assert described(nodes=nodes) == described()
