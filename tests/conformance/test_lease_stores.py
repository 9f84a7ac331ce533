"""The contract of all lease stores (capacity.md 16, last paragraph), against the real servers.

Where a test says that something does *not* happen yet, the time in question is a minute, so that a slow machine cannot
reach it; where it says that something happens, it waits for it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headrace.kafka import free_port
from headrace_core.capacity.errors import CapacityConfig, LeaseStoreUnavailable, PartitionsOutOfRange, UnknownResource
from headrace_core.capacity.pacing import NS_PER_MS
from headrace_core.capacity.protocol import (
    Claim,
    Grant,
    LeaseReply,
    LeaseRequest,
    RampSetting,
    ResourceConfig,
    Spent,
)
from tests.support import lease_servers
from tests.support.lease_servers import Backend
from tests.unit.core.capacity.test_handover import Instance

pytestmark = pytest.mark.timeout(180)
LONG_MS, SHORT_MS = 60_000, 300
BACKENDS = ["memory", "coordinator", "postgres", pytest.param("redis", marks=pytest.mark.docker)]


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    with getattr(lease_servers, request.param)() as running:
        yield running


class Owner:
    """Speaks the protocol by hand: numbers its calls and holds what it was granted."""

    def __init__(self, store: Any, resource: str, name: str = "") -> None:
        self.store, self.resource, self.name = store, resource, name or uuid.uuid4().hex
        self.seq = 0
        self.held: tuple[Claim, ...] = ()
        self.version = 0

    def sync(self, want: int = 0, **rest: Any) -> LeaseReply:
        self.seq += 1
        members = {"held": self.held, "config_version": self.version, **rest}
        request = LeaseRequest(resource=self.resource, owner=self.name, seq=self.seq, want=want, **members)
        reply: LeaseReply = self.store.sync(request, 60_000)
        self.held = tuple(Claim(grant.partition, grant.epoch) for grant in reply.grants)
        self.version = reply.config_version
        return reply

    def sync_until(self, enough: Callable[[LeaseReply], bool], want: int = 0, **rest: Any) -> LeaseReply:
        deadline = time.monotonic() + 300
        while not enough(reply := self.sync(want, **rest)):
            assert time.monotonic() < deadline, f"still {reply}"
            time.sleep(0.05)
        return reply

    def release(self) -> LeaseReply:
        released, self.held = self.held, ()
        return self.sync(0, released=released)


def resource(store: Any, **config: Any) -> str:
    """A fresh resource of 20 partitions of 10 units/s; after the learning time of a store that forgets."""
    name = f"r-{uuid.uuid4().hex[:10]}"
    members = {"shared_capacity": 200, "factor": 10, "ttl_ms": LONG_MS, "quarantine_ms": LONG_MS, **config}
    store.provision(ResourceConfig(resource=name, **members))
    return name


@pytest.fixture
def make(backend: Backend) -> Callable[..., Callable[[str], Owner]]:
    """`make(**config)` provisions a resource; the answer makes owners of it, each with a client of its own."""

    def provision(**config: Any) -> Callable[[str], Owner]:
        name = resource(backend.client(), **config)
        return lambda owner="": Owner(backend.client(), name, owner)

    return provision


def names(reply: LeaseReply) -> list[int]:
    return [grant.partition for grant in reply.grants]


def test_a_resource_must_be_provisioned_and_twice_changes_nothing(backend: Backend) -> None:
    store = backend.client()
    with pytest.raises(UnknownResource) as found:
        store.sync(LeaseRequest(resource="nothing", owner="a", seq=1), 10_000)
    assert found.value.resource == "nothing"
    with pytest.raises(UnknownResource):
        store.status("nothing")
    with pytest.raises(UnknownResource):
        store.configure("nothing", shared_capacity=1)
    name = resource(store, shared_capacity=200)
    store.provision(ResourceConfig(resource=name, shared_capacity=50, factor=10))
    assert store.status(name).shared_capacity == 200


def test_parallel_calls_are_atomic(backend: Backend) -> None:
    """Eight owners with clients of their own grab and give back: no (partition, epoch) is ever granted twice."""
    name = resource(backend.client(), quarantine_ms=0)
    granted: list[tuple[str, Grant]] = []
    owners = [Owner(backend.client(), name, f"o{i}") for i in range(8)]

    def work(owner: Owner) -> list[tuple[str, Grant]]:
        seen: set[Grant] = set()
        for round_ in range(12):
            seen |= set(owner.sync(20).grants)
            if round_ % 3 == 2:
                owner.release()
        owner.sync(20)
        return [(owner.name, grant) for grant in seen]

    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(work, owners):
            granted += found
    by_epoch = {(grant.partition, grant.epoch) for _, grant in granted}
    assert len(by_epoch) == len(granted) > 20
    holders = [claim.partition for owner in owners for claim in _kept(owner)]
    assert sorted(holders) == sorted(set(holders))


def _kept(owner: Owner) -> tuple[Claim, ...]:
    reply = owner.sync(20)
    dropped = set(reply.drop)
    return tuple(claim for claim in owner.held if claim not in dropped)


def test_the_clock_of_the_store_decides(make: Callable[..., Callable[..., Owner]]) -> None:
    """An owner that says nothing loses its partitions, whatever time it believes it is."""
    owner = make(ttl_ms=SHORT_MS, quarantine_ms=SHORT_MS)
    first, second = owner("first"), owner("second")
    assert len(first.sync(20).grants) == 20
    reply = second.sync_until(lambda reply: len(reply.grants) == 20, 20)
    assert min(grant.epoch for grant in reply.grants) > max(claim.epoch for claim in first.held)
    lost = set(first.held)
    assert set(first.sync(0).drop) == lost


def test_repeated_renewals_and_releases_are_harmless(make: Callable[..., Callable[..., Owner]]) -> None:
    owner = make()
    first, second = owner("first"), owner("second")
    granted = first.sync(5).grants
    assert first.sync(5).grants == first.sync(5).grants == granted
    released = first.held
    for _ in range(3):
        assert first.sync(0, held=(), released=released).grants == ()
    assert first.store.status(first.resource).granted == 0
    assert len(second.sync(20).grants) == 15


def test_a_stale_epoch_is_refused_for_renewal_and_release(make: Callable[..., Callable[..., Owner]]) -> None:
    owner = make(shared_capacity=10)
    first = owner("first")
    old = first.sync(1).grants[0]
    first.release()
    new = first.sync(1).grants[0]
    assert (new.partition, new.epoch > old.epoch) == (old.partition, True)
    stale = Claim(old.partition, old.epoch)
    assert first.sync(1, released=(stale,)).grants == (new,)
    assert owner("second").sync(1, held=(stale,)).drop == (stale,)
    assert first.sync(1).grants == (new,)


def test_nothing_is_granted_inside_the_quarantine_after_a_release(make: Callable[..., Callable[..., Owner]]) -> None:
    owner = make()
    first, second = owner("first"), owner("second")
    first.sync(20)
    first.release()
    reply = second.sync(20)
    assert reply.grants == ()
    assert 0 < reply.next_sync_ms <= LONG_MS
    assert len(first.sync(20).grants) == 10, "its last owner need not wait for what it wants by its share"


def test_a_partition_is_granted_after_the_quarantine(make: Callable[..., Callable[..., Owner]]) -> None:
    owner = make(quarantine_ms=SHORT_MS)
    first, second = owner("first"), owner("second")
    first.sync(20)
    first.release()
    assert names(second.sync_until(lambda reply: len(reply.grants) == 20, 20)) == list(range(20))


def test_nothing_is_granted_inside_the_quarantine_after_an_expiry(make: Callable[..., Callable[..., Owner]]) -> None:
    owner = make(ttl_ms=SHORT_MS)
    first, second = owner("first"), owner("second")
    first.sync(20)
    deadline = time.monotonic() + 300
    while second.store.status(second.resource).owners:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert second.sync(20).grants == ()


def test_what_a_lost_reply_granted_is_granted_again(make: Callable[..., Callable[..., Owner]]) -> None:
    first = make()("first")
    granted = first.sync(7).grants
    assert first.sync(7, held=()).grants == granted


def test_an_old_number_changes_nothing(make: Callable[..., Callable[..., Owner]]) -> None:
    first = make()("first")
    granted = first.sync(3).grants
    first.seq -= 1
    reply = first.sync(20)
    assert (reply.stale, reply.grants) == (True, ())
    first.held = tuple(Claim(grant.partition, grant.epoch) for grant in granted)
    assert first.sync(3).grants == granted


def test_shares_follow_the_weights(make: Callable[..., Callable[..., Owner]]) -> None:
    owner = make(quarantine_ms=SHORT_MS)
    heavy, light = owner("heavy"), owner("light")
    heavy.sync(20, weight=3)
    light.sync(20)
    assert heavy.sync_until(lambda reply: len(reply.grants) == 15, 20, weight=3, released=heavy.held[15:])
    assert light.sync_until(lambda reply: len(reply.grants) == 5, 20)
    shares = {each.owner: each.share for each in light.store.status(light.resource).owners}
    assert shares == {"heavy": 15, "light": 5}


def test_an_oversize_head_gets_its_share_raised(make: Callable[..., Callable[..., Owner]]) -> None:
    owner = make(quarantine_ms=0)
    big, small = owner("big"), owner("small")
    small.sync(20)
    big.sync(20, head=16)
    small.sync(20, held=small.held[:4], released=small.held[4:])
    assert len(big.sync_until(lambda reply: len(reply.grants) == 16, 20, head=16).grants) == 16


def test_reserve_slots_are_leased(make: Callable[..., Callable[..., Owner]]) -> None:
    owner = make(reserved_capacity=5, max_instances=2)
    first, second, third = owner("first"), owner("second"), owner("third")
    assert {first.sync(reserve=True).reserve_slot, second.sync(reserve=True).reserve_slot} == {0, 1}
    assert third.sync(reserve=True).reserve_slot is None
    first.sync(reserve=False)
    assert third.sync(reserve=True).reserve_slot is None, "the quarantine of the slot"


def test_a_decrease_applies_at_once_and_is_in_force_when_confirmed(make: Callable[..., Callable[..., Owner]]) -> None:
    first = make()("first")
    store, name = first.store, first.resource
    first.sync(20)
    version = store.configure(name, shared_capacity=50)
    assert store.status(name).in_force_version < version
    reply = first.sync(20)
    assert (reply.shared_capacity, len(reply.grants), len(reply.drop)) == (50, 5, 15)
    first.sync(20, released=reply.drop)
    assert store.status(name).in_force_version == version
    with pytest.raises(PartitionsOutOfRange):
        store.configure(name, shared_capacity=5_010)


def test_a_wrong_change_names_its_key_and_changes_nothing(make: Callable[..., Callable[..., Owner]]) -> None:
    first = make()("first")
    for changes in ({"factor": 5}, {"no_such": 1}, {"shared_capacity": -1}):
        with pytest.raises(CapacityConfig) as found:
            first.store.configure(first.resource, **changes)
        assert found.value.field == next(iter(changes))
    assert first.sync(1).config_version == 1


def test_an_increase_climbs_by_the_ramp(make: Callable[..., Callable[..., Owner]]) -> None:
    first = make(ramp=RampSetting(10, LONG_MS))("first")
    first.store.configure(first.resource, shared_capacity=230)
    reply = first.sync(30)
    assert (reply.max_capacity, reply.shared_capacity, len(reply.grants)) == (230, 200, 20)
    first.store.configure(first.resource, ramp=RampSetting(10, SHORT_MS))
    seen = {first.sync(30).shared_capacity}
    first.sync_until(lambda reply: (seen.add(reply.shared_capacity), reply.shared_capacity == 230)[1], 30)  # type: ignore[func-returns-value]
    assert {200, 210, 220, 230} >= seen
    first.store.configure(first.resource, shared_capacity=100)
    assert first.sync(30).shared_capacity == 100, "a decrease does not wait"


def test_a_pause_reaches_every_owner(make: Callable[..., Callable[..., Owner]]) -> None:
    owner = make()
    owner("first").sync(1, pause_ms=LONG_MS)
    assert 0 < owner("second").sync(1).pause_ms <= LONG_MS


def test_a_partition_is_handed_over_with_what_was_spent(make: Callable[..., Callable[..., Owner]]) -> None:
    """What a slow machine takes more than a second for has nothing left to hand over; then once more."""
    owner = make(handover="inherit")
    first, second = owner("first"), owner("second")
    for _ in range(60):
        first.sync_until(lambda reply: len(reply.grants) == 20, 20, inherits=True)
        given, began = first.held, time.monotonic()
        spent = (Spent(given[0].partition, 0, 7), Spent(given[1].partition, 90, 5))
        first.sync(0, held=(), released=given, inherits=True, spent=spent)
        lost = second.sync(20, inherits=True)
        again = second.sync(20, inherits=True, held=())
        kept = second.sync(20, inherits=True)
        took_ms = (time.monotonic() - began) * 1000
        assert len(lost.grants) == len(kept.grants) == 20, "no quarantine"
        assert kept.inherited == (), "what is held has arrived"
        told = [(each.partition, each.cost) for each in again.inherited]
        assert all(age_ms <= took_ms + 90 for _, age_ms, _ in lost.inherited), "no entry gets older than it is"
        if took_ms < 900:
            assert told == [(each.partition, each.cost) for each in lost.inherited] == [(s[0], s[2]) for s in spent]
            return
        second.sync(0, held=(), released=second.held, inherits=True)
    raise AssertionError("no exchange took less than a second")


def test_who_does_not_inherit_waits_and_so_does_who_comes_after_it(make: Callable[..., Callable[..., Owner]]) -> None:
    owner = make(handover="inherit")
    first, second, third = owner("first"), owner("second"), owner("third")
    first.sync(20, inherits=True)
    first.sync(0, held=(), released=first.held, inherits=True)
    assert second.sync(20).grants == ()
    second.sync(0)
    assert len(third.sync(20, inherits=True).grants) == 20
    third.sync(0, held=(), released=third.held)
    assert first.sync(20, inherits=True).grants == ()


def test_the_next_owner_has_the_ledger_of_the_one_before(backend: Backend) -> None:
    """Batcher, agent and store: what one spent is in the books of the other."""
    for _ in range(60):
        name, began = f"r-{uuid.uuid4().hex[:10]}", time.monotonic()
        old, new = (Instance(backend.client(), each, name) for each in ("old", "new"))
        old.resource.request(300)
        old.exchange(0)
        assert old.spend(250, 100)
        old.core.step(200)
        old.resource.request(0)
        old.exchange(200)
        new.resource.request(300)
        new.exchange(200)
        assert new.resource.capacity == 300
        if time.monotonic() - began < 0.8:
            assert new.core.used(200 * NS_PER_MS) == 250
            assert not new.spend(60, 210)
            return
    raise AssertionError("no exchange took less than a second")


def test_a_restart_grants_nothing_that_is_held_and_epochs_go_on(backend: Backend) -> None:
    config = {
        "shared_capacity": 200,
        "factor": 10,
        "ttl_ms": LONG_MS if backend.remembers else 4_000,
        "quarantine_ms": SHORT_MS,
    }
    store = backend.client()
    store.provision(ResourceConfig(resource="restarted", **config))  # type: ignore[arg-type]
    first = Owner(store, "restarted", "first")
    before = first.sync(8)
    backend.restart()
    store = backend.client()
    store.provision(ResourceConfig(resource="restarted", **config))  # type: ignore[arg-type]
    first.store, second = store, Owner(backend.client(), "restarted", "second")
    kept = _answered(lambda: first.sync(8))
    assert {grant.partition for grant in kept.grants} == set(names(before))
    seen: list[Grant] = []

    def others(reply: LeaseReply) -> bool:
        """The first one goes on renewing: what it holds goes to nobody else."""
        held = {claim.partition for claim in first.held}
        assert not held & set(names(reply))
        seen.extend(reply.grants)
        first.sync(8)
        return len(reply.grants) == 12

    _answered(lambda: second.sync_until(others, 12))
    assert min(grant.epoch for grant in seen) > max(grant.epoch for grant in before.grants)
    assert store.status("restarted").learning is False


def _answered(call: Callable[[], LeaseReply]) -> LeaseReply:
    """The first call over a connection that a restart cut may fail; the owner then calls again."""
    deadline = time.monotonic() + 300
    while True:
        try:
            return call()
        except LeaseStoreUnavailable:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_an_unreachable_store_is_an_error_in_time_and_never_a_grant(backend: Backend) -> None:
    if backend.nowhere is None:
        store = backend.client()
        store.reachable = False
        with pytest.raises(LeaseStoreUnavailable):
            store.sync(LeaseRequest(resource="r", owner="a", seq=1, want=1), 500)
        store.reachable = True
        return
    with lease_servers.black_hole() as port:
        store, began = backend.nowhere(port), time.monotonic()
        for seq in (1, 2):
            with pytest.raises(LeaseStoreUnavailable):
                store.sync(LeaseRequest(resource="r", owner="a", seq=seq, want=1), 500)
        assert time.monotonic() - began < 60, "two calls of half a second"
        store.close()
    refused = backend.nowhere(free_port())
    with pytest.raises(LeaseStoreUnavailable):
        refused.status("r")
    refused.close()


def test_calls_of_many_threads_over_one_client_do_not_mix(backend: Backend) -> None:
    store = backend.client()
    known = [resource(store, shared_capacity=10 * (i + 1)) for i in range(5)]

    def ask(index: int) -> set[Any]:
        return {store.status(known[index]).shared_capacity for _ in range(20)}

    with ThreadPoolExecutor(5) as pool:
        assert list(pool.map(ask, range(5))) == [{10}, {20}, {30}, {40}, {50}]
