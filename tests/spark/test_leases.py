"""Two Spark jobs lease one capacity (spark-writer.md 6): real Spark, Kafka and PostgreSQL, a coordinator over TCP.

A start of Spark takes long, so the two jobs live through all of it: both at work, a Python worker killed (case 3), the
lease store away and back (case 15). Each job's rows go into a table of its own; all requests are in one `hr_dispatch`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.kafka import free_port
from headrace.windows import SECOND_NS
from headrace_capacity.coordinator import Coordinator
from headrace_core.capacity.config import LeaseConfig
from tests.support.lease_checks import both, busiest, dispatched, held_until_ns, owners, workers
from tests.support.spark_job import Job, documents, produce, query

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(2400)]
CAPACITY, ROWS, REQUEST = 300, 2400, 10
RESOURCE, TOKEN = "db", "token of the test"
LEASE = LeaseConfig()
CRASH_MS = 7_000
"""An owner is dead, and others have its share: ttl + quarantine + renew (capacity.md 18)."""


class Stores:
    """The coordinator, which can go away and come back at the same port."""

    def __init__(self) -> None:
        self.port = free_port()
        self.now = Coordinator(TOKEN, port=self.port, cold=True).start()
        self.address = self.now.address

    def status(self, resource: str) -> Any:
        return self.now.status(resource)

    def go(self) -> int:
        """It is gone at this moment (monotonic ns)."""
        self.now.stop()
        return time.monotonic_ns()

    def come_back(self) -> None:
        self.now = Coordinator(TOKEN, port=self.port).start()


@pytest.fixture
def store() -> Iterator[Stores]:
    found = Stores()
    yield found
    found.now.stop()


@pytest.fixture
def jobs(job: Callable[..., Job], database: str, store: Stores, tmp_path: Path) -> list[Job]:
    """Both started: each has all rows in one micro-batch, whose tasks stage them and whose driver merges them."""
    token = tmp_path / "token"
    token.write_text(TOKEN)
    settings: dict[str, Any] = {
        "sink": database, "state_dsn": database, "path": "staged", "lease_store": store.address,
        "lease_token_file": str(token), "resource": RESOURCE, "capacity": CAPACITY, "max": REQUEST,
        "trigger_ms": 10_000, "expected_cost_per_record": 4.0, "master": "local[2,20]",
    }  # fmt: skip
    made = [job(tmp_path / name, **settings, job=name, table=f"t_{name}") for name in ("one", "two")]
    produce(made[0], documents(ROWS // 10))
    for one in made:
        one.start()
    return made


def test_two_jobs_never_exceed_what_they_share_whatever_dies(jobs: list[Job], database: str, store: Stores) -> None:
    def sending(pid: int) -> bool:
        return owners(store, RESOURCE).get(pid, 0) > 0

    # both at work: more than one process of each job holds something, and together they use nearly all
    both(jobs, lambda: all(any(map(sending, pids(one))) for one in jobs))
    both(jobs, lambda: busiest(database, seconds=3) >= 0.9 * 3 * CAPACITY)

    # case 3: a worker that holds something is killed; its share is back within ttl + quarantine + renew, and is used
    def candidates() -> list[int]:
        return [pid for one in jobs for pid in pids(one)[1:] if sending(pid)]

    both(jobs, lambda: bool(candidates()))
    victim = candidates()[0]
    killed_ns = kill(jobs, victim)
    assert held_until_ns(store, RESOURCE, victim) - killed_ns <= (CRASH_MS - LEASE.quarantine_ms) * 1_000_000
    both(jobs, lambda: busiest(database, since_ns=killed_ns + CRASH_MS * 1_000_000) >= 0.9 * CAPACITY)

    # case 15: the lease store is away; nothing goes out after the local deadlines, and all goes on by itself
    gone_ns = store.go()
    last_ns = gone_ns + (LEASE.ttl_ms - LEASE.margin_ms) * 1_000_000
    both(jobs, lambda: time.monotonic_ns() > last_ns + 3 * SECOND_NS)
    store.come_back()
    back_ns = time.monotonic_ns()
    assert [at for at, _ in dispatched(database, last_ns) if at < back_ns] == []
    assert any(done(database, one) < ROWS for one in jobs), "there was nothing left to do"
    both(jobs, lambda: all(done(database, one) == ROWS for one in jobs))
    for one in jobs:
        assert one.terminate() == 0, one.log()[-4000:]

    assert 0 < busiest(database) <= CAPACITY
    for one in jobs:
        table, name = one.settings["table"], one.settings["job"]
        assert query(database, f"SELECT count(*) FROM {table}") == [(ROWS,)]
        inserted = "SELECT value FROM hr_total WHERE job = %s AND name = 'inserted'"
        assert query(database, inserted, name) == [(ROWS,)]
    assert not any(owners(store, RESOURCE).values()), "what a stopped job had is given back"


def pids(one: Job) -> list[int]:
    """The driver, and the Python workers."""
    assert one.process is not None
    return [one.process.pid, *(worker.pid for worker in workers(one))]


def kill(jobs: list[Job], pid: int) -> int:
    """SIGKILL to a worker; returns the moment before (monotonic ns)."""
    now_ns = time.monotonic_ns()
    next(worker for one in jobs for worker in workers(one) if worker.pid == pid).kill()
    return now_ns


def done(database: str, one: Job) -> int:
    """Rows that the job has committed."""
    found = query(database, "SELECT value FROM hr_total WHERE job = %s AND name = 'inserted'", one.settings["job"])
    return int(found[0][0]) if found else 0
