"""A topic that the broker has really compacted: offsets are missing, as records that newer ones replaced are gone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

SETTINGS = {
    "cleanup.policy": "compact",
    "segment.ms": "1000",
    "segment.bytes": str(1024 * 1024),
    "min.cleanable.dirty.ratio": "0.01",
    "max.compaction.lag.ms": "100",
}


def compacted(kafka: str, topic: str, values: list[bytes], gap: int) -> list[int]:
    """Make the topic, of one partition: `gap` offsets that are gone, a value, again as many, and the other values.
    Returns the offsets that are left."""
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.create_topics([NewTopic(topic, 1, 1, config=SETTINGS)])[topic].result(240)
    gone, keys = [(b"gone", b"replaced")] * gap, [b"%d" % number for number in range(len(values))]
    keys[-2] = b"gone"  # the one that replaces them; the last is in the newest segment, which is never compacted
    first, *others, last = zip(keys, values, strict=True)
    producer, now_ms = Producer({"bootstrap.servers": kafka, "enable.idempotence": True}), time.time_ns() // 1_000_000
    for key, value in [*gone, first, *gone, *others]:
        producer.produce(topic, key=key, value=value, timestamp=now_ms - 60_000)
    assert producer.flush(240) == 0
    producer.produce(topic, key=last[0], value=last[1], timestamp=now_ms)  # so late that a segment begins
    assert producer.flush(240) == 0
    with _often(admin):
        deadline = time.monotonic() + 600
        while len(found := _offsets(kafka, topic)) > len(values):
            assert time.monotonic() < deadline, "the broker has not compacted the topic"
            time.sleep(0.2)
    return found


@contextmanager
def _often(admin: AdminClient) -> Iterator[None]:
    """The broker looks for what to compact all the time, not every 15 s."""
    name = "log.cleaner.backoff.ms"

    def alter(entry: ConfigEntry) -> None:
        resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
        for future in admin.incremental_alter_configs([resource]).values():
            future.result(240)

    alter(ConfigEntry(name, "200", incremental_operation=AlterConfigOpType.SET))
    try:
        yield
    finally:
        alter(ConfigEntry(name, None, incremental_operation=AlterConfigOpType.DELETE))


def _offsets(kafka: str, topic: str) -> list[int]:
    """Of all records that are there."""
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "look", "enable.partition.eof": True})
    found = []
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while (message := consumer.poll(30)) is not None and message.error() is None:
            found.append(message.offset())
    finally:
        consumer.close()
    return found
