"""The app of a `Fixture` behind the server of the process, on a free port, and bytes to and from it."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import uvicorn
from starlette.types import ASGIApp

from headrace_api.protocol import TimedProtocol

Address = tuple[str, int]


class Raw(NamedTuple):
    """Status, media type and body of an answer."""

    status: int
    media: str
    body: bytes


@contextmanager
def served(app: ASGIApp) -> Iterator[Address]:
    """Where it listens, while it does."""
    config = uvicorn.Config(app, port=0, http=TimedProtocol, ws="none", lifespan="off", log_level="critical")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
    yield server.servers[0].sockets[0].getsockname()
    server.should_exit = True
    thread.join(20)
    assert not thread.is_alive()


def raw(address: Address, request: bytes) -> Raw:
    """The answer to these bytes."""
    with socket.create_connection(address, timeout=60) as connection:
        connection.sendall(request)
        return answer(connection, "HEAD" if request.startswith(b"HEAD") else None)


def answer(connection: socket.socket, method: str | None = None) -> Raw:
    """The next answer of a connection."""
    response = http.client.HTTPResponse(connection, method=method)
    response.begin()
    return Raw(response.status, response.headers.get("content-type", ""), response.read())
