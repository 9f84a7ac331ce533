"""The writer as a process: real Spark, real Kafka, real SQLite and PostgreSQL, and kill -9."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support import postgres
from tests.unit.spark.fakes import document, member

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(300)]

_PARTITIONS = 2


class Job:
    """A job file and the process that runs it."""

    def __init__(self, folder: Path, kafka: str, prefix: str, **changes: Any) -> None:
        self.folder, self.kafka, self.prefix = folder, kafka, prefix
        self.port = _free_port()
        self.process: subprocess.Popen[bytes] | None = None
        settings: dict[str, Any] = {
            "job": "writer",
            "kafka": kafka,
            "prefix": prefix,
            "checkpoint": str(folder / "checkpoint"),
            "sink": f"sqlite://{folder}/sink.db",
            "state_dsn": f"sqlite://{folder}/state.db",
            "capacity": 400,
            "cost": "per_row(1)",
            "expected_cost_per_record": 10.0,
            "max": 40,
            "trigger_ms": 500,
            "metrics_port": self.port,
            **changes,
        }
        self.config = folder / "job.toml"
        self.config.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items()))

    def start(self, *more: str) -> None:
        log = (self.folder / "log").open("ab")
        command = [sys.executable, "-m", "headrace_spark.jobs.writer", "--config", str(self.config), *more]
        self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)

    def send(self, number: int) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def wait(self, seconds: float = 90) -> int:
        assert self.process is not None
        return self.process.wait(seconds)

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def metrics(self) -> dict[str, float]:
        """By name and labels; empty as long as nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
                lines = answer.read().decode().splitlines()
        except (urllib.error.URLError, ConnectionError):
            return {}
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}

    def sql(self, file: str, query: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.folder / file, timeout=30)) as db:
            return db.execute(query).fetchall()

    def rows(self) -> int:
        try:
            return int(self.sql("sink.db", "SELECT count(*) FROM measurements")[0][0])
        except sqlite3.OperationalError:
            return 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(holds: Callable[[], Any], job: Job, seconds: float = 90) -> None:
    """Wait for a condition; fail with the job's log if it does not come, or if the process ended."""
    deadline = time.monotonic() + seconds
    while not holds():
        ended = job.process is not None and job.process.poll() is not None
        assert not ended, job.log()[-4000:]
        assert time.monotonic() < deadline, job.log()[-4000:]
        time.sleep(0.1)


@pytest.fixture
def job(tmp_path: Path, kafka: str, topic_prefix: str) -> Iterator[Callable[..., Job]]:
    made: list[Job] = []
    admin = AdminClient({"bootstrap.servers": kafka})
    topics = [NewTopic(f"{topic_prefix}{name}", _PARTITIONS, 1) for name in ("batches", "dead-letter")]
    for future in admin.create_topics(topics).values():
        future.result(30)

    def make(**changes: Any) -> Job:
        made.append(Job(tmp_path, kafka, topic_prefix, **changes))
        return made[-1]

    yield make
    for one in made:
        if one.process is not None and one.process.poll() is None:
            one.process.kill()
            one.process.wait(30)


