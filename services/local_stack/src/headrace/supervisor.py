"""Child processes that never outlive their supervisor.

Theory: each child is the leader of a session of its own, so Ctrl-C in the terminal and the terminal's death reach the
supervisor alone, and it stops the children in order. What a child leaves behind in its session is killed after it. If
the supervisor itself is killed, the kernel kills the children (PR_SET_PDEATHSIG); that signal comes when the *thread*
that started them ends, so one thread, which lives until the end of `close`, starts them all. A child whose supervisor
died before it could ask for that signal sees another parent and ends itself. Where the kernel knows no such signal,
the next start kills what the record of the last one still names (`end_strays`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil

from headrace import child_exec
from headrace_core.errors import HeadraceError

TAIL_BYTES = 3000
POLL_S = 0.05


class ServiceDied(HeadraceError):
    """A service ended by itself. `returncode` is negative for a signal; `log_tail` is the end of its log."""

    code = "service_died"

    def __init__(self, name: str, returncode: int, log_tail: str) -> None:
        how = f"was ended by {_signal_name(-returncode)}" if returncode < 0 else f"ended with code {returncode}"
        super().__init__(f"{name} {how}; the end of its log:\n{log_tail}")
        self.name, self.returncode, self.log_tail = name, returncode, log_tail


@dataclass
class Child:
    """A started process. `log_start` is where its part of the log file begins, in bytes."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    log_start: int

    @property
    def pid(self) -> int:
        """Its process id, also the id of its session."""
        return self.process.pid

    def ended(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs. It is not reaped where the system can tell without,
        so that its number stays its own until what it left in its session is gone."""
        if self.process.returncode is not None or not hasattr(os, "waitid"):
            return self.process.poll()
        found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    def log_text(self) -> str:
        """What it has written since its start."""
        with self.log.open("rb") as file:
            file.seek(self.log_start)
            return file.read().decode(errors="replace")


class Supervisor:
    """Starts, watches and ends children. Methods may be called from any thread."""

    def __init__(self) -> None:
        self.children: dict[str, Child] = {}
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="starter")

    def start(
        self, name: str, argv: Sequence[str], *, log: Path, cwd: Path, env: Mapping[str, str] | None = None,
        memory_bytes: int | None = None,
    ) -> Child:  # fmt: skip
        """Start a process whose output goes to the end of `log`. `memory_bytes` bounds its data. Raises OSError."""
        return self._starter.submit(self._start, name, argv, log, cwd, env, memory_bytes).result()

    def _start(
        self, name: str, argv: Sequence[str], log: Path, cwd: Path, env: Mapping[str, str] | None, memory: int | None
    ) -> Child:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            process = subprocess.Popen(
                child_exec.command(argv, memory_bytes=memory), stdout=file, stderr=file, stdin=subprocess.DEVNULL,
                cwd=cwd, env=env, start_new_session=True,
            )  # fmt: skip
            self.children[name] = Child(name, process, log, file.tell())
        return self.children[name]

    def check(self) -> None:
        """Raise ServiceDied for the first child that ended by itself."""
        for child in list(self.children.values()):
            code = child.ended()
            if code is not None:
                raise ServiceDied(child.name, code, tail(child))

    def stop(self, names: Iterable[str], limit_s: float) -> None:
        """SIGTERM to these children at once, SIGKILL after `limit_s`; then whatever is left of their sessions."""
        self._starter.submit(lambda: None).result()  # a start under way comes to its end first
        children = [self.children[name] for name in names if name in self.children]
        for child in children:
            if child.ended() is None:
                child.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + limit_s
        for child in children:
            while child.ended() is None and time.monotonic() < deadline:
                time.sleep(POLL_S)
            kill_session(child.pid)
            child.process.wait()
            self.children.pop(child.name, None)

    def close(self, limit_s: float = 5) -> None:
        """End all children that are left. Nothing can be started afterwards."""
        self.stop(list(self.children), limit_s)
        self._starter.shutdown()


def tail(child: Child) -> str:
    """The end of what the child wrote since its start."""
    return child.log_text()[-TAIL_BYTES:].strip() or "(empty)"


def kill_session(leader: int) -> None:
    """SIGKILL to every process of the leader's session, until none is left."""
    for _ in range(100):
        members = session(leader)
        for pid in members:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not members:
            return
        time.sleep(0.02)


def session(leader: int) -> list[int]:
    """Living processes of a session. One that has ended and waits for its parent does not count."""
    found = []
    for process in psutil.process_iter(["pid", "status"]):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if process.info["status"] != psutil.STATUS_ZOMBIE and os.getsid(process.pid) == leader:
                found.append(process.pid)
    return found


def started_at(pid: int) -> float:
    """When the process began (s since the epoch), 0 if there is none: with the pid, what a process is known by."""
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).create_time()
    return 0.0


def end_strays(known: Iterable[tuple[int, float]]) -> None:
    """Kill what an earlier supervisor left: (pid, `started_at`) of its children, and the rest of their sessions.

    A session whose leader is gone is left alone: its number may be that of another by now.
    """
    for pid, began in known:
        if began and abs(started_at(pid) - began) < 1.0:
            kill_session(pid)


def wait_for(condition: Callable[[], bool], limit_s: float, every_s: float = POLL_S) -> bool:
    """Whether the condition came true within `limit_s`."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(every_s)
    return True


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
