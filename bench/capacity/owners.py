"""Batchers that spend a shared capacity, in this process, each with a client of its own at the lease store."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

from headrace_core.capacity.batcher import Batcher
from headrace_core.capacity.errors import BatcherError
from headrace_core.capacity.operation import Batch, Operation, Watcher
from headrace_core.capacity.resources import Resource, SharedResource

NS_PER_S = 1_000_000_000


class Owner:
    """Offers operations of `cost` as fast as they are taken while `wants` is set."""

    def __init__(self, resource: Resource, cost: int, *, flush_ms: int = 25, pacing: str = "strict") -> None:
        self.resource, self.cost = resource, cost
        self.sent: list[tuple[int, int]] = []
        self.wants = threading.Event()
        self._ends = False
        self._watcher = Watcher(self._call)
        config = {"flush_interval_ms": flush_ms, "capacity_interval_ms": flush_ms, "buffer_size": 400}
        with warnings.catch_warnings(action="ignore"):  # that slice pacing holds no limit is what is measured
            self.batcher = Batcher(resource, pacing=pacing, **config)
        self._thread = threading.Thread(target=self._offer, daemon=True)

    def start(self) -> Owner:
        self.batcher.start()
        self._thread.start()
        return self

    def stop(self) -> None:
        self._ends = True
        self.wants.set()
        self._thread.join()
        self.batcher.stop(drain_timeout_ms=0)

    def held(self) -> int:
        """Partitions held now."""
        assert isinstance(self.resource, SharedResource)
        return len(self.resource.held())

    def _call(self, batch: Batch) -> None:
        self.sent.append((time.monotonic_ns(), sum(op.cost for op in batch)))  # type: ignore[misc]

    def _offer(self) -> None:
        while not self._ends:
            if not self.wants.wait(0.1):
                continue
            try:
                self.batcher.enqueue(Operation(self._watcher, self.cost, None), timeout_ms=50)
            except BatcherError:  # no room
                continue


def shared(store: Any, name: str, capacity: int, factor: int, **config: Any) -> SharedResource:
    return SharedResource(store, name=name, shared_capacity=capacity, factor=factor, **config)


def until(done: Callable[[], bool], seconds: float = 60) -> float:
    """Seconds until it is so. Raises TimeoutError."""
    began = time.monotonic()
    while not done():
        if time.monotonic() - began > seconds:
            raise TimeoutError("it did not come to it")
        time.sleep(0.005)
    return time.monotonic() - began


def jain(values: list[int]) -> float:
    """Jain's index of fairness: 1 = all the same (Jain, Chiu and Hawe, 1984)."""
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values)) if any(values) else 0.0


def largest(sent: list[tuple[int, int]]) -> int:
    """The most units in any second `(t - 1 s, t]` of (ns, units)."""
    events = sorted(sent)
    most = total = first = 0
    for at, units in events:
        total += units
        while events[first][0] <= at - NS_PER_S:
            total -= events[first][1]
            first += 1
        most = max(most, total)
    return most
