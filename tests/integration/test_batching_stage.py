"""Batches on a real Kafka are those of the pure stage over the same log, whatever happens to the worker."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from headrace_core.batching.config import BatchingConfig
from headrace_core.batching.stage import BatchingStage
from headrace_core.stage import Emission, Record
from headrace_core.state import MemoryState
from tests.support.streams_worker import StreamsWorker, read_all, until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

PARTITIONS = 4
SETTINGS = {"window": 50, "timeout": 200}


@pytest.fixture
def worker(kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[StreamsWorker]:
    one = StreamsWorker(kafka, topic_prefix, tmp_path / "data", tmp_path / "worker.log", stages="batching")
    one.settings |= {"BATCHING": json.dumps(SETTINGS), "CHUNK_RECORDS": "300"}
    yield one
    one.end()


def publish(worker: StreamsWorker, count: int) -> None:
    """`count` data records over all partitions, in 3 s or so, some of them twice, some unreadable; a flush at last."""
    producer = Producer({"bootstrap.servers": worker.kafka, "acks": "all", "enable.idempotence": True, "linger.ms": 2})
    base = int(time.time() * 1000)
    for i in range(count):
        source, type_, event = i % 40, i // 40 % 3, base + i // 120 * 20
        value = b"{" if i % 97 == 0 else json.dumps({"time": event / 1000, "v": i}).encode()
        headers = [("kind", b"data"), ("entity", b"te/device/d%d//" % source), ("channel", b"m/t%d" % type_)]
        headers.append(("id", b"registration:%d:%d:0" % (source % PARTITIONS, i)))
        for _ in range(2 if i % 51 == 0 else 1):
            producer.produce(f"{worker.prefix}routed", value, b"te", source % PARTITIONS, headers=headers)
        if i % 100 == 99:
            producer.flush(240)
            time.sleep(0.02)
    for partition in range(PARTITIONS):
        producer.produce(f"{worker.prefix}routed", b"", None, partition, headers=[("kind", b"flush")])
    assert producer.flush(240) == 0


def read_log(worker: StreamsWorker) -> dict[int, list[Record]]:
    consumer = Consumer({"bootstrap.servers": worker.kafka, "group.id": "log", "enable.auto.commit": False})
    log: dict[int, list[Record]] = {}
    for partition in range(PARTITIONS):
        place = TopicPartition(f"{worker.prefix}routed", partition, 0)
        _, end = consumer.get_watermark_offsets(place, timeout=240)
        consumer.assign([place])
        records = log.setdefault(partition, [])
        while len(records) < end:
            for m in consumer.consume(1000, timeout=0.2):
                assert m.error() is None, m.error()
                headers = tuple(m.headers() or [])
                records.append(Record(partition, m.offset(), m.timestamp()[1], m.key(), m.value(), headers))
    consumer.close()
    return log


@pytest.mark.parametrize("rounds", [5, pytest.param(20, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])])
def test_batches_are_those_of_the_pure_stage_over_kills_and_lost_databases(worker: StreamsWorker, rounds: int) -> None:
    total, dice = (rounds + 1) * 2_000, random.Random(3)
    worker.at_once().start().wait_ready()
    feeder = Thread(target=publish, args=(worker, total))
    feeder.start()
    for round_ in range(rounds):
        goal = (round_ + 1) * 1_800
        until(lambda goal=goal: worker.applied() >= goal, f"progress, see {worker.log}")
        time.sleep(dice.random() * 0.05)
        worker.kill()
        if round_ % 4 == 1:
            worker.delete_databases()
        worker.at_once().start().wait_ready()
    feeder.join()
    log = read_log(worker)
    worker.wait_applied(sum(map(len, log.values())))
    assert worker.terminate() == 0

    expected: list[Emission] = []
    for records in log.values():
        stage, state, before = BatchingStage(BatchingConfig(**SETTINGS)), MemoryState(), len(expected)
        for record in records:
            stage.apply(state, record, expected.append)
        gauges = stage.gauges(state)
        assert gauges["open_batches"] == 0
        assert gauges["repeat"] > 0
        assert len(expected) > before
    for topic in ("batches", "dead-letter"):
        seen = {(output.id, output.value) for output in read_all(worker.kafka, worker.prefix + topic)}
        assert seen == {(dict(e.headers)["id"], e.value) for e in expected if e.topic == topic}
