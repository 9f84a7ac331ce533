"""Case 11 of spark-writer.md 10: the sink is down, for a while and for too long; capacity goes back meanwhile.

The long form, by `make soak`, is down for `HEADRACE_SINK_DOWN_S` seconds, ten minutes if it is not given.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from headrace_capacity.coordinator import Coordinator
from tests.spark.test_restarts import left, rows, total
from tests.support import postgres
from tests.support.lease_checks import busiest, owners
from tests.support.spark_job import Job, documents, produce, query, until

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(3600)]
CAPACITY, RESOURCE, TOKEN = 300, "db", "token of the test"
OUTAGE_S = int(os.environ.get("HEADRACE_SINK_DOWN_S", "600"))


@pytest.fixture
def store() -> Iterator[Coordinator]:
    found = Coordinator(TOKEN, cold=True).start()
    yield found
    found.stop()


def leased(job: Callable[..., Job], database: str, store: Coordinator, folder: Path, **changes: Any) -> Job:
    """A job whose sink and state are one database, and whose leases are elsewhere."""
    (folder / "token").write_text(TOKEN)
    settings: dict[str, Any] = {
        "sink": database, "state_dsn": database, "lease_store": store.address, "resource": RESOURCE,
        "lease_token_file": str(folder / "token"), "capacity": CAPACITY, "max": 10, **changes,
    }  # fmt: skip
    return job(**settings)


def waits(one: Job) -> list[float]:
    """How long it had been down at each look of the driver, in seconds."""
    lines = [line[line.index("{") :] for line in one.log().splitlines() if '"waited_s"' in line]
    return [json.loads(line)["waited_s"] for line in lines]


def test_capacity_goes_back_it_goes_on_by_itself_and_ends_when_it_is_down_too_long(
    job: Callable[..., Job], database: str, store: Coordinator, tmp_path: Path
) -> None:
    one = leased(job, database, store, tmp_path, sink_down_max_ms=20_000)
    produce(one, documents(60))
    one.start()
    until(lambda: rows(database) > 0, one)
    with postgres.away(database):
        until(lambda: len(waits(one)) >= 2, one)
        until(lambda: not any(owners(store, RESOURCE).values()), one)
    until(lambda: total(database, "records") == 60, one)
    assert rows(database) == 600
    before = len(waits(one))

    with postgres.away(database):
        produce(one, documents(20, 60))
        assert one.wait() == 6, one.log()[-4000:]
    waited = waits(one)[before:]
    assert all(later - earlier > 0.4 * 2**n for n, (earlier, later) in enumerate(pairwise(waited)))
    assert len(waited) >= 4
    assert (rows(database), total(database, "records")) == (600, 60), "the rest is not committed, so it is not lost"
    assert 0 < busiest(database) <= CAPACITY


@pytest.mark.soak
def test_down_for_ten_minutes_on_the_staged_path(
    job: Callable[..., Job], database: str, store: Coordinator, tmp_path: Path
) -> None:
    longer = 1000 * (OUTAGE_S * 2 + 120)
    one = leased(job, database, store, tmp_path, path="staged", sink_down_max_ms=longer, expected_cost_per_record=20.0)
    produce(one, documents(200))
    one.start()
    until(lambda: rows(database) > 0, one)
    with postgres.away(database):
        ends = time.monotonic() + OUTAGE_S
        until(lambda: not any(owners(store, RESOURCE).values()), one)
        gone = time.monotonic()
        until(lambda: time.monotonic() >= ends, one, OUTAGE_S + 60)
        assert not any(owners(store, RESOURCE).values())
    back = time.monotonic()
    until(lambda: total(database, "records") == 200, one)
    print(f"capacity was back {OUTAGE_S - (ends - gone):.1f} s into {OUTAGE_S} s;", end=" ")
    print(
        f"all done {time.monotonic() - back:.1f} s after the store was back; the driver looked {len(waits(one))} times"
    )
    assert one.terminate() == 0, one.log()[-4000:]
    assert (rows(database), total(database, "inserted"), left(database)) == (2000, 2000, 0)

    one.change(sink_down_max_ms=8_000)
    one.start()
    until(lambda: one.log().count('"event": "started"') == 2, one)
    with postgres.away(database):
        produce(one, documents(40, 200))
        assert one.wait() == 6, one.log()[-4000:]
    one.change(sink_down_max_ms=600_000, available_now=True)
    assert one.run() == 0, one.log()[-4000:]
    assert (rows(database), total(database, "inserted"), left(database)) == (2400, 2400, 0)
    assert query(database, "SELECT count(*) FROM hr_seen") == [(240,)]
    assert 0 < busiest(database) <= CAPACITY
