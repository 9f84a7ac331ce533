"""Time buffers on a real Kafka (timeline.md 11): released when due, in order, once, whatever happens to a worker."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.streams_worker import StreamsWorker, until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

SOURCES = 3
BUFFER = {"source": "job.retry", "target": "job.again", "delay_ms": 300}
TIMELINES = {"retries": {"partitions": 2, "buffer": BUFFER}}
FAULT_EXIT = 86


@pytest.fixture
def worker(kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[StreamsWorker]:
    one = StreamsWorker(kafka, topic_prefix, tmp_path / "data", tmp_path / "worker.log", stages="")
    one.settings |= {"TIMELINES": json.dumps(TIMELINES), "CHUNK_RECORDS": "40"}
    yield one.at_once()
    one.end()


def make_source(worker: StreamsWorker) -> None:
    """By somebody else: with its own number of partitions, and stamped by the producers."""
    admin = AdminClient({"bootstrap.servers": worker.kafka})
    for future in admin.create_topics([NewTopic(worker.prefix + "job.retry", SOURCES, 1)]).values():
        future.result(240)


class Source:
    """Writes to the source; every record's value is its due time (ms)."""

    def __init__(self, worker: StreamsWorker) -> None:
        self.topic = worker.prefix + "job.retry"
        self.producer = Producer({"bootstrap.servers": worker.kafka, "linger.ms": 5, "enable.idempotence": True})
        self.due: dict[bytes, int] = {}
        self.sent = [0] * SOURCES

    def write(self, partition: int, *, deliver_at: int | None = None, stamp: int | None = None) -> None:
        now = int(time.time() * 1000)
        due = deliver_at if deliver_at is not None else (stamp or now) + BUFFER_DELAY
        at = [("deliver-at", b"%d" % deliver_at)] if deliver_at is not None else []
        self.producer.produce(
            self.topic, partition=partition, key=b"k%d" % partition, value=b"%d" % due, timestamp=stamp or now,
            headers=[("trace", b"\x00\xff"), ("none", None), *at],
        )  # fmt: skip
        self.due[f"{self.topic}-{partition}-{self.sent[partition]}".encode()] = due
        self.sent[partition] += 1

    def flush(self) -> None:
        assert self.producer.flush(240) == 0


BUFFER_DELAY = int(str(BUFFER["delay_ms"]))


def read(worker: StreamsWorker, topic: str) -> list[Message]:
    """All records of a topic, per partition in order."""
    consumer = Consumer({"bootstrap.servers": worker.kafka, "group.id": "test", "enable.auto.commit": False})
    found: list[Message] = []
    try:
        known = consumer.list_topics(worker.prefix + topic, timeout=30).topics[worker.prefix + topic].partitions
        for partition in known:
            place = TopicPartition(worker.prefix + topic, partition, OFFSET_BEGINNING)
            first, end = consumer.get_watermark_offsets(place, timeout=240)
            consumer.assign([place])
            wanted = len(found) + end - first
            while len(found) < wanted:
                found += [message for message in consumer.consume(1_000, timeout=0.2) if message.error() is None]
    finally:
        consumer.close()
    return found


def headers_of(message: Message) -> dict[str, Any]:
    return dict(message.headers() or [])


def shown(message: Message) -> tuple[Any, ...]:
    """All of a record but its place and time."""
    return (message.partition(), message.key(), message.value(), tuple(message.headers() or []))


def released(worker: StreamsWorker) -> dict[bytes, Message]:
    """First copies at the target by `tl-source`; all copies are byte-equal."""
    found: dict[bytes, Message] = {}
    for message in read(worker, "job.again"):
        first = found.setdefault(headers_of(message)["tl-source"], message)
        assert shown(first) == shown(message)
    return found


def assert_in_time_and_order(source: Source, found: dict[bytes, Message]) -> None:
    """Nothing is missing, nothing came early, and what one partition of the timeline put out is in order."""
    assert set(found) == set(source.due)
    last: dict[tuple[int, int], tuple[int, ...]] = {}
    for name, message in found.items():
        stage, partition, offset, index = headers_of(message)["id"].rsplit(b":", 3)
        assert (stage, int(message.value())) == (b"timeline.retries", source.due[name])
        _, from_partition, from_offset = name.rsplit(b"-", 2)
        assert int(partition) == int(from_partition) % 2
        place = (message.partition(), int(partition))
        at = (int(offset), int(index))
        assert last.get(place, (-1, -1)) < at
        last[place] = at
        assert message.timestamp()[1] >= source.due[name]
        assert headers_of(message)["trace"] == b"\x00\xff"
        assert headers_of(message)["none"] is None
    by_release = sorted(found.items(), key=lambda one: [int(n) for n in headers_of(one[1])["id"].rsplit(b":", 3)[1:]])
    for timeline in range(2):
        ticks: dict[int, list[tuple[int, int, int]]] = {}
        for name, message in by_release:
            _, partition, offset, _ = headers_of(message)["id"].rsplit(b":", 3)
            if int(partition) == timeline:
                _, from_partition, from_offset = name.rsplit(b"-", 2)
                ticks.setdefault(int(offset), []).append((source.due[name], int(from_partition), int(from_offset)))
        assert all(released_at == sorted(released_at) for released_at in ticks.values())


