"""New content among files: once per content, whatever the file is called, and never half a file."""

from __future__ import annotations

import os
from pathlib import Path

from leap.store.landing import SETTLED_SECONDS, Seen, from_text, look, to_text

NOW = 2_000_000_000.0


def land(folder: Path, name: str, content: str, at: float = NOW - 1000) -> Path:
    path = folder / name
    path.write_text(content)
    os.utime(path, (at, at))
    return path


class Watch:
    """Looks again and again, as the sensor does: what it remembers goes through its cursor."""

    def __init__(self, *sources: tuple[str, Path]) -> None:
        self.sources, self.cursor = sources, None

    def look(self, now: float = NOW) -> list[tuple[str, str]]:
        before, contents = from_text(self.cursor)
        new, remembered = look(self.sources, before, contents, now)
        self.cursor = to_text(remembered, contents | {landed.content for landed in new})
        return [(landed.kind, landed.path.name) for landed in new]


def test_a_content_is_taken_once_whatever_its_file_is_called(tmp_path: Path) -> None:
    watch = Watch(("jsonl", tmp_path))
    land(tmp_path, "b.jsonl", "2")
    land(tmp_path, "a.jsonl", "1")
    assert watch.look() == [("jsonl", "a.jsonl"), ("jsonl", "b.jsonl")]
    assert watch.look() == []

    land(tmp_path, "a copy.jsonl", "1")
    (tmp_path / "b.jsonl").rename(tmp_path / "c.jsonl")
    assert watch.look() == []
    # also when the file has gone, and when two copies come at once
    (tmp_path / "c.jsonl").unlink()
    assert watch.look() == []
    land(tmp_path, "back.jsonl", "2")
    land(tmp_path, "new.jsonl", "3")
    land(tmp_path, "new again.jsonl", "3")
    assert watch.look() == [("jsonl", "new again.jsonl")]


def test_a_file_that_grew_or_was_mended_is_taken_again(tmp_path: Path) -> None:
    watch = Watch(("jsonl", tmp_path))
    land(tmp_path, "a.jsonl", "1")
    watch.look()
    land(tmp_path, "a.jsonl", "1 2", at=NOW - 500)
    assert watch.look() == [("jsonl", "a.jsonl")]


def test_a_file_that_is_still_written_to_waits(tmp_path: Path) -> None:
    watch = Watch(("jsonl", tmp_path))
    land(tmp_path, "a.jsonl", "1", at=NOW - 1)
    land(tmp_path, ".b.jsonl", "2")
    land(tmp_path, "c.jsonl.part", "3")
    land(tmp_path, "notes.txt", "4")
    (tmp_path / "d.jsonl").mkdir()
    assert watch.look() == []
    assert watch.look(NOW + SETTLED_SECONDS) == [("jsonl", "a.jsonl")]


def test_sources_may_be_files_and_folders_and_absent(tmp_path: Path) -> None:
    (tmp_path / "archives").mkdir()
    land(tmp_path / "archives", "round.tar.xz", "1")
    land(tmp_path / "archives", "README", "2")
    one = land(tmp_path, "one.jsonl", "3")
    watch = Watch(("mlperf", tmp_path / "archives"), ("jsonl", one), ("jsonl", tmp_path / "absent"))
    assert watch.look() == [("mlperf", "round.tar.xz"), ("jsonl", "one.jsonl")]


def test_a_file_that_is_as_it_was_is_not_read(tmp_path: Path) -> None:
    path = land(tmp_path, "a.jsonl", "1")
    stat = path.stat()
    before = {str(path): Seen(stat.st_size, stat.st_mtime_ns, "as remembered")}

    _, remembered = look([("jsonl", tmp_path)], before, {"as remembered"}, NOW)

    assert remembered == before
