"""The restart cases of spark-writer.md 10 as black boxes: real broker, real PostgreSQL, and kill -9.

A start of Spark takes long, so the first test goes through several cases, one start after the other.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import postgres
from tests.support.spark_job import Job, documents, largest_window, produce, query, until, written
from tests.unit.spark.fakes import document, member

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(900)]
CAPACITY = 4000


def staged(job: Callable[..., Job], database: str, **changes: Any) -> Job:
    settings: dict[str, Any] = {"capacity": CAPACITY, "max": 100, "path": "staged", **changes}
    return job(sink=database, state_dsn=database, **settings)


def total(database: str, name: str) -> int:
    found = query(database, "SELECT value FROM hr_total WHERE name = %s", name)
    return int(found[0][0]) if found else 0


def rows(database: str) -> int:
    found = query(database, "SELECT count(*) FROM measurements")
    return int(found[0][0]) if found else 0


def left(database: str) -> int:
    return int(query(database, "SELECT count(*) FROM hr_stage_measurements")[0][0])


def spent(database: str) -> int:
    return int(query(database, "SELECT coalesce(sum(cost), 0) FROM hr_dispatch")[0][0])


def newest(one: Job, folder: str) -> int:
    return max(int(file.name) for file in (one.folder / "checkpoint" / folder).iterdir() if file.name.isdigit())


def uncommit(one: Job) -> int:
    """Delete the newest file of the commit log; returns its batch id."""
    number = newest(one, "commits")
    for name in (f"{number}", f".{number}.crc"):
        (one.folder / "checkpoint" / "commits" / name).unlink(missing_ok=True)
    return number


def fault(*points: str) -> dict[str, str]:
    return {"HEADRACE_SPARK_FAULT": ",".join(points)}


def test_the_staged_path_through_a_chain_of_deaths(job: Callable[..., Job], database: str) -> None:
    one = staged(job, database)
    produce(one, documents(40))

    # case 2: the driver dies with staging filled
    one.start(environment=fault("staged:0"))
    assert one.wait() == -signal.SIGKILL, one.log()[-4000:]
    assert (rows(database), left(database)) == (0, 400)

    # cases 2 and 16: another number of cores replays it; the old staging goes away and every row is there once
    # case 12: the database crashes between staging and merge of the next micro-batch
    one.change(master="local[1,4]")
    one.start(environment=fault("stop:staged:1"))
    until(lambda: rows(database) == 400, one)
    assert left(database) == 0
    produce(one, documents(20, 40))
    until(one.stopped, one)
    assert left(database) > 0
    postgres.crash(database)
    assert left(database) == 0
    one.send(signal.SIGCONT)
    assert one.wait() == 1, one.log()[-4000:]
    assert "rows are staged, but the tasks reported" in one.log()
    assert rows(database) == 400

    # case 12: the replay succeeds; case 17: a document again, in one micro-batch and in a later one; case 14: SIGTERM
    one.change(master="local[2,4]")
    one.start()
    until(lambda: rows(database) == 600, one)
    twice = document(900, [member(1, 1.0)])
    produce(one, [twice, *documents(3), twice])
    until(lambda: total(database, "records") == 65, one)
    produce(one, [twice])
    until(lambda: total(database, "records") == 66, one)
    assert one.terminate() == 0, one.log()[-4000:]
    assert (total(database, "documents"), total(database, "documents_repeated")) == (61, 5)
    assert (rows(database), total(database, "inserted"), left(database)) == (601, 601, 0)

    # case 1: the newest entry of the commit log is gone; a ledger hit writes nothing and uses no capacity
    before, ledger = spent(database), query(database, "SELECT * FROM hr_batch_ledger ORDER BY 2")
    number = uncommit(one)
    one.start()
    until(lambda: newest(one, "commits") == number, one)
    until(lambda: one.metrics().get("headrace_spark_ledger_hits") == 1, one)
    assert (spent(database), query(database, "SELECT * FROM hr_batch_ledger ORDER BY 2")) == (before, ledger)
    assert one.terminate() == 0
    assert 0 < largest_window(one, database) <= CAPACITY
    assert total(database, "rows") == total(database, "inserted") + total(database, "repeats")
    assert written(one, "dead-letter") == 0
