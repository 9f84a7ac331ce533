"""Timelines with `transaction` on a real Kafka: who reads what is committed gets each output once (timeline.md 13)."""

from __future__ import annotations

import gc
import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace_core.changelog import Marker
from headrace_core.stage import Emission
from headrace_streams.atomic import Atomic, Fenced
from headrace_streams.producer import Outlet
from headrace_streams.sizes import Limits
from tests.integration.test_time_buffer import BUFFER, FAULT_EXIT, SOURCES, Source, gauge, headers_of, make_source
from tests.support.streams_worker import StreamsWorker, until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]


def make_worker(kafka: str, topic_prefix: str, tmp_path: Path, name: str) -> StreamsWorker:
    one = StreamsWorker(kafka, topic_prefix, tmp_path / name, tmp_path / f"{name}.log", stages="")
    timelines = {"retries": {"partitions": 2, "buffer": BUFFER, "transaction": True, "events": True}}
    one.settings |= {"TIMELINES": json.dumps(timelines), "CHUNK_RECORDS": "40"}
    return one


@pytest.fixture
def worker(kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[StreamsWorker]:
    one = make_worker(kafka, topic_prefix, tmp_path, "one")
    yield one.at_once()
    one.end()


def committed(kafka: str, topic: str, level: str = "read_committed") -> list[Message]:
    """All records of a topic that a reader of what is committed gets, up to the ends of its partitions."""
    consumer = Consumer({
        "bootstrap.servers": kafka, "group.id": "test", "enable.auto.commit": False, "isolation.level": level,
        "enable.partition.eof": True,
    })  # fmt: skip
    found: list[Message] = []
    try:
        left = set(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in left])
        while left:
            for message in consumer.consume(1_000, timeout=0.2):
                error = message.error()
                if error is None:
                    found.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard(message.partition())
    finally:
        consumer.close()
    return found


def sources(worker: StreamsWorker) -> Counter[bytes]:
    """How often each record of the source came out at the target."""
    return Counter(headers_of(one)["tl-source"] for one in committed(worker.kafka, worker.prefix + "job.again"))


EVENTS = "timeline.retries.events"
FAULTS = ("2:5", "7:2", "4:5", "5:5", "7:3", "4:4")
"""Before anything is written (2), before the commit (7), before the database (4), before the acknowledgement (5). There
are five chunks at least, one of each partition of the source and of the timeline, and two with a transaction."""


@pytest.mark.parametrize("rounds", [6, pytest.param(18, marks=pytest.mark.soak)])
def test_each_record_comes_out_once_whatever_step_a_worker_dies_at(worker: StreamsWorker, rounds: int) -> None:
    make_source(worker)
    source = Source(worker)
    for step in range(rounds):
        now = int(time.time() * 1000)
        for number in range(80):
            source.write(number % SOURCES, deliver_at=now + 100 * number)
        source.flush()
        worker.start(FAULT=FAULTS[step % len(FAULTS)])
        assert worker.running.wait(300) == FAULT_EXIT
        if step % 3 == 2:
            worker.delete_databases()
    worker.start().wait_ready()
    total = len(source.due)
    until(lambda: gauge(worker, "timeline.retries", "emitted") == total, f"all released, see {worker.log}", 120)
    before = worker.snapshot("timeline.retries") if worker.terminate() == 0 else {}
    assert sources(worker) == Counter(dict.fromkeys(source.due, 1))
    told = Counter(headers_of(one)["id"] for one in committed(worker.kafka, f"{worker.prefix}{EVENTS}"))
    assert (len(told), set(told.values())) == (2 * total, {1}), "created, emitted"
    worker.delete_databases()
    worker.start().wait_ready()
    assert worker.terminate() == 0
    assert worker.snapshot("timeline.retries") == before


def test_what_a_killed_worker_had_under_way_comes_out_once_from_the_other(
    worker: StreamsWorker, kafka: str, topic_prefix: str, tmp_path: Path
) -> None:
    make_source(worker)
    source = Source(worker)
    other = make_worker(kafka, topic_prefix, tmp_path, "other")
    try:
        worker.start(FAULT="7:12").wait_ready()
        other.start().wait_ready()
        now = int(time.time() * 1000)
        for number in range(150):
            source.write(number % SOURCES, deliver_at=now + 60 * number)
        source.flush()
        assert worker.running.wait(300) == FAULT_EXIT
        total = len(source.due)
        until(lambda: gauge(other, "timeline.retries", "emitted") == total, f"all released, see {other.log}", 120)
        assert other.terminate() == 0
    finally:
        other.end()
    assert sources(worker) == Counter(dict.fromkeys(source.due, 1))


async def test_who_lost_the_partition_commits_nothing_more(kafka: str, topic_prefix: str) -> None:
    names = [topic_prefix + name for name in ("jobs.changelog", "out")]
    admin = AdminClient({"bootstrap.servers": kafka})
    for future in admin.create_topics([NewTopic(name, 1, 1) for name in names]).values():
        future.result(60)
    outlet = Outlet(kafka, topic_prefix, 1024 * 1024, Limits({}))
    await outlet.start()
    first, second = (Atomic(outlet, kafka, topic_prefix, "jobs.changelog", 0) for _ in range(2))
    ends = []

    async def write(by: Atomic, number: int) -> None:
        out = [Emission("out", b"k", b"%d" % number, (("id", b"%d" % number),))]
        ends.append(await by.write(out, {b"n": b"%d" % number}, Marker(number, number, 1), lambda: None))

    try:
        await first.open()
        await write(first, 0)
        await second.open()
        with pytest.raises(Fenced):
            await write(first, 1)
        await write(second, 2)
        await first.open()
        await write(first, 3)
        with pytest.raises(Fenced):
            await write(second, 4)
    finally:
        await first.close()
        await second.close()
        await outlet.stop()
        gc.collect()  # aiokafka leaves errors of a fenced producer to the collector, which logs them, wherever it runs
    assert [one.value() for one in committed(kafka, topic_prefix + "out")] == [b"0", b"2", b"3"]
    changelog = committed(kafka, topic_prefix + "jobs.changelog")
    assert [one.value() for one in changelog if one.key() == b"n"] == [b"0", b"2", b"3"]
    assert ends[0] == 3, "two records and the end of the transaction"
