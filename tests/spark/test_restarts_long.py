"""The restart cases of spark-writer.md 10 that take long: only by `make soak`."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from tests.spark.test_restarts import delete_until, left, newest, rows, staged, total
from tests.support import postgres
from tests.support.lease_checks import workers
from tests.support.spark_job import Job, documents, largest_window, produce, query, until

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.soak, pytest.mark.timeout(3600)]


def test_case_3_python_workers_are_killed_twenty_times(job: Callable[..., Job], database: str) -> None:
    one = staged(job, database, capacity=600, max=20, master="local[2,40]")
    produce(one, documents(900))
    dice, killed = random.Random(3), 0
    one.start()
    until(lambda: rows(database) > 0 or left_or_none(database) > 0, one)
    while killed < 20:
        time.sleep(dice.uniform(0.2, 1.0))
        alive = workers(one)
        if alive:
            dice.choice(alive).kill()
            killed += 1
        assert not one.ended(), one.log()[-4000:]
        assert rows(database) < 9000, "everything was written before all were killed"
    until(lambda: rows(database) == 9000, one, 600)
    until(lambda: total(database, "records") == 900, one)
    assert one.terminate() == 0, one.log()[-4000:]
    assert total(database, "inserted") == total(database, "rows") == 9000
    assert left(database) == 0
    assert 0 < largest_window(one, database) <= 600


def left_or_none(database: str) -> int:
    found = query(database, "SELECT count(*) FROM hr_stage_measurements")
    return int(found[0][0]) if found else 0


@pytest.mark.parametrize("path", ["staged", "direct"])
def test_case_11_a_store_that_is_down_for_a_while_and_for_too_long(
    job: Callable[..., Job], database: str, path: str
) -> None:
    one = staged(job, database, path=path, capacity=400)
    produce(one, documents(60))
    one.start()
    until(lambda: rows(database) > 0, one)
    with postgres.away(database):
        until(lambda: one.log().count("down") >= 3, one)
    until(lambda: rows(database) == 600, one)
    until(lambda: total(database, "records") == 60, one)
    assert one.terminate() == 0, one.log()[-4000:]
    assert total(database, "inserted") == 600
    assert largest_window(one, database) <= 400
    one.change(sink_down_max_ms=4_000)
    one.start()
    until(lambda: one.log().count('"event": "started"') == 2, one)
    with postgres.away(database):
        produce(one, documents(40, 60))
        assert one.wait() in ((6,) if path == "staged" else (1, 6)), one.log()[-4000:]
    one.change(sink_down_max_ms=600_000)
    one.start()
    until(lambda: rows(database) == 1000, one)
    assert one.terminate() == 0, one.log()[-4000:]


def test_the_direct_path_whose_driver_and_workers_are_killed_again_and_again(
    job: Callable[..., Job], database: str
) -> None:
    """Cases 1 and 3: tasks upsert, and whatever dies, rows, counts and the capacity are exact."""
    one = staged(job, database, path="direct", capacity=400, max=20, trigger_ms=1000)
    dice = random.Random(11)
    produce(one, documents(600))
    for start in range(4):
        one.start()
        until(lambda start=start: rows(database) > 1200 * start, one, 300)
        for victim in workers(one)[:2]:
            victim.kill()
            time.sleep(dice.uniform(0.1, 1.0))
        assert not one.ended(), one.log()[-4000:]
        one.send(signal.SIGKILL)
        assert one.wait() == -signal.SIGKILL
    assert rows(database) < 6000, "everything was written before all were killed"
    one.start()
    until(lambda: total(database, "records") == 600, one, 600)
    assert one.terminate() == 0, one.log()[-4000:]
    assert rows(database) == total(database, "inserted") == total(database, "rows") == 6000
    assert total(database, "cost") == 6000
    kept = "SELECT (SELECT count(*) FROM hr_request), (SELECT count(*) FROM hr_sent)"
    assert query(database, kept) == [(0, 0)]
    assert 0 < largest_window(one, database) <= 400


def test_case_7_partitions_are_added_while_it_runs(job: Callable[..., Job], database: str) -> None:
    one = staged(job, database)
    produce(one, documents(20))
    one.start()
    until(lambda: rows(database) == 200, one)
    admin = AdminClient({"bootstrap.servers": one.kafka})
    for future in admin.create_partitions([NewPartitions(f"{one.prefix}batches", 5)]).values():
        future.result(240)
    produce(one, documents(30, 20), spread=5)
    until(lambda: rows(database) == 500, one)
    assert one.terminate() == 0, one.log()[-4000:]


def test_case_8_retention_takes_what_is_needed_while_it_runs(job: Callable[..., Job], database: str) -> None:
    one = staged(job, database, capacity=40, max=10, expected_cost_per_record=20.0, trigger_ms=1000)
    produce(one, documents(100), spread=2)
    one.start()
    until(lambda: rows(database) > 0, one)
    for partition in range(2):
        delete_until(one, partition, 50)
    assert one.wait() == 4, one.log()[-4000:]
    assert "--accept-loss" in one.log()
    written, first = rows(database), {}
    for message in one.log().splitlines():
        for partition in range(2):
            mark = f"partition {partition}: offsets "
            if mark in message:
                first[partition] = int(message.partition(mark)[2].split()[0])
    one.change(capacity=4000, available_now=True)
    assert one.run("--accept-loss") == 0, one.log()[-4000:]
    assert rows(database) >= written
    assert total(database, "offsets_lost") == sum(50 - at for at in first.values())
    assert rows(database) == 10 * sum(first.values())


def test_case_14_a_stop_leaves_a_long_micro_batch_uncommitted(job: Callable[..., Job], database: str) -> None:
    one = staged(job, database, capacity=20, max=10, expected_cost_per_record=0.5, stop_timeout_ms=2_000)
    produce(one, documents(60))
    one.start()
    until(lambda: left_or_none(database) > 0, one)
    assert one.terminate() == 0, one.log()[-4000:]
    assert query(database, "SELECT * FROM hr_batch_ledger") == []
    one.change(capacity=4000, available_now=True)
    assert one.run() == 0, one.log()[-4000:]
    assert (rows(database), left(database), total(database, "inserted")) == (600, 0, 600)


def test_case_4_a_new_query_is_accepted_and_recorded(job: Callable[..., Job], database: str) -> None:
    one = staged(job, database, available_now=True)
    produce(one, documents(10))
    assert one.run() == 0, one.log()[-4000:]
    [(before,)] = query(database, "SELECT query_id FROM hr_query")
    (one.folder / "checkpoint" / "metadata").unlink()
    produce(one, documents(10, 10))
    assert one.run("--new-query") == 0, one.log()[-4000:]
    [(after,)] = query(database, "SELECT query_id FROM hr_query")
    assert after != before
    assert (rows(database), total(database, "inserted")) == (200, 200)
    one.change(checkpoint=str(one.folder / "other"))
    assert one.run("--new-checkpoint") == 0, one.log()[-4000:]
    assert (rows(database), total(database, "inserted")) == (200, 200)
    assert total(database, "documents_repeated") == 20


@pytest.mark.parametrize("point", ["begun", "staged", "merging", "written"])
def test_cases_1_and_2_kill_9_at_each_point_of_every_micro_batch(
    job: Callable[..., Job], database: str, point: str
) -> None:
    one = staged(job, database, expected_cost_per_record=400.0, trigger_ms=1000)
    produce(one, documents(30))
    for number in range(3):
        one.start(environment={"HEADRACE_SPARK_FAULT": f"{point}:{number}"})
        assert one.wait() == -signal.SIGKILL, one.log()[-4000:]
        assert newest(one, "offsets") == number
    one.change(available_now=True)
    assert one.run() == 0, one.log()[-4000:]
    assert (rows(database), total(database, "inserted"), left(database)) == (300, 300, 0)
    assert total(database, "records") == 30
    assert largest_window(one, database) <= one.settings["capacity"]


def test_lanes_into_a_function_with_a_kill_in_the_middle(job: Callable[..., Job]) -> None:
    """The function writes down what it gets, and kills its process once."""
    lanes = {"mode": "lanes", "lane_mode": "backlog", "sink": "call:destination:write"}
    one = job(capacity=4000, max=30, available_now=True, **lanes)
    (one.folder / "destination.py").write_text(DESTINATION)
    produce(one, documents(40), spread=2)
    here = {"PYTHONPATH": f"{one.folder}:{os.environ.get('PYTHONPATH', '')}"}
    one.start(environment=here)
    assert one.wait() == -signal.SIGKILL, one.log()[-4000:]
    one.start(environment=here)
    assert one.wait() == 0, one.log()[-4000:]
    calls = [json.loads(line) for line in (one.folder / "calls").read_text().splitlines()]
    names = [call["id"] for call in calls]
    assert len(names) - len(set(names)) == 1, "only the one whose outcome was unknown"
    once = {call["id"]: call for call in calls}.values()
    for lane in range(2):
        rows = [row for call in once if call["partition"] == lane for row in call["rows"]]
        assert [row[1] for row in rows] == sorted(row[1] for row in rows), "in order of time, also over the kill"
    assert len({tuple(row) for call in calls for row in call["rows"]}) == 400
    assert one.sql("state.db", "SELECT value FROM hr_total WHERE name = 'inserted'") == [(400,)]
    assert one.sql("state.db", "SELECT count(*) FROM hr_sent") == [(0,)]


DESTINATION = """
import json, os, signal
from pathlib import Path

HERE = Path(__file__).parent

def write(rows, context):
    found = [[row.metric, row.time_ms] for row in rows]
    call = {"id": context.request_id, "partition": context.partition, "rows": found}
    with (HERE / "calls").open("a") as out:
        out.write(json.dumps(call) + "\\n")
    if len((HERE / "calls").read_text().splitlines()) == 4 and not (HERE / "killed").exists():
        (HERE / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
"""
