"""Real owners - BatcherCore, SharedResource, LeaseAgent - over one lease store, in virtual time (capacity.md 17.2).

Messages get lost, late, doubled and out of order; owners are killed, stopped and cut off; the store restarts and goes
away. Each process has a clock of its own that began at another moment. One seed is one run. A `Build` breaks single
rules for the negative controls of 17.3. All times are milliseconds of true time unless they are named local.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random
from typing import Literal

from headrace_core.capacity.agent import LeaseAgent
from headrace_core.capacity.config import BatcherConfig, LeaseConfig
from headrace_core.capacity.core import BatcherCore
from headrace_core.capacity.memory_store import MemoryStore
from headrace_core.capacity.operation import Batch, Operation, Watcher
from headrace_core.capacity.pacing import NS_PER_MS
from headrace_core.capacity.protocol import Handover, LeaseReply, LeaseRequest, ResourceConfig, Spent
from headrace_core.capacity.resources import SharedResource

CALL_TIMEOUT_MS = 3_000


class FromReply(LeaseAgent):
    """Broken: the deadline is counted from the reply, with margin 0."""

    def receive(self, seq: int, reply: LeaseReply, now_ms: int, denied: Sequence[int] = ()) -> bool:
        sent_ms = self._sent_ms
        if seq == self._in_flight:
            self._sent_ms = now_ms + self._lease.margin_ms
        used = super().receive(seq, reply, now_ms, denied)
        self._sent_ms = sent_ms
        return used


class NeverRenewed(FromReply):
    """Broken: and what is held is used up to that end without another call."""

    def next_call_ms(self, now_ms: int) -> int | None:
        return None if self._resource.held() else super().next_call_ms(now_ms)


class Silent(LeaseAgent):
    """Broken: it says that it hands its ledger over, and hands over nothing."""

    def _hand_over(self, now_ms: int) -> tuple[Spent, ...]:  # noqa: ARG002
        return ()


class Deaf(LeaseAgent):
    """Broken: it says that it takes a ledger over, and does not."""

    def _take_over(self, reply: LeaseReply, now_ms: int) -> None:
        """Nothing."""


@dataclass(frozen=True)
class Build:
    """The correct build, unless told otherwise."""

    pacing: Literal["strict", "slice"] = "strict"
    agent: type[LeaseAgent] = LeaseAgent
    ttl_ms: int = 5_000
    quarantine_ms: int = 1_000
    handover: Handover = "wait"


INHERITS = Build(handover="inherit")
BROKEN = {
    "slice pacing, leases of 15 s that are never renewed and are timed from the reply": Build(
        pacing="slice", agent=NeverRenewed, ttl_ms=15_000
    ),
    "quarantine 0": Build(quarantine_ms=0),
    "deadline from the reply, margin 0": Build(agent=FromReply),
}
BROKEN_HANDOVER = {
    "a ledger that is not handed over": Build(handover="inherit", agent=Silent),
    "a ledger that is not taken over": Build(handover="inherit", agent=Deaf),
}


@dataclass(frozen=True)
class Load:
    """The resource and who wants it; the figures of vector CAP-111 unless told otherwise."""

    partitions: int = 20
    factor: int = 100
    instances: int = 4
    costs: tuple[int, ...] = (60, 100, 300)
    flush_interval_ms: int = 25
    reserve: int = 0
    slots: int = 1
    adaptive: bool = False
    length_ms: int = 16_000

    @property
    def shared(self) -> int:
        return self.partitions * self.factor

    @property
    def limit(self) -> int:
        return self.shared + self.slots * self.reserve


@dataclass
class Process:
    """`offset_ms`: how far its monotonic clock is ahead of true time."""

    name: str
    core: BatcherCore
    agent: LeaseAgent
    offset_ms: int
    inbox: list[tuple[int, LeaseReply]] = field(default_factory=list)
    running: list[tuple[int, Batch]] = field(default_factory=list)
    raised: list[tuple[int, Batch]] = field(default_factory=list)
    asked: tuple[int, int] | None = None
    """number of the call in flight, and when it was sent"""
    stopped_until: int = 0
    cut_until: int = 0
    quiet_until: int = 0
    demand_at: int = 0
    alive: bool = True


class Run:
    """`late_reply`: the schedule of the third control comes first - owner 1 asks for everything at 0, the store grants
    at 100, the reply arrives at 2600, then the owner is cut off for 10 s while the others want everything. `calm`: no
    faults, every message arrives at once, and nobody wants anything but what a test enqueues."""

    def __init__(self, seed: int, build: Build, load: Load, *, late_reply: bool = False, calm: bool = False) -> None:
        self.rng, self.build, self.load, self.late_reply = Random(seed), build, load, late_reply
        self.now_ms = self.store_away_until = 0
        self.lease = LeaseConfig(
            ttl_ms=build.ttl_ms, renew_interval_ms=1_000, margin_ms=500, call_timeout_ms=CALL_TIMEOUT_MS
        )
        self.store = MemoryStore(lambda: self.now_ms)
        self.store.provision(
            ResourceConfig(
                resource="default",
                shared_capacity=load.shared,
                factor=load.factor,
                reserved_capacity=load.reserve,
                max_instances=load.slots,
                ttl_ms=build.ttl_ms,
                quarantine_ms=build.quarantine_ms,
                handover=build.handover,
                adaptive=load.adaptive,
            )
        )
        self.calm = calm
        self.dispatched: list[tuple[int, int]] = []
        self.done: list[tuple[int, str, Operation]] = []
        """what was dispatched: when, by whom"""
        self.processes: list[Process] = []
        self._watcher = Watcher(lambda batch: batch, max_batch_size=4)
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0
        for _ in range(load.instances):
            self._spawn()
        if late_reply:
            self._begin_with_a_late_reply()
        for _ in range(0 if calm else 4):
            self._at(self.rng.randrange(13_000 if late_reply else 1_500, load.length_ms), self._fault)

    def go(self, until_ms: int | None = None) -> Run:
        end_ms = self.load.length_ms if until_ms is None else until_ms
        while self._events and self._events[0][0] < end_ms:
            self.now_ms, _, event = heappop(self._events)
            event()
        return self

    def _at(self, time_ms: int, event: Callable[[], None]) -> None:
        self._order += 1
        heappush(self._events, (time_ms, self._order, event))

    def _spawn(self) -> None:
        load, offset_ms = self.load, self.rng.randrange(10**6)
        resource = SharedResource(
            self.store,
            lease=self.lease,
            shared_capacity=load.shared,
            factor=load.factor,
            reserved_capacity=load.reserve,
            max_instances=load.slots,
            handover=self.build.handover,
        )
        resource.start()
        config = BatcherConfig(
            flush_interval_ms=load.flush_interval_ms, pacing=self.build.pacing, max_concurrent_batches=50
        )
        core = BatcherCore(config, resource)
        core.start(self.now_ms + offset_ms)
        name = f"owner{len(self.processes) + 1}"
        process = Process(name, core, self.build.agent(resource, name), offset_ms)
        self.processes.append(process)
        self._at(self.now_ms + self.rng.randrange(load.flush_interval_ms), lambda: self._wake(process))

    def _begin_with_a_late_reply(self) -> None:
        first, *others = self.processes
        self.want(first, 100, 400)
        first.core.step(first.offset_ms + 100)
        ask = first.agent.begin(first.offset_ms)
        first.asked, first.cut_until, first.demand_at = (ask.seq, 0), 12_600, 12_600
        self._at(100, lambda: self._serve(first, ask, reply_at=2_600))
        for other in others:
            other.quiet_until = 200

    def _fault(self) -> None:
        kind, process = self.rng.randrange(5), self.rng.choice([p for p in self.processes if p.alive])
        if kind == 0:
            self.store.restart()
        elif kind == 1:
            process.alive = False
            self._at(self.now_ms + self.rng.randrange(3_000), self._spawn)
        elif kind == 2:
            process.stopped_until = self.now_ms + self.rng.randrange(1_000, 8_000)
        elif kind == 3:
            process.cut_until = self.now_ms + self.rng.randrange(6_000)
        else:
            self.store_away_until = self.now_ms + self.rng.randrange(2_000)

    def _wake(self, process: Process) -> None:
        if not process.alive:
            return
        if process.stopped_until > self.now_ms:
            self._at(process.stopped_until, lambda: self._wake(process))
            return
        self._at(self.now_ms + self.load.flush_interval_ms, lambda: self._wake(process))
        local_ms = self.now_ms + process.offset_ms
        self._demand(process)
        self._exchange(process, local_ms)
        for end_ms, batch in process.running:
            if end_ms <= self.now_ms:
                process.core.leave(batch, local_ms)
        process.running = [item for item in process.running if item[0] > self.now_ms]
        for batch in process.core.step(local_ms).batches:
            process.raised.append((self.now_ms + self.rng.choice((0, 0, 0, 40)), batch))
        self._enter(process, local_ms)

    def _enter(self, process: Process, local_ms: int) -> None:
        """The pool is slow now and then: a batch may be entered at a later wake than the one that raised it."""
        due = [batch for at_ms, batch in process.raised if at_ms <= self.now_ms]
        process.raised = [item for item in process.raised if item[0] > self.now_ms]
        for batch in due:
            if process.core.enter(batch, local_ms * NS_PER_MS):
                assert isinstance(batch.cost, int)
                self.dispatched.append((self.now_ms, batch.cost))
                self.done += [(self.now_ms, process.name, op) for op in batch]
                process.running.append((self.now_ms + self.rng.randrange(120), batch))

    def _demand(self, process: Process) -> None:
        if self.calm:
            return
        if self.late_reply and self.now_ms < 12_000 and process is not self.processes[0]:
            if process.core.buffered < 50:
                self.want(process, 100, 60)
        elif self.now_ms >= process.demand_at:
            process.demand_at = self.now_ms + self.rng.randrange(1_000, 6_000)
            cost, units = self.rng.choice(self.load.costs), self.rng.choice((0, 500, 2_000, 8_000))
            self.want(process, cost, units // cost)
            if self.rng.random() < 0.2:
                self.want(process, self.rng.randrange(self.load.shared // 2, self.load.shared), 1)

    def want(self, process: Process, cost: int, count: int) -> None:
        batchable = cost == 60
        for _ in range(count):
            process.core.enqueue(Operation(self._watcher, cost, None, batchable), self.now_ms + process.offset_ms)

    def _exchange(self, process: Process, local_ms: int) -> None:
        agent = process.agent
        for seq, reply in process.inbox:
            agent.receive(seq, reply, local_ms)
            if process.asked is not None and process.asked[0] == seq:
                process.asked = None
        process.inbox.clear()
        if process.asked is not None and self.now_ms - process.asked[1] >= CALL_TIMEOUT_MS:
            agent.failed(process.asked[0], local_ms)
            process.asked = None
        agent.follow_time(local_ms)
        call_ms = agent.next_call_ms(local_ms)
        if call_ms is None or call_ms > local_ms or self.now_ms < process.quiet_until:
            return
        ask = agent.begin(local_ms)
        process.asked = (ask.seq, self.now_ms)
        for _ in range(self._copies(process)):
            self._at(self.now_ms + self._delay(), lambda: self._serve(process, ask))

    def _copies(self, process: Process) -> int:
        """How often a message arrives: lost, once, or twice."""
        if self.now_ms < process.cut_until:
            return 0
        if self.calm:
            return 1
        fate = self.rng.random()
        return 0 if fate < 0.05 else 2 if fate < 0.1 else 1

    def _delay(self) -> int:
        """Mostly short, sometimes so long that later calls overtake it."""
        if self.calm:
            return 1
        return self.rng.randrange(10) if self.rng.random() < 0.85 else self.rng.randrange(5_000)

    def _serve(self, process: Process, ask: LeaseRequest, reply_at: int | None = None) -> None:
        if self.now_ms < self.store_away_until:
            return
        reply = self.store.sync(ask)
        for _ in range(1 if reply_at is not None else self._copies(process)):
            at_ms = self.now_ms + self._delay() if reply_at is None else reply_at
            self._at(at_ms, lambda: process.inbox.append((ask.seq, reply)))
