"""Children of the supervisor, as real small processes: none outlives it, and its end is orderly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from headrace.signals import Interrupted, interruptible, shielded
from headrace.supervisor import Child, ServiceDied, Supervisor, end_strays, session, started_at, wait_for

SLEEP = "import time; print('up', flush=True); time.sleep(60)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
WITH_CHILD = (
    "import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
    "print('child', p.pid, flush=True); time.sleep(60)"
)
SUPERVISOR = f"""
import sys, time
from pathlib import Path
from headrace.supervisor import Supervisor
from headrace.signals import Interrupted, interruptible
supervisor = Supervisor()
try:
    with interruptible():
        child = supervisor.start("one", [sys.executable, "-c", {SLEEP!r}], log=Path("one.log"), cwd=Path.cwd())
        print(child.pid, flush=True)
        time.sleep(60)
except Interrupted as told:
    alive = child.process.poll() is None
    supervisor.close()
    print(told, alive, child.process.returncode, flush=True)
"""


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    one = Supervisor()
    yield one
    one.close(1)


def start(supervisor: Supervisor, folder: Path, code: str, name: str = "one", **more: int) -> Child:
    return supervisor.start(name, [sys.executable, "-c", code], log=folder / f"{name}.log", cwd=folder, **more)


def is_up(child: Child) -> bool:
    return "up" in child.log_text()


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_child_that_ends_is_reported_with_its_code_and_the_end_of_its_log(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    (tmp_path / "one.log").write_text("of an earlier run\n")
    child = start(supervisor, tmp_path, "import sys; print('no disk left'); sys.exit(7)")
    child.process.wait(120)
    with pytest.raises(ServiceDied) as died:
        supervisor.check()
    assert (died.value.name, died.value.returncode, died.value.log_tail) == ("one", 7, "no disk left")
    assert "ended with code 7" in str(died.value)


def test_a_child_ended_by_a_signal_is_reported_by_the_name_of_the_signal(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    child = start(supervisor, tmp_path, SLEEP)
    os.kill(child.pid, signal.SIGKILL)
    child.process.wait(120)
    with pytest.raises(ServiceDied, match="one was ended by SIGKILL"):
        supervisor.check()


def test_living_children_pass_the_check(supervisor: Supervisor, tmp_path: Path) -> None:
    child = start(supervisor, tmp_path, SLEEP)
    assert wait_for(lambda: is_up(child), 120)
    supervisor.check()


def test_a_child_that_ignores_sigterm_is_killed_after_the_limit(supervisor: Supervisor, tmp_path: Path) -> None:
    child = start(supervisor, tmp_path, STUBBORN)
    assert wait_for(lambda: is_up(child), 120)
    supervisor.stop(["one"], 0.3)
    assert child.process.returncode == -signal.SIGKILL
    assert supervisor.children == {}


def test_a_child_that_obeys_sigterm_is_not_killed(supervisor: Supervisor, tmp_path: Path) -> None:
    child = start(supervisor, tmp_path, SLEEP)
    assert wait_for(lambda: is_up(child), 120)
    supervisor.stop(["one"], 120)
    assert child.process.returncode == -signal.SIGTERM


def test_what_a_child_leaves_in_its_session_goes_with_it(supervisor: Supervisor, tmp_path: Path) -> None:
    child = start(supervisor, tmp_path, WITH_CHILD)
    assert wait_for(lambda: child.log_text().endswith("\n"), 120)
    grandchild = int(child.log_text().split()[1])
    assert set(session(child.pid)) == {child.pid, grandchild}
    supervisor.stop(["one"], 5)
    assert gone(grandchild)
    assert session(child.pid) == []


def test_children_may_be_started_from_a_thread_that_ends(supervisor: Supervisor, tmp_path: Path) -> None:
    started: list[Child] = []
    thread = threading.Thread(target=lambda: started.append(start(supervisor, tmp_path, SLEEP)))
    thread.start()
    thread.join(120)
    assert wait_for(lambda: is_up(started[0]), 120)
    assert not wait_for(lambda: started[0].process.poll() is not None, 0.3)


def test_a_child_cannot_use_more_data_than_its_bound(supervisor: Supervisor, tmp_path: Path) -> None:
    child = start(supervisor, tmp_path, "bytearray(2 * 1024**3)", memory_bytes=1024**3)
    assert child.process.wait(120) == 1
    assert "MemoryError" in child.log_text()


def run_supervisor(folder: Path) -> tuple[subprocess.Popen[str], int]:
    """A supervisor with one child in a session of its own, as a terminal would start it."""
    process = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR], cwd=folder, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def test_a_supervisor_killed_by_sigkill_takes_its_children_along(tmp_path: Path) -> None:
    process, child = run_supervisor(tmp_path)
    assert not gone(child)
    process.kill()
    process.wait(120)
    assert wait_for(lambda: gone(child), 120)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGTERM])
def test_a_signal_to_the_group_reaches_the_supervisor_alone_and_it_stops_the_children(
    tmp_path: Path, number: signal.Signals
) -> None:
    process, child = run_supervisor(tmp_path)
    assert wait_for(lambda: (tmp_path / "one.log").read_text() == "up\n", 120)
    os.killpg(process.pid, number)
    said, _ = process.communicate(timeout=120)
    assert said.split() == [number.name, "True", str(-signal.SIGTERM)]
    assert gone(child)


def test_strays_of_an_earlier_supervisor_are_known_by_pid_and_start() -> None:
    stray = subprocess.Popen([sys.executable, "-c", SLEEP], stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        began = started_at(stray.pid)
        end_strays([(stray.pid, began - 100), (stray.pid, 0.0)])
        assert stray.poll() is None
        end_strays([(stray.pid, began)])
        assert stray.wait(120) == -signal.SIGKILL
        end_strays([(stray.pid, began)])
    finally:
        stray.kill()
        stray.wait()


def told_twice() -> None:
    with interruptible():
        with shielded():
            os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGHUP)
        time.sleep(10)


def test_nothing_interrupts_what_is_shielded() -> None:
    with pytest.raises(Interrupted, match="SIGHUP"):
        told_twice()
