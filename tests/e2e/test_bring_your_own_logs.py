"""The guide to one's own logs does what it says, command by command."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_guide_works_as_written(repository: Path, tmp_path: Path) -> None:
    guide = (repository / "docs" / "bring-your-own-logs.md").read_text(encoding="utf-8")
    blocks = {kind: re.findall(rf"```{kind}\n(.*?)```", guide, re.DOTALL) for kind in ("csv", "yaml", "bash")}
    (tmp_path / "export.csv").write_text(blocks["csv"][0], encoding="utf-8")
    environment = os.environ | {
        "LEAP_HOME": str(tmp_path / "home"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }

    def run(line: str) -> str:
        command, _, target = line.partition(" > ")
        done = subprocess.run(shlex.split(command), env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (line, done.stderr)
        if target:
            (tmp_path / target).write_text(done.stdout, encoding="utf-8")
        return done.stdout

    commands = [line for block in blocks["bash"] for line in block.splitlines() if line.startswith("leap ingest")]
    assert len(commands) == 3
    run(commands[0])
    proposed = (tmp_path / "mapping.yaml").read_text(encoding="utf-8")
    assert "throughput: no column found" in proposed
    assert "timezone: UTC   # assumed" in proposed
    (tmp_path / "mapping.yaml").write_text(blocks["yaml"][0], encoding="utf-8")
    shown, loaded, again = run(commands[1]), run(commands[2]), run(f"{commands[2]} --json")
    assert "read 3 = would keep 2 + quarantine 1" in shown
    assert "is not after started_at" in shown
    assert re.search(r"export\.csv\s*│\s*3\s*│\s*2\s*│\s*1\s*│\s*0", loaded)
    assert '"duplicates": 3' in again
