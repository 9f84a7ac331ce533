"""The writer as a process: real Spark, real Kafka, real SQLite and PostgreSQL, and kill -9."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import psycopg
import pytest

from headrace_spark.sinks.postgres import PostgresSink
from tests.support.spark_job import Job, check_metrics, consume, documents, largest_window, produce, until, written
from tests.unit.spark.fakes import document, member

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(1200)]


def test_batches_are_written_once_and_what_is_bad_goes_to_the_dead_letters(job: Callable[..., Job]) -> None:
    one = job(expected_cost_per_record=1000.0)  # so a micro-batch has two records at first, and what is true later
    bad_member = document(900, [member(1, 1.0, "ok"), member(2, None, "nothing")])
    huge_name = b'{"' + b"\\u0001" * 150_000 + b'": 1}'  # its reason names it, and its escapes are six times as long
    produce(one, [*documents(40), b"\xff", b"{", huge_name, bad_member, *documents(3)])
    one.start()
    until(lambda: one.rows() == 401, one)
    until(lambda: one.metrics().get("headrace_spark_records_total") == 47, one)
    until(lambda: one.metrics().get("headrace_spark_restarts") == 1, one)
    until(lambda: one.metrics().get("headrace_spark_max_offsets_per_trigger", 0) >= 16, one)
    assert "max_offsets_per_trigger is off, so the query starts again" in one.log()
    numbers = one.metrics()
    check_metrics(numbers)
    assert numbers["headrace_spark_documents_repeated_total"] == 3
    assert numbers["headrace_spark_text_leaves_dropped_total"] == 40
    assert numbers['headrace_spark_dead_letters_total{reason="not_utf8"}'] == 1
    assert numbers["headrace_spark_inserted_total"] == 401
    until(lambda: one.metrics().get("headrace_spark_processed_rows_per_second", 0) > 0, one)
    behind = f'headrace_spark_offsets_behind_latest{{partition="0",topic="{one.prefix}batches"}}'
    assert one.metrics()[behind] >= 0
    assert written(one, "dead-letter") == 4
    letters = {json.loads(letter.value())["reason"]: letter for letter in consume(one, "dead-letter", 4)}
    assert sorted(letters) == ["not_json", "not_utf8", "null_value", "schema"]
    refused = json.loads(letters["null_value"].value())
    assert (refused["element"], refused["payload"]) == (1, bad_member.decode())
    assert dict(letters["null_value"].headers())["id"].decode() == "writer:{partition}:{offset}:1".format(**refused)
    assert largest_window(one) <= 400
    until(lambda: one.health() == 200, one)
    one.send(signal.SIGTERM)
    assert one.wait() == 0
    one.start()
    until(lambda: one.metrics().get("headrace_spark_records_total") == 47, one)
    one.send(signal.SIGTERM)
    assert one.wait() == 0


@pytest.mark.timeout(2400)
@pytest.mark.parametrize("kills", [2, pytest.param(5, marks=pytest.mark.soak)])
def test_killed_at_random_and_started_again_no_row_is_lost_or_doubled(job: Callable[..., Job], kills: int) -> None:
    one = job(trigger_ms=1000)
    dice = random.Random(7)
    produce(one, documents(480))
    for _ in range(kills):
        before = one.rows()
        one.start()
        until(lambda before=before: one.rows() > before, one)
        time.sleep(dice.uniform(0.1, 1.0))
        one.send(signal.SIGKILL)
        assert one.wait() == -signal.SIGKILL
    one.start()
    until(lambda: one.metrics().get("headrace_spark_records_total") == 480, one)
    numbers = one.metrics()
    check_metrics(numbers)
    assert one.rows() == 4800
    assert numbers["headrace_spark_inserted_total"] == 4800
    assert numbers["headrace_spark_repeats_total"] == numbers["headrace_spark_documents_repeated_total"] == 0
    assert one.sql("sink.db", "SELECT sum(value) FROM measurements")[0][0] == pytest.approx(
        sum(n + i / 10 for n in range(480) for i in range(10))
    )
    assert 0 < largest_window(one) <= 400
    one.send(signal.SIGTERM)
    assert one.wait() == 0


def test_rows_reach_postgresql_and_the_ledger_may_live_there_too(job: Callable[..., Job], database: str) -> None:
    """By tasks: one is killed and repeated, and the table refuses a row."""
    one = job(sink=database, state_dsn=database, capacity=5000, available_now=True)
    PostgresSink(database).prepare()
    with psycopg.connect(database) as db:
        db.execute("ALTER TABLE measurements ADD CONSTRAINT no_huge CHECK (value < 1000)")
    produce(one, [*documents(60), b"[]", document(900, [member(1, 1e6)])])
    one.start(environment={"HEADRACE_SPARK_FAULT": "task:0:0:0"})
    assert one.wait() == 0, one.log()[-4000:]
    assert "Python worker exited unexpectedly" in one.log()
    with psycopg.connect(database) as db:
        assert db.execute("SELECT count(*), count(DISTINCT batch) FROM measurements").fetchone() == (600, 60)
        total = dict(db.execute("SELECT name, value FROM hr_total WHERE job = 'writer'").fetchall())
        ledger = db.execute("SELECT sum(records), sum(rows), sum(cost) FROM hr_batch_ledger").fetchone()
        spent = db.execute("SELECT sum(cost) FROM hr_dispatch").fetchone()
        left = db.execute("SELECT (SELECT count(*) FROM hr_request), (SELECT count(*) FROM hr_sent)").fetchone()
    assert (total["records"], total["inserted"], total["rows_refused"], total["dead_letters.schema"]) == (62, 600, 1, 1)
    assert ledger == (62, 601, *spent), "what the killed task wrote costs nothing again"
    assert left == (0, 0)
    assert largest_window(one, database) <= 5000
    letters = [json.loads(letter.value()) for letter in consume(one, "dead-letter", 2)]
    assert {one["reason"]: one.get("element") for one in letters} == {"schema": None, "sink_rejected": 0}


def test_the_direct_path_makes_the_same_requests_with_another_number_of_tasks(
    job: Callable[..., Job], database: str
) -> None:
    """Case 16. The driver dies when all tasks have ended, and the store forgets what they wrote; then, as after a crash
    of its server, while the driver goes on."""
    one = job(sink=database, state_dsn=database, capacity=5000, available_now=True, master="local[1]")
    produce(one, documents(60))
    found = []
    for master in ("local[1]", "local[4]"):
        one.change(master=master)
        assert one.run(environment={"HEADRACE_SPARK_FAULT": "sent:0"}) == -signal.SIGKILL, one.log()[-4000:]
        with psycopg.connect(database) as db:
            found.append(sorted(db.execute("SELECT request_id, inserted FROM hr_request").fetchall()))
            db.execute("TRUNCATE hr_request, measurements")
    assert found[0] == found[1]
    assert sum(rows for _, rows in found[0]) == 600
    one.start(environment={"HEADRACE_SPARK_FAULT": "stop:sent:0"})
    until(one.stopped, one)
    with psycopg.connect(database) as db:
        db.execute("TRUNCATE hr_request, measurements")
    one.send(signal.SIGCONT)
    until(lambda: "the tasks run again" in one.log(), one)
    until(one.stopped, one)
    one.send(signal.SIGCONT)
    assert one.wait() == 0, one.log()[-4000:]
    with psycopg.connect(database) as db:
        assert db.execute("SELECT count(*) FROM measurements").fetchone() == (600,)
        assert db.execute("SELECT value FROM hr_total WHERE name = 'inserted'").fetchone() == (600,)


def test_a_wrong_schema_stops_the_job_and_writes_no_dead_letters(job: Callable[..., Job]) -> None:
    one = job(expected_cost_per_record=0.5)
    produce(one, [b'{"other": "schema"}'] * 300)
    one.start()
    assert one.wait() == 5, one.log()[-4000:]
    assert written(one, "dead-letter") == 0
    assert one.sql("state.db", "SELECT count(*) FROM hr_batch_ledger") == [(0,)]


@pytest.mark.soak
def test_a_query_that_stands_still_between_two_micro_batches_is_unhealthy_and_one_without_input_is_not(
    job: Callable[..., Job],
) -> None:
    """Half a minute without a sign of life is too long; Spark says every 10 s that there is no input."""
    one = job()
    produce(one, documents(4))
    one.start()
    until(lambda: one.rows() == 40, one)
    seen = [one.health() for _ in range(45) if not time.sleep(1)]
    assert set(seen) == {200}
    assert one.process is not None
    (jvm,) = (child for child in psutil.Process(one.process.pid).children() if child.name() == "java")
    jvm.suspend()
    try:
        until(lambda: one.health() == 503, one)
    finally:
        jvm.resume()
    until(lambda: one.health() == 200, one)
    assert one.terminate() == 0


def test_another_checkpoint_is_refused_and_so_is_another_topic(job: Callable[..., Job], tmp_path: Path) -> None:
    one = job(available_now=True)
    produce(one, documents(1))
    one.start()
    assert one.wait() == 0, one.log()[-4000:]
    two = job(available_now=True, checkpoint=str(tmp_path / "other"))
    two.start()
    assert two.wait() == 3
    assert "--new-checkpoint" in two.log()
    assert not (tmp_path / "other").exists()
    one.change(topics=[f"{one.prefix}routed"])
    one.start()
    assert one.wait() == 2
    assert f"topics: {one.prefix}batches is in the checkpoint" in one.log()


def test_a_wrong_job_file_names_the_field(job: Callable[..., Job]) -> None:
    one = job(capacity="many")
    one.start()
    assert one.wait() == 2
    assert "capacity" in one.log()
