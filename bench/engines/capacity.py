"""Capacity: CPU of an operation from `enqueue` to its callback (capacity.md 18), in the batcher for threads."""

from __future__ import annotations

import time

from bench.engines.measure import Figure
from bench.engines.sampler import Sampler
from headrace_core.capacity.batcher import Batcher
from headrace_core.capacity.operation import Batch, Operation, Watcher
from headrace_core.capacity.resources import ProvisionedResource

BATCH = 100
PATIENCE_S = 60
CAPACITY = 10_000_000
"""Units/s: more than one core can ask for, so that the batcher never waits."""


class Sink:
    """Counts what has been dispatched."""

    def __init__(self) -> None:
        self.taken = 0

    def __call__(self, batch: Batch) -> None:
        self.taken += len(batch)


def cpu_us(count: int, *, many: bool) -> float:
    """CPU microseconds of the process for each of `count` operations, which one callback gets `BATCH` at a time."""
    sink = Sink()
    watcher = Watcher(sink, max_batch_size=BATCH)
    operations = [Operation(watcher, 1, None, batchable=True) for _ in range(count)]
    batcher = Batcher(ProvisionedResource(CAPACITY), flush_interval_ms=5, buffer_size=count + 1)
    batcher.start()
    started = time.process_time()
    if many:
        for at in range(0, count, BATCH):
            batcher.enqueue_many(operations[at : at + BATCH])
    else:
        for operation in operations:
            batcher.enqueue(operation)
    deadline = time.monotonic() + PATIENCE_S
    while sink.taken < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{sink.taken} of {count} operations were dispatched in {PATIENCE_S} s")
        time.sleep(0.001)
    spent = time.process_time() - started
    batcher.stop(0)
    return spent / count * 1e6


def figures(*, quick: bool) -> list[Figure]:
    """`enqueue` one by one, and `enqueue_many` in hundreds."""
    count, runs = (5000, 3) if quick else (20_000, 5)
    found = []
    for name, many, target in (("enqueue", False, 12.0), ("enqueue_many", True, 6.0)):
        best = min(cpu_us(count, many=many) for _ in range(runs))
        figure = Figure(f"capacity, {name} to dispatch", best, "us CPU/operation", target, least=False)
        if not figure.met:
            with Sampler() as sampler:
                for _ in range(runs):
                    cpu_us(count, many=many)
            figure.profile = [(function, round(share, 3)) for function, share in sampler.shares()]
            figure.notes["what"] = "the profile is that of the calling thread"
        found.append(figure)
    return found
