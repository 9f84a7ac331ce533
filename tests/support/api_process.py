"""A status API as a child process."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.streams_worker import REPOSITORY, free_port, until


class Answer(NamedTuple):
    """`headers` by lower-case name; `body` is the JSON value, or text if it is not JSON."""

    status: int
    headers: dict[str, str]
    body: Any


@dataclass
class StatusApi:
    """One API; `start` it, end it, `start` it again on the same data."""

    kafka: str
    prefix: str
    data_dir: Path
    log: Path
    settings: dict[str, str] = field(default_factory=dict)
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> StatusApi:
        """Start; does not wait."""
        self.port = free_port()
        values = {
            "KAFKA": self.kafka, "PREFIX": self.prefix, "DATA_DIR": str(self.data_dir), "HTTP_PORT": str(self.port),
            **self.settings,
        }  # fmt: skip
        env = {**os.environ, **{f"HEADRACE_API_{name}": value for name, value in values.items()}}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([sys.executable, "-m", "headrace_api"], cwd=REPOSITORY, env=env, stderr=log)
        return self

    @property
    def running(self) -> subprocess.Popen[bytes]:
        assert self.process is not None
        return self.process

    def ask(self, path: str, method: str = "GET", **headers: str) -> Answer:
        """One request, the path as written. Raises OSError if nobody answers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, headers=headers)
            response = connection.getresponse()
            text, found = response.read(), {k.lower(): v for k, v in response.getheaders()}
        finally:
            connection.close()
        is_json = "json" in found.get("content-type", "")
        return Answer(response.status, found, json.loads(text) if text and is_json else text.decode())

    def answers(self) -> bool:
        """Whether it listens."""
        try:
            self.ask("/healthz")
        except OSError:
            return False
        return True

    def ready(self) -> bool:
        """Whether the replica has caught up."""
        try:
            return self.ask("/readyz").status == 200
        except OSError:
            return False

    def wait_ready(self, seconds: float = 60) -> StatusApi:
        """Wait for `ready`."""
        until(self.ready, f"ready, see {self.log}", seconds)
        return self

    def sources(self) -> dict[int, int]:
        """Offset in `raw` that each partition contains."""
        partitions = self.ask("/v1/status").body["replica"]["partitions"]
        return {int(number): p["source"] for number, p in partitions.items()}

    def kill(self) -> None:
        """kill -9."""
        self.running.kill()
        self.running.wait()

    def terminate(self) -> int:
        """SIGTERM; returns the exit code."""
        self.running.terminate()
        return self.running.wait(30)

    def end(self) -> None:
        """Make sure that nothing is left running."""
        if self.process and self.process.poll() is None:
            self.kill()

    def delete_database(self) -> None:
        """As after a loss of the disk."""
        shutil.rmtree(self.data_dir)
