"""Ports: the usual ones, or free ones."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from headrace import ports


@pytest.fixture(params=["127.0.0.1", "0.0.0.0"])
def taken(request: pytest.FixtureRequest) -> Iterator[int]:
    with socket.socket() as server:
        server.bind((request.param, 0))
        server.listen()
        yield server.getsockname()[1]


def free() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_port_with_a_listener_on_any_address_is_not_free(taken: int) -> None:
    assert not ports.is_free(taken)


def test_the_usual_port_is_chosen_if_nobody_has_it() -> None:
    usual = free()
    assert ports.choose({"kafka": usual}) == {"kafka": usual}


def test_a_taken_port_is_replaced_by_one_below_the_range_of_outgoing_connections(taken: int) -> None:
    chosen = ports.choose({"kafka": taken})["kafka"]
    assert ports.LOWEST <= chosen <= ports.HIGHEST
    assert ports.is_free(chosen)


def test_no_two_services_get_the_same_port() -> None:
    usual = free()
    chosen = ports.choose({"a": usual, "b": usual, "c": usual})
    assert len(set(chosen.values())) == 3


def test_that_no_port_is_free_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "is_free", lambda _: False)
    with pytest.raises(OSError, match="no free port"):
        ports.choose({"kafka": 9092})
