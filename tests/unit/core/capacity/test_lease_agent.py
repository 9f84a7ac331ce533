"""The owner's rules of the lease protocol, against the store in memory under one virtual clock (capacity.md 13)."""

from __future__ import annotations

from typing import Any

from headrace_core.capacity.agent import LeaseAgent
from headrace_core.capacity.config import LeaseConfig
from headrace_core.capacity.memory_store import MemoryStore
from headrace_core.capacity.protocol import LeaseRequest
from headrace_core.capacity.resources import SharedResource


class Owner:
    """A resource and its agent beside a real store; the test moves the clock and carries the messages."""

    def __init__(self, **config: Any) -> None:
        self.now_ms = 0
        self.store = MemoryStore(lambda: self.now_ms)
        settings = {"shared_capacity": 4000, "factor": 1000, **config}
        self.resource = SharedResource(self.store, lease=LeaseConfig(), **settings)
        self.resource.start()
        self.agent = LeaseAgent(self.resource, "me")

    def exchange(self, at_ms: int) -> LeaseRequest:
        self.now_ms = at_ms
        ask = self.agent.begin(at_ms)
        self.agent.receive(ask.seq, self.store.sync(ask), at_ms)
        return ask

    def names(self) -> list[str]:
        return [event.name for event in self.resource.log.take()]


def test_it_calls_every_renew_interval_and_at_once_when_its_need_changes() -> None:
    owner = Owner()
    assert owner.agent.next_call_ms(0) == 0
    owner.exchange(0)
    assert owner.agent.next_call_ms(0) == 1000
    owner.resource.request(1500)
    assert owner.agent.next_call_ms(10) == 100
    owner.exchange(100)
    assert owner.resource.capacity == 2000
    assert owner.agent.next_call_ms(100) == 1100
    owner.resource.request(2000)
    assert owner.agent.next_call_ms(110) == 1100
    owner.resource.request(0)
    assert owner.agent.next_call_ms(120) == 200


def test_one_call_is_in_flight_and_a_repeated_one_has_a_new_number() -> None:
    owner = Owner()
    first = owner.agent.begin(0)
    assert owner.agent.next_call_ms(5000) is None
    owner.agent.failed(first.seq, 2000)
    assert owner.agent.next_call_ms(2000) == 1000
    second = owner.agent.begin(2000)
    assert second.seq > first.seq
    assert not owner.agent.receive(first.seq, owner.store.sync(first), 2001)


def test_a_late_reply_is_not_used_and_what_it_grants_is_given_back() -> None:
    owner = Owner()
    owner.resource.request(1000)
    ask = owner.agent.begin(0)
    reply = owner.store.sync(ask)
    assert not owner.agent.receive(ask.seq, reply, 4500)
    assert owner.resource.held() == []
    assert "lease-late" in owner.names()
    assert owner.agent.next_call_ms(4500) == 100
    again = owner.agent.begin(4500)
    assert [claim.partition for claim in again.released] == [grant.partition for grant in reply.grants]


def test_released_is_repeated_until_a_reply_confirms_it() -> None:
    owner = Owner()
    owner.resource.request(2000)
    owner.exchange(0)
    owner.resource.request(1000)
    lost = owner.agent.begin(100)
    assert len(lost.released) == 1
    owner.agent.failed(lost.seq, 2100)
    assert owner.exchange(2200).released == lost.released
    assert owner.exchange(3200).released == ()


def test_a_drop_is_obeyed_at_once_and_confirmed_without_waiting() -> None:
    owner = Owner()
    owner.resource.request(4000)
    owner.exchange(0)
    rival = LeaseRequest(resource="default", owner="rival", seq=1, want=4)
    owner.store.sync(rival)
    owner.exchange(1000)
    assert owner.resource.capacity == 2000
    assert owner.agent.next_call_ms(1000) == 1100
    assert len(owner.exchange(1100).released) == 2


def test_without_replies_everything_ends_at_its_deadline_and_the_safe_capacity_is_left() -> None:
    owner = Owner(safe_capacity=50)
    owner.resource.request(1000)
    owner.exchange(0)
    ask = owner.agent.begin(1000)
    owner.agent.failed(ask.seq, 3000)
    owner.agent.follow_time(4499)
    assert owner.resource.capacity == 1000
    owner.agent.follow_time(4500)
    assert owner.resource.capacity == 50
    owner.exchange(4600)
    assert owner.resource.capacity == 1000
    assert [name for name in owner.names() if name.startswith("store-")] == ["store-lost", "store-back"]


