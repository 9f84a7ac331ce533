"""Owners of a shared capacity over one lease store, in virtual time: messages get lost, late and out of order.

One seed is one run. Owners follow "Owner" of capacity.md 13 and spend by a strict ledger (capacity.md 5); a `Build` can
break single rules, for the negative controls of 17.3. All times are milliseconds of one clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random

from headrace_core.capacity.memory_store import MemoryStore
from headrace_core.capacity.protocol import Claim, LeaseReply, LeaseRequest, ResourceConfig

FACTOR, PARTITIONS = 100, 20
LIMIT = FACTOR * PARTITIONS
FLUSH_MS, RENEW_MS, MIN_SYNC_MS, CALL_TIMEOUT_MS = 50, 1_000, 100, 3_000
COSTS = (60, 100, 300, 900)


@dataclass(frozen=True)
class Build:
    """The correct build, unless told otherwise."""

    strict: bool = True
    renews: bool = True
    from_reply: bool = False
    ttl_ms: int = 5_000
    margin_ms: int = 500
    quarantine_ms: int = 1_000


@dataclass
class Owner:
    """The client's side of the protocol: what it may use, what it still has to give back, its one call in flight."""

    name: str
    build: Build
    seq: int = 0
    held: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """partition -> (epoch, worth, deadline)"""
    releasing: dict[Claim, int] = field(default_factory=dict)
    """claim -> the first call that named it"""
    in_flight: int = 0
    sent_ms: int = -CALL_TIMEOUT_MS

    def expire(self, now_ms: int) -> None:
        self.held = {p: lease for p, lease in self.held.items() if now_ms < lease[2]}

    def begin(self, now_ms: int, want: int, head: int = 0) -> LeaseRequest:
        """The next call. What is above `want` is no longer used from here on."""
        self.expire(now_ms)
        self.seq += 1
        for partition in sorted(self.held, key=lambda p: self.held[p][0])[max(want, head) :]:
            self.releasing[Claim(partition, self.held.pop(partition)[0])] = self.seq
        self.in_flight, self.sent_ms = self.seq, now_ms
        return LeaseRequest(
            resource="r",
            owner=self.name,
            seq=self.seq,
            want=want,
            head=head,
            held=tuple(Claim(p, lease[0]) for p, lease in self.held.items()),
            released=tuple(self.releasing),
        )

    def receive(self, request: LeaseRequest, sent_ms: int, reply: LeaseReply, now_ms: int) -> bool:
        """True: call again at once, as something was dropped."""
        if request.seq != self.in_flight or reply.stale:
            return False
        self.in_flight = 0
        self.releasing = {c: first for c, first in self.releasing.items() if first > request.seq}
        deadline = (now_ms if self.build.from_reply else sent_ms) + reply.ttl_ms - self.build.margin_ms
        if now_ms >= deadline:
            self.releasing.update({Claim(g.partition, g.epoch): self.seq + 1 for g in reply.grants})
            return bool(reply.grants)
        for claim in reply.drop:
            if self.held.get(claim.partition, (None,))[0] == claim.epoch:
                del self.held[claim.partition]
                self.releasing[claim] = self.seq + 1
        for grant in reply.grants:
            assert isinstance(grant.worth, int)
            self.held[grant.partition] = (grant.epoch, grant.worth, deadline)
        return bool(reply.drop)


@dataclass
class Worker:
    """A process: an owner with a buffer of operations of one cost, and its own ledger."""

    owner: Owner
    ops: deque[int] = field(default_factory=deque)
    ledger: deque[tuple[int, int]] = field(default_factory=deque)
    used: int = 0
    stopped_until: int = 0
    alive: bool = True
    demand_at: int = 0
    call_at: int = 0
    cut_until: int = 0
    inbox: list[tuple[LeaseRequest, int, LeaseReply]] = field(default_factory=list)

    def flush(self, now_ms: int) -> list[int]:
        """Costs that are dispatched now."""
        self.owner.expire(now_ms)
        while self.ledger and now_ms - self.ledger[0][0] >= 1_000:
            self.used -= self.ledger.popleft()[1]
        capacity, taken = sum(lease[1] for lease in self.owner.held.values()), list[int]()
        spent = 0
        while self.ops and (
            self.used + self.ops[0] <= capacity if self.owner.build.strict else spent <= capacity * FLUSH_MS // 1_000
        ):
            cost = self.ops.popleft()
            self.ledger.append((now_ms, cost))
            self.used, spent = self.used + cost, spent + cost
            taken.append(cost)
        return taken


