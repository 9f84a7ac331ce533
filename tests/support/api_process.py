"""A status API as a child process."""

from __future__ import annotations

import http.client
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from tests.support.service_process import ServiceProcess, until

NOTHING: Any = object()


class Answer(NamedTuple):
    """`headers` by lower-case name; `body` is the JSON value, or text if it is not JSON."""

    status: int
    headers: dict[str, str]
    body: Any


class Event(NamedTuple):
    """`data` is the JSON value."""

    kind: str
    id: str
    data: Any


class EventStream:
    """A client of server-sent events, as WHATWG HTML 9.2.6 reads them."""

    def __init__(self, port: int, path: str, headers: dict[str, str]) -> None:
        self.last_id = ""
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._connection.request("GET", path, headers=headers)
        self.response = self._connection.getresponse()
        assert self.response.status == 200, self.response.read()
        assert self.response.headers["content-type"].startswith("text/event-stream")

    def opened(self) -> EventStream:
        """Wait until the first id is there: what happens from now on comes."""
        while not self.last_id:
            self._line()
        return self

    def next(self) -> Event:
        """The next event. Raises OSError when none comes for a minute."""
        kind, data = "message", ""
        while True:
            name, value = self._line()
            if name == "event":
                kind = value
            elif name == "data":
                data += value
            elif not name and not value and data:
                return Event(kind, self.last_id, json.loads(data))

    def _line(self) -> tuple[str, str]:
        line = self.response.readline()
        if not line:
            raise EOFError("the stream has ended")
        name, _, value = line.decode().rstrip("\n").partition(":")
        value = value.removeprefix(" ")
        if name == "id":
            self.last_id = value
        return (name, value) if name or not value else (":", value)

    def close(self) -> None:
        self._connection.close()
        self.response.close()


@dataclass
class StatusApi(ServiceProcess):
    """One API; `start` it, end it, `start` it again on the same data."""

    MODULE: ClassVar[str] = "headrace_api"
    PREFIX: ClassVar[str] = "HEADRACE_API_"

    kafka: str
    prefix: str
    data_dir: Path
    log: Path
    settings: dict[str, str] = field(default_factory=dict)

    def start(self) -> StatusApi:
        """Start; does not wait."""
        values = {"KAFKA": self.kafka, "PREFIX": self.prefix, "DATA_DIR": str(self.data_dir), **self.settings}
        self.spawn(values)
        return self

    def ask(self, path: str, method: str = "GET", sent: Any = NOTHING, **headers: str) -> Answer:
        """One request, the path as written, `sent` as JSON. Raises OSError or HTTPException if nobody answers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        body = None
        if sent is not NOTHING:
            body, names = json.dumps(sent).encode(), {"Content-Type": "application/json"} | names
        try:
            connection.request(method, path, body, names)
            response = connection.getresponse()
            text, found = response.read(), {k.lower(): v for k, v in response.getheaders()}
        finally:
            connection.close()
        is_json = "json" in found.get("content-type", "")
        return Answer(response.status, found, json.loads(text) if text and is_json else text.decode())

    def events(self, path: str, **headers: str) -> EventStream:
        """Open an event stream."""
        return EventStream(self.port, path, {name.replace("_", "-"): value for name, value in headers.items()})

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

    def delete_database(self) -> None:
        """As after a loss of the disk."""
        shutil.rmtree(self.data_dir)
