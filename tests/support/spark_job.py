"""The writer as a process for black-box tests: its job file, its topics, and how to look at what it did."""

from __future__ import annotations

import http.client
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import psycopg
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.jars import connector_jars
from headrace.kafka import free_port
from tests.unit.spark.fakes import document, member

PARTITIONS = 2
SPARK = {
    "spark.driver.memory": "768m",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.jars": ",".join(map(str, connector_jars())),
    "spark.jars.packages": "",
    "spark.sql.streaming.metricsEnabled": "false",
}
"""A small JVM that starts quickly."""


class Job:
    """A job file and the process that runs it; `module` is the main of headrace_spark.jobs."""

    module = "writer"

    def __init__(self, folder: Path, kafka: str, prefix: str, **changes: Any) -> None:
        self.folder, self.kafka, self.prefix = folder, kafka, prefix
        self.port = free_port()
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
        self.options = {**SPARK, **settings.pop("spark", {})}
        self.settings = settings
        self.config = folder / "job.toml"
        self.change()

    def start(self, *more: str, environment: Mapping[str, str] | None = None) -> None:
        log = (self.folder / "log").open("ab")
        command = [sys.executable, "-m", f"headrace_spark.jobs.{self.module}", "--config", str(self.config), *more]
        self.process = subprocess.Popen(
            command, stdout=log, stderr=log, cwd=self.folder, env={**os.environ, **(environment or {})}
        )

    def run(self, *more: str, environment: Mapping[str, str] | None = None) -> int:
        """Start it and wait for its end."""
        self.start(*more, environment=environment)
        return self.wait()

    def stopped(self) -> bool:
        """Whether it was stopped by SIGSTOP."""
        assert self.process is not None
        return psutil.Process(self.process.pid).status() == psutil.STATUS_STOPPED

    def ended(self) -> bool:
        """Whether it was started and is gone."""
        return self.process is not None and self.process.poll() is not None

    def terminate(self) -> int:
        """SIGTERM, and the exit code."""
        self.send(signal.SIGTERM)
        return self.wait()

    def change(self, **changes: Any) -> None:
        """Write the job file again with other settings."""
        self.settings.update(changes)
        plain = {name: value for name, value in self.settings.items() if not isinstance(value, dict)}
        tables = {"spark": self.options, **{name: self.settings[name] for name in self.settings.keys() - plain.keys()}}
        text = "".join(f"[{name}]\n{_toml(values)}" for name, values in tables.items())
        self.config.write_text(_toml(plain) + text)

    def end(self) -> None:
        """Kill what still runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(300)

    def send(self, number: int) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def wait(self, seconds: float = 900) -> int:
        assert self.process is not None
        return self.process.wait(seconds)

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def health(self) -> int:
        """The status of `/healthz`; 0 as long as nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/healthz", timeout=60) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return 0

    def metrics(self) -> dict[str, float]:
        """By name and labels; empty as long as nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=60) as answer:
                lines = answer.read().decode().splitlines()
        except (OSError, http.client.HTTPException):
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


def _toml(values: Mapping[str, Any]) -> str:
    return "".join(f"{json.dumps(name)} = {_value(value)}\n" for name, value in values.items())


def _value(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else json.dumps(value)


def until(holds: Callable[[], Any], job: Job, seconds: float = 900, *, dead: bool = False) -> None:
    """Wait for a condition; fail with the job's log if it does not come, or if the process ended (unless `dead`)."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert dead or not job.ended(), job.log()[-4000:]
        assert time.monotonic() < deadline, job.log()[-4000:]
        time.sleep(0.1)


def produce(
    job: Job, values: list[bytes], spread: int | None = None, topic: str = "", headers: dict[str, bytes] | None = None
) -> None:
    """Values in order, by their keys; or one after the other over `spread` partitions."""
    producer = Producer({"bootstrap.servers": job.kafka, "linger.ms": 20, "enable.idempotence": True})
    for number, value in enumerate(values):
        where = {} if spread is None else {"partition": number % spread}
        producer.produce(
            topic or f"{job.prefix}batches",
            key=f"te/device/{number % 7}//".encode(),
            value=value,
            headers=headers or {},
            **where,
        )
    assert producer.flush(240) == 0


def produce_in_transactions(job: Job, values: list[bytes]) -> None:
    """As `produce`, four values to a transaction, and after each an aborted one with other values."""
    producer = Producer({"bootstrap.servers": job.kafka, "transactional.id": f"{job.prefix}test"})
    producer.init_transactions(60)
    for start in range(0, len(values), 4):
        for good, part in ((True, values[start : start + 4]), (False, [b"aborted"] * 3)):
            producer.begin_transaction()
            for number, value in enumerate(part):
                producer.produce(f"{job.prefix}batches", value=value, partition=number % PARTITIONS)
            producer.flush(240)
            producer.commit_transaction(60) if good else producer.abort_transaction(60)


def consume(job: Job, topic: str, count: int) -> list[Any]:
    settings = {"bootstrap.servers": job.kafka, "group.id": "check", "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    consumer.subscribe([f"{job.prefix}{topic}"])
    found: list[Any] = []
    deadline = time.monotonic() + 240
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
        places = [TopicPartition(f"{job.prefix}{topic}", number) for number in range(PARTITIONS)]
        return sum(consumer.get_watermark_offsets(place, timeout=240)[1] for place in places)
    finally:
        consumer.close()


def documents(count: int, first: int = 0) -> list[bytes]:
    """Documents of ten rows each, all rows different, with one text leaf each."""
    return [
        document(n, [member(n * 10 + i, {"v": n + i / 10, **({"unit": "C"} if i == 0 else {})}) for i in range(10)])
        for n in range(first, first + count)
    ]


def query(url: str, text: str, *values: Any) -> list[tuple[Any, ...]]:
    """Rows of a query in PostgreSQL; a table that is not there has none."""
    try:
        with psycopg.connect(url, autocommit=True) as db:
            return db.execute(text, values).fetchall()
    except psycopg.errors.UndefinedTable:
        return []


def largest_window(job: Job, database: str | None = None) -> int:
    """The most cost in any second, from the recorded dispatches of all processes."""
    text = "SELECT at_ns, cost FROM hr_dispatch ORDER BY at_ns"
    out = query(database, text) if database else job.sql("state.db", text)
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
    ends = ("inserted", "replaced", "repeats", "rows_refused", "rows_postponed")
    assert total("rows") == sum(map(total, ends))


def create_topics(kafka: str, prefix: str, partitions: int = PARTITIONS) -> None:
    admin = AdminClient({"bootstrap.servers": kafka})
    usual = {"max.message.bytes": "1048588"}  # of a broker that nobody configured
    topics = [
        NewTopic(f"{prefix}batches", partitions, 1),
        NewTopic(f"{prefix}dead-letter", partitions, 1, config=usual),
    ]
    for future in admin.create_topics(topics).values():
        future.result(240)
