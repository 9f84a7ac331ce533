"""Ports: the usual ones, or free ones."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace import ports
from headrace.ports import Ports


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


@pytest.fixture
def choose() -> Iterator[Callable[..., dict[str, int]]]:
    made: list[Ports] = []

    def one(**usual: int) -> dict[str, int]:
        made.append(Ports(usual))
        return made[-1].of

    yield one
    for ports_ in made:
        ports_.close()


def test_the_usual_port_is_chosen_if_nobody_has_it(choose: Callable[..., dict[str, int]]) -> None:
    usual = free()
    assert choose(kafka=usual) == {"kafka": usual}


def test_a_taken_port_is_replaced_by_one_below_the_range_of_outgoing_connections(
    choose: Callable[..., dict[str, int]], taken: int
) -> None:
    chosen = choose(kafka=taken)["kafka"]
    assert ports.LOWEST <= chosen <= ports.HIGHEST
    assert ports.is_free(chosen)


def test_no_two_services_get_the_same_port(choose: Callable[..., dict[str, int]]) -> None:
    usual = free()
    assert len(set(choose(a=usual, b=usual, c=usual).values())) == 3


@pytest.mark.skipif(sys.platform != "linux", reason="abstract sockets are Linux's")
def test_two_stacks_that_start_together_get_different_ports_until_one_is_closed() -> None:
    usual = free()
    first, second = Ports({"kafka": usual}), Ports({"kafka": usual})
    assert first.of["kafka"] == usual != second.of["kafka"]
    first.close()
    third = Ports({"kafka": usual})
    assert third.of["kafka"] == usual
    second.close()
    third.close()


def test_that_no_port_is_free_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "is_free", lambda _: False)
    with pytest.raises(OSError, match="no free port"):
        Ports({"kafka": 9092})


def test_a_port_for_later_is_below_the_outgoing_ones_and_given_once() -> None:
    """By this process, by another one, and though nobody listens yet; the oldest go back when there are many."""
    found = [ports.free_port() for _ in range(ports.KEPT)]
    assert len(set(found)) == ports.KEPT
    outgoing = Path("/proc/sys/net/ipv4/ip_local_port_range")
    assert max(found) < (int(outgoing.read_text().split()[0]) if outgoing.exists() else 32_768)
    held = [port for port in found if not ports._hold(port)]
    assert len(held) == (ports.KEPT if sys.platform == "linux" else 0)
    ports.free_port()
    again = ports._hold(found[0])
    assert again is not False
    if again:
        again.close()
