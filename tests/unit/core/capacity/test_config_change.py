"""What was changed at run time outlives a store that forgets, as long as anybody was told of it (capacity.md 13)."""

from __future__ import annotations

from typing import Any

import pytest

from headrace_core.capacity import lease_store
from headrace_core.capacity.agent import LeaseAgent
from headrace_core.capacity.config import LeaseConfig
from headrace_core.capacity.lease_state import new_state
from headrace_core.capacity.memory_store import MemoryStore
from headrace_core.capacity.protocol import LeaseReply, LeaseRequest, ResourceConfig
from headrace_core.capacity.resources import SharedResource


class Forgetful(MemoryStore):
    """At a restart it forgets the resources too, as a coordinator does; who asks next provisions them."""

    def __init__(self, world: World) -> None:
        super().__init__(lambda: world.now_ms)

    def restart(self) -> None:
        self._generation += 1
        self._states.clear()

    def provision(self, resource: ResourceConfig) -> None:
        learning = self._generation > 1
        fresh = new_state(resource, self._clock_ms(), generation=self._generation, learning=learning)
        self._states.setdefault(resource.resource, fresh)


class World:
    """One store and the owners of its resource `default`, 20 partitions of 10 units/s."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.store = Forgetful(self)
        self.agents: dict[str, tuple[SharedResource, LeaseAgent]] = {}

    def owner(self, name: str, **config: Any) -> SharedResource:
        settings = {"shared_capacity": 200, "factor": 10, **config}
        resource = SharedResource(self.store, lease=LeaseConfig(), **settings)
        resource.start()
        resource.request(2_000)
        self.agents[name] = (resource, LeaseAgent(resource, name))
        return resource

    def exchange(self, name: str, at_ms: int) -> LeaseReply:
        self.now_ms = at_ms
        ask = self.agents[name][1].begin(at_ms)
        reply = self.store.sync(ask)
        self.agents[name][1].receive(ask.seq, reply, at_ms)
        return reply

    def restarted(self, shared: int = 200) -> None:
        """The store forgot everything, and somebody new provisions what its file says."""
        self.store.restart()
        self.store.provision(ResourceConfig(resource="default", shared_capacity=shared, factor=10))

    def errors(self, name: str) -> list[str]:
        return [event.msg for event in self.agents[name][0].log.take() if event.name == "error"]


def test_a_lower_capacity_outlives_a_restart_of_a_store_without_memory() -> None:
    world = World()
    mine = world.owner("a")
    world.exchange("a", 0)
    version = world.store.configure("default", shared_capacity=50, handover="inherit")
    world.exchange("a", 1_000)
    world.restarted()
    reply = world.exchange("a", 2_000)
    assert (reply.shared_capacity, reply.config_version, len(reply.grants)) == (50, version, 5)
    assert mine.max_capacity == 50
    found = world.store.state("default").config
    assert (found.shared_capacity, found.handover) == (50, "inherit")
    new = world.owner("b")
    world.exchange("b", 2_100)
    assert new.max_capacity == 50, "and all others are told of it"


def test_the_newest_of_what_owners_remember_counts_in_whatever_order_they_come() -> None:
    world = World()
    world.owner("late"), world.owner("well told")
    world.exchange("late", 0), world.exchange("well told", 0)
    world.store.configure("default", shared_capacity=150)
    world.exchange("late", 100), world.exchange("well told", 100)
    world.store.configure("default", shared_capacity=30)
    world.exchange("well told", 200)
    world.restarted()
    assert world.exchange("late", 1_000).shared_capacity == 150
    assert world.exchange("well told", 1_100).shared_capacity == 30
    assert world.exchange("late", 1_200).shared_capacity == 30


def test_what_was_set_since_the_restart_counts_before_what_owners_remember() -> None:
    world = World()
    mine = world.owner("a")
    world.exchange("a", 0)
    for shared in (150, 100, 50):
        world.store.configure("default", shared_capacity=shared)
    world.exchange("a", 1_000)
    world.restarted()
    world.store.configure("default", shared_capacity=120)
    assert world.exchange("a", 2_000).shared_capacity == 120
    assert mine.max_capacity == 120
    assert world.errors("a") == ["the lease store forgot configuration 4 of 'default': set it again"]


def test_a_capacity_that_was_never_changed_is_what_is_provisioned_next() -> None:
    world = World()
    world.owner("a")
    world.exchange("a", 0)
    world.exchange("a", 1_000)
    world.restarted(shared=80)
    assert world.exchange("a", 2_000).shared_capacity == 80


def test_what_does_not_fit_is_not_taken_and_told() -> None:
    world = World()
    world.owner("a")
    world.exchange("a", 0)
    world.store.configure("default", shared_capacity=4_000)
    world.exchange("a", 1_000)
    world.store.restart()
    world.store.provision(ResourceConfig(resource="default", shared_capacity=20, factor=1))
    assert world.exchange("a", 2_000).shared_capacity == 20, "4 000 partitions are too many"
    assert "forgot configuration 2" in world.errors("a")[0]


def test_a_decrease_that_is_heard_of_is_in_force_when_it_is_confirmed() -> None:
    world = World()
    world.owner("a")
    world.exchange("a", 0)
    version = world.store.configure("default", shared_capacity=50)
    world.exchange("a", 1_000)
    world.restarted()
    world.exchange("a", 2_000)
    status = world.store.status("default")
    assert (status.config_version, status.in_force_version) == (version, version - 1), "others may hold more"
    for at_ms in range(3_000, 9_000, 1_000):
        world.exchange("a", at_ms)
    assert world.store.status("default").in_force_version == version


def test_an_owner_says_its_configuration_only_if_it_was_changed() -> None:
    world = World()
    world.owner("a")
    world.exchange("a", 0)
    assert world.agents["a"][1].begin(1_000).config is None


def test_a_pause_outlives_a_restart_and_ends_when_it_would_have() -> None:
    world = World()
    world.owner("a"), world.owner("b")
    world.exchange("a", 0)
    world.store.sync(LeaseRequest(resource="default", owner="operator", seq=1, pause_ms=30_000))
    assert world.exchange("a", 1_000).pause_ms == 29_000
    world.restarted()
    world.exchange("a", 2_000)
    assert world.exchange("b", 3_000).pause_ms == 27_000


def test_a_pause_is_not_made_longer_by_owners_that_tell_of_it() -> None:
    """Each call is on its way for 900 ms."""
    world = World()
    world.owner("a")
    world.exchange("a", 0)
    world.store.sync(LeaseRequest(resource="default", owner="operator", seq=1, pause_ms=10_000))
    for at_ms in range(1_000, 9_000, 1_000):
        ask = world.agents["a"][1].begin(at_ms)
        world.now_ms = at_ms + 900
        world.agents["a"][1].receive(ask.seq, world.store.sync(ask), at_ms + 900)
    assert world.store.state("default").pause_until_ms == 10_000


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"shared_capacity": 300}, "shared_capacity is 200 there and 300 here"),
        ({"factor": 50}, "factor is 10 there and 50 here"),
        ({"reserved_capacity": 5, "max_instances": 2}, "reserved_capacity is 0 there and 5 here, max_instances"),
        ({"adaptive": True}, "adaptive is False there and True here"),
    ],
)
def test_an_owner_that_is_configured_otherwise_is_told_once_what_holds(other: dict[str, Any], told: str) -> None:
    world = World()
    world.owner("first")
    world.exchange("first", 0)
    world.owner("other", **other)
    for at_ms in (100, 1_100):
        world.exchange("other", at_ms)
    (error,) = world.errors("other")
    assert error.startswith("the lease store's configuration of 'default' holds: ")
    assert told in error
    assert world.errors("first") == []


def test_after_a_change_at_run_time_files_may_say_otherwise() -> None:
    world = World()
    world.owner("first")
    world.store.configure("default", shared_capacity=300)
    world.exchange("first", 0)
    assert world.errors("first") == []


def test_a_partition_is_what_the_store_says_not_what_this_owner_is_configured_with() -> None:
    """With a factor of its own, one partition of 10 would be worth 100 to it when the capacity is changed here."""
    world = World()
    world.owner("first")
    mine = world.owner("other", factor=100)
    for at_ms in (100, 1_100):
        mine.request(20)
        world.exchange("other", at_ms)
    assert mine.capacity == 20, "two partitions, not one of 100"
    mine.set_shared_capacity(100)
    assert mine.capacity <= 20


def test_what_an_owner_tells_has_the_dimensions_of_the_resource_or_is_not_taken() -> None:
    told = ResourceConfig(resource="r", shared_capacity={"ru": 100}, partitions=5)
    plain = new_state(ResourceConfig(resource="r", shared_capacity=10), 0, generation=1)
    after, reply = lease_store.sync(
        plain, LeaseRequest(resource="r", owner="a", seq=1, config_version=2, config=told), 10
    )
    assert (after.config, reply.shared_capacity) == (plain.config, 10)
