"""Calls with a deadline: the caller goes on, whatever the connection does."""

from __future__ import annotations

import os
import threading

import pytest

from headrace_capacity.calls import Caller
from headrace_core.capacity.errors import LeaseStoreUnavailable, UnknownResource


class Connection:
    def __init__(self, opened: list[Connection]) -> None:
        self.closed = threading.Event()
        opened.append(self)

    def close(self) -> None:
        self.closed.set()


@pytest.fixture
def opened() -> list[Connection]:
    return []


@pytest.fixture
def caller(opened: list[Connection]) -> Caller[Connection]:
    return Caller(lambda: Connection(opened), name="the store")


def fail(_: Connection) -> None:
    raise OSError("gone\naway")


def test_one_connection_serves_many_calls(caller: Caller[Connection], opened: list[Connection]) -> None:
    assert [caller.run(lambda _: 7, 10_000), caller.run(lambda _: 8, 10_000)] == [7, 8]
    caller.close()
    assert opened[0].closed.wait(300)
    assert len(opened) == 1


def test_a_call_that_hangs_is_left_behind_with_its_connection(
    caller: Caller[Connection], opened: list[Connection]
) -> None:
    goes_on = threading.Event()
    with pytest.raises(LeaseStoreUnavailable, match="did not answer within 50 ms"):
        caller.run(lambda _: goes_on.wait(), 50)
    assert caller.run(lambda _: 7, 10_000) == 7
    assert (len(opened), opened[0].closed.is_set()) == (2, False)
    goes_on.set()
    assert opened[0].closed.wait(300)


def test_an_error_of_the_library_is_told_in_one_line_and_the_connection_is_opened_again(
    caller: Caller[Connection], opened: list[Connection]
) -> None:
    with pytest.raises(LeaseStoreUnavailable, match=r"^the store: gone away$"):
        caller.run(fail, 10_000)
    assert caller.run(lambda _: 7, 10_000) == 7
    assert (len(opened), opened[0].closed.is_set()) == (2, True)


def test_an_error_of_the_protocol_comes_as_it_is_and_keeps_the_connection(
    caller: Caller[Connection], opened: list[Connection]
) -> None:
    def unknown(_: Connection) -> None:
        raise UnknownResource("r")

    with pytest.raises(UnknownResource):
        caller.run(unknown, 10_000)
    caller.run(lambda _: 7, 10_000)
    assert len(opened) == 1


def test_a_forked_child_opens_its_own_connection(caller: Caller[Connection], opened: list[Connection]) -> None:
    caller.run(lambda _: 7, 10_000)
    child = os.fork()
    if child == 0:
        os._exit(0 if caller.run(lambda _: len(opened), 10_000) == 2 else 1)
    assert os.waitpid(child, 0)[1] == 0