def gauge(worker: StreamsWorker, stage: str, name: str) -> int:
    return worker.metric(rf'headrace_stage{{name="{name}",partition="\d+",stage="{stage}"}}')


def test_records_leave_when_they_are_due_in_order_and_once(worker: StreamsWorker) -> None:
    make_source(worker)
    source, now = Source(worker), int(time.time() * 1000)
    for number in range(30):
        source.write(number % SOURCES)
        source.write(number % SOURCES, deliver_at=now + 6_000 - 150 * number)
    source.write(0, stamp=now - 60_000)
    source.write(1, deliver_at=now - 5)
    source.flush()
    worker.start().wait_ready()
    total = len(source.due)
    until(lambda: gauge(worker, "timeline.retries", "emitted") == total, f"all released, see {worker.log}")
    names = ("taken", "duplicates", "buffered", "refused.BAD_REQUEST")
    assert [gauge(worker, "timeline.retries", name) for name in names] == [total, 0, 0, 0]
    assert gauge(worker, "timeline.retries.in", "in") == total
    assert gauge(worker, "timeline.retries", "ticks") > 0
    assert worker.terminate() == 0
    found = read(worker, "job.again")
    assert len(found) == total
    assert_in_time_and_order(source, released(worker))
    assert {len(read(worker, f"timeline.retries.{name}")) for name in ("events", "parked")} == {0}
    assert {message.value() for message in read(worker, "job.retry")} == {b"%d" % due for due in source.due.values()}
    assert not (worker.data_dir / "registration").exists()


@pytest.mark.parametrize("rounds", [2, pytest.param(15, marks=pytest.mark.soak)])
def test_kills_and_deleted_databases_lose_nothing_and_repeat_only_byte_equal(
    worker: StreamsWorker, rounds: int
) -> None:
    make_source(worker)
    source = Source(worker)
    for step in range(rounds):
        now = int(time.time() * 1000)
        for number in range(40):
            source.write(number % SOURCES, deliver_at=now + 50 * (number % 60))
            source.write(number % SOURCES)
        source.flush()
        worker.start(FAULT=f"{step % 4 + 2}:{step % 5 + 2}")  # chunks that wait are joined, so there are not many
        assert worker.running.wait(300) == FAULT_EXIT
        if step % 2:
            worker.delete_databases()
    worker.start().wait_ready()
    total = len(source.due)
    until(lambda: gauge(worker, "timeline.retries", "emitted") == total, f"all released, see {worker.log}", 120)
    assert gauge(worker, "timeline.retries", "taken") == total
    assert gauge(worker, "timeline.retries.in", "in") == total
    before = worker.snapshot("timeline.retries") if worker.terminate() == 0 else {}
    assert_in_time_and_order(source, released(worker))
    worker.delete_databases()
    worker.start().wait_ready()
    assert worker.terminate() == 0
    assert worker.snapshot("timeline.retries") == before


def test_what_a_killed_worker_had_is_released_by_the_other(
    worker: StreamsWorker, kafka: str, topic_prefix: str, tmp_path: Path
) -> None:
    make_source(worker)
    source = Source(worker)
    other = StreamsWorker(kafka, topic_prefix, tmp_path / "other", tmp_path / "other.log", stages="")
    other.settings |= {"TIMELINES": json.dumps(TIMELINES)}
    try:
        worker.start().wait_ready()
        other.start().wait_ready()
        now = int(time.time() * 1000)
        for number in range(90):
            source.write(number % SOURCES, deliver_at=now + 60 * number)
        source.flush()
        until(lambda: len(source.due) // 10 <= len(read(worker, "job.again")), f"some, see {worker.log}")
        worker.kill()
        total = len(source.due)
        until(lambda: gauge(other, "timeline.retries", "emitted") == total, f"all released, see {other.log}", 120)
        assert other.terminate() == 0
    finally:
        other.end()
    assert_in_time_and_order(source, released(worker))
