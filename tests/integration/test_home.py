"""A home is made once, by however many processes, and its night lock has one holder that dies with its process."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from dagster import DagsterInstance

from leap.store.control import Control
from leap.store.home import LAYOUT_VERSION, Home, HomeError, NightIsRunning, init_home, night_lock

Start = Callable[..., "subprocess.Popen[str]"]

# Waits until the file `go` is there, so that all processes start at once; the step fails if two run it.
_INIT = """
import sys, time
from pathlib import Path
from leap.store.home import Home, init_home

def step(home):
    (home.work / "busy").mkdir()
    with (home.work / "steps.txt").open("a") as file:
        file.write("ran\\n")
    time.sleep(0.2)
    (home.work / "busy").rmdir()

root, go = map(Path, sys.argv[1:])
print("ready", flush=True)
while not go.exists():
    time.sleep(0.001)
init_home(Home(root), prepare=[step], fingerprint="one")
"""

# Holds the night lock until it is killed; `child` says what it starts meanwhile.
_HOLD = """
import os, subprocess, sys, time
from pathlib import Path
from leap.store.home import Home, night_lock

root, child = sys.argv[1:]
with night_lock(Home(Path(root)), owner="leap nightly"):
    pid = 0
    if child == "subprocess":
        pid = subprocess.Popen(["sleep", "60"]).pid
    if child == "fork":
        here, there = os.pipe()
        pid = os.fork()
        if not pid:
            os.write(there, b".")  # it has begun to run, and so has let go of the lock
            time.sleep(60)
            os._exit(0)
        os.read(here, 1)
    print(pid, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def start(repository: Path) -> Iterator[Start]:
    """Start a Python program in a process of its own, which is gone after the test."""
    processes: list[subprocess.Popen[str]] = []

    def begin(program: str, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", program, *map(str, arguments)]
        processes.append(subprocess.Popen(command, cwd=repository, stdout=subprocess.PIPE, text=True))
        return processes[-1]

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    init_home(home, prepare=[], fingerprint="one")
    return home


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def is_free(home: Home) -> bool:
    """Tell whether another holder could take the night lock now."""
    with home.night_lock_file.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_a_new_home_has_every_folder_and_is_its_owners_alone(tmp_path: Path) -> None:
    home = Home(tmp_path / "new" / "home")
    seen: list[bool] = []

    init_home(home, prepare=[lambda made: seen.append(made.control.is_file())], fingerprint="one")

    assert stat.S_IMODE(home.root.stat().st_mode) == 0o700
    assert all(folder.is_dir() for folder in home.folders)
    assert Control(home.control).runs() == []
    assert seen == [True]
    assert json.loads(home.stamp.read_text()) == {"layout_version": LAYOUT_VERSION, "fingerprint": "one"}


def test_the_folder_that_a_person_made_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    init_home(Home(tmp_path), prepare=[], fingerprint="one")
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_dagster_takes_the_settings(home: Home) -> None:
    with DagsterInstance.from_config(str(home.dagster)) as instance:
        assert not instance.telemetry_enabled
        assert not instance.nux_enabled
        queue = instance.get_concurrency_config().run_queue_config
        assert queue is not None
        assert queue.max_concurrent_runs == 1
        assert instance.get_concurrency_config().pool_config.default_pool_limit == 1
        assert instance.run_monitoring_enabled
        assert instance.run_monitoring_max_runtime_seconds == 6 * 3600
        assert instance.get_runs() == []
    assert list(home.dagster.rglob("*.db"))
    assert str(home.root) not in home.dagster_config.read_text()


def test_steps_run_again_only_for_another_fingerprint(home: Home) -> None:
    ran: list[Home] = []
    counts = []

    for fingerprint in ("one", "two", "two", "one"):
        init_home(home, prepare=[ran.append], fingerprint=fingerprint)
        counts.append(len(ran))

    assert counts == [0, 1, 1, 2]


def test_what_a_person_changed_stays(home: Home) -> None:
    home.dagster_config.write_text("telemetry: {enabled: false}\n")
    Control(home.control)
    init_home(home, prepare=[], fingerprint="two")
    assert home.dagster_config.read_text() == "telemetry: {enabled: false}\n"


def test_what_was_removed_is_made_again(home: Home) -> None:
    shutil.rmtree(home.dbt_target)
    home.control.unlink()
    ran: list[Home] = []

    init_home(home, prepare=[ran.append], fingerprint="one")

    assert home.dbt_target.is_dir()
    assert home.control.is_file()
    assert ran == [home]


def test_a_step_that_fails_runs_again(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    ran: list[Home] = []

    def fail(_: Home) -> None:
        raise OSError("dbt is not there")

    with pytest.raises(OSError, match="dbt is not there"):
        init_home(home, prepare=[fail], fingerprint="one")
    init_home(home, prepare=[ran.append], fingerprint="one")

    assert ran == [home]


@pytest.mark.parametrize("count", [2, 8])
def test_processes_that_start_at_once_make_one_home(start: Start, tmp_path: Path, count: int) -> None:
    root, go = tmp_path / "home", tmp_path / "go"
    processes = [start(_INIT, root, go) for _ in range(count)]
    assert [first_line(process) for process in processes] == ["ready"] * count

    go.touch()

    assert [process.wait(30) for process in processes] == [0] * count
    assert (root / "work" / "steps.txt").read_text() == "ran\n"
    assert list(root.rglob(".tmp-*")) == []


def test_a_start_that_was_killed_is_taken_up_again(start: Start, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    program = _INIT.replace("time.sleep(0.2)", "print('in step', flush=True); time.sleep(60)")
    (tmp_path / "go").touch()
    process = start(program, home.root, tmp_path / "go")
    assert [first_line(process), first_line(process)] == ["ready", "in step"]
    process.kill()
    process.wait()

    ran: list[Home] = []
    init_home(home, prepare=[ran.append], fingerprint="one")

    assert ran == [home]


def test_a_file_in_place_of_the_home_is_named(tmp_path: Path) -> None:
    file = tmp_path / "home"
    file.write_text("not a folder")
    for root in (file, file / "below"):
        with pytest.raises(HomeError, match=rf"^{file} is a file where the home {root} needs a folder; set LEAP_HOME"):
            init_home(Home(root), prepare=[], fingerprint="one")
    assert file.read_text() == "not a folder"


def test_a_home_that_may_not_be_written_is_named() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o555)
        home = Home(Path(folder) / "home")
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            # Root may write anywhere: become nobody.
            if os.geteuid() == 0:
                os.setuid(65534)
            try:
                init_home(home, prepare=[], fingerprint="one")
            except HomeError as error:
                os.write(writing, str(error).encode())
            os._exit(0)
        os.waitpid(child, 0)
        message = os.read(reading, 4096).decode()
        os.close(reading)
        os.close(writing)
    assert message.startswith(f"the home {home.root} cannot be made: Permission denied")
    assert message.endswith("set LEAP_HOME to a folder that you may write")


def test_a_home_of_a_newer_leap_is_left_alone(home: Home) -> None:
    home.stamp.write_text(json.dumps({"layout_version": LAYOUT_VERSION + 1, "fingerprint": "one", "more": 1}))
    with pytest.raises(HomeError, match=rf"layout is {LAYOUT_VERSION + 1}, this LEAP knows layouts up to {LAYOUT_VERSION}"):
        init_home(home, prepare=[], fingerprint="one")


def test_a_damaged_stamp_is_written_again(home: Home) -> None:
    home.stamp.write_bytes(b"{")
    init_home(home, prepare=[], fingerprint="one")
    assert json.loads(home.stamp.read_text())["fingerprint"] == "one"


def test_a_second_process_is_refused_and_told_by_whom(start: Start, home: Home) -> None:
    holder = start(_HOLD, home.root, "none")
    first_line(holder)

    with pytest.raises(NightIsRunning) as refusal, night_lock(home, owner="schedule"):
        pytest.fail("two nights at once")

    message = str(refusal.value)
    assert f"leap nightly, process {holder.pid} on " in message
    assert ", since 20" in message
    assert f"end it with `kill {holder.pid}`" in message


@pytest.mark.parametrize("child", ["none", "subprocess", "fork"])
def test_a_killed_holder_frees_the_lock_even_if_its_children_live(start: Start, home: Home, child: str) -> None:
    holder = start(_HOLD, home.root, child)
    orphan = int(first_line(holder))
    assert not is_free(home)
    holder.kill()
    holder.wait()

    try:
        with night_lock(home, owner="the next night"):
            assert json.loads(home.night_lock_file.read_text())["owner"] == "the next night"
            if orphan:
                os.kill(orphan, 0)  # it lives
    finally:
        if orphan:
            os.kill(orphan, signal.SIGKILL)


def test_the_lock_can_be_taken_again_in_its_process(home: Home) -> None:
    with night_lock(home, owner="the command"):
        with night_lock(home, owner="the resource"):
            assert not is_free(home)
        assert not is_free(home)
        assert json.loads(home.night_lock_file.read_text())["owner"] == "the command"
    assert is_free(home)
    assert home.night_lock_file.read_text() == ""


def test_an_error_frees_the_lock(home: Home) -> None:
    with pytest.raises(ZeroDivisionError), night_lock(home, owner="a night"):
        raise ZeroDivisionError
    assert is_free(home)


def test_threads_share_the_lock_and_the_last_frees_it(home: Home) -> None:
    inside, leave = threading.Barrier(9), threading.Event()

    def hold() -> None:
        with night_lock(home, owner="a thread"):
            inside.wait(10)
            leave.wait(10)

    threads = [threading.Thread(target=hold) for _ in range(8)]
    for thread in threads:
        thread.start()
    inside.wait(10)
    assert not is_free(home)
    leave.set()
    for thread in threads:
        thread.join()
    assert is_free(home)


def test_a_forked_child_is_another_process(home: Home) -> None:
    with night_lock(home, owner="the parent"):
        child = os.fork()
        if child == 0:
            try:
                with night_lock(home, owner="the child"):
                    os._exit(0)
            except NightIsRunning:
                os._exit(7)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 7
        assert not is_free(home)


def test_a_lock_without_a_home_says_so(tmp_path: Path) -> None:
    with pytest.raises(HomeError, match="`leap init` makes the home"), night_lock(Home(tmp_path / "none"), owner="a night"):
        pytest.fail("a lock without a home")
