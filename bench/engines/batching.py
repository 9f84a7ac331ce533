"""Batching: routed records into batch documents (batching.md), in chunks over a store in memory."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime

from headrace_core.stage import Record

START_MS = 1_800_000_000_000
TYPES = ("temperature", "humidity", "pressure", "voltage")


def payload(event_ms: int, number: int) -> bytes:
    """One measurement as thin-edge devices send them."""
    at = datetime.fromtimestamp(event_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return json.dumps({"time": at, "value": 20 + number % 997 / 100}, separators=(",", ":")).encode()


def routed(offset: int, number: int, source: int, type_: str, event_ms: int, at_ms: int) -> Record:
    """A routed data record as registration writes it."""
    entity = f"te/device/d{source:05d}//"
    headers = (
        ("kind", b"data"),
        ("receipt_time", b"%d" % at_ms),
        ("entity", entity.encode()),
        ("topic", f"{entity}/m/{type_}".encode()),
        ("channel", f"m/{type_}".encode()),
        ("id", b"registration:0:%d:0" % offset),
    )
    return Record(0, offset, at_ms, b"te", payload(event_ms, number), headers)


def log(count: int, sources: int = 1000, repeats: float = 0.05, rate: int = 4_000) -> Iterator[Record]:
    """`count` records: each source sends its four types of one moment close together, in any order; some twice."""
    dice, offset = random.Random(7), 0
    while True:
        burst = []
        for place, source in enumerate(dice.sample(range(sources), sources)):
            event_ms = START_MS + (offset + place * len(TYPES)) * 1000 // rate
            arrivals = [(place + dice.random() * 20, source, type_, event_ms) for type_ in TYPES]
            burst += arrivals + [(at + 30, *rest) for at, *rest in arrivals if dice.random() < repeats]
        for _, source, type_, event_ms in sorted(burst):
            yield routed(offset, offset, source, type_, event_ms, START_MS + offset * 1000 // rate)
            offset += 1
            if offset == count:
                return
