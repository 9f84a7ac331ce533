"""Registration: raw records into routed ones (registration.md), in chunks over a store in memory."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from bench.engines.batching import START_MS, TYPES, payload
from bench.engines.measure import Figure, chunks, floor_rate, rated, run_stage
from headrace_core.registration.config import RegistrationConfig
from headrace_core.registration.engine import Engine
from headrace_core.registration.stage import RegistrationStage
from headrace_core.stage import Record
from headrace_core.state import MemoryState, Overlay


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


Call = tuple[str, bytes, bool, int, int]
"""Topic, payload, retain flag, receipt time, offset: what the engine is called with."""


def plain(records: Sequence[Record]) -> list[Call]:
    """The engine's own input."""
    calls = []
    for record in records:
        fields = dict(record.headers)
        topic = fields["topic"].decode()
        calls.append((topic, record.value or b"", fields["retain"] == b"1", record.append_ms, record.offset))
    return calls


def run_engine(config: RegistrationConfig, base: MemoryState, calls: Sequence[Call]) -> int:
    """The engine alone: messages in, effects out, chunk by chunk."""
    effects = 0
    for chunk in chunks(calls):
        overlay = Overlay(base)
        engine = Engine(overlay, config)
        for topic, value, retained, receipt_ms, ref in chunk:
            effects += len(engine.message(topic, value, retained=retained, receipt_ms=receipt_ms, ref=ref))
        base.commit(overlay.mutations)
    return effects


CONFIG = RegistrationConfig()


def figures(*, quick: bool) -> list[Figure]:
    """Data of 1,000 registered entities passing through; early data cached, 20 messages an entity, then replayed."""
    count, entities, runs = (10_000, 1000, 2) if quick else (50_000, 1000, 5)
    known = list(registrations(entities))
    data, overtaking = list(passing(entities, count, entities)), list(early(count // 2))
    calls, overtaking_calls, floor = plain(data), plain(overtaking), floor_rate(data)

    def registered() -> MemoryState:
        base = MemoryState()
        run_stage(RegistrationStage(CONFIG), base, known)
        return base

    found = [
        rated("registration, passing", count, lambda base: run_engine(CONFIG, base, calls), registered, target=150_000,
              runs=runs),
        rated("registration, passing, stage", count, lambda base: run_stage(RegistrationStage(CONFIG), base, data),
              registered, runs=runs),
        rated("registration, early", len(overtaking), lambda base: run_engine(CONFIG, base, overtaking_calls),
              MemoryState, target=60_000, runs=runs),
        rated("registration, early, stage", len(overtaking),
              lambda base: run_stage(RegistrationStage(CONFIG), base, overtaking), MemoryState, runs=runs),
    ]  # fmt: skip
    for figure in found:
        figure.floor = floor
    return found


def entities(size: int, probe: int, base: MemoryState, started: int) -> list[Call]:
    """Grow `base` from `started` to `size` registered entities; `probe` messages of some of them."""
    for first in range(started, size, 50_000):
        numbers = range(first, min(size, first + 50_000))
        topics = [f"te/device/d{number:07d}//" for number in numbers]
        value = b'{"@type":"child-device"}'
        run_engine(CONFIG, base, [(topic, value, True, START_MS, at) for at, topic in enumerate(topics)])
    return plain(list(passing(size, probe, size)))


WIDE = RegistrationConfig(
    telemetry_cache_size=10**9, telemetry_cache_bytes=10**12, pending_ttl=10**15, status_retention=10**15
)
"""Bounds far away, so that nothing is evicted."""


def cached(size: int, probe: int, base: MemoryState, started: int) -> list[Call]:
    """Grow `base` from `started` to `size` pending entities with a message each; `probe` more, one each."""
    for first in range(started, size, 50_000):
        numbers = range(first, min(size, first + 50_000))
        run_engine(WIDE, base, [(f"te/line/a/cell/c{n:07d}/m/t", b"{}", False, START_MS, n) for n in numbers])
    cells = random.Random(size).sample(range(size), probe)
    return [(f"te/line/a/cell/c{cell:07d}/m/t", b"{}", False, START_MS, at) for at, cell in enumerate(cells)]
