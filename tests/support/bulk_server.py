"""A small store with an HTTP bulk interface and external versions, which can be told to misbehave.

What it shall do with the next requests stands in `script`, one entry a request; without an entry it behaves. It keeps
every request that it got, in order.
"""

from __future__ import annotations

import json
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Step = Callable[["_Handler", list[tuple[dict[str, Any], dict[str, Any]]]], None]


class BulkServer:
    """`documents` by id, each with its version; `requests`: the ids of each request; `times` at which they came.
    `most`: more rows in a request are answered with 413. `charge`: a header X-Charge for each row's units."""

    def __init__(self) -> None:
        self.documents: dict[str, tuple[int, dict[str, Any]]] = {}
        self.requests: list[list[str]] = []
        self.headers: list[Mapping[str, str]] = []
        self.script: deque[Step] = deque()
        self.always: Step | None = None
        self.most = 1 << 30
        self.charge: float | None = None
        self.lock = threading.Lock()
        self.release = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"store": self}))
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/measurements/_bulk"

    def rows(self) -> list[tuple[Any, ...]]:
        with self.lock:
            return sorted((doc["source"], doc["metric"], doc["time_ms"], doc["value"]) for _, doc in self._values())

    def _values(self) -> list[tuple[int, dict[str, Any]]]:
        return list(self.documents.values())

    def apply(self, action: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
        """One item: a higher version wins, as stores with external versions do."""
        name, version = action["_id"], action["version"]
        assert action["version_type"] == "external"
        known = self.documents.get(name)
        if known is not None and known[0] >= version:
            return {"_id": name, "status": 409, "error": {"type": "version_conflict_engine_exception"}}
        self.documents[name] = (version, document)
        return {"_id": name, "status": 200 if known else 201, "result": "updated" if known else "created"}

    def stop(self) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(30)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: BulkServer

    def do_POST(self) -> None:
        lines = self.rfile.read(int(self.headers["Content-Length"])).split(b"\n")
        assert lines.pop() == b"", "the body ends with a line feed"
        pairs = [(json.loads(a)["index"], json.loads(d)) for a, d in zip(lines[::2], lines[1::2], strict=True)]
        with self.store.lock:
            self.store.requests.append([action["_id"] for action, _ in pairs])
            self.store.headers.append(dict(self.headers.items()))
            step = self.store.script.popleft() if self.store.script else self.store.always or behave
        step(self, pairs)

    def answer(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged."""


def behave(handler: _Handler, pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    """Apply every item; 413 for too many."""
    store = handler.store
    if len(pairs) > store.most:
        handler.answer(413)
        return
    with store.lock:
        items = [{"index": store.apply(*pair)} for pair in pairs]
    headers = {} if store.charge is None else {"X-Charge": str(store.charge * len(pairs))}
    handler.answer(200, json.dumps({"errors": False, "items": items}).encode(), headers)


def status(number: int, headers: Mapping[str, str] | None = None, body: bytes = b"") -> Step:
    """Answer the whole request so."""
    return lambda handler, _: handler.answer(number, body, headers)


def items(numbers: Mapping[int, int], headers: Mapping[str, str] | None = None) -> Step:
    """Answer the items at these places so, and apply the others."""

    def step(handler: _Handler, pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
        found = []
        with handler.store.lock:
            for index, pair in enumerate(pairs):
                refused = {"_id": pair[0]["_id"], "status": numbers.get(index), "error": {"type": "told_to"}}
                found.append({"index": refused if index in numbers else handler.store.apply(*pair)})
        handler.answer(200, json.dumps({"errors": True, "items": found}).encode(), headers)

    return step


def cut(handler: _Handler, pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    """Apply every item, and close the connection without a word."""
    with handler.store.lock:
        for pair in pairs:
            handler.store.apply(*pair)
    _hang_up(handler)


def cut_before(handler: _Handler, _: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    """Close the connection without a word and without an effect."""
    _hang_up(handler)


def cut_within(handler: _Handler, pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    """Apply every item, and end in the middle of the answer."""
    with handler.store.lock:
        for pair in pairs:
            handler.store.apply(*pair)
    handler.wfile.write(b'HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"items": [')
    handler.wfile.flush()
    _hang_up(handler)


def silent(handler: _Handler, pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    """Apply every item, and say nothing until the test ends."""
    with handler.store.lock:
        for pair in pairs:
            handler.store.apply(*pair)
    handler.store.release.wait(60)
    _hang_up(handler)


def _hang_up(handler: _Handler) -> None:
    handler.close_connection = True
    handler.connection.shutdown(socket.SHUT_RDWR)
