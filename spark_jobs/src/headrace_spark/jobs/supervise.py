"""`python -m headrace_spark.jobs.supervise -- COMMAND...`: start the writer again where that can help.

Theory (spark-writer.md 10 and 12): exit code 1 (a failure) and 6 (the sink was down) can be gone at the next start, so
the command is started again, after pauses that double up to a bound and begin anew once it has run for longer than
that. A death by a signal, or 128 + its number as a shell and spark-submit say it, tells of no cause and is a failure
too. All other codes need a person: the supervisor ends with them.

SIGTERM and SIGINT must reach the driver's Python, which finishes the micro-batch, and not spark-submit's JVM, which
would just end. So the command has a session of its own, the writer tells its pid in the file that
`HEADRACE_WRITER_PID_FILE` names, and the signal goes there.

Where something else starts the writer again, as a Job of Kubernetes does, `--once` leaves only the signals to this
process: two that start again would not know of each other, and a probe of the writer's port fails in a pause. A Job
takes exit code 0 for done and never starts it again, but a probe that failed or a node that is emptied stops a pod by
SIGTERM, upon which the writer ends with 0. So with `--once` a stop ends with 143 instead, the code of SIGTERM.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Final

import structlog

from headrace_spark import exits
from headrace_spark.jobs import logs
from headrace_spark.metrics import RESTARTS

PID_FILE: Final = "HEADRACE_WRITER_PID_FILE"
STOPPED: Final = 128 + signal.SIGTERM
_AGAIN: Final = frozenset({exits.FAILURE, exits.SINK_DOWN})
_POLL_S: Final = 0.2
_log = structlog.get_logger("headrace_spark")


def again(code: int) -> bool:
    """Whether to start the writer again after this exit code; below 0 it is a signal, as `subprocess` says it."""
    return code in _AGAIN or code < 0 or code > 128


class Backoff:
    """Pauses in seconds: `first`, doubled each time up to `longest`; anew after a run that was longer than that."""

    def __init__(self, first: float, longest: float) -> None:
        self._first, self._longest = first, longest
        self._next = first

    def after(self, ran: float) -> float:
        """The pause after a run of `ran` seconds."""
        if ran > self._longest:
            self._next = self._first
        pause, self._next = self._next, min(self._next * 2, self._longest)
        return min(pause, self._longest)


class Supervisor:
    """Runs `command` until it ends for good or `stop` is set; `pid_file` is where the writer tells its pid. `once`:
    until it ends, however; see above."""

    def __init__(self, command: Sequence[str], pid_file: Path, backoff: Backoff, *, once: bool = False) -> None:
        self._command, self._pid_file, self._backoff, self._one = list(command), pid_file, backoff, once
        self._restarts = 0
        self.stop = threading.Event()

    def run(self) -> int:
        """The exit code of the last run; 0 if told to stop between two, and what `once` says. Raises OSError if the
        command cannot be started."""
        while not self.stop.is_set():
            began = time.monotonic()
            code = self._once()
            if self._one:
                return STOPPED if self.stop.is_set() and code == exits.DONE else code
            if self.stop.is_set() or not again(code):
                return code
            pause = self._backoff.after(time.monotonic() - began)
            _log.warning("the writer ended", exit_code=code, again_in_s=round(pause, 1))
            self._restarts += 1
            self.stop.wait(pause)
        return STOPPED if self._one else exits.DONE

    def _once(self) -> int:
        self._pid_file.write_text("")
        told = {PID_FILE: str(self._pid_file), RESTARTS: str(self._restarts)}
        child = subprocess.Popen(self._command, env={**os.environ, **told}, start_new_session=True)
        passed_on = False
        while True:
            try:
                return child.wait(_POLL_S)
            except subprocess.TimeoutExpired:
                if self.stop.is_set() and not passed_on:
                    passed_on = True
                    self._tell(child)

    def _tell(self, child: subprocess.Popen[bytes]) -> None:
        """To the writer if it has told its pid; else nothing has begun yet and all may end."""
        pid = self._pid_file.read_text().strip()
        try:
            os.kill(int(pid), signal.SIGTERM) if pid else os.killpg(child.pid, signal.SIGTERM)
        except ProcessLookupError:
            _log.info("it has ended by itself")


def tell_pid() -> None:
    """Called by the writer at its start: whom to send SIGTERM to."""
    file = os.environ.get(PID_FILE)
    if file:
        Path(file).write_text(str(os.getpid()))


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="headrace_spark.jobs.supervise", description="Start it again after 1, 6.")
    parser.add_argument("--first-wait", type=float, default=5.0, help="seconds before the first new start")
    parser.add_argument("--longest-wait", type=float, default=300.0, help="seconds, the longest pause")
    once = "leave starting it again to others, as a Job of Kubernetes; a stop by SIGTERM ends with 143"
    parser.add_argument("--once", action="store_true", help=once)
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, help="spark-submit ..., or python -m headrace_spark.jobs.writer ..."
    )
    given = parser.parse_args(arguments)
    command = given.command[1:] if given.command[:1] == ["--"] else given.command
    if not command:
        parser.error("a command is needed")
    logs.to_stderr()
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        backoff = Backoff(given.first_wait, given.longest_wait)
        supervisor = Supervisor(command, Path(folder) / "pid", backoff, once=given.once)
        _on_signals(supervisor.stop.set)
        try:
            code = supervisor.run()
            return code if code >= 0 else 128 - code
        except OSError as error:
            print(f"headrace: {command[0]}: {error.strerror}", file=sys.stderr)
            return exits.CONFIGURATION


def _on_signals(stop: Callable[[], None]) -> None:
    def told(_: int, __: FrameType | None) -> None:
        stop()

    signal.signal(signal.SIGTERM, told)
    signal.signal(signal.SIGINT, told)


if __name__ == "__main__":
    sys.exit(main())
