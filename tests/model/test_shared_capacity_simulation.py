"""Several owners, one store, one virtual clock, messages that are lost or late: no window above the shared capacity
(capacity.md 14, 17.2). Hypothesis prints the seed that fails. The negative control shows that the check can fail."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_core.capacity.agent import LeaseAgent
from headrace_core.capacity.config import BatcherConfig, LeaseConfig
from headrace_core.capacity.core import BatcherCore
from headrace_core.capacity.memory_store import MemoryStore
from headrace_core.capacity.operation import Batch, Operation, Watcher
from headrace_core.capacity.pacing import NS_PER_MS
from headrace_core.capacity.protocol import LeaseReply
from headrace_core.capacity.resources import SharedResource

SHARED, FACTOR, STEP_MS = 2000, 500, 25


@dataclass
class Owner:
    core: BatcherCore
    agent: LeaseAgent
    resource: SharedResource
    due: list[tuple[int, int, LeaseReply | None]] = field(default_factory=list)
    running: list[tuple[int, Batch]] = field(default_factory=list)
    alive: bool = True


class World:
    """`quarantine_ms` below 1000 is the negative control."""

    def __init__(self, seed: int, *, owners: int, quarantine_ms: int, faults: bool = True) -> None:
        self.faults = faults
        self.chance = random.Random(seed)
        self.now_ms = 0
        self.store = MemoryStore(lambda: self.now_ms)
        self.lease = LeaseConfig(ttl_ms=3000, renew_interval_ms=500, quarantine_ms=quarantine_ms, for_tests=True)
        self.watcher = Watcher(lambda batch: batch)
        self.owners = [self.new_owner(n) for n in range(owners)]
        self.dispatched: list[tuple[int, int]] = []

    def new_owner(self, number: int) -> Owner:
        resource = SharedResource(self.store, lease=self.lease, shared_capacity=SHARED, factor=FACTOR)
        resource.start()
        core = BatcherCore(BatcherConfig(flush_interval_ms=STEP_MS), resource)
        core.start(self.now_ms)
        return Owner(core, LeaseAgent(resource, f"owner-{number}-{self.now_ms}"), resource)

    def run(self, until_ms: int) -> None:
        while self.now_ms < until_ms:
            for owner in self.owners:
                if owner.alive:
                    self.live(owner)
            if self.faults and self.chance.random() < 0.001:
                index = self.chance.randrange(len(self.owners))
                self.owners[index] = self.new_owner(index)
            self.now_ms += STEP_MS

    def live(self, owner: Owner) -> None:
        if self.chance.random() < 0.02:
            for _ in range(self.chance.randrange(12)):
                cost = self.chance.choice([0, 10, 60, 250, 500, 900])
                owner.core.enqueue(Operation(self.watcher, cost, None), self.now_ms)
        self.exchange(owner)
        for at_ms, batch in owner.running:
            if at_ms <= self.now_ms:
                owner.core.leave(batch, self.now_ms)
        owner.running = [item for item in owner.running if item[0] > self.now_ms]
        for batch in owner.core.step(self.now_ms).batches:
            if owner.core.enter(batch, self.now_ms * NS_PER_MS):
                assert isinstance(batch.cost, int)
                self.dispatched.append((self.now_ms, batch.cost))
                owner.running.append((self.now_ms + self.chance.randrange(200), batch))

    def exchange(self, owner: Owner) -> None:
        for at_ms, seq, reply in list(owner.due):
            if at_ms <= self.now_ms:
                owner.due.remove((at_ms, seq, reply))
                if reply is None:
                    owner.agent.failed(seq, self.now_ms)
                else:
                    owner.agent.receive(seq, reply, self.now_ms)
        owner.agent.follow_time(self.now_ms)
        call_ms = owner.agent.next_call_ms(self.now_ms)
        if call_ms is None or call_ms > self.now_ms:
            return
        ask = owner.agent.begin(self.now_ms)
        fate = self.chance.random() if self.faults else 1.0
        reply = None if fate < 0.05 else self.store.sync(ask)
        if 0.05 <= fate < 0.1:
            reply = None
        late_ms = self.chance.choice([0, 0, 0, 25, 100, 2000, 2600, 3100] if self.faults else [0])
        owner.due.append((self.now_ms + (2000 if reply is None else late_ms), ask.seq, reply))

    def worst_window(self) -> int:
        worst, total, start = 0, 0, 0
        for at_ms, cost in self.dispatched:
            total += cost
            while self.dispatched[start][0] <= at_ms - 1000:
                total -= self.dispatched[start][1]
                start += 1
            worst = max(worst, total)
        return worst


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([1, 2, 4]))
def test_no_window_of_all_owners_together_is_above_the_shared_capacity(seed: int, owners: int) -> None:
    world = World(seed, owners=owners, quarantine_ms=1000)
    world.run(20_000)
    assert world.worst_window() <= SHARED


def test_the_owners_use_what_there_is() -> None:
    world = World(7, owners=4, quarantine_ms=1000, faults=False)
    world.run(60_000)
    assert world.worst_window() > SHARED // 2
    assert sum(cost for _, cost in world.dispatched) > 20 * SHARED


@pytest.mark.parametrize("owners", [4])
def test_without_quarantine_the_same_check_fails(owners: int) -> None:
    worst = []
    for seed in range(12):
        world = World(seed, owners=owners, quarantine_ms=1)
        world.run(30_000)
        worst.append(world.worst_window())
    assert max(worst) > SHARED
