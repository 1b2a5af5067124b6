"""Files and folders that appear whole or not at all, and locks that the kernel frees.

What lives here: the few steps that homes, snapshots and datasets share, in the order that survives `kill -9` and loss of power:
write under another name, flush to disk, rename. What does not: what is written.

A name that starts with `.tmp-` is unfinished or on its way out; nobody reads it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_UNFINISHED = ".tmp-"


@contextmanager
def exclusive(lock: Path) -> Iterator[None]:
    """Hold an exclusive lock on the file `lock`, made if absent; wait while another process or thread holds it.

    The kernel frees the lock when its holder dies. Not re-entrant.
    """
    with lock.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def write_atomic(path: Path, data: bytes) -> None:
    """Put `data` at `path` on disk, so that a reader sees the old content or the new. Writers of one path must hold a lock."""
    unfinished = path.with_name(f"{_UNFINISHED}{path.name}")
    unfinished.write_bytes(data)
    flush(unfinished)
    unfinished.replace(path)
    flush(path.parent)


def copy_atomic(source: Path, target: Path, staging: Path) -> None:
    """Copy the file `source` to `target` by way of the folder `staging`, on the file system of `target`."""
    unfinished = staging / f"{_UNFINISHED}{target.name}"
    shutil.copyfile(source, unfinished)
    flush(unfinished)
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished.replace(target)
    flush(target.parent)
    flush(target.parent.parent)


@contextmanager
def staged_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder to fill; flush it to disk and rename it to `target` when the block ends without an error."""
    folder = target.with_name(f"{_UNFINISHED}{target.name}")
    folder.mkdir()
    try:
        yield folder
        flush_tree(folder)
        folder.rename(target)
        flush(target.parent)
    finally:
        # Gone under this name when all went well.
        shutil.rmtree(folder, ignore_errors=True)


def remove_folder(folder: Path) -> None:
    """Remove a finished folder: a reader finds it whole or not at all."""
    going = folder.with_name(f"{_UNFINISHED}gone-{folder.name}")
    folder.rename(going)
    shutil.rmtree(going)


def remove_unfinished(parent: Path) -> None:
    """Remove what a process that died left unfinished in `parent`. The caller holds the lock that its writers hold."""
    for path in parent.glob(f"{_UNFINISHED}*"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def finished(parent: Path) -> list[Path]:
    """List the finished folders in `parent`, by name; none where `parent` is absent."""
    if not parent.is_dir():
        return []
    return sorted(path for path in parent.iterdir() if path.is_dir() and not path.name.startswith("."))


def files_below(folder: Path) -> list[Path]:
    """List the files in `folder` and its folders, by path."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def flush(path: Path) -> None:
    """Wait until the content of a file, or the names in a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_tree(folder: Path) -> None:
    """Flush every file and folder below `folder`, and `folder` itself."""
    for path in sorted(folder.rglob("*"), reverse=True):
        flush(path)
    flush(folder)
