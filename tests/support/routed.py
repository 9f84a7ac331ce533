"""A routed log with times of its own, and the batches that the pure stage makes of it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator

from confluent_kafka import Producer

from headrace_core.batching.config import BatchingConfig
from headrace_core.batching.stage import BatchingStage
from headrace_core.stage import Emission, Headers, Record
from headrace_core.state import MemoryState, Overlay

STEP_MS = 20


def routed(partition: int, count: int, base_ms: int, *, sources: int = 5, seed: int = 1) -> Iterator[Record]:
    """A record each 20 ms: measurements, some late, doubled or unreadable; ticks; one flush in the middle."""
    dice = random.Random(seed + partition)
    for offset in range(count):
        at_ms = base_ms + offset * STEP_MS
        headers: Headers = (("kind", b"tick"), ("receipt_time", b"%d" % at_ms))
        value = b""
        if offset == count // 2:
            headers = (("kind", b"flush"), ("receipt_time", b"%d" % at_ms), ("id", _id(partition, offset)))
        elif offset % 10:
            source = b"te/device/p%d-%d//" % (partition, dice.randrange(sources))
            event_ms = at_ms - dice.choice((0, 5, 40, 400)) - (offset % 3) * STEP_MS
            value = b"{" if offset % 97 == 0 else json.dumps({"time": event_ms / 1000, "v": offset}).encode()
            headers = (
                ("kind", b"data"), ("receipt_time", b"%d" % at_ms), ("id", _id(partition, offset)),
                ("entity", source), ("channel", b"m/t%d" % dice.randrange(3)), ("topic", b"te/x"),
            )  # fmt: skip
        yield Record(partition, offset, at_ms, b"te", value, headers)


def _id(partition: int, offset: int) -> bytes:
    return b"registration:%d:%d:0" % (partition, offset)


def batches(records: Iterable[Record], config: BatchingConfig, chunk: int = 5000) -> list[Emission]:
    """What the stage puts into `batches`, chunk by chunk as its runner would."""
    stage, base, out = BatchingStage(config), MemoryState(), list[Emission]()
    rest = list(records)
    for start in range(0, len(rest), chunk):
        overlay = Overlay(base)
        for record in rest[start : start + chunk]:
            stage.apply(overlay, record, out.append)
        base.commit(overlay.mutations)
    return [one for one in out if one.topic == "batches"]


def put(kafka: str, topic: str, records: Iterable[Record | Emission], time_ms: int | None = None) -> None:
    """Produce them as they are; records with their own times, emissions at `time_ms`."""
    producer = Producer(
        {
            "bootstrap.servers": kafka,
            "linger.ms": 20,
            "queue.buffering.max.messages": 1_000_000,
            "enable.idempotence": True,
        }
    )
    for one in records:
        at_ms = one.append_ms if isinstance(one, Record) else time_ms
        headers = list(one.headers)
        producer.produce(topic, one.value, one.key, one.partition or 0, timestamp=at_ms or 0, headers=headers)
        producer.poll(0)
    assert producer.flush(240) == 0
