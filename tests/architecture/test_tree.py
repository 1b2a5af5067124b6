"""The traps of this layout are not stepped into, and what the documents name is there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

Tree = dict[str, Path]

# Put together here so that this file does not name what it looks for.
_REGISTRIES = tuple(".".join(parts) for parts in (("pypi", "org"), ("python" + "hosted", "org"), ("npmjs", "org")))


def python_files(tree: Tree, *folders: str) -> Iterator[tuple[str, ast.Module]]:
    for name, path in tree.items():
        if name.endswith(".py") and name.startswith(tuple(f"{folder}/" for folder in folders)):
            yield name, ast.parse(path.read_text(encoding="utf-8"), filename=name)


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def test_the_folder_mlflow_holds_no_python(tree: Tree) -> None:
    # A module or package there is imported in place of the library.
    assert [name for name in tree if name.startswith("mlflow/") and name.endswith((".py", ".pyi"))] == []


def test_tests_are_no_packages(tree: Tree) -> None:
    # An __init__.py under tests/ makes tests/… packages that shadow assets and pipelines.
    assert [name for name in tree if name.startswith("tests/") and name.endswith("__init__.py")] == []


def test_dagster_can_read_annotations(tree: Tree) -> None:
    # Postponed annotations are strings when Dagster inspects a context or config parameter.
    postponed = [
        name
        for name, module in python_files(tree, "assets", "pipelines")
        if any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in ast.walk(module))
    ]
    assert postponed == []


def test_only_settings_reads_the_environment(tree: Tree) -> None:
    # `os.environ` handed on whole to a child process is not read here; taking a value out of it is.
    readers = {
        f"{name}:{node.lineno}"
        for name, module in python_files(tree, "leap", "assets", "pipelines")
        if name != "pipelines/settings.py"
        for node in ast.walk(module)
        if (isinstance(node, ast.Attribute | ast.Subscript) and ast.unparse(node.value) == "os.environ" and is_read(node))
        or (isinstance(node, ast.Call) and ast.unparse(node.func) == "os.getenv")
    }
    assert readers == set()


def is_read(node: ast.Attribute | ast.Subscript) -> bool:
    if isinstance(node, ast.Subscript):
        return isinstance(node.ctx, ast.Load)
    return node.attr in {"get", "items", "keys", "values"}


def test_no_file_names_a_registry(tree: Tree) -> None:
    # Every fleet has its own: where packages come from is the installer's setting, not the repository's.
    named = [name for name, path in tree.items() if any(host in read(path) for host in _REGISTRIES)]
    assert named == []


def test_the_readme_calls_commands_that_exist(tree: Tree) -> None:
    called = set(re.findall(r"\bmake ([a-z][a-z-]*)", read(tree["README.md"])))
    targets = set(re.findall(r"^([a-z][a-z-]*):", read(tree["Makefile"]), flags=re.MULTILINE))
    assert {"demo", "test"} <= called
    assert called <= targets


def test_documents_name_subcommands_that_exist(tree: Tree) -> None:
    subcommands = {Path(name).stem.replace("_", "-") for name in tree if name.startswith("pipelines/commands/")} - {"__init__"}
    for name in [name for name in tree if name.endswith(".md")]:
        code = re.findall(r"```.*?```|`[^`\n]+`", read(tree[name]), flags=re.DOTALL)
        named = set(re.findall(r"(?:^|[\s`/])leap ([a-z]+(?:-[a-z]+)*)", "\n".join(code)))
        assert named <= subcommands, name


@pytest.mark.parametrize("document", ["README.md", "CHANGELOG.md", "benchmarks/README.md", "mlflow/README.md"])
def test_documents_name_files_that_exist(tree: Tree, repository: Path, document: str) -> None:
    assert missing_paths(read(tree[document]), repository, tree[document].parent) == []


def test_pages_under_docs_name_files_that_exist(tree: Tree, repository: Path) -> None:
    pages = [name for name in tree if name.startswith("docs/") and name.endswith(".md")]
    missing = {name: missing_paths(read(tree[name]), repository, tree[name].parent) for name in pages}
    assert {name: paths for name, paths in missing.items() if paths} == {}


def missing_paths(text: str, repository: Path, folder: Path) -> list[str]:
    """List what `text` links to, or names in backquotes as a path of the repository, that is not there."""
    linked = {
        target for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text) if not re.match(r"[a-z][a-z0-9+.-]*:", target)
    }
    top = "|".join(("leap", "assets", "pipelines", "dbt_project", "mlflow", "tests", "benchmarks", "docs", r"\.ci"))
    named = set(re.findall(rf"`((?:{top})/[\w./-]*)`", text))
    return sorted(
        [target for target in linked if not (folder / target).exists()]
        + [path for path in named if not (repository / path).exists()]
    )


def test_ci_calls_the_test_command_of_the_readme(tree: Tree) -> None:
    commands = [line.split("#")[0].strip() for line in read(tree[".ci/run"]).splitlines()]
    assert commands[-1].startswith("make test")
