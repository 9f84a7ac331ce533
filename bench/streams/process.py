"""A measured process: started, stopped for as long as its input is written, let go, measured to its end.

While it is stopped (SIGSTOP) nothing competes with the producer for the cores, and what is measured begins at the
moment it goes on (SIGCONT): start, restore and the joining of the group are no part of it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from headrace import child_exec
from headrace.kafka import free_port

REPOSITORY = Path(__file__).parents[2]
STARTED_S = 120.0


class BenchFailed(RuntimeError):
    """A measured process ended, or did not do its work in time."""


@dataclass
class Measured:
    """A child process. Its output goes to `log`."""

    command: Sequence[str]
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it."""
        with self.log.open("ab") as log:
            self.child = subprocess.Popen(
                child_exec.command(list(self.command), interrupt="ignore"), cwd=REPOSITORY,
                env={**os.environ, **self.env}, stdout=log, stderr=log,
            )  # fmt: skip

    @property
    def running(self) -> subprocess.Popen[bytes]:
        """The child. Raises BenchFailed if it has ended."""
        if self.child is None or self.child.poll() is not None:
            tail = self.log.read_bytes()[-2000:].decode(errors="replace")
            raise BenchFailed(f"{self.command[:3]} is not running; the end of its log:\n{tail}")
        return self.child

    @property
    def cpu_s(self) -> float:
        """User and system time of all its threads."""
        times = psutil.Process(self.running.pid).cpu_times()
        return float(times.user + times.system)

    @property
    def rss_mib(self) -> float:
        """Resident memory."""
        return float(psutil.Process(self.running.pid).memory_info().rss) / 1024 / 1024

    @property
    def peak_mib(self) -> float:
        """The highest resident memory since its start, as the kernel has noted it."""
        status = Path(f"/proc/{self.running.pid}/status").read_text()
        return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) / 1024

    def hold(self) -> None:
        """Stop it where it is."""
        self.running.send_signal(signal.SIGSTOP)

    def let_go(self) -> None:
        """Let it go on."""
        self.running.send_signal(signal.SIGCONT)

    def until(self, condition: Callable[[], bool], what: str, seconds: float, *, every_s: float = 0.1) -> None:
        """Wait. Raises BenchFailed after `seconds`, or as soon as the process has ended."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise BenchFailed(f"not within {seconds} s: {what}; see {self.log}")
            _ = self.running
            time.sleep(every_s)

    def end(self, *, gracefully: bool = False) -> None:
        """End it, by SIGTERM or SIGKILL."""
        if self.child is None or self.child.poll() is not None:
            return
        self.child.send_signal(signal.SIGCONT)
        self.child.send_signal(signal.SIGTERM if gracefully else signal.SIGKILL)
        self.child.wait(60)


class Streams(Measured):
    """The real worker, `python -m headrace_streams`, with one stage or both."""

    def __init__(self, kafka: str, prefix: str, folder: Path, *, stages: str, settings: Mapping[str, str]) -> None:
        self.port = free_port()
        values = {
            "KAFKA": kafka, "PREFIX": prefix, "DATA_DIR": str(folder / "data"), "STAGES": stages,
            "HTTP_PORT": str(self.port), "SESSION_TIMEOUT_S": "60", **settings,
        }  # fmt: skip
        env = {f"HEADRACE_STREAMS_{name}": value for name, value in values.items()}
        super().__init__([sys.executable, "-m", "headrace_streams"], folder / "worker.log", env)

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=20) as response:
            body: bytes = response.read()
        return body.decode()

    def ready(self) -> bool:
        """Whether all partitions are assigned and restored."""
        try:
            return bool(json.loads(self._get("/readyz"))["ready"])
        except OSError:
            return False

    def begin(self, seconds: float = STARTED_S) -> None:
        """Start, and wait until it is ready."""
        self.start()
        self.until(self.ready, "ready", seconds)

    def metric(self, pattern: str) -> int:
        """The sum of the samples whose name and labels match."""
        lines = self._get("/metrics").splitlines()
        return sum(int(float(line.rsplit(" ", 1)[1])) for line in lines if re.match(pattern, line))

    def applied(self, stage: str) -> int:
        """Records of a stage's input that are applied and durable: the sum of the markers + 1."""
        return self.metric(f'headrace_stage_offset{{.*stage="{stage}"')
