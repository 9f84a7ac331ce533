"""Registration and batching in one worker on a real Kafka put out what the pure stages do over the same logs."""

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
from headrace_core.registration.config import RegistrationConfig
from headrace_core.registration.stage import RegistrationStage
from headrace_core.stage import Emission, Record, Stage, header
from headrace_core.state import MemoryState
from tests.support.streams_worker import StreamsWorker, until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(280)]

PARTITIONS = 4
ROOTS = {f"r{partition}": f"main-{partition}" for partition in range(PARTITIONS)}
BATCHING = {"window": 50, "timeout": 200}
REGISTRATION = {"pending_ttl": 3_600_000, "auto_register": False}


@pytest.fixture
def worker(kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[StreamsWorker]:
    stages = "registration,batching"
    one = StreamsWorker(kafka, topic_prefix, tmp_path / "data", tmp_path / "worker.log", stages=stages)
    one.settings |= {"BATCHING": json.dumps(BATCHING), "REGISTRATION": json.dumps(REGISTRATION)}
    one.settings |= {"ROOTS": json.dumps(ROOTS), "CHUNK_RECORDS": "200"}
    yield one
    one.end()


def publish(worker: StreamsWorker, count: int) -> None:
    """Data of 10 devices a root, each registered only after some of its data; rubbish among it; a flush at last."""
    producer = Producer({"bootstrap.servers": worker.kafka, "acks": "all", "enable.idempotence": True, "linger.ms": 2})
    base = int(time.time() * 1000)
    for i in range(count):
        partition, device, turn = i % PARTITIONS, i // PARTITIONS % 10, i // 40
        topic, value = f"r{partition}/device/d{device}//", json.dumps({"@type": "child-device"}).encode()
        if turn != 3:
            topic += f"/m/t{turn % 3}"
            value = b"{" if i % 97 == 0 else json.dumps({"time": (base + turn * 20) / 1000, "v": i}).encode()
        headers = [("topic", topic.encode()), ("qos", b"1"), ("retain", b"0" if turn != 3 else b"1")]
        producer.produce(f"{worker.prefix}raw", value, b"r%d" % partition, partition, headers=headers)
        if i % 100 == 99:
            producer.flush(240)
            time.sleep(0.02)
    for partition in range(PARTITIONS):
        producer.produce(f"{worker.prefix}raw", b"", None, partition, headers=[("kind", b"flush")])
    assert producer.flush(240) == 0


def read(worker: StreamsWorker, topic: str) -> dict[int, list[Record]]:
    consumer = Consumer({"bootstrap.servers": worker.kafka, "group.id": "reader", "enable.auto.commit": False})
    log: dict[int, list[Record]] = {}
    for partition in range(PARTITIONS):
        place = TopicPartition(worker.prefix + topic, partition, 0)
        _, end = consumer.get_watermark_offsets(place, timeout=240)
        consumer.assign([place])
        records = log.setdefault(partition, [])
        while len(records) < end:
            for m in consumer.consume(1000, timeout=0.2):
                assert m.error() is None, m.error()
                stamp = m.timestamp()[1]
                records.append(Record(partition, m.offset(), stamp, m.key(), m.value(), tuple(m.headers() or [])))
    consumer.close()
    return log


def pure(stage: Stage, records: list[Record], topic: str) -> list[tuple[bytes | None, bytes | None]]:
    emissions: list[Emission] = []
    state = MemoryState()
    for record in records:
        stage.apply(state, record, emissions.append)
    return [(header(e.headers, "id"), e.value or b"") for e in emissions if e.topic == topic]


def distinct(records: list[Record]) -> list[tuple[bytes | None, bytes | None]]:
    first: dict[bytes | None, bytes | None] = {}
    for record in records:
        value = record.value or b""
        assert first.setdefault(header(record.headers, "id"), value) == value
    return list(first.items())


@pytest.mark.parametrize("rounds", [5, pytest.param(20, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])])
def test_both_stages_over_kills_are_equal_to_the_pure_ones(worker: StreamsWorker, rounds: int) -> None:
    total, dice = (rounds + 1) * 1_400, random.Random(11)
    taken = r'headrace_stage\{name="in",.*stage="registration"'
    worker.at_once().start().wait_ready()
    feeder = Thread(target=publish, args=(worker, total))
    feeder.start()
    for round_ in range(rounds):
        goal = (round_ + 1) * 1_200
        until(lambda goal=goal: worker.metric(taken) >= goal, f"progress, see {worker.log}")
        time.sleep(dice.random() * 0.05)
        worker.kill()
        if round_ % 4 == 1:
            worker.delete_databases()
        worker.at_once().start().wait_ready()
    feeder.join()
    until(lambda: worker.metric(taken) == total, f"all of raw, see {worker.log}")
    batched = r'headrace_stage\{name="in",.*stage="batching"'
    opened = r'headrace_stage\{name="open_batches"'
    until(lambda: worker.metric(batched) >= total and worker.metric(opened) == 0, f"all of routed, see {worker.log}")
    assert worker.metric(r'headrace_stage\{name="pending"') == 0
    assert worker.terminate() == 0

    raw, routed, batches = (read(worker, topic) for topic in ("raw", "routed", "batches"))
    produced = list[tuple[bytes | None, bytes | None]]()
    for partition in range(PARTITIONS):
        seen = distinct(routed[partition])
        registration = RegistrationStage(RegistrationConfig(roots=ROOTS, **REGISTRATION))
        expected = pure(registration, raw[partition], "routed")
        assert seen == expected[: len(seen)]  # ticks that came after the end may not have been copied yet
        assert len(seen) > total // PARTITIONS
        assert any(header(r.headers, "kind") == b"register" for r in routed[partition])
        produced += pure(BatchingStage(BatchingConfig(**BATCHING)), routed[partition], "batches")
        assert len(batches[partition]) > 0
    assert sorted(item for records in batches.values() for item in distinct(records)) == sorted(produced)
