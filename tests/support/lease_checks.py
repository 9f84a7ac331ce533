"""What the tests of leased Spark jobs ask: who holds what, what went out when, and whether that was within the limit.

The check knows nothing of leases: it adds up the recorded dispatches of all processes in each second.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import psutil

from headrace.windows import SECOND_NS, highest
from headrace_core.capacity.errors import UnknownResource
from headrace_core.capacity.protocol import StoreStatus
from tests.support.spark_job import Job, query


class Told(Protocol):
    """A lease store, or a coordinator."""

    def status(self, resource: str) -> StoreStatus: ...


def dispatched(database: str, since_ns: int = 0) -> list[tuple[int, int]]:
    """(monotonic ns, cost) of all requests of all jobs that keep their state in this database, in order."""
    text = "SELECT at_ns, cost FROM hr_dispatch WHERE at_ns >= %s ORDER BY at_ns"
    return [(int(at), int(cost)) for at, cost in query(database, text, since_ns)]


def busiest(database: str, since_ns: int = 0, seconds: int = 1) -> int:
    """The most that went out in so many seconds on end."""
    return highest(dispatched(database, since_ns), seconds * SECOND_NS)


def workers(one: Job) -> list[psutil.Process]:
    """The Python workers of Spark: what its daemon has forked."""
    assert one.process is not None
    found = []
    for child in psutil.Process(one.process.pid).children(recursive=True):
        try:
            parent = child.parent()
            family = [] if parent is None else [" ".join(each.cmdline()) for each in (parent, child)]
            if family and all("pyspark.daemon" in line for line in family):
                found.append(child)
        except psutil.Error:
            continue
    return found


def owners(store: Told, resource: str) -> dict[int, int]:
    """Partitions held, by the pid of the owner (`host:pid:uuid`); none before anybody asked for the resource."""
    try:
        return {int(each.owner.split(":")[1]): each.partitions for each in store.status(resource).owners}
    except UnknownResource:
        return {}


def held_until_ns(store: Told, resource: str, pid: int) -> int:
    """When an owner was last seen to hold something: the start of that look, so a slow machine makes it no later."""
    deadline, seen_ns = time.monotonic() + 600, time.monotonic_ns()
    while True:
        now_ns = time.monotonic_ns()
        if not owners(store, resource).get(pid):
            return seen_ns
        seen_ns = now_ns
        assert time.monotonic() < deadline, f"{pid} still holds partitions"
        time.sleep(0.05)


def both(jobs: list[Job], holds: Callable[[], bool], seconds: float = 900) -> None:
    """Wait for a condition as long as both jobs run."""
    deadline = time.monotonic() + seconds
    while not holds():
        for one in jobs:
            assert not one.ended(), one.log()[-4000:]
        assert time.monotonic() < deadline, "\n".join(one.log()[-2000:] for one in jobs)
        time.sleep(0.1)
