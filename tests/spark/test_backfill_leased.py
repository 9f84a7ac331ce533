"""A backfill on the staged path with leased capacity: in tasks and driver it never takes more than its share, and
every row of its range is there once."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace_capacity.coordinator import Coordinator
from tests.spark.test_restarts import left, rows, staged
from tests.support.lease_checks import busiest, owners
from tests.support.spark_job import Job, documents, produce, query, until

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(2400)]
CAPACITY, DOCUMENTS, RESOURCE, TOKEN = 400, 60, "db", "token of the test"


@pytest.fixture
def store() -> Iterator[Coordinator]:
    found = Coordinator(TOKEN, cold=True).start()
    yield found
    found.stop()


@pytest.mark.parametrize("killed", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_it_keeps_to_its_share_and_leaves_the_rest_to_others(
    job: Callable[..., Job], database: str, store: Coordinator, tmp_path: Path, killed: bool
) -> None:
    (tmp_path / "token").write_text(TOKEN)
    one = staged(
        job, database, capacity=CAPACITY, max=1000, lease_store=store.address, resource=RESOURCE,
        lease_token_file=str(tmp_path / "token"), backfill={"name": "again", "chunk_records": 20},
    )  # fmt: skip
    places = [f"{one.prefix}batches-{number}" for number in range(2)]
    ends = {"backfill.from_offsets": dict.fromkeys(places, 0), "backfill.to_offsets": dict.fromkeys(places, 30)}
    one.change(**ends)
    one.module = "backfill"
    produce(one, documents(DOCUMENTS), spread=2)

    one.start()
    if killed:
        until(lambda: 0 < rows(database) < 10 * DOCUMENTS, one)
        one.send(signal.SIGKILL)
        assert one.wait() == -signal.SIGKILL
        one.start()
    most = 0
    while not one.ended():
        most = max(most, sum(owners(store, RESOURCE).values()))
        time.sleep(0.1)
    assert one.wait() == 0, one.log()[-4000:]

    assert most > 0, "it leased"
    assert (rows(database), left(database)) == (10 * DOCUMENTS, 0)
    totals = dict(query(database, "SELECT name, value FROM hr_total WHERE job = 'writer.again'"))
    assert (totals["rows"], totals["inserted"]) == (10 * DOCUMENTS, 10 * DOCUMENTS)
    assert 0.8 * CAPACITY / 2 <= busiest(database) <= CAPACITY / 2
