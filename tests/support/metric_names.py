"""Which metrics the parts expose, by their own collectors: names as Prometheus stores them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.registry import Collector

from headrace_api.metrics import COUNTS, Metrics
from headrace_api.progress import Progress
from headrace_bridge.bridge import Snapshot
from headrace_bridge.http import SnapshotCollector
from headrace_core.capacity.memory_store import MemoryStore
from headrace_core.capacity.protocol import ResourceConfig
from headrace_spark import metrics as spark
from headrace_spark.counts import Counts
from headrace_spark.lane_numbers import LaneNumbers
from headrace_spark.leasing import Leasing
from headrace_spark.seen import Watched
from headrace_streams.http import StageCollector

KIND = re.compile(r"^# TYPE (\S+) (\S+)$", re.MULTILINE)
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("", "_sum", "_count")}


def series(text: str) -> set[str]:
    """Names of the series that the families of a scrape have or would have. A counter's `_created` is left out."""
    kinds = {(name, kind) for name, kind in KIND.findall(text) if not name.endswith("_created")}
    return {name + suffix for name, kind in kinds for suffix in SUFFIXES.get(kind, ("",))}


def _of(collector: Collector) -> set[str]:
    registry = CollectorRegistry()
    registry.register(collector)
    return series(generate_latest(registry).decode())


def streams() -> set[str]:
    """Of the stream processor."""
    registry = CollectorRegistry()
    worker: Any = SimpleNamespace(runners={}, stage_gauges=list)
    registry.register(StageCollector(worker, {}))
    ProcessCollector(registry=registry)
    return series(generate_latest(registry).decode())


def bridge() -> set[str]:
    """Of the bridge."""
    return _of(SnapshotCollector(Snapshot))


def writer() -> set[str]:
    """Of the Spark writer, with a lease store and with lanes."""
    pacer: Any = Watched(SimpleNamespace())  # type: ignore[arg-type]
    pacer.beside = LaneNumbers(1)
    store = MemoryStore(lambda: 0)
    store.provision(ResourceConfig(resource="r", shared_capacity=1000, factor=100))
    leasing = Leasing(lambda: store.status("r"), 1, lambda: 0)
    return _of(spark.Collector(Counts, spark.Progress(1000), 1, lambda: 0, pacer, leasing))  # type: ignore[arg-type]


def api() -> set[str]:
    """Of the status API."""
    counted = Progress(counts=tuple((name, 0) for name in COUNTS))
    return series(generate_latest(Metrics(lambda: counted, lambda: counted, lambda: True).registry).decode())


def used(expressions: Iterable[str]) -> set[str]:
    """Names of metrics in PromQL expressions: words that are ours or of a process."""
    return {name for text in expressions for name in re.findall(r"\b(?:headrace|process)_\w+", text)}
