"""Batching: routed records into batch documents (batching.md), in chunks over a store in memory."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from bench.engines.measure import Figure, chunks, floor_rate, rated, run_stage
from headrace_core.batching.config import BatchingConfig
from headrace_core.batching.engine import Batcher
from headrace_core.batching.messages import Message
from headrace_core.batching.payload import readable
from headrace_core.batching.stage import BatchingStage
from headrace_core.stage import Record
from headrace_core.state import MemoryState, Overlay

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


def plain(records: Sequence[Record]) -> list[tuple[Message, int]]:
    """The batcher's own input: messages with their values encoded, and receipt times."""
    messages = []
    for record in records:
        fields = dict(record.headers)
        receipt_ms = int(fields["receipt_time"])
        message = readable(record.value or b"", fields["entity"], fields["channel"][2:], receipt_ms)
        assert message is not None
        messages.append((message, receipt_ms))
    return messages


def run_batcher(config: BatchingConfig, base: MemoryState, messages: Sequence[tuple[Message, int]]) -> int:
    """The engine alone: messages in, batches and rejections out, chunk by chunk."""
    outputs = 0
    for chunk in chunks(messages):
        overlay = Overlay(base)
        batcher = Batcher(overlay, config)
        for message, receipt_ms in chunk:
            outputs += len(batcher.message(message, receipt_ms))
        base.commit(overlay.mutations)
    return outputs


CONFIG = BatchingConfig(dedup_horizon=5_000)
"""A short memory, so that the history is full and forgets as much as it takes while the clock is running."""


def figures(*, quick: bool) -> list[Figure]:
    """1,000 sources, 4 types, 5 % repeats; the history is full before the time is taken."""
    warm, count = (30_000, 10_000) if quick else (30_000, 50_000)
    records = list(log(warm + count))
    messages = plain(records)
    floor = floor_rate(records[warm:])

    def warm_engine() -> MemoryState:
        base = MemoryState()
        run_batcher(CONFIG, base, messages[:warm])
        return base

    def warm_stage() -> tuple[BatchingStage, MemoryState]:
        stage, base = BatchingStage(CONFIG), MemoryState()
        run_stage(stage, base, records[:warm])
        return stage, base

    runs = 2 if quick else 5
    engine = rated(
        "batching",
        count,
        lambda base: run_batcher(CONFIG, base, messages[warm:]),
        warm_engine,
        target=120_000,
        runs=runs,
    )
    stage = rated("batching, stage", count, lambda made: run_stage(*made, records[warm:]), warm_stage, runs=runs)
    stage.notes["what"] = "headers and payloads read, batch documents written"
    for figure in (engine, stage):
        figure.floor = floor
    return [engine, stage]


def open_batches(size: int, probe: int, base: MemoryState, started: int) -> list[tuple[Message, int]]:
    """Grow `base` from `started` to `size` open batches, a source each; `probe` messages that join as many of them."""
    config = BatchingConfig(timeout=10**9)
    for first in range(started, size, 50_000):
        numbers = range(first, min(size, first + 50_000))
        run_batcher(config, base, [(Message(f"te/device/d{n:07d}//", "a", START_MS, b"1"), START_MS) for n in numbers])
    sources = [f"te/device/d{n:07d}//" for n in random.Random(size).sample(range(size), probe)]
    return [(Message(source, f"p{size}", START_MS, b"1"), START_MS) for source in sources]


def one_source(size: int, probe: int, base: MemoryState, started: int) -> list[tuple[Message, int]]:
    """Grow one source to `size` open batches with windows of 1 ms; `probe` messages that join as many of them."""
    config = BatchingConfig(timeout=10**9, window=0)
    for first in range(started, size, 50_000):
        numbers = range(first, min(size, first + 50_000))
        run_batcher(config, base, [(Message("s", "a", START_MS + 2 * n, b"1"), START_MS) for n in numbers])
    places = random.Random(size).sample(range(size), probe)
    return [(Message("s", f"p{size}", START_MS + 2 * n, b"1"), START_MS) for n in places]
