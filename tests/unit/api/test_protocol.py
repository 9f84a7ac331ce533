"""Clients that are slow, silent or gone hold a connection for a limited time, and half a request is none."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace_api import protocol
from tests.support.served import Address, answer, served
from tests.support.status_api import Fixture, fixture
from tests.support.streams_worker import until

BODY = b'{"@topic-id": "device/saw", "@type": "child-device"}'
POST = b"POST /te/v1/entities HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


@pytest.fixture
def given(tmp_path: Path) -> Fixture:
    return fixture(tmp_path, [(1, "te/device/press//", {"@type": "child-device"})])


@pytest.fixture
def address(given: Fixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[Address]:
    monkeypatch.setattr(protocol, "HEAD_S", 1.0)
    monkeypatch.setattr(protocol, "BODY_S", 1.0)
    monkeypatch.setattr(protocol, "STUCK_S", 1.0)
    with served(given.app) as address:
        yield address
        given.calls.close()


@pytest.mark.parametrize("sent", [b"", b"GET /te/v1/entities HTTP/1.1\r\nHos", POST % len(BODY), POST % 9 + b"{"])
def test_a_request_that_never_ends_is_ended(address: Address, given: Fixture, sent: bytes) -> None:
    with socket.create_connection(address, timeout=60) as connection:
        connection.sendall(sent)
        status, media, body = answer(connection)
        assert (status, media, json.loads(body)["reason"]) == (408, "application/problem+json", "timeout")
        assert connection.recv(1) == b""
    assert given.mail.sent == []


def test_drops_do_not_lengthen_the_time(address: Address) -> None:
    with socket.create_connection(address, timeout=0.1) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n")
        for count in range(600):
            try:
                connection.sendall(b"X-%d: 1\r\n" % count)
                if b"408" in connection.recv(100):
                    return
            except TimeoutError:
                continue
    pytest.fail("still open")


def test_half_a_body_is_no_write(address: Address, given: Fixture) -> None:
    with socket.create_connection(address, timeout=60) as connection:
        connection.sendall(POST % len(BODY) + BODY[:-1])
    with socket.create_connection(address, timeout=60) as connection:
        connection.sendall(POST % len(BODY) + BODY)
        assert answer(connection).status == 201
    assert len(given.mail.sent) == 1


@pytest.mark.parametrize("head", [POST % 5_000_000, POST.replace(b"json", b"xml") % 5_000_000])
def test_who_sends_what_is_refused_reads_why(address: Address, given: Fixture, head: bytes) -> None:
    with socket.create_connection(address, timeout=60) as connection:
        connection.sendall(head + b" " * 5_000_000)
        assert answer(connection).status in (413, 415)
    with socket.create_connection(address, timeout=60) as connection:
        connection.sendall(head.replace(b"Host: x", b"Host: x\r\nExpect: 100-continue"))
        assert answer(connection).status in (413, 415)  # without having sent it
    assert given.mail.sent == []


def test_a_connection_is_used_for_many_requests_in_time(address: Address) -> None:
    with socket.create_connection(address, timeout=60) as connection:
        for _ in range(3):
            connection.sendall(b"GET /te/v1/entities/device/press HTTP/1.1\r\nHost: x\r\n\r\n")
            assert answer(connection).status == 200


def test_an_event_stream_outlives_the_limits_and_one_that_nobody_reads_does_not(
    address: Address, given: Fixture
) -> None:
    def open_streams() -> float | None:
        return given.metrics.registry.get_sample_value("headrace_api_streams_open")

    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(60)
        connection.connect(address)
        connection.sendall(b"GET /te/v1/registration-events HTTP/1.1\r\nHost: x\r\n\r\n")
        until(lambda: open_streams() == 1, "one stream")
        with socket.create_connection(address, timeout=60) as other:  # longer than all limits
            assert answer(other).status == 408
        assert open_streams() == 1
        for at in range(200):  # more than all buffers hold, and nobody reads it
            given.feed(2 + at, f"te/device/{'x' * 50_000}//", {"@type": "rocket"})
        until(lambda: open_streams() == 0, "none")
