"""The system descriptions of MLPerf Training results: which accelerator, how many, with which framework.

What lives here: reading one `systems/<system>.json`, and choosing a run's framework among those it names. What does not: which
hardware type a spelling is (`leap.hardware`), files (`mlperf.py`).
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from leap.sources.mlperf_log import as_number, as_text

_MOST_DEVICES: Final = 10_000_000
_LONGEST_LITERAL: Final = 100_000
_NO_ACCELERATOR: Final = frozenset({"", "-", "0", "n/a", "na", "none", "null"})

# A comma before a closing bracket, outside of strings: the one slip that can be mended without guessing.
_TRAILING_COMMA = re.compile(r'("(?:\\.|[^"\\])*")|,(?=\s*[}\]])')

_FRAMEWORKS: Final = {
    "dgl": re.compile(r"\bdgl\b", re.IGNORECASE),
    "hugectr": re.compile(r"hugectr", re.IGNORECASE),
    "jax": re.compile(r"\b(?:jax|lingvo-jax|maxtext|maxdiffusion|pax)\b", re.IGNORECASE),
    "llmboost": re.compile(r"llmboost", re.IGNORECASE),
    "mindspore": re.compile(r"mindspore", re.IGNORECASE),
    "mxnet": re.compile(r"mxnet", re.IGNORECASE),
    "nemo": re.compile(r"nemo\b", re.IGNORECASE),
    "paddlepaddle": re.compile(r"paddle", re.IGNORECASE),
    "popart": re.compile(r"popart", re.IGNORECASE),
    "pytorch": re.compile(r"torch", re.IGNORECASE),
    "tensorflow": re.compile(r"tensorflow|lingvo-tf\b", re.IGNORECASE),
    "tinygrad": re.compile(r"tinygrad", re.IGNORECASE),
}
# What a submission brings with it in its container; the driver belongs to the machine.
_SOFTWARE: Final = {
    f"{name}_version": re.compile(name + r"""(?:_version)?['"]*\s*[:=]\s*['"]*v?(\d+(?:\.\d+)+)""", re.IGNORECASE)
    for name in ("cuda", "cudnn", "nccl")
}
_RELEASE_IN_FOLDER = re.compile(r"(?<![a-z0-9])ngc[-_]?(\d\d\.\d\d)(?!\d)", re.IGNORECASE)
_TPU_GENERATION = re.compile(r"(?<![a-z0-9])tpu[-_ ]?(v\d+[a-z]?)(?![a-z0-9])", re.IGNORECASE)
_OLD_LINE = re.compile(r"^\s*(\w+)\s*:\s*(\{.*\})\s*$", re.MULTILINE)

_VERSION = re.compile(r"(?<![\w.])(?:NGC|v)?(\d+\.\d[\w.+-]*|\d{8})", re.IGNORECASE)

# The framework of the vendors' published code for a benchmark, where a system names several; first one named wins.
_USUAL_FRAMEWORKS: Final = {
    "bert": ("pytorch",),
    "dlrm": ("hugectr",),
    "dlrm_dcnv2": ("hugectr",),
    "gpt3": ("nemo", "pytorch"),
    "llama2_70b_lora": ("nemo", "pytorch"),
    "llama31_405b": ("nemo", "pytorch"),
    "maskrcnn": ("pytorch",),
    "minigo": ("tensorflow",),
    "resnet": ("mxnet",),
    "retinanet": ("pytorch",),
    "rgat": ("dgl", "pytorch"),
    "rnnt": ("pytorch",),
    "ssd": ("mxnet", "pytorch"),
    "stable_diffusion": ("nemo", "pytorch"),
    "unet3d": ("mxnet",),
}


class Framework(NamedTuple):
    """A framework under its one name, and its version or release where that is said."""

    name: str
    version: str | None


class System(NamedTuple):
    """What a run's system is. ``problem`` is (reason, sentence) where hardware or device count cannot be told from it."""

    hardware_name: str | None = None
    num_nodes: int | None = None
    num_devices: int | None = None
    frameworks: tuple[Framework, ...] = ()
    problem: tuple[str, str] | None = None
    software: Mapping[str, str] = MappingProxyType({})


def read_system(folder: str, raw: bytes) -> System:
    """Read a system description; `folder` is the name that results give the system.

    ``hardware_name`` is the accelerator as spelled; `TPU` alone, which is no type, becomes `TPU v4` where the system's name has
    the generation, and else has that name in brackets; a system without accelerator is ``CPU: <processor>`` and its devices are
    the sockets. ``software`` has the versions of CUDA, cuDNN and NCCL where they are said. Round v0.6 has other names for the
    same, some as lines of its log format; both are read. Never raises on content.
    """
    try:
        described = _parse(raw.decode("utf-8-sig", "replace"))
    except (ValueError, RecursionError) as error:
        return System(problem=("bad-system-description", f"the system description does not parse: {error}"))
    if not isinstance(described, dict):
        return System(problem=("bad-system-description", "the system description is no JSON object"))
    described = _with_current_names(described)
    texts = {key: as_text(value).strip() for key, value in described.items() if value is not None}
    frameworks = tuple(find_frameworks(texts.get("framework", "")) or find_frameworks(texts.get("framework_name", "")))
    software = _find_software(texts)
    nodes = _count(described.get("number_of_nodes"))
    name, per_node = texts.get("accelerator_model_name", ""), _count(described.get("accelerators_per_node"))
    if name.casefold() in _NO_ACCELERATOR:
        processor = texts.get("host_processor_model_name", "")
        if processor.casefold() in _NO_ACCELERATOR:
            sentence = "the system description names no accelerator and no host processor"
            return System(frameworks=frameworks, num_nodes=nodes, problem=("no-accelerator", sentence), software=software)
        name, per_node = f"CPU: {processor}", _count(described.get("host_processors_per_node"))
    elif name.casefold() == "tpu":
        name = _tpu_name(name, texts.get("system_name", ""), folder)
    if nodes is None or per_node is None or nodes * per_node > _MOST_DEVICES:
        counts = {key: described.get(key) for key in ("number_of_nodes", "accelerators_per_node", "host_processors_per_node")}
        sentence = f"the system description gives no usable device count: {json.dumps(counts, default=str)}"
        return System(name, nodes, None, frameworks, ("no-device-count", sentence), software)
    return System(name, nodes, nodes * per_node, frameworks, software=software)


