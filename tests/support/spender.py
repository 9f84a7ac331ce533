"""A process that spends a shared capacity with the real `Batcher`, for the check with real processes.

capacity.md 17.2 and 17.3.

`python -m tests.support.spender '{"store": ..., ...}'` runs until it is ended. Each dispatch is one line of its file:
when the capacity was checked and when the call was made, both in ns of the machine's one monotonic clock, and its cost.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from random import Random
from typing import Any, Literal

import msgspec

from headrace_capacity.stores import open_store
from headrace_core.capacity import lease_client
from headrace_core.capacity.batcher import Batcher
from headrace_core.capacity.config import LeaseConfig
from headrace_core.capacity.errors import BatcherError, LeaseStoreUnavailable
from headrace_core.capacity.operation import Batch, Operation, Watcher
from headrace_core.capacity.protocol import Handover, LeaseReply, LeaseRequest
from headrace_core.capacity.resources import SharedResource
from tests.support.agent_sim import FromReply, NeverRenewed, Silent

LIMIT, FACTOR = 2_000, 100
COSTS = (60, 100, 300, 900)
REAL_WALL = time.time


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """`demand`: "random", or "odd"/"even": all or nothing in turns of `turn_s`. `wall_s`: how wrong the wall clock is.
    `go`: it wants nothing before there is such a file. `late_after`: from the first reply with so many partitions on,
    replies are 2.5 s late, and then none comes."""

    store: str
    token: str
    resource: str
    out: str
    seed: int
    demand: Literal["random", "odd", "even", "all"] = "random"
    turn_s: float = 2.0
    wall_s: int = 0
    build: Literal["", "slice", "quarantine", "reply", "silent"] = ""
    handover: Handover = "wait"
    late_after: int = 0
    go: str = ""
    costs: tuple[int, ...] = COSTS
    buffer: int = 200


class CutOff:
    """A store whose replies come late, and then not at all."""

    def __init__(self, store: Any, partitions: int) -> None:
        self._store, self._partitions, self._cut = store, partitions, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def sync(self, request: LeaseRequest, timeout_ms: int) -> LeaseReply:
        if self._cut:
            time.sleep(0.2)
            raise LeaseStoreUnavailable("cut off")
        reply: LeaseReply = self._store.sync(request, timeout_ms)
        if len(reply.grants) >= self._partitions:
            self._cut = True
            time.sleep(2.5)
        return reply


class Spender:
    def __init__(self, plan: Plan) -> None:
        self.plan, self.rng = plan, Random(plan.seed)
        self.file = os.open(plan.out, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.seen = threading.local()
        agents = {"slice": NeverRenewed, "reply": FromReply, "silent": Silent}
        if plan.build in agents:
            lease_client.LeaseAgent = agents[plan.build]  # type: ignore[misc]
        store: Any = open_store(plan.store, token=plan.token, call_timeout_ms=3_000)
        lease = LeaseConfig(
            ttl_ms=15_000 if plan.build == "slice" else 5_000,
            quarantine_ms=1 if plan.build == "quarantine" else 1_000,
            call_timeout_ms=3_000,
            for_tests=True,
        )
        resource = SharedResource(
            CutOff(store, plan.late_after) if plan.late_after else store,
            lease=lease,
            name=plan.resource,
            shared_capacity=LIMIT,
            factor=FACTOR,
            handover=plan.handover,
        )
        self.batcher = Batcher(
            resource,
            clock=self._clock,
            flush_interval_ms=25,
            capacity_interval_ms=25,
            pacing="slice" if plan.build == "slice" else "strict",
            buffer_size=plan.buffer,
            error_on_full=True,
        )
        self.watcher = Watcher(self._call)

    def _clock(self) -> int:
        """The last reading in a callback's thread is the one that its check was made with."""
        self.seen.ns = time.monotonic_ns()
        return int(self.seen.ns)

    def _call(self, batch: Batch) -> None:
        checked = self.seen.ns
        cost = sum(op.cost for op in batch)  # type: ignore[misc]
        os.write(self.file, f"{checked} {time.monotonic_ns()} {cost}\n".encode())

    def run(self) -> None:
        self._start()
        while True:
            share, seconds = self._turn()
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                self._offer(share)
                time.sleep(0.05)

    def _start(self) -> None:
        while True:
            try:
                return self.batcher.start()
            except LeaseStoreUnavailable:
                time.sleep(0.2)

    def _turn(self) -> tuple[float, float]:
        """Wanted share of the limit, and for how many seconds."""
        if self.plan.go and not os.path.exists(self.plan.go):
            return 0.0, 0.05
        if self.plan.demand == "random":
            return self.rng.choice((0.0, 0.1, 0.5, 1.0, 3.0)), self.rng.uniform(1, 6)
        if self.plan.demand == "all":
            return 3.0, 1.0
        turn = int(time.monotonic() / self.plan.turn_s)
        mine = turn % 2 == (self.plan.demand == "odd")
        return (4.0 if mine else 0.0), (turn + 1) * self.plan.turn_s - time.monotonic()

    def _offer(self, share: float) -> None:
        units = share * LIMIT * 0.05
        while units > 0:
            cost = self.rng.choice(self.plan.costs)
            units -= cost
            try:
                self.batcher.enqueue(Operation(self.watcher, cost, None))
            except BatcherError:
                return


def main() -> None:
    plan = msgspec.json.decode(sys.argv[1], type=Plan)
    time.time = lambda: REAL_WALL() + plan.wall_s
    Spender(plan).run()


if __name__ == "__main__":
    main()
