"""A backfill is killed and repeated, and every row of its range is there once, newer rows untouched."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace_spark.sinks.port import Batch
from headrace_spark.sinks.sqlite import SqliteSink
from headrace_spark.transforms.rows import Request, Row
from tests.support.spark_job import Job, documents, largest_window, produce, until

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(1200)]
CAPACITY, PARTS, EACH, SKIPPED = 400, 2, 30, 3
"""Of 30 documents in each of two partitions, the range leaves out the first three and the last three."""


def test_killed_and_repeated_each_chunk_has_its_effect_once(job: Callable[..., Job], tmp_path: Path) -> None:
    names = [f"{number}" for number in range(PARTS)]
    one = job(capacity=CAPACITY)
    places = [f"{one.prefix}batches-{name}" for name in names]
    one.change(
        backfill={"name": "again", "chunk_records": 10, "alone": True},
        **{
            "backfill.from_offsets": dict.fromkeys(places, SKIPPED),
            "backfill.to_offsets": dict.fromkeys(places, EACH - SKIPPED),
        },
    )
    one.module = "backfill"
    produce(one, documents(PARTS * EACH), spread=PARTS)
    newer = Row("te/device/a//", "env.v", 200, 999_999, "f" * 32, -1.0, False)  # document 20 has an older one
    sink = SqliteSink(tmp_path / "sink.db")
    sink.prepare()
    sink.write(Batch("live", 0), Request("newer", [newer], 1))
    sink.close()

    one.start()
    until(lambda: one.rows() >= 100, one)
    one.send(signal.SIGKILL)
    assert one.wait() == -signal.SIGKILL
    assert one.rows() < 480
    produce(one, documents(5, first=500))  # whatever the topic gets, the range stays
    assert one.run() == 0, one.log()[-4000:]
    inside = [n for n in range(PARTS * EACH) if SKIPPED <= n // PARTS < EACH - SKIPPED]
    rows = one.sql("sink.db", "SELECT time_ms, value FROM measurements ORDER BY time_ms")
    expected = {n * 10 + i: n + i / 10 for n in inside for i in range(10)}
    assert dict(rows) == {**expected, 200: -1.0}
    ledger = one.sql("state.db", "SELECT batch_id, records, job FROM hr_batch_ledger ORDER BY batch_id")
    assert ledger == [(number, records, "writer.again") for number, records in enumerate([10] * 4 + [8])]
    totals = dict(one.sql("state.db", "SELECT name, value FROM hr_total WHERE job = 'writer.again'"))
    assert (totals["rows"], totals["inserted"], totals["repeats"]) == (480, 479, 1)
    assert 0 < largest_window(one) <= CAPACITY // 2

    sent = one.sql("state.db", "SELECT count(*) FROM hr_dispatch")
    assert one.run() == 0, one.log()[-4000:]  # all is done: nothing goes out
    assert one.sql("state.db", "SELECT count(*) FROM hr_dispatch") == sent
    assert '"chunks_left": 0' in one.log()