def find_frameworks(text: str) -> list[Framework]:
    """Return the frameworks that `text` names, each with the version beside it.

    A list may share one version, before it ("Release 23.04 MxNet, PyTorch") or behind it ("DGL, HugeCTR Release 25.03").
    """
    found: list[Framework] = []
    for group in text.split(";"):
        pieces = [piece for piece in re.split(r"[,/]|\bor\b|\band\b", group) if piece.strip()]
        versions = [match[1] if (match := _VERSION.search(piece)) else None for piece in pieces]
        shared_before = bool(versions and versions[0])
        for at, piece in enumerate(pieces):
            nearest = versions[at::-1] if shared_before else versions[at:] + versions[:at][::-1]
            version = next((each for each in nearest if each), None)
            found.extend(Framework(name, version) for name in _named_in(piece))
    return found


def choose_framework(frameworks: tuple[Framework, ...], folder: str, model: str) -> Framework | None:
    """Return the framework of a run of `model` on the system in `folder`, or None where it cannot be told.

    The only one named; else the one in the folder's name (`..._mxnet`); else the usual one of the benchmark. A version is kept
    where all that is said of that framework agrees; where none or several are said, a release in the folder's name (`ngc22.09`)
    is taken if it is not another.
    """
    named = {framework.name for framework in frameworks}
    in_folder = set(_named_in(folder.replace("_", " ")))
    fitting = in_folder & named if named else in_folder
    if len(named) == 1:
        (name,) = named
    elif len(fitting) == 1:
        (name,) = fitting
    else:
        usual = [each for each in _USUAL_FRAMEWORKS.get(model, ()) if each in named]
        if not usual:
            return None
        name = usual[0]
    versions = {framework.version for framework in frameworks if framework.name == name}
    if len(versions) == 1 and None not in versions:
        return Framework(name, versions.pop())
    release = _RELEASE_IN_FOLDER.search(folder)
    known = versions - {None}
    return Framework(name, release[1] if release is not None and (not known or release[1] in known) else None)


def _named_in(text: str) -> Iterator[str]:
    return (name for name, pattern in _FRAMEWORKS.items() if pattern.search(text))


def _tpu_name(name: str, system_name: str, folder: str) -> str:
    generations = {match[1].casefold() for text in (system_name, folder) if (match := _TPU_GENERATION.search(text))}
    return f"{name} {generations.pop()}" if len(generations) == 1 else f"{name} ({system_name or folder})"


def _find_software(texts: dict[str, str]) -> dict[str, str]:
    """Return the versions that are said, to their second number: what comes after it says nothing of speed."""
    text = "; ".join(f"{key}: {texts[key]}" for key in ("other_software_stack", "libraries", "framework") if key in texts)
    found = {name: match[1] for name, pattern in _SOFTWARE.items() if (match := pattern.search(text))}
    return {name: ".".join(version.split(".")[:2]) for name, version in found.items()}


def _with_current_names(described: dict[str, object]) -> dict[str, object]:
    """Add what round v0.6 says by other names: `entry` and `nodes`, which some wrote as text."""
    entry = _literal(described.get("entry"))
    flat = {**(entry if isinstance(entry, dict) else {}), **described}
    nodes = _literal(flat.get("nodes"))
    node = nodes[0] if isinstance(nodes, list) and len(nodes) == 1 else nodes
    if not isinstance(node, dict):
        return flat
    old = {
        "number_of_nodes": node.get("num_nodes"),
        "accelerators_per_node": node.get("num_accelerators"),
        "accelerator_model_name": node.get("accelerator"),
        "host_processor_model_name": node.get("cpu"),
    }
    return {**{key: value for key, value in old.items() if value is not None}, **flat}


def _literal(value: object) -> object:
    """Return what a text spells as Python wrote it, or the value itself."""
    if not isinstance(value, str) or len(value) > _LONGEST_LITERAL:
        return value
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return value


def _parse(text: str) -> object:
    try:
        return json.loads(text, strict=False)
    except ValueError:
        if old := _parse_old(text):
            return old
        return json.loads(_TRAILING_COMMA.sub(lambda match: match[1] or "", text), strict=False)


def _parse_old(text: str) -> dict[str, object]:
    """Read a description of round v0.6 that is lines of its log: `entry: {"value": "{'hardware': ...}", "metadata": {...}}`."""
    records = {match[1]: json.loads(match[2], strict=False) for match in _OLD_LINE.finditer(text)}
    return {key: record["value"] for key, record in records.items() if isinstance(record, dict) and "value" in record}


def _count(value: object) -> int | None:
    """Return a whole number above 0, also where it is spelled as text or as 8.0; else None."""
    number = as_number(value)
    return int(number) if number is not None and number == int(number) and 0 < number <= _MOST_DEVICES else None