def test_the_reserve_is_leased_and_one_without_a_slot_has_none() -> None:
    owner = Owner(reserved_capacity=300, max_instances=1)
    owner.store.sync(LeaseRequest(resource="default", owner="rival", seq=1, reserve=True))
    owner.exchange(0)
    assert owner.resource.capacity == 0
    assert "reserve-denied" in owner.names()
    owner.now_ms = 7000
    owner.exchange(7000)
    assert owner.resource.capacity == 300
    owner.resource.expire(11_500)
    assert owner.resource.capacity == 0


def test_a_new_capacity_goes_through_the_store_and_comes_into_force() -> None:
    owner = Owner()
    owner.resource.request(4000)
    owner.exchange(0)
    change = owner.resource.set_shared_capacity(2500)
    assert owner.resource.max_capacity == 2500
    assert not change.reached()
    for at_ms in (1000, 2000, 3000):
        owner.exchange(at_ms)
    assert change.wait(200)
    assert owner.resource.capacity == 2500


def test_a_pause_of_the_resource_reaches_the_other_instances() -> None:
    owner = Owner()
    owner.store.sync(LeaseRequest(resource="default", owner="rival", seq=1, pause_ms=800))
    owner.exchange(100)
    assert owner.resource.take_pause() == 800
    owner.resource.pause(1_500)
    assert owner.agent.next_call_ms(100) == 200
    assert owner.exchange(200).pause_ms == 1_300
    assert owner.resource.pause_wanted_until_ms is None
    assert owner.resource.take_pause() is None, "its own pause is no news"


def test_two_dimensions_want_as_much_as_the_tighter_one() -> None:
    owner = Owner(shared_capacity={"rows": 100, "bytes": 1000}, factor=1, partitions=10)
    owner.resource.request({"rows": 5, "bytes": 350})
    assert owner.resource.wanted == 4
    owner.exchange(0)
    assert owner.resource.capacity == {"rows": 40, "bytes": 400}


def test_what_only_a_lost_reply_granted_is_given_back_when_the_store_asks_for_it() -> None:
    """Else it would lie idle until it expires, although nobody uses it."""
    owner = Owner()
    owner.resource.request(4000)
    lost = owner.agent.begin(0)
    owner.store.sync(lost)
    owner.agent.failed(lost.seq, 100)
    owner.store.sync(LeaseRequest(resource="default", owner="rival", seq=1, want=4))
    owner.exchange(1000)
    assert len(owner.resource.held()) == 2
    assert owner.agent.next_call_ms(1000) == 1100
    assert [claim.partition for claim in owner.exchange(1100).released] == [3, 2]


def test_refused_requests_that_are_told_during_a_call_go_with_the_next_one() -> None:
    owner = Owner()
    owner.resource.throttled(0.2)
    first = owner.agent.begin(0)
    owner.resource.throttled(0.1)
    owner.agent.receive(first.seq, owner.store.sync(first), 10)
    lost = owner.agent.begin(1000)
    owner.agent.failed(lost.seq, 3000)
    assert (first.throttled, lost.throttled) == (0.2, 0.1)
    assert [owner.exchange(at_ms).throttled for at_ms in (3000, 4000)] == [0.1, 0.0]


def test_an_instance_without_a_slot_wants_partitions_for_all_that_it_needs() -> None:
    """It has no reserve: a need below the reserve would otherwise wait for ever."""
    owner = Owner(reserved_capacity=300, max_instances=1)
    owner.resource.request(200)
    assert owner.resource.wanted == 0
    owner.store.sync(LeaseRequest(resource="default", owner="rival", seq=1, reserve=True))
    owner.exchange(0)
    owner.resource.request(200)
    owner.exchange(100)
    assert (owner.resource.wanted, owner.resource.capacity) == (1, 1000)
    owner.exchange(7000)
    owner.resource.request(200)
    assert owner.resource.wanted == 0, "its turn at the reserve has come"


def test_a_new_capacity_does_not_jump_where_there_is_a_ramp() -> None:
    owner = Owner(shared_capacity=1500, ramp=(100, 1000))
    owner.resource.request(2000)
    owner.exchange(0)
    assert owner.resource.capacity == 1500
    owner.resource.set_shared_capacity(2000)
    assert (owner.resource.capacity, owner.resource.max_capacity) == (1500, 2000)
    owner.exchange(999)
    assert owner.resource.capacity == 1500
    owner.exchange(1000)
    assert owner.resource.capacity == 1600
    owner.resource.set_shared_capacity(1200)
    assert owner.resource.capacity == 1200, "a decrease is immediate"