class Run:
    """One seed: `workers` processes for `length_ms`. `late_reply`: the schedule of the third control comes first."""

    def __init__(self, seed: int, build: Build, *, workers: int = 4, length_ms: int = 20_000, late_reply: bool) -> None:
        self.rng, self.build, self.length_ms, self.now_ms = Random(seed), build, length_ms, 0
        self.store = MemoryStore(lambda: self.now_ms)
        self.store.provision(
            ResourceConfig(
                resource="r",
                shared_capacity=LIMIT,
                factor=FACTOR,
                ttl_ms=build.ttl_ms,
                quarantine_ms=build.quarantine_ms,
            )
        )
        self.dispatched = list[tuple[int, int]]()
        self._events = list[tuple[int, int, Callable[[], None]]]()
        self._order, self._names = 0, 0
        self.late_reply = late_reply
        for _ in range(workers):
            self._spawn()
        for _ in range(3):
            self._at(self.rng.randrange(12_000 if late_reply else 2_000, length_ms), self._fault)

    def go(self) -> Run:
        while self._events and self._events[0][0] < self.length_ms:
            self.now_ms, _, event = heappop(self._events)
            event()
        return self

    def _at(self, time_ms: int, event: Callable[[], None]) -> None:
        self._order += 1
        heappush(self._events, (time_ms, self._order, event))

    def _spawn(self) -> None:
        self._names += 1
        worker = Worker(Owner(f"owner{self._names}", self.build))
        if self.late_reply and self._names == 1:
            worker.ops.extend([100] * 400)
            worker.demand_at, worker.cut_until = 12_000, 12_600
        elif self.late_reply and self._names <= 4:
            worker.call_at = 200
        self._workers = [*getattr(self, "_workers", []), worker]
        self._at(self.now_ms + self.rng.randrange(FLUSH_MS), lambda: self._wake(worker))
        if self.late_reply and self._names == 1:
            self._late_call(worker)

    def _late_call(self, worker: Worker) -> None:
        """At 0 it asks for everything, the store grants at 100, the reply comes at 2600."""
        request = worker.owner.begin(0, PARTITIONS)
        worker.call_at = 2_600
        self._at(100, lambda: self._serve(worker, request, 0, reply_at=2_600))

    def _fault(self) -> None:
        """A store restart, a kill (a new process follows), or a stop of 1 to 8 s."""
        kind, worker = self.rng.randrange(3), self.rng.choice([w for w in self._workers if w.alive])
        if kind == 0:
            self.store.restart()
        elif kind == 1:
            worker.alive = False
            self._at(self.now_ms + self.rng.randrange(3_000), self._spawn)
        else:
            worker.stopped_until = self.now_ms + self.rng.randrange(1_000, 8_000)

    def _wake(self, worker: Worker) -> None:
        if not worker.alive:
            return
        if worker.stopped_until > self.now_ms:
            self._at(worker.stopped_until, lambda: self._wake(worker))
            return
        self._at(self.now_ms + FLUSH_MS, lambda: self._wake(worker))
        for request, sent_ms, reply in worker.inbox:
            if worker.owner.receive(request, sent_ms, reply, self.now_ms):
                worker.call_at = self.now_ms
        worker.inbox = []
        self._demand(worker)
        self._call(worker)
        self.dispatched += [(self.now_ms, cost) for cost in worker.flush(self.now_ms)]

    def _demand(self, worker: Worker) -> None:
        if self.now_ms >= worker.demand_at:
            worker.demand_at = self.now_ms + self.rng.randrange(1_000, 6_000)
            cost, units = self.rng.choice(COSTS), self.rng.choice((0, 500, 2_000, 8_000))
            worker.ops.extend([cost] * (units // cost))
        if self.late_reply and worker.owner.name != "owner1" and self.now_ms < 12_000 and len(worker.ops) < 100:
            worker.ops.extend([100] * 100)

    def _call(self, worker: Worker) -> None:
        owner = worker.owner
        if owner.in_flight and self.now_ms - owner.sent_ms >= CALL_TIMEOUT_MS:
            owner.in_flight = 0
        if owner.in_flight or self.now_ms - owner.sent_ms < MIN_SYNC_MS or self.now_ms < worker.cut_until:
            return
        if not self.build.renews and owner.held:
            return
        want = min(PARTITIONS, -(-(sum(worker.ops) + worker.used) // FACTOR)) if worker.ops else 0
        if self.now_ms < worker.call_at and want == len(owner.held):
            return
        head = -(-worker.ops[0] // FACTOR) if worker.ops else 0
        request = owner.begin(self.now_ms, want, head)
        worker.call_at = self.now_ms + RENEW_MS
        if self.rng.random() < 0.95:
            sent_ms = self.now_ms
            self._at(self.now_ms + self._delay(), lambda: self._serve(worker, request, sent_ms))

    def _delay(self) -> int:
        """Mostly short, sometimes so long that later calls overtake it."""
        return self.rng.randrange(10) if self.rng.random() < 0.8 else self.rng.randrange(5_000)

    def _serve(self, worker: Worker, request: LeaseRequest, sent_ms: int, reply_at: int | None = None) -> None:
        reply = self.store.sync(request)
        if reply_at is not None or self.rng.random() < 0.95:
            at = self.now_ms + self._delay() if reply_at is None else reply_at
            self._at(at, lambda: worker.inbox.append((request, sent_ms, reply)))


def largest_window(dispatched: Sequence[tuple[int, int]]) -> int:
    """The largest cost in any half-open second `(t - 1000 ms, t]`; `dispatched` in order of time."""
    first = total = largest = 0
    for at, cost in dispatched:
        total += cost
        while dispatched[first][0] <= at - 1_000:
            total -= dispatched[first][1]
            first += 1
        largest = max(largest, total)
    return largest
