"""Registration: raw records into routed ones (registration.md), in chunks over a store in memory."""

from __future__ import annotations

import random
from collections.abc import Iterator

from bench.engines.batching import START_MS, TYPES, payload
from headrace_core.stage import Record


def raw(offset: int, topic: str, value: bytes, at_ms: int, *, retain: bool = False) -> Record:
    """An MQTT message as the bridge writes it."""
    headers = (
        ("topic", topic.encode()),
        ("qos", b"1"),
        ("retain", b"1" if retain else b"0"),
        ("dup", b"0"),
        ("received", b"%d" % at_ms),
    )
    return Record(0, offset, at_ms, topic.partition("/")[0].encode(), value, headers)


def registrations(entities: int) -> Iterator[Record]:
    """Explicit registrations of `entities` child devices."""
    for number in range(entities):
        value = b'{"@type":"child-device","@parent":"device/main//","name":"d%d"}' % number
        yield raw(number, f"te/device/d{number:07d}//", value, START_MS, retain=True)


def passing(first: int, count: int, entities: int) -> Iterator[Record]:
    """Telemetry of registered entities."""
    dice = random.Random(11)
    for offset in range(first, first + count):
        topic = f"te/device/d{dice.randrange(entities):07d}///m/{TYPES[offset % 4]}"
        yield raw(offset, topic, payload(START_MS + offset // 4, offset), START_MS + offset // 4)


def early(count: int, each: int = 20) -> Iterator[Record]:
    """Data that comes before the registration of its entity, which then releases it; topic ids are custom."""
    offset, number = 0, 0
    while offset < count:
        entity = f"te/line/a/cell/c{number:06d}"
        for _ in range(each):
            yield raw(offset, f"{entity}/m/{TYPES[offset % 4]}", payload(START_MS + offset, offset), START_MS + offset)
            offset += 1
        yield raw(offset, entity, b'{"@type":"child-device"}', START_MS + offset, retain=True)
        offset, number = offset + 1, number + 1
