"""Leased Spark jobs for longer than a test may take: only by `make soak`."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace_core.capacity.config import LeaseConfig
from tests.spark.test_restarts import rows, staged, total
from tests.support import postgres
from tests.support.lease_checks import both, busiest, dispatched, workers
from tests.support.spark_job import Job, documents, produce, query, until

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.soak, pytest.mark.timeout(3600)]
LEASE = LeaseConfig()
LAST_NS = (LEASE.ttl_ms - LEASE.margin_ms) * 1_000_000
"""After the store was last seen, nothing of what it granted counts any more (capacity.md 13, owner, rule 2)."""


def pair(job: Callable[..., Job], database: str, store: str, folder: Path, **changes: Any) -> list[Job]:
    """Two jobs on one resource, each with a table of its own in one database."""
    leased = {"lease_store": store, "resource": "db", "master": "local[2,40]", **changes}
    return [
        staged(job, database, folder / name, **leased, job=name, table=f"t_{name}",
               checkpoint=str(folder / name / "checkpoint"))
        for name in ("one", "two")
    ]  # fmt: skip


def test_two_jobs_lease_one_capacity_and_workers_are_killed(
    job: Callable[..., Job], database: str, tmp_path: Path
) -> None:
    leased = {"lease_store": database, "resource": "db", "capacity": 1000, "max": 50, "master": "local[2,20]"}
    one = staged(job, database, **leased)
    two = staged(
        job, database, tmp_path / "two", **leased, job="other", checkpoint=str(tmp_path / "two" / "checkpoint")
    )
    produce(one, documents(400))
    one.start()
    two.start()
    until(lambda: rows(database) > 0, one)
    for _ in range(3):
        until(lambda: workers(one), one)
        random.Random(1).choice(workers(one)).kill()
        time.sleep(1)
    written = "SELECT value FROM hr_total WHERE job = %s AND name = 'records'"
    for name, process in (("writer", one), ("other", two)):
        until(lambda name=name: query(database, written, name) == [(400,)], process, 900)
        assert process.terminate() == 0, process.log()[-4000:]
    assert rows(database) == 4000
    assert query(database, "SELECT sum(value) FROM hr_total WHERE name IN ('inserted', 'repeats')") == [(8000,)]
    assert 0 < busiest(database) <= 1000


def test_case_15_the_lease_store_is_away_for_a_minute_again_and_again(
    job: Callable[..., Job], database: str, tmp_path: Path
) -> None:
    """A PostgreSQL of its own holds the leases; the one with the rows is never away. Workers are killed meanwhile."""
    dice = random.Random(15)
    with postgres.running() as leases:
        jobs = pair(job, database, leases.url, tmp_path, capacity=200, max=10, trigger_ms=10_000)
        produce(jobs[0], documents(1200))
        for one in jobs:
            one.start()
        for _ in range(3):
            both(jobs, lambda: busiest(database, time.monotonic_ns() - 5_000_000_000) >= 0.9 * 200)
            if victims := [worker for one in jobs for worker in workers(one)]:
                dice.choice(victims).kill()
            with postgres.away(leases.url):
                last_ns = time.monotonic_ns() + LAST_NS
                both(jobs, lambda last_ns=last_ns: time.monotonic_ns() > last_ns + 55_000_000_000)
                assert dispatched(database, last_ns) == []
        for one in jobs:
            name = one.settings["job"]
            both(jobs, lambda name=name: done(database, name) == 12_000, 1800)
        for one in jobs:
            assert one.terminate() == 0, one.log()[-4000:]
            table = one.settings["table"]
            assert query(database, f"SELECT count(*) FROM {table}") == [(12_000,)]
    assert total(database, "rows_refused") == 0
    assert 0 < busiest(database) <= 200


def done(database: str, name: str) -> int:
    found = query(database, "SELECT value FROM hr_total WHERE job = %s AND name = 'inserted'", name)
    return int(found[0][0]) if found else 0
