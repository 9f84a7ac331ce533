"""Lanes in stream mode: rows wait in Spark's state store over micro-batches and kill -9, and go out once, in order."""

from __future__ import annotations

import itertools
import json
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.spark_job import Job, documents, largest_window, produce, until
from tests.unit.spark.fakes import document, member

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(1800)]
DESTINATION = """
import json, os, signal, threading
from pathlib import Path

import psutil

HERE = Path(__file__).parent
busy, turn = set(), threading.Lock()

def first(name, calls):
    if calls < {"worker": 3, "driver": 7}[name] or (HERE / name).exists():
        return False
    (HERE / name).touch()
    return True

def write(rows, context):
    with turn:
        assert context.partition not in busy, "one request of a lane at a time"
        busy.add(context.partition)
        found = [[row.source, row.metric, row.time_ms] for row in rows]
        with (HERE / "calls").open("a") as out:
            told = {"id": context.request_id, "partition": context.partition, "pid": os.getpid(), "rows": found}
            out.write(json.dumps(told) + "\\n")
        calls = len((HERE / "calls").read_text().splitlines())
        if first("worker", calls):
            os.kill(os.getpid(), signal.SIGKILL)
        if first("driver", calls):
            next(one for one in psutil.Process().parents() if "headrace_spark.jobs.writer" in one.cmdline()).kill()
            os.kill(os.getpid(), signal.SIGKILL)
        busy.discard(context.partition)

write.idempotent = True
"""
ROWS = 400


def calls(one: Job) -> list[dict[str, Any]]:
    file = one.folder / "calls"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def rows(one: Job) -> set[tuple[Any, ...]]:
    return {tuple(row) for call in calls(one) for row in call["rows"]}


def total(one: Job, name: str) -> int:
    found = one.sql("state.db", f"SELECT value FROM hr_total WHERE name = '{name}'")
    return int(found[0][0]) if found else 0


def names_of(found: list[dict[str, Any]], lane: int) -> list[str]:
    return [call["id"] for call in found if call["partition"] == lane]


ROCKS = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    )
}


@pytest.mark.parametrize(
    ("faults", "spark"),
    [
        ("", {}),
        pytest.param("written:0", {}, marks=pytest.mark.soak),
        pytest.param("", ROCKS, marks=pytest.mark.soak),
        pytest.param("written:0", ROCKS, marks=pytest.mark.soak),
    ],
    ids=["default", "written", "rocksdb", "rocksdb-written"],
)
def test_killed_in_the_middle_the_same_requests_go_on_in_order(
    job: Callable[..., Job], faults: str, spark: dict[str, str]
) -> None:
    one = job(
        mode="lanes", lane_mode="stream", sink="call:destination:write", capacity=400, max=30, lateness_ms=50,
        linger_ms=4000, spark=spark,
    )  # fmt: skip
    (one.folder / "destination.py").write_text(DESTINATION)
    twice = documents(40)[38]
    produce(one, [*documents(40), twice], spread=2)
    here = {"PYTHONPATH": f"{one.folder}:{os.environ.get('PYTHONPATH', '')}"}
    if faults:  # committed in the ledger, but not in Spark's commit log: what waits must be there in the repeat
        one.start(environment={**here, "HEADRACE_SPARK_FAULT": faults})
        assert one.wait() == -signal.SIGKILL, one.log()[-4000:]
        assert not (one.folder / "driver").exists()
        assert 0 < len(rows(one)) < ROWS
    one.start(environment=here)
    assert one.wait() == -signal.SIGKILL, one.log()[-4000:]
    assert (one.folder / "worker").exists(), "a worker that is killed is no end"
    assert (one.folder / "driver").exists(), one.log()[-4000:]
    assert len(rows(one)) < ROWS
    assert ("the ledger has this micro-batch" in one.log()) == bool(faults)

    one.start(environment=here)
    until(lambda: len(rows(one)) == ROWS, one)
    produce(one, [document(900, [member(7, 1.5)])], spread=1)  # late: it goes out, behind what it missed
    until(lambda: total(one, "records") == 42, one)
    assert one.terminate() == 0, one.log()[-4000:]
    one.start(environment=here)  # what waits is due, though nothing more comes
    until(lambda: len(rows(one)) == ROWS + 1, one)
    until(lambda: total(one, "inserted") == ROWS + 1, one)
    assert one.terminate() == 0, one.log()[-4000:]

    found = calls(one)
    names = [call["id"] for call in found]
    assert 2 <= len(names) - len(set(names)) <= 3, "of each lane that died only the one whose outcome was unknown"
    for lane in range(2):
        own = [name for name, after in itertools.pairwise([*names_of(found, lane), ""]) if name != after]
        assert len(own) == len(set(own)), "it goes again at once, before the next one of its lane"
    assert all(call["pid"] != one.process.pid for call in found if one.process), "tasks send"
    by_name = {call["id"]: call for call in found}
    assert all(call["rows"] == by_name[call["id"]]["rows"] for call in found), "the same request under the same id"
    for lane in range(2):
        sent = [row[2] for call in by_name.values() if call["partition"] == lane for row in call["rows"]]
        if lane == 0:
            assert sent.pop() == 7, "the late one is last"
        assert sent == sorted(sent), "in order of time, over micro-batches and kills"
    assert sum(len(call["rows"]) for call in by_name.values()) == ROWS + 1, "each row once"
    assert all(len(call["rows"]) <= 30 for call in found)
    totals = dict(one.sql("state.db", "SELECT name, value FROM hr_total"))
    assert (totals["records"], totals["documents"], totals["documents_repeated"]) == (42, 41, 1)
    assert totals["rows"] == totals["inserted"] == ROWS + 1
    assert one.sql("state.db", "SELECT count(*) FROM hr_sent") == [(0,)]
    assert one.sql("state.db", "SELECT count(*) FROM hr_lane_seen") == [(41,)]
    assert largest_window(one) <= 400
    kept = {file.suffix for file in (one.folder / "checkpoint" / "state").rglob("*")}
    assert (".zip" in kept) == bool(spark), "RocksDB keeps snapshots as archives"
