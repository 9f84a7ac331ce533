"""A partition changes its owner with the ledger of the old one (capacity.md 13, `handover="inherit"`)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_core.capacity.agent import LeaseAgent
from headrace_core.capacity.config import BatcherConfig
from headrace_core.capacity.core import BatcherCore
from headrace_core.capacity.errors import CapacityConfig
from headrace_core.capacity.handover import GRAIN_MS, hand_over, take_over
from headrace_core.capacity.lease_store import LOOK_MS
from headrace_core.capacity.ledger import Ledger
from headrace_core.capacity.memory_store import MemoryStore
from headrace_core.capacity.operation import Operation, Watcher
from headrace_core.capacity.pacing import NS_PER_MS
from headrace_core.capacity.protocol import LeaseStore, ResourceConfig, Spent
from headrace_core.capacity.resources import SharedResource
from tests.unit.core.capacity.test_lease_store import World, indexes

SPENT = st.lists(st.tuples(st.integers(0, 990), st.integers(1, 90)), max_size=12)


def ledger_of(entries: list[tuple[int, int]]) -> Ledger:
    ledger = Ledger()
    for at_ms, cost in sorted(entries):
        ledger.enter({"": cost}, at_ms * NS_PER_MS)
    return ledger


@settings(max_examples=100, deadline=None)
@given(SPENT, st.integers(0, 400), st.lists(st.integers(1, 100), min_size=1, max_size=4))
def test_what_is_handed_over_is_worth_what_was_spent_above_what_remains(
    entries: list[tuple[int, int]], kept: int, worths: list[int]
) -> None:
    newest = ledger_of(entries).newest(999 * NS_PER_MS, {"": kept})
    above = max(0, sum(cost for _, cost in entries) - kept)
    assert sum(cost[""] for _, cost in newest) == above
    spent = hand_over(newest, [(index, {"": worth}) for index, worth in enumerate(worths)], 999)
    by_partition = [sum(s.cost for s in spent if s.partition == i and isinstance(s.cost, int)) for i in range(4)]
    assert sum(by_partition) == above
    assert all(told <= worth for told, worth in zip(by_partition, worths[:-1], strict=False))


@settings(max_examples=100, deadline=None)
@given(SPENT)
def test_no_entry_gets_older_on_its_way(entries: list[tuple[int, int]]) -> None:
    newest = ledger_of(entries).newest(999 * NS_PER_MS, {})
    arrived = take_over(hand_over(newest, [(0, {})], 999), 999)
    for since_ms in range(0, 1_000, 100):
        left = sum(cost for at_ms, cost in entries if at_ms >= since_ms)
        assert sum(cost[""] for at_ns, cost in arrived if at_ns >= since_ms * NS_PER_MS) >= left


def test_the_newest_entries_go_and_one_that_is_only_partly_above_is_split() -> None:
    ledger = ledger_of([(100, 30), (200, 30), (300, 30)])
    assert ledger.newest(400 * NS_PER_MS, {"": 50}) == [(300 * NS_PER_MS, {"": 30}), (200 * NS_PER_MS, {"": 10})]
    assert ledger.newest(400 * NS_PER_MS, {"": 90}) == []


def test_ages_are_told_in_steps_and_equal_ones_together() -> None:
    newest = [(95 * NS_PER_MS, {"": 1}), (92 * NS_PER_MS, {"": 2}), (80 * NS_PER_MS, {"": 4})]
    assert hand_over(newest, [(7, {"": 9})], 100) == (Spent(7, 0, 3), Spent(7, GRAIN_MS, 4))


def test_each_dimension_is_handed_over_by_itself() -> None:
    newest = [(0, {"rows": 3, "bytes": 50})]
    freed = [(1, {"rows": 2, "bytes": 100}), (2, {"rows": 2, "bytes": 100})]
    told = hand_over(newest, freed, 1)
    assert sorted(told, key=lambda each: each.partition) == [
        Spent(1, 0, {"rows": 2, "bytes": 50}),
        Spent(2, 0, {"rows": 1}),
    ]


def test_inherited_entries_leave_the_ledger_in_their_turn() -> None:
    ledger = ledger_of([(500, 10), (600, 10)])
    ledger.inherit([(550 * NS_PER_MS, {"": 5}), (100 * NS_PER_MS, {"": 7})])
    assert [ledger.used(at * NS_PER_MS)[""] for at in (700, 1_100, 1_500, 1_550, 1_600)] == [32, 25, 15, 10, 0]


def inheriting(**options: object) -> World:
    world = World(partitions=1, options={"handover": "inherit", **options})
    world.call("A", 1, at=0, inherits=True)
    return world


def test_a_partition_that_is_given_back_goes_to_the_next_owner_at_once_with_its_entries() -> None:
    world = inheriting()
    world.give_back("A", 0, at=400, inherits=True, spent=(Spent(0, 50, 30), Spent(0, 980, 9)))
    reply = world.call("B", 1, at=450, inherits=True)
    assert (indexes(reply), reply.inherited) == ([0], (Spent(0, 99, 30),))


def test_an_owner_that_does_not_inherit_waits_the_quarantine_and_so_does_everyone_after_a_crash() -> None:
    world = inheriting()
    world.give_back("A", 0, at=400, inherits=True)
    assert indexes(world.call("B", 1, at=1_399)) == []
    assert indexes(world.call("B", 1, at=1_400)) == [0]
    crashed = inheriting()
    assert indexes(crashed.call("B", 1, at=5_999, inherits=True)) == []
    assert indexes(crashed.call("B", 1, at=6_000, inherits=True)) == [0]


def test_an_owner_that_says_nothing_of_its_ledger_pays_the_quarantine() -> None:
    world = inheriting()
    world.give_back("A", 0, at=400)
    assert indexes(world.call("B", 1, at=1_399, inherits=True)) == []


def test_a_store_without_the_option_always_waits() -> None:
    world = inheriting(handover="wait")
    world.give_back("A", 0, at=400, inherits=True, spent=(Spent(0, 0, 30),))
    reply = world.call("B", 1, at=1_399, inherits=True)
    assert (indexes(reply), reply.inherited) == ([], ())


def test_entries_are_told_again_until_the_new_owner_names_the_partition() -> None:
    world = inheriting()
    world.give_back("A", 0, at=400, inherits=True, spent=(Spent(0, 0, 30),))
    first = world.call("B", 1, at=410, inherits=True)
    lost = world.call("B", 1, at=420, inherits=True, held=())
    assert [each.cost for each in (*first.inherited, *lost.inherited)] == [30, 30]
    assert world.call("B", 1, at=430, inherits=True).inherited == ()
    world.give_back("B", 0, at=440, inherits=True, spent=(Spent(0, 0, 7),))
    assert [each.cost for each in world.call("C", 1, at=450, inherits=True).inherited] == [7]


def test_entries_that_may_not_have_arrived_go_on_to_the_one_after() -> None:
    world = inheriting()
    world.give_back("A", 0, at=400, inherits=True, spent=(Spent(0, 0, 30),))
    world.call("B", 1, at=410, inherits=True)
    world.give_back("B", 0, at=420, inherits=True)
    assert [each.cost for each in world.call("C", 1, at=430, inherits=True).inherited] == [30]


def test_an_owner_is_not_told_of_what_it_spent_itself() -> None:
    world = inheriting()
    world.give_back("A", 0, at=400, inherits=True, spent=(Spent(0, 0, 30),))
    reply = world.call("A", 1, at=410, inherits=True)
    assert (indexes(reply), reply.inherited) == ([0], ())


class Instance:
    """Batcher, resource and agent over a store that the test shares out."""

    def __init__(self, store: LeaseStore, name: str, resource: str = "default") -> None:
        self.store = store
        self.resource = SharedResource(store, name=resource, shared_capacity=300, factor=100, handover="inherit")
        self.resource.start()
        self.core = BatcherCore(BatcherConfig(), self.resource)
        self.core.start(0)
        self.agent = LeaseAgent(self.resource, name)

    def exchange(self, now_ms: int) -> None:
        ask = self.agent.begin(now_ms)
        self.agent.receive(ask.seq, self.store.sync(ask, 10_000), now_ms)

    def spend(self, cost: int, now_ms: int) -> bool:
        self.core.enqueue(Operation(Watcher(lambda batch: batch), cost, None), now_ms)
        self.core.flush()
        batches = self.core.step(now_ms).batches
        return any(self.core.enter(batch, now_ms * NS_PER_MS) for batch in batches)


def test_the_new_owner_may_spend_only_what_the_old_one_left() -> None:
    clock = [0]
    store = MemoryStore(lambda: clock[0])
    old, new = Instance(store, "old"), Instance(store, "new")
    old.resource.request(300)
    old.exchange(0)
    assert old.spend(250, 100)
    clock[0] = 200
    old.core.step(200)
    old.resource.request(0)
    old.exchange(200)
    new.resource.request(300)
    new.exchange(200)
    assert (new.resource.capacity, new.core.used(200 * NS_PER_MS)) == (300, 250)
    assert not new.spend(60, 300)
    new.resource.request(300)
    assert new.core.step(1_150).batches != []


def test_what_goes_with_a_partition_is_not_lost_when_the_reply_to_an_earlier_release_was() -> None:
    """The store may have taken an earlier release, and then takes nothing more for that partition: the ledger goes with
    what is named for the first time."""
    clock = [0]
    store = MemoryStore(lambda: clock[0])
    old, new = Instance(store, "old"), Instance(store, "new")
    old.resource.request(300)
    old.exchange(0)
    clock[0] = 200
    old.resource.request(100)
    ask = old.agent.begin(200)
    store.sync(ask)
    old.agent.failed(ask.seq, 200)
    assert old.spend(100, 300)
    old.core.step(310)
    clock[0] = 400
    old.resource.request(0)
    old.exchange(400)
    new.resource.request(300)
    new.exchange(400)
    assert (new.resource.capacity, new.core.used(400 * NS_PER_MS)) == (300, 100)


def test_one_who_inherits_looks_for_what_others_give_back() -> None:
    """In time for its share; seldom, and the less often the more owners there are, for what is above it."""
    world = World(partitions=2, options={"handover": "inherit"})
    world.call("A", 2, at=0, inherits=True)
    assert world.call("B", 2, at=10, inherits=True).next_sync_ms == LOOK_MS
    assert world.call("B", 2, at=10).next_sync_ms == 0, "it waits for the quarantine"
    world.give_back("A", 2, at=20, inherits=True)
    assert world.call("B", 2, at=30, inherits=True).next_sync_ms == 2 * LOOK_MS
    assert world.call("B", 1, at=40, inherits=True).next_sync_ms == 0


def test_a_store_learns_at_run_time_how_partitions_change_their_owner() -> None:
    clock = [0]
    store = MemoryStore(lambda: clock[0])
    store.provision(ResourceConfig(resource="default", shared_capacity=300, factor=100))
    assert store.configure("default", handover="inherit") == 2
    old, new = Instance(store, "old"), Instance(store, "new")
    for one, want in ((old, 300), (old, 0), (new, 300)):
        one.resource.request(want)
        one.exchange(0)
    assert new.resource.capacity == 300
    with pytest.raises(CapacityConfig, match="handover"):
        store.configure("default", handover="inherits")


@pytest.mark.parametrize("value", ["", "inherits", None])
def test_a_wrong_handover_is_refused_by_name(value: str | None) -> None:
    with pytest.raises(ValueError, match="handover"):
        SharedResource(MemoryStore(lambda: 0), shared_capacity=1, handover=value)
