"""A service of ours as a child process: start it, ask it, end it, start it again."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from headrace.kafka import free_port
from tests.support.patience import PATIENCE

REPOSITORY = Path(__file__).parents[2]


def until(condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
    """Wait for a condition with a deadline, `PATIENCE` times as far away."""
    deadline = time.monotonic() + seconds * PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds * PATIENCE} s: {what}"
        time.sleep(0.02)


class ServiceProcess:
    """What the services have in common; the dataclass of each says what it is started with and where its log is."""

    MODULE: ClassVar[str]
    PREFIX: ClassVar[str]
    """Of the names of its environment variables."""

    log: Path
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    def spawn(self, values: dict[str, str]) -> None:
        """Start with these settings, by upper-case name, and a free HTTP port; does not wait."""
        self.port = free_port()
        own = {f"{self.PREFIX}{name}": value for name, value in {"HTTP_PORT": str(self.port), **values}.items()}
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", self.MODULE]
            self.process = subprocess.Popen(command, cwd=REPOSITORY, env={**os.environ, **own}, stderr=log)

    @property
    def running(self) -> subprocess.Popen[bytes]:
        assert self.process is not None
        return self.process

    def get(self, path: str) -> str:
        """The body of an answer. Raises `HTTPError` for one that is no success, `OSError` if nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as response:
                body: bytes = response.read()
        except http.client.HTTPException as error:  # it ended in the middle of its answer
            raise ConnectionResetError(repr(error)) from error
        return body.decode()

    def kill(self) -> None:
        """kill -9."""
        self.running.kill()
        self.running.wait()

    def terminate(self) -> int:
        """SIGTERM; returns the exit code."""
        self.running.terminate()
        return self.running.wait(40 * PATIENCE)

    def end(self) -> None:
        """Make sure that nothing is left running."""
        if self.process and self.process.poll() is None:
            self.kill()
