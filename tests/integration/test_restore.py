"""Restoring from a real changelog: how fast, and after the cleaner has been at it (`streams.md` 3)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from aiokafka import TopicPartition
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from headrace_core.changelog import MARKER_KEY, SOURCE_HEADER, Marker
from headrace_streams.restore import restore
from headrace_streams.store import Position, RocksState
from tests.support.counting_stage import CountingStage
from tests.support.streams_worker import until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

CLEANED_AT_ONCE = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.001",
    "segment.ms": "100",
    "delete.retention.ms": "100",
    "min.compaction.lag.ms": "0",
}


def create(kafka: str, topic: str, config: dict[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": kafka})
    for future in admin.create_topics([NewTopic(topic, 1, 1, config=config)]).values():
        future.result(240)


def append(kafka: str, topic: str, items: Iterable[tuple[bytes, bytes | None, int]]) -> None:
    """Write (key, value, source) records, and wait."""
    producer = Producer(
        {
            "bootstrap.servers": kafka,
            "linger.ms": 20,
            "queue.buffering.max.messages": 1_000_000,
            "enable.idempotence": True,
        }
    )
    for number, (key, value, source) in enumerate(items):
        headers: list[tuple[str, bytes]] = [(SOURCE_HEADER, source.to_bytes(8, "big", signed=True))]
        producer.produce(topic, key=key, value=value, partition=0, headers=headers)
        if number % 100_000 == 99_999:
            producer.flush()
    assert producer.flush(240) == 0


def mark(source: int) -> tuple[bytes, bytes, int]:
    return MARKER_KEY, msgspec.json.encode(Marker(source=source, clock=source)), source


def value_of(number: int) -> bytes:
    return (number % 1_000).to_bytes(8, "big")


@pytest.mark.parametrize("keys", [50_000, pytest.param(1_000_000, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])])
async def test_a_restored_state_equals_what_was_logged(
    kafka: str, topic_prefix: str, tmp_path: Path, keys: int
) -> None:
    topic = topic_prefix + "changelog"
    create(kafka, topic, {"cleanup.policy": "compact"})
    append(kafka, topic, ((b"c%010d" % i, value_of(i), i) for i in range(keys)))
    append(kafka, topic, [(b"c%010d" % 5, None, keys), mark(keys)])
    state, cpu = RocksState(tmp_path / "db"), time.process_time()
    figures = await restore(kafka, TopicPartition(topic, 0), state, CountingStage())
    cpu = time.process_time() - cpu
    print(f"{keys} keys: {keys / figures['seconds']:.0f} keys/s, {keys / cpu:.0f} keys per CPU second")
    assert state.position == Position(Marker(source=keys, clock=keys), changelog=keys + 2)
    expected = (number for number in range(keys) if number != 5)
    for (key, value), number in zip(state.scan(b"c", b"d"), expected, strict=True):
        assert (key, value) == (b"c%010d" % number, value_of(number))
    derived = sorted(value_of(number) + b"%010d" % number for number in range(keys) if number != 5)
    for (key, _), name in zip(state.scan(b"n", b"o"), derived, strict=True):
        assert key[1:] == name
    assert (await restore(kafka, TopicPartition(topic, 0), state, CountingStage()))["records"] == 0
    state.close()


def keys_in_log(kafka: str, topic: str) -> list[tuple[bytes, bytes | None]]:
    """What is left of a changelog."""
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "test-reader", "enable.auto.commit": False})
    left = []
    try:
        consumer.assign([Place(topic, 0, OFFSET_BEGINNING)])
        _, end = consumer.get_watermark_offsets(Place(topic, 0), timeout=240)
        while True:
            for message in consumer.consume(1_000, timeout=0.2):
                left.append((message.key(), message.value()))
                if message.offset() == end - 1:
                    return left
    finally:
        consumer.close()


@contextmanager
def busy_cleaner(kafka: str) -> Iterator[None]:
    """The broker's cleaner looks every 200 ms, not every 15 s."""
    admin = AdminClient({"bootstrap.servers": kafka})

    def alter(operation: AlterConfigOpType, value: str | None) -> None:
        entry = ConfigEntry("log.cleaner.backoff.ms", value, incremental_operation=operation)
        resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
        for future in admin.incremental_alter_configs([resource]).values():
            future.result(240)

    alter(AlterConfigOpType.SET, "200")
    try:
        yield
    finally:
        alter(AlterConfigOpType.DELETE, None)


async def test_a_database_older_than_the_tombstones_is_rebuilt_and_deleted_keys_stay_deleted(
    kafka: str, topic_prefix: str, tmp_path: Path
) -> None:
    topic, tp = topic_prefix + "changelog", TopicPartition(topic_prefix + "changelog", 0)
    create(kafka, topic, CLEANED_AT_ONCE)
    append(kafka, topic, [(b"ca", value_of(1), 0), (b"cb", value_of(2), 0), mark(0)])
    state = RocksState(tmp_path / "db")
    await restore(kafka, tp, state, CountingStage())
    source = 1
    append(kafka, topic, [(b"ca", None, source), mark(source)])
    with busy_cleaner(kafka):

        def tombstone_is_gone() -> bool:
            nonlocal source
            source += 1
            append(kafka, topic, [(b"cb", value_of(source), source), mark(source)])
            time.sleep(0.1)
            return (b"ca", None) not in keys_in_log(kafka, topic)

        until(tombstone_is_gone, "the cleaner removes the tombstone", 120)
    await restore(kafka, tp, state, CountingStage())
    assert state.get(b"ca") is None
    assert state.get(b"cb") == value_of(source)
    assert [key for key, _ in state.scan(b"n", b"o")] == [b"n" + value_of(source) + b"b"]
    assert state.position.marker.source == source
    state.close()
