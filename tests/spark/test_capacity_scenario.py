"""The vectors of kind `scenario` that have a Spark sink (capacity.json), played with real Spark and PostgreSQL.

The steps are in words; what they number is read from them: the micro-batch, the task, and its attempts.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace_spark.transforms.decode import decode
from headrace_spark.transforms.measurements import measurements
from headrace_spark.transforms.rows import highest, rows
from tests.support.spark_job import Job, create_topics, documents, largest_window, produce, query

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(2400)]

FOLDER = Path(os.environ.get("HEADRACE_VECTORS", Path(__file__).parents[1] / "vectors"))
SCENARIOS: dict[str, dict[str, Any]] = {
    vector["id"]: vector
    for vector in json.loads((FOLDER / "capacity.json").read_text())["vectors"]
    if vector["kind"] == "scenario" and "sink" in vector["config"]
}
DOCUMENTS, ROWS, CHUNK = 2, 10, 10
"""Of a task in a micro-batch: its documents, rows of each, and rows of a chunk; so half of a task is one chunk."""


@pytest.mark.parametrize("number", sorted(SCENARIOS))
def test_a_killed_task_and_a_driver_dead_before_the_commit_log_have_one_effect(
    number: str, job: Callable[..., Job], database: str, topic_prefix: str
) -> None:
    vector = SCENARIOS[number]
    store, path = vector["config"]["sink"].split(", ")
    assert store == "postgresql"
    batch = vector["steps"][0]["batch"]
    task, attempt = (int(found) for found in re.findall(r"task (\d+) attempt (\d+)", vector["steps"][0]["does"])[0])
    tasks = task + 1
    records, size = tasks * DOCUMENTS, tasks * DOCUMENTS * ROWS
    capacity, topic = 40 * size, f"{topic_prefix}x.batches"
    one = job(
        sink=database, state_dsn=database, path=path, max=CHUNK, available_now=True, topics=[topic],
        capacity=capacity, trigger_ms=50, expected_cost_per_record=capacity * 0.05 * 0.8 / records,
    )  # fmt: skip
    create_topics(one.kafka, f"{topic_prefix}x.", tasks)
    values = documents((batch + 1) * records)
    produce(one, values, spread=tasks, topic=topic)

    one.start(environment={"HEADRACE_SPARK_FAULT": f"task:{batch}:{task}:{attempt},written:{batch}"})
    assert one.wait() == -signal.SIGKILL, one.log()[-4000:]
    assert not (one.folder / "checkpoint" / "commits" / str(batch)).exists()
    before = query(database, "SELECT count(*), sum(cost) FROM hr_dispatch")
    one.start()
    assert one.wait() == 0, one.log()[-4000:]

    expected = highest(row for value in values for row in rows(measurements(decode(value, 1_000_000))))
    stored = query(database, "SELECT source, metric, time_ms, value FROM measurements ORDER BY 1, 2, 3")
    assert stored == [(row.source, row.metric, row.time_ms, row.value) for row in expected]
    ledger = dict(query(database, "SELECT batch_id, count(*) FROM hr_batch_ledger GROUP BY 1"))
    assert ledger == dict.fromkeys(range(batch + 1), 1)
    assert ledger[batch] == vector["expect"]["ledger_rows_for_batch_7"]
    [(left,)] = query(database, "SELECT count(*) FROM hr_stage_measurements")
    assert left == vector["expect"]["staging_rows_left"]
    # every row is staged and merged once, and the dead attempt had staged one chunk: all of it is spent capacity
    spent = query(database, "SELECT count(*), sum(cost) FROM hr_dispatch")
    assert spent == before, "a ledger hit spends nothing"
    assert spent[0][1] == 2 * len(stored) + CHUNK
    assert largest_window(one, database) <= capacity
