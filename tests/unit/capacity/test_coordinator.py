"""The coordinator among strangers and after restarts; the contract itself is tests/conformance/test_lease_stores.py."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from headrace_capacity.coordinator import Coordinator, CoordinatorStore
from headrace_capacity.stores import open_store
from headrace_core.capacity.agent import LeaseAgent
from headrace_core.capacity.errors import CapacityConfig, LeaseStoreUnavailable, UnknownResource
from headrace_core.capacity.protocol import LeaseReply, LeaseRequest, ResourceConfig
from headrace_core.capacity.resources import SharedResource

TOKEN = "secret"
CONFIG = ResourceConfig(resource="db", shared_capacity=30, factor=10, ttl_ms=5_000)


class Clock:
    """Milliseconds that pass when they are told to."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    running = Coordinator(TOKEN, cold=True).start()
    yield running
    running.stop()


@pytest.fixture
def store(coordinator: Coordinator) -> Iterator[CoordinatorStore]:
    client = CoordinatorStore(coordinator.address, TOKEN)
    client.provision(CONFIG)
    yield client
    client.close()


def ask(store: CoordinatorStore, seq: int, want: int = 3) -> LeaseReply:
    return store.sync(LeaseRequest(resource="db", owner="a", seq=seq, want=want), 10_000)


@pytest.mark.parametrize(
    "bytes_",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x00\x00\x00\x02{]",
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x04null",
        b"\x00",
    ],
    ids=["another protocol", "no JSON", "too long", "no call", "cut"],
)
def test_a_stranger_ends_its_own_connection_and_no_other(
    coordinator: Coordinator, store: CoordinatorStore, bytes_: bytes
) -> None:
    granted = ask(store, 1)
    with socket.create_connection((coordinator.host, coordinator.port), timeout=30) as stranger:
        stranger.sendall(bytes_)
        with contextlib.suppress(OSError):  # cut off already, before this end said it was done
            stranger.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):  # a close with something unread
            assert stranger.recv(100) == b""
    assert ask(store, 2).grants == granted.grants


def test_who_does_not_show_the_token_is_cut_off_and_an_owner_may_be_silent() -> None:
    running = Coordinator(TOKEN, cold=True, patience_s=0.1).start()
    store = CoordinatorStore(running.address, TOKEN)
    store.provision(CONFIG)
    with socket.create_connection((running.host, running.port), timeout=60) as stranger:
        stranger.sendall(b"\x00\x00")
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(100) == b""
    assert len(ask(store, 1).grants) == 3, "over the connection of before"
    store.close()
    running.stop()


def test_a_wrong_token_gets_nothing_done(coordinator: Coordinator, store: CoordinatorStore) -> None:
    other = CoordinatorStore(coordinator.address, "guess")
    for _ in range(2):
        with pytest.raises(LeaseStoreUnavailable, match="wrong token"):
            ask(other, 1)
    assert coordinator.status("db").owners == ()
    assert len(ask(store, 1).grants) == 3


def test_who_is_cut_off_comes_back_and_has_what_it_had(coordinator: Coordinator, store: CoordinatorStore) -> None:
    granted = ask(store, 1)
    coordinator.disconnect()
    with pytest.raises(LeaseStoreUnavailable):
        ask(store, 2)
    assert ask(store, 3).grants == granted.grants


def test_a_new_coordinator_grants_nothing_new_until_what_an_earlier_one_granted_has_ended() -> None:
    clock = Clock(1_000)
    running = Coordinator(TOKEN, clock_ms=clock).start()
    store = CoordinatorStore(running.address, TOKEN)
    store.provision(CONFIG)
    assert ask(store, 1).grants == ()
    clock.now_ms += CONFIG.ttl_ms + CONFIG.quarantine_ms - 1
    assert ask(store, 2).grants == ()
    clock.now_ms += 1
    assert len(ask(store, 3).grants) == 3
    store.provision(ResourceConfig(resource="late", shared_capacity=10, factor=10))
    late = store.sync(LeaseRequest(resource="late", owner="a", seq=1, want=1), 10_000)
    assert len(late.grants) == 1, "whoever held some of it before the start has lost it by now"
    store.close()
    running.stop()


@pytest.mark.parametrize("address", ["tcp://nowhere", "tcp://:5", "tcp://host:port", "ftp://a", "", "postgres"])
def test_a_wrong_address_is_named(address: str) -> None:
    with pytest.raises(CapacityConfig) as wrong:
        open_store(address, token="t")
    assert wrong.value.field == "store"


def test_a_coordinator_needs_a_token() -> None:
    with pytest.raises(ValueError, match="token"):
        Coordinator("")
    with pytest.raises(CapacityConfig, match="token"):
        open_store("tcp://127.0.0.1:1")


def test_what_was_set_and_paused_outlives_a_coordinator_as_long_as_an_owner_does() -> None:
    """Over TCP; the owner is the real one. The next coordinator is provisioned with what a file says."""
    clock = Clock(0)
    first, second = (Coordinator(TOKEN, clock_ms=clock, cold=cold).start() for cold in (True, False))
    stores = [CoordinatorStore(each.address, TOKEN) for each in (first, second)]
    resource = SharedResource(stores[0], name="db", shared_capacity=30, factor=10)
    resource.start()
    resource.request(30)
    agent = LeaseAgent(resource, "a")

    def exchange(store: CoordinatorStore, at_ms: int) -> LeaseReply:
        clock.now_ms = at_ms
        request = agent.begin(at_ms)
        reply = store.sync(request, 10_000)
        agent.receive(request.seq, reply, at_ms)
        return reply

    exchange(stores[0], 0)
    version = stores[0].configure("db", shared_capacity=10, ramp=(5, 1_000))
    stores[0].sync(LeaseRequest(resource="db", owner="operator", seq=1, pause_ms=60_000), 10_000)
    exchange(stores[0], 100)
    stores[1].provision(CONFIG)
    reply = exchange(stores[1], 1_000)
    assert (reply.shared_capacity, len(reply.grants), reply.config_version) == (10, 1, version)
    assert stores[1].status("db").pause_ms == 59_000
    for store, running in zip(stores, (first, second), strict=True):
        store.close()
        running.stop()


def test_a_refusal_names_the_coordinator_and_so_does_one_that_is_away(coordinator: Coordinator) -> None:
    with pytest.raises(
        LeaseStoreUnavailable, match=rf"{coordinator.address} refused: wrong token; it was started with"
    ):
        CoordinatorStore(coordinator.address, "guess").status("db")
    with pytest.raises(UnknownResource, match="resource 'nothing' is not provisioned"):
        CoordinatorStore(coordinator.address, TOKEN).status("nothing")
    coordinator.stop()
    with pytest.raises(LeaseStoreUnavailable, match=rf"the coordinator at {coordinator.address}: .*refused"):
        CoordinatorStore(coordinator.address, TOKEN).status("db")
