"""The lease store under any order of calls, losses and delays, beside a naive book of who could be using what.

The book knows only what owners were told and when they sent; it knows nothing of the store's rules. It checks: no
partition is in use by two owners, and none by a new owner before a whole window after the old one's last possible use;
epochs only rise; no owner is granted more than it wants; the worths never add up to more than the capacity.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace_core.capacity.lease_state import LeaseState
from headrace_core.capacity.memory_store import MemoryStore
from headrace_core.capacity.protocol import LeaseReply, LeaseRequest, ResourceConfig
from tests.support.lease_sim import Build, Owner

PARTITIONS, WINDOW_MS = 4, 1_000
BUILD = Build()
NAMES = ["A", "B", "C"]


@dataclass
class Book:
    """By partition: the owner that uses it or used it last, and when it last could."""

    user: dict[int, str] = field(default_factory=dict)
    last_use_ms: dict[int, int] = field(default_factory=dict)

    def use(self, owner: Owner, now_ms: int) -> None:
        """The owner uses all that it holds at this instant."""
        for partition, (_, _, deadline_ms) in owner.held.items():
            assert now_ms < deadline_ms
            if self.user.get(partition, owner.name) != owner.name:
                gap = now_ms - self.last_use_ms[partition]
                assert gap >= WINDOW_MS, f"{owner.name} uses {partition} {gap} ms after {self.user[partition]}"
            self.user[partition], self.last_use_ms[partition] = owner.name, now_ms


class LeaseMachine(RuleBasedStateMachine):
    """Owners are honest; the network and the store's process are not."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.store = MemoryStore(lambda: self.now_ms)
        self.store.provision(ResourceConfig(resource="r", shared_capacity=350, factor=100))
        self.owners = {name: Owner(name, BUILD) for name in NAMES}
        self.book = Book()
        self.requests = list[tuple[Owner, LeaseRequest, int]]()
        self.replies = list[tuple[Owner, LeaseRequest, int, LeaseReply]]()
        self.epochs = dict[int, int]()
        self.generations = dict[int, str]()

    @rule(passed_ms=st.sampled_from([1, 50, 400, 999, 1_000, 1_001, 2_500, 4_499, 4_500, 5_000]))
    def wait(self, passed_ms: int) -> None:
        """Everybody uses what it holds up to its last moment."""
        for at in sorted({*range(self.now_ms, self.now_ms + passed_ms, 250), *self.last_moments(passed_ms)}):
            for owner in self.owners.values():
                owner.expire(at)
                self.book.use(owner, at)
        self.now_ms += passed_ms

    def last_moments(self, passed_ms: int) -> set[int]:
        ends = {lease[2] - 1 for owner in self.owners.values() for lease in owner.held.values()}
        return {end for end in ends if self.now_ms <= end < self.now_ms + passed_ms}

    @rule(name=st.sampled_from(NAMES), want=st.integers(0, 5), head=st.sampled_from([0, 0, 0, 3]))
    def send(self, name: str, want: int, head: int) -> None:
        """A new call; one that is still in flight is given up."""
        owner = self.owners[name]
        owner.expire(self.now_ms)
        self.book.use(owner, self.now_ms)
        self.requests.append((owner, owner.begin(self.now_ms, want, head), self.now_ms))

    @rule(data=st.data(), lost=st.booleans(), repeat=st.booleans())
    def serve(self, data: st.DataObject, lost: bool, repeat: bool) -> None:
        """The store gets any of the calls on their way, perhaps not for the last time; the reply may be lost."""
        if not self.requests:
            return
        at = data.draw(st.integers(0, len(self.requests) - 1))
        owner, request, sent_ms = self.requests[at] if repeat else self.requests.pop(at)
        reply = self.store.sync(request)
        self.check_reply(request, reply)
        if not lost:
            self.replies.append((owner, request, sent_ms, reply))

    def check_reply(self, request: LeaseRequest, reply: LeaseReply) -> None:
        assert len(reply.grants) <= max(request.want, request.head)
        for grant in reply.grants:
            assert grant.epoch >= self.epochs.get(grant.partition, 0), "epochs never fall"
            assert self.generations.setdefault(grant.epoch, request.owner) == request.owner, "epochs never repeat"
            self.epochs[grant.partition] = grant.epoch

    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        """Any reply on its way arrives."""
        if not self.replies:
            return
        owner, request, sent_ms, reply = self.replies.pop(data.draw(st.integers(0, len(self.replies) - 1)))
        if owner is self.owners[owner.name[0]]:
            owner.receive(request, sent_ms, reply, self.now_ms)
            owner.expire(self.now_ms)
            self.book.use(owner, self.now_ms)

    @rule(name=st.sampled_from(NAMES), want=st.integers(0, 5))
    def exchange(self, name: str, want: int) -> None:
        """A call without any trouble, so that much is held."""
        self.send(name, want, 0)
        owner, request, sent_ms = self.requests.pop()
        reply = self.store.sync(request)
        self.check_reply(request, reply)
        owner.receive(request, sent_ms, reply, self.now_ms)
        self.book.use(owner, self.now_ms)

    @rule(name=st.sampled_from(NAMES))
    def kill(self, name: str) -> None:
        """The process dies; the next one has a new owner id. Calls of the dead one are still on their way."""
        owner = self.owners[name]
        number = int(owner.name[1:] or 0) + 1
        self.owners[name] = Owner(f"{name}{number}", BUILD)

    @invariant()
    def what_is_owned_is_within_the_capacity(self) -> None:
        status = self.store.status("r")
        assert isinstance(status.granted, int)
        assert status.granted <= 350

    @invariant()
    def the_state_survives_its_bytes(self) -> None:
        state = self.store.state("r")
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=LeaseState) == state


class RestartingMachine(LeaseMachine):
    """The same, and the store loses its memory. Calls that were on their way before are still on their way."""

    @rule()
    def restart(self) -> None:
        self.store.restart()

    def check_reply(self, request: LeaseRequest, reply: LeaseReply) -> None:
        """An old call may claim an older epoch until the newer one is heard of, so only repeats are checked here."""
        assert len(reply.grants) <= max(request.want, request.head)
        for grant in reply.grants:
            assert self.generations.setdefault(grant.epoch, request.owner) == request.owner, "epochs never repeat"


SETTINGS = settings(max_examples=60, stateful_step_count=50, deadline=None)
TestLeases = LeaseMachine.TestCase
TestLeases.settings = SETTINGS
TestLeasesOverRestarts = RestartingMachine.TestCase
TestLeasesOverRestarts.settings = SETTINGS
