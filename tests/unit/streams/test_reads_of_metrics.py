"""Metrics and ticks ask a stage by way of `Reads`, and are told what the state itself would tell."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from prometheus_client.core import Metric

from headrace_core.batching.config import BatchingConfig
from headrace_core.batching.stage import BatchingStage
from headrace_core.stage import Record
from headrace_core.state import Item, MemoryState, Overlay
from headrace_streams.http import StageCollector
from headrace_streams.reads import Reads
from headrace_streams.ticks import Ticker
from headrace_streams.worker import Worker

AT_MS = 1_000_000
HEADERS = (("kind", b"data"), ("entity", b"te/device/a//"), ("channel", b"m/t"))


class Noting(MemoryState):
    """Keeps where scans begin."""

    def __init__(self) -> None:
        super().__init__()
        self.starts: list[bytes] = []

    def scan(self, start: bytes, stop: bytes, /) -> Iterator[Item]:
        self.starts.append(start)
        return super().scan(start, stop)


def apply(stage: BatchingStage, base: MemoryState, reads: Reads, *records: Record) -> None:
    """One chunk, as the runner applies it."""
    overlay = Overlay(reads.begin())
    for record in records:
        stage.apply(overlay, record, lambda _: None)
    overlay.settle()
    for key, value in overlay.mutations.items():
        if value is None:
            base.delete(key)
        else:
            base.put(key, value)
    reads.committed(overlay.mutations)


def data(offset: int, at_ms: int) -> Record:
    return Record(0, offset, at_ms, b"te", b'{"v":1}', HEADERS)


class Place:
    """A partition whose database must not be asked: it has a position and nothing else."""

    def __init__(self) -> None:
        marker = SimpleNamespace(clock=AT_MS, too_large=0, retention=0)
        self.base, self.stage = Noting(), BatchingStage(BatchingConfig())
        self.reads = Reads(self.base)
        self.state = SimpleNamespace(position=SimpleNamespace(marker=marker))
        self.spec = SimpleNamespace(make=lambda: BatchingStage(BatchingConfig()), rooted=True, name="batching")
        self.partition, self.next_offset, self.ready, self.idle = 0, 1, True, True
        self.moved_at = time.monotonic() - 10

    def worker(self) -> Any:
        worker = SimpleNamespace(runners={0: self}, lag=lambda _: 0)
        worker.stage_gauges = lambda: Worker.stage_gauges(worker)  # type: ignore[arg-type]
        return worker


def values(metrics: list[Metric], name: str) -> dict[str, float]:
    return {s.labels["name"]: s.value for m in metrics if m.name == name for s in m.samples if "name" in s.labels}


def test_metrics_and_ticks_see_each_chunk_and_do_not_ask_the_database() -> None:
    place = Place()
    worker, fresh = place.worker(), BatchingStage(BatchingConfig())
    collector, ticker = StageCollector(worker, {}), Ticker(worker, None, tick_interval_ms=500)  # type: ignore[arg-type]
    for offset in range(3):  # each message closes the batch of the one before
        apply(place.stage, place.base, place.reads, data(offset, AT_MS + 10_000 * offset))
        told = values(list(collector.collect()), "headrace_stage")
        assert told["open_batches"] == 1
        assert told["accepted"] == offset + 1
        assert {n: v for n, v in told.items() if n in fresh.gauges(place.base)} == fresh.gauges(place.base)
        assert fresh.next_due(place.reads) == fresh.next_due(place.base) is not None
        assert ticker._needs_tick(place, time.monotonic())  # type: ignore[arg-type]
        assert ticker._wanted_in(place, time.monotonic()) < 0  # type: ignore[arg-type]


def test_looking_at_the_deadlines_again_begins_behind_what_was_closed() -> None:
    place = Place()
    for offset in range(20):
        apply(place.stage, place.base, place.reads, data(offset, AT_MS + 10_000 * offset))
    place.base.starts.clear()
    assert BatchingStage(BatchingConfig()).next_due(place.reads) == AT_MS + 190_000 + 1000
    assert len(place.base.starts) == 1
    assert len(place.base.starts[0]) > 1, "from the front of the family, over all that was closed"
