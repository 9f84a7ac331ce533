"""A process that is stopped between picking a batch and dispatching it (vector CAP-107): the child's side.

It leases all there is, loses the store, picks a batch and says so; the parent stops it and lets it go on. Then the
batch gets its thread at last, and the child says what became of it.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from headrace_core.capacity.batcher import Batcher
from headrace_core.capacity.config import LeaseConfig
from headrace_core.capacity.memory_store import MemoryStore
from headrace_core.capacity.operation import Operation, Watcher
from headrace_core.capacity.pacing import StrictPacing
from headrace_core.capacity.resources import SharedResource


class HeldBack(Executor):
    """Keeps its tasks until `release` runs them."""

    def __init__(self) -> None:
        self.tasks: list[Callable[[], object]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.tasks.append(lambda: fn(*args, **kwargs))
        return Future()

    def release(self) -> None:
        tasks, self.tasks = self.tasks, []
        for task in tasks:
            task()


def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():
        threading.Event().wait(0.001)


def main(ttl_ms: int, margin_ms: int, pick_ms: int, go_on_ms: int) -> None:
    store = MemoryStore(lambda: time.monotonic_ns() // 1_000_000)
    lease = LeaseConfig(ttl_ms=ttl_ms, margin_ms=margin_ms)
    resource = SharedResource(store, lease=lease, shared_capacity=1_000, factor=100)
    pool, called = HeldBack(), list[int]()
    watcher = Watcher(lambda batch: called.append(len(batch)))
    batcher = Batcher(resource, executor=pool, flush_interval_ms=pick_ms, capacity_interval_ms=25)
    core = batcher._core
    ops = [Operation(watcher, 310, name, batchable=True) for name in "abc"]
    assert batcher.enqueue_many(ops) == [None] * 3
    start_ns = time.monotonic_ns()
    batcher.start()
    wait_until(lambda: len(resource.held()) == resource.partitions)
    store.reachable = False
    wait_until(lambda: bool(pool.tasks) or not resource.capacity)
    if not pool.tasks:
        print("late", flush=True)  # the machine let it pick when its leases had ended
        batcher.stop(0)
        return
    print("picked", flush=True)
    wait_until(lambda: time.monotonic_ns() - start_ns >= go_on_ms * 1_000_000)
    pool.release()
    with batcher._lock:
        pacer = core.pacer
        assert isinstance(pacer, StrictPacing)
        outcome = {
            "called": called,
            "buffer": [entry.op.payload for entry in core.waiting()],
            "attempts": [op.attempt for op in ops],
            "used": core.used(time.monotonic_ns()),
            "inflight": core.inflight,
            "target": core.target,
            "credit": pacer.credit[""],
            "capacity": resource.capacity,
        }
    print(json.dumps(outcome), flush=True)
    batcher.stop(0)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
