"""`python -m bench capacity`: each figure of capacity.md 18 that needs a clock, over real stores on loopback."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

from bench.capacity.owners import NS_PER_S, Owner, jain, largest, shared, until
from bench.engines.measure import Figure
from headrace_capacity.coordinator import Coordinator, CoordinatorStore
from headrace_capacity.postgres import PostgresStore
from headrace_core.capacity.protocol import Claim, LeaseRequest, ResourceConfig
from headrace_core.capacity.resources import ProvisionedResource

CAPACITY, FACTOR = 2_000, 100
SYNC_OWNERS, SYNC_PARTITIONS = 64, 500
Open = Callable[[], Any]


@contextmanager
def coordinator() -> Iterator[Open]:
    """Makes clients of a coordinator of this process."""
    with_token = "bench"
    running = Coordinator(with_token, cold=True).start()
    yield lambda: CoordinatorStore(running.address, with_token)
    running.stop()


@contextmanager
def postgres() -> Iterator[Open]:
    """Makes clients of a PostgreSQL of its own."""
    from tests.support.postgres import server

    with server() as url:
        yield lambda: PostgresStore(url)


def figures(*, quick: bool = False) -> list[Figure]:
    """All of them; a minute and a half, or half a minute if quick."""
    found = [*utilisation(3 if quick else 10), *pacings(3 if quick else 10)]
    with coordinator() as opened:
        found += [*moves(opened)]
        found += [sync_time("coordinator", opened, 5, 5 if quick else 15)]
    with postgres() as opened:
        found += [sync_time("PostgreSQL", opened, 25, 5 if quick else 15)]
    return found


def utilisation(seconds: float) -> Iterator[Figure]:
    """One saturated batcher with a fixed capacity; the first second, in which credit gathers, is left out."""
    for cost, flush_ms, target in ((10, 25, 95.0), (10, 100, 90.0), (300, 25, _floor(300)), (700, 25, _floor(700))):
        owner = Owner(ProvisionedResource(CAPACITY), cost, flush_ms=flush_ms).start()
        owner.wants.set()
        time.sleep(1 + seconds)
        owner.stop()
        first = owner.sent[0][0] + NS_PER_S
        used = sum(units for at, units in owner.sent if first <= at < first + seconds * NS_PER_S)
        name = f"utilisation, cost {cost} of {CAPACITY}, flush {flush_ms} ms"
        yield Figure(name, 100 * used / (CAPACITY * seconds), "%", target)


def pacings(seconds: float) -> Iterator[Figure]:
    """The largest second of strict pacing and of the classic one by slices, beside each other, over the capacity."""
    for pacing, target in (("strict", 1.0), ("slice", None)):
        owner = Owner(ProvisionedResource(CAPACITY), 90, flush_ms=100, pacing=pacing).start()
        owner.wants.set()
        time.sleep(seconds)
        owner.stop()
        yield Figure(f"largest second, {pacing} pacing", largest(owner.sent) / CAPACITY, "ratio", target, least=False)


def _floor(cost: int) -> float:
    return 100 * (CAPACITY // cost) * cost / CAPACITY - 3


def moves(opened: Open) -> Iterator[Figure]:
    """How soon partitions are where they are wanted: cold start, a moved demand, a crash, one instance for all."""
    owners = [Owner(shared(opened(), "cold", CAPACITY, FACTOR), 10) for _ in range(4)]
    began = time.monotonic()
    for owner in owners:
        owner.start().wants.set()
    took = began + until(lambda: sum(o.held() for o in owners) == 20 and jain([o.held() for o in owners]) >= 0.95)
    yield Figure("cold start of 4: all partitions held, Jain >= 0.95", took - began, "s", 3, least=False)
    for owner in owners:
        owner.stop()
    yield from _demand_moves(opened)
    yield from _crash(opened)
    alone = Owner(shared(opened(), "alone", 500, 1), 5).start()
    alone.wants.set()
    yield Figure("one instance holds all 500 partitions", until(lambda: alone.held() == 500), "s")
    alone.stop()
    yield from _weights(opened)


def _demand_moves(opened: Open) -> Iterator[Figure]:
    first, second = (Owner(shared(opened(), "moves", CAPACITY, FACTOR), 10).start() for _ in range(2))
    first.wants.set()
    until(lambda: first.held() == 20)
    first.wants.clear()
    until(lambda: first.batcher.buffered == 0)
    second.wants.set()
    yield Figure("demand moves to another instance", until(lambda: second.held() == 20), "s", 2.2, least=False)
    changed = time.monotonic()
    second.resource.set_shared_capacity(CAPACITY // 2)
    until(lambda: first.resource.max_capacity == second.resource.max_capacity == CAPACITY // 2)
    yield Figure("capacity change seen by all", time.monotonic() - changed, "s", 1.1, least=False)
    first.stop()
    second.stop()


def _crash(opened: Open) -> Iterator[Figure]:
    """An owner that just ends: what a client that never speaks again holds."""
    store = opened()
    store.provision(ResourceConfig(resource="crash", shared_capacity=CAPACITY, factor=FACTOR))
    reply = store.sync(LeaseRequest(resource="crash", owner="crashed", seq=1, want=20), 2_000)
    assert len(reply.grants) == 20
    next_one = Owner(shared(opened(), "crash", CAPACITY, FACTOR), 10).start()
    next_one.wants.set()
    yield Figure(
        "crash of an owner: its partitions are another's", until(lambda: next_one.held() == 20), "s", 7, least=False
    )
    next_one.stop()


def _weights(opened: Open) -> Iterator[Figure]:
    owners = [Owner(shared(opened(), "weights", CAPACITY, FACTOR, weight=weight), 10).start() for weight in (1, 4)]
    for owner in owners:
        owner.wants.set()
    took = until(lambda: [owner.held() for owner in owners] == [4, 16])
    yield Figure("shares 1 : 4 of 20 partitions, exact", took, "s")
    for owner in owners:
        owner.stop()


def sync_time(name: str, opened: Open, target_ms: float, seconds: float) -> Figure:
    """`sync` of 64 owners that hold 500 partitions and each renew once a second."""
    config = ResourceConfig(resource="sync", shared_capacity=SYNC_PARTITIONS, factor=1)
    opened().provision(config)
    took: list[float] = []
    ends = time.monotonic() + seconds
    threads = [threading.Thread(target=_renew, args=(opened(), index, ends, took)) for index in range(SYNC_OWNERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ranked = sorted(took)
    return Figure(
        f"sync, {SYNC_OWNERS} owners, {SYNC_PARTITIONS} partitions, {name}, p99",
        ranked[math.ceil(len(ranked) * 0.99) - 1],
        "ms",
        target_ms,
        least=False,
        notes={"p50": round(median(took), 3), "calls": len(took), "load": round(os.getloadavg()[0], 2)},
    )


def _renew(store: Any, index: int, ends: float, took: list[float]) -> None:
    """Every second, owners spread over it; the first two calls, in which shares settle, do not count."""
    held: tuple[Claim, ...] = ()
    released: tuple[Claim, ...] = ()
    time.sleep(index / SYNC_OWNERS)
    seq = 0
    while time.monotonic() < ends:
        seq += 1
        members = {"want": SYNC_PARTITIONS, "held": held, "released": released}
        request = LeaseRequest(resource="sync", owner=f"owner-{index}", seq=seq, **members)  # type: ignore[arg-type]
        began = time.perf_counter()
        reply = store.sync(request, 5_000)
        if seq > 2:
            took.append((time.perf_counter() - began) * 1000)
        held, released = tuple(Claim(grant.partition, grant.epoch) for grant in reply.grants), reply.drop
        time.sleep(max(0.0, 1 - (time.perf_counter() - began)))