def produce(job: Job, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": job.kafka, "linger.ms": 20})
    for number, value in enumerate(values):
        producer.produce(f"{job.prefix}batches", key=f"te/device/{number % 7}//".encode(), value=value)
    assert producer.flush(30) == 0


def consume(job: Job, topic: str, count: int) -> list[Any]:
    settings = {"bootstrap.servers": job.kafka, "group.id": "check", "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    consumer.subscribe([f"{job.prefix}{topic}"])
    found: list[Any] = []
    deadline = time.monotonic() + 30
    while len(found) < count and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            found.append(message)
    consumer.close()
    return found


def written(job: Job, topic: str) -> int:
    """How many records the topic ever got."""
    consumer = Consumer({"bootstrap.servers": job.kafka, "group.id": "count"})
    try:
        places = [TopicPartition(f"{job.prefix}{topic}", number) for number in range(_PARTITIONS)]
        return sum(consumer.get_watermark_offsets(place, timeout=30)[1] for place in places)
    finally:
        consumer.close()


def documents(count: int, first: int = 0) -> list[bytes]:
    """Documents of ten rows each, all rows different, with one text leaf each."""
    return [
        document(n, [member(n * 10 + i, {"v": n + i / 10, **({"unit": "C"} if i == 0 else {})}) for i in range(10)])
        for n in range(first, first + count)
    ]


def largest_window(job: Job) -> int:
    """The most cost in any second, from the recorded dispatches of all processes."""
    out = job.sql("state.db", "SELECT at_ns, cost FROM hr_dispatch ORDER BY at_ns")
    largest = used = start = 0
    for at, cost in out:
        used += cost
        while out[start][0] <= at - 1_000_000_000:
            used -= out[start][1]
            start += 1
        largest = max(largest, used)
    return largest


def check_metrics(numbers: dict[str, float]) -> None:
    def total(name: str) -> float:
        return numbers[f"headrace_spark_{name}_total"]

    assert total("records") == total("ticks") + total("rejected") + total("documents") + total("documents_repeated")
    assert total("members") == total("members_taken") + total("members_rejected")
    assert total("rows") == total("inserted") + total("replaced") + total("repeats")


def test_batches_are_written_once_and_what_is_bad_goes_to_the_dead_letters(job: Callable[..., Job]) -> None:
    one = job()
    bad_member = document(900, [member(1, 1.0, "ok"), member(2, None, "nothing")])
    produce(one, [*documents(40), b"\xff", b"{", bad_member, *documents(3)])
    one.start()
    until(lambda: one.rows() == 401, one)
    until(lambda: one.metrics().get("headrace_spark_records_total") == 46, one)
    numbers = one.metrics()
    check_metrics(numbers)
    assert numbers["headrace_spark_documents_repeated_total"] == 3
    assert numbers["headrace_spark_text_leaves_dropped_total"] == 40
    assert numbers['headrace_spark_dead_letters_total{reason="not_utf8"}'] == 1
    assert numbers["headrace_spark_inserted_total"] == 401
    assert written(one, "dead-letter") == 3
    letters = {json.loads(letter.value())["reason"]: letter for letter in consume(one, "dead-letter", 3)}
    assert sorted(letters) == ["not_json", "not_utf8", "null_value"]
    refused = json.loads(letters["null_value"].value())
    assert (refused["element"], refused["payload"]) == (1, bad_member.decode())
    assert dict(letters["null_value"].headers())["id"].decode() == "writer:{partition}:{offset}:1".format(**refused)
    assert largest_window(one) <= 400
    with urllib.request.urlopen(f"http://127.0.0.1:{one.port}/healthz", timeout=5) as answer:
        assert answer.status == 200
    one.send(signal.SIGTERM)
    assert one.wait() == 0
    one.start()
    until(lambda: one.metrics().get("headrace_spark_records_total") == 46, one)
    one.send(signal.SIGTERM)
    assert one.wait() == 0


@pytest.mark.timeout(600)  # six starts of Spark
def test_killed_at_random_and_started_again_no_row_is_lost_or_doubled(job: Callable[..., Job]) -> None:
    one = job(trigger_ms=1000)
    dice = random.Random(7)
    produce(one, documents(480))
    for _ in range(5):
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


def test_rows_reach_postgresql_and_the_ledger_may_live_there_too(job: Callable[..., Job]) -> None:
    if postgres.binaries() is None:
        pytest.skip("no PostgreSQL server on this machine")
    with postgres.server() as url:
        one = job(sink=url, state_dsn=url, capacity=5000, available_now=True)
        produce(one, [*documents(60), b"[]"])
        one.start()
        assert one.wait() == 0, one.log()[-4000:]
        with psycopg.connect(url) as db:
            assert db.execute("SELECT count(*), count(DISTINCT batch) FROM measurements").fetchone() == (600, 60)
            total = dict(db.execute("SELECT name, value FROM hr_total WHERE job = 'writer'").fetchall())
            ledger = db.execute("SELECT sum(records), sum(rows) FROM hr_batch_ledger").fetchone()
        assert (total["records"], total["inserted"], total["dead_letters.schema"]) == (61, 600, 1)
        assert ledger == (61, 600)


def test_a_wrong_schema_stops_the_job_and_writes_no_dead_letters(job: Callable[..., Job]) -> None:
    one = job(expected_cost_per_record=0.5)
    produce(one, [b'{"other": "schema"}'] * 300)
    one.start()
    assert one.wait() == 5, one.log()[-4000:]
    assert written(one, "dead-letter") == 0
    assert one.sql("state.db", "SELECT count(*) FROM hr_batch_ledger") == [(0,)]


def test_another_checkpoint_is_refused(job: Callable[..., Job], tmp_path: Path) -> None:
    one = job(available_now=True)
    produce(one, documents(1))
    one.start()
    assert one.wait() == 0, one.log()[-4000:]
    two = job(available_now=True, checkpoint=str(tmp_path / "other"))
    two.start()
    assert two.wait() == 3
    assert "--new-checkpoint" in two.log()
    assert not (tmp_path / "other").exists()


def test_a_wrong_job_file_names_the_field(job: Callable[..., Job]) -> None:
    one = job(capacity="many")
    one.start()
    assert one.wait() == 2
    assert "capacity" in one.log()
