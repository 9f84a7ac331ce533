"""Load and latency for `headrace capacity calibrate` (capacity.md 15): the search itself is core's.

At each cost the load is what the batcher lets through, `capacity / cost` operations a second. The latency of an
operation counts from when it was let through until its answer, so waiting for a connection is part of it.
"""

from __future__ import annotations

import math
import queue
import time
from collections.abc import Callable

import psycopg

from headrace_core.capacity.batcher import Batcher
from headrace_core.capacity.calibrate import Calibration
from headrace_core.capacity.errors import BatcherError
from headrace_core.capacity.operation import Batch, Operation, Watcher
from headrace_core.capacity.resources import ProvisionedResource
from headrace_core.errors import HeadraceError

AHEAD = 64
"""Operations offered before they are let through."""


def calibrated(
    url: str,
    sql: str,
    *,
    capacity: int,
    target_ms: float,
    percentile: float,
    seconds: float,
    connections: int,
    first: int,
    tell: Callable[[int, float, float], None],
) -> int | None:
    """The lowest cost that holds, None if none does. `tell(cost, operations/s, latency ms)` after each measurement.

    Raises HeadraceError if the datastore cannot be reached or refuses the statement, CapacityConfig for wrong numbers.
    """
    search = Calibration(capacity, target_ms, first)
    pool: queue.SimpleQueue[psycopg.Connection[object]] = queue.SimpleQueue()
    try:
        opened = [psycopg.connect(url, autocommit=True, connect_timeout=10) for _ in range(connections)]
        opened[0].execute(sql.encode())
        for connection in opened:
            pool.put(connection)
        while (cost := search.cost) is not None:
            latency_ms = _measured(pool, sql, capacity, cost, percentile, seconds)
            tell(cost, search.rate, latency_ms)
            search.observe(latency_ms)
    except psycopg.Error as error:
        raise HeadraceError(f"the datastore: {' '.join(str(error).split())}") from error
    for connection in opened:
        connection.close()
    return search.found


def _measured(
    pool: queue.SimpleQueue[psycopg.Connection[object]],
    sql: str,
    capacity: int,
    cost: int,
    percentile: float,
    seconds: float,
) -> float:
    """The latency at that cost, in milliseconds."""
    took: list[float] = []
    failed: list[BaseException] = []

    def call(_: Batch) -> None:
        began = time.perf_counter()
        connection = pool.get()
        try:
            connection.execute(sql.encode())
        finally:
            pool.put(connection)
            took.append((time.perf_counter() - began) * 1000)

    batcher = Batcher(ProvisionedResource(capacity), flush_interval_ms=25, buffer_size=AHEAD)
    watcher = Watcher(call, on_error=lambda _batch, error: failed.append(error))
    batcher.start()
    ends = time.monotonic() + max(seconds, 2 * cost / capacity)
    while time.monotonic() < ends and not failed:
        try:
            batcher.enqueue(Operation(watcher, cost, None), timeout_ms=100)
        except BatcherError:  # no room yet
            continue
    batcher.stop(drain_timeout_ms=0)
    _drained(batcher)
    for error in failed:
        raise error
    return _percentile(took, percentile) if took else math.inf


def _drained(batcher: Batcher) -> None:
    """What was let through gets its answer before the next load begins."""
    ends = time.monotonic() + 60
    while batcher.inflight and time.monotonic() < ends:
        time.sleep(0.01)


def _percentile(values: list[float], percentile: float) -> float:
    ranked = sorted(values)
    return ranked[max(0, math.ceil(len(ranked) * percentile / 100) - 1)]
