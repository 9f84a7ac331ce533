"""/healthz (nothing stands still, see `watchdog.py`), /readyz (all partitions restored), /metrics (Prometheus text)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from itertools import accumulate

from aiohttp import web
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace_core.stage import CountsRoots, HasAges, HasHistograms, HasOldest, HasStatuses, Histogram
from headrace_streams.watchdog import Watchdog
from headrace_streams.worker import Worker

PREFIX = "headrace_stage"


class StageCollector(Collector):
    """Reads gauges from the states when asked: state and gauges cannot disagree."""

    def __init__(self, worker: Worker, ticks: Mapping[int, int]) -> None:
        """`ticks`: how many were written, by partition."""
        self._worker = worker
        self._ticks = ticks

    def collect(self) -> Iterator[Metric]:
        """All metrics of the stages; docs/operations.md lists them."""
        stage = GaugeMetricFamily(PREFIX, "Stage.gauges", labels=["stage", "partition", "name"])
        for name, partition, gauge, value in self._worker.stage_gauges():
            stage.add_metric([name, str(partition), gauge], value)
        yield stage
        yield from self._places()
        yield from self._waiting()
        yield from self._histograms()
        ticks = CounterMetricFamily("headrace_ticks_written", "ticks written to raw", labels=["partition"])
        for partition, count in self._ticks.items():
            ticks.add_metric([str(partition)], count)
        yield ticks

    def _histograms(self) -> Iterator[Metric]:
        late = HistogramMetricFamily(
            "headrace_timeline_lateness_seconds", "from a message's timestamp to its grant, on the log's clock",
            labels=["stage", "partition"],
        )  # fmt: skip
        deliveries = HistogramMetricFamily(
            "headrace_timeline_deliveries", "deliveries of a message that ended", labels=["stage", "partition"]
        )
        for runner in list(self._worker.runners.values()):
            if not runner.ready or runner.reads is None or not isinstance(runner.stage, HasHistograms):
                continue
            found, labels = runner.stage.histograms(runner.reads), [runner.spec.name, str(runner.partition)]
            late.add_metric(labels, *_buckets(found["lateness_ms"], 1000))
            deliveries.add_metric(labels, *_buckets(found["deliveries"], 1))
        yield from (late, deliveries)

    def _places(self) -> Iterator[Metric]:
        lag = GaugeMetricFamily(f"{PREFIX}_lag", "records not applied yet", labels=["stage", "partition"])
        offset = GaugeMetricFamily(f"{PREFIX}_offset", "next offset to apply", labels=["stage", "partition"])
        for runner in self._worker.runners.values():
            labels = [runner.spec.name, str(runner.partition)]
            if (records := self._worker.lag(runner)) is not None:
                lag.add_metric(labels, records)
            if (position := runner.next_offset) is not None:
                offset.add_metric(labels, position)
        yield from (lag, offset)

    def _waiting(self) -> Iterator[Metric]:
        ages = GaugeMetricFamily(
            f"{PREFIX}_age_seconds", "age of the oldest, on the log's clock", labels=["stage", "partition", "name"]
        )
        overdue = GaugeMetricFamily(
            f"{PREFIX}_overdue_seconds", "how long what is due first is overdue, by our clock",
            labels=["stage", "partition"],
        )  # fmt: skip
        unasked = GaugeMetricFamily(
            "headrace_timeline_overdue_seconds", "how long the oldest message is due and not leased, by our clock",
            labels=["stage", "partition"],
        )  # fmt: skip
        furthest = GaugeMetricFamily(
            "headrace_timeline_furthest_timestamp_seconds", "Unix time of the last message, to the minute",
            labels=["stage", "partition"],
        )  # fmt: skip
        messages = GaugeMetricFamily(
            "headrace_timeline_messages", "messages by status, by our clock", labels=["stage", "partition", "status"]
        )
        roots = GaugeMetricFamily(f"{PREFIX}_root", "gauges of a root", labels=["stage", "root", "name"])
        for runner in list(self._worker.runners.values()):
            if not runner.ready or runner.reads is None:
                continue
            stage, state, name = runner.spec.make(), runner.reads, runner.spec.name
            labels = [name, str(runner.partition)]
            overdue.add_metric(labels, _since_s(stage.next_due(state)))
            if isinstance(runner.stage, HasOldest):
                unasked.add_metric(labels, _since_s(runner.stage.oldest(state)))
                if (last_ms := runner.stage.furthest(state)) is not None:
                    furthest.add_metric(labels, last_ms / 1000)
            if isinstance(runner.stage, HasStatuses):
                for status, count in runner.stage.statuses(state, time.time_ns() // 1_000_000).items():
                    messages.add_metric([*labels, status], count)
            if isinstance(stage, HasAges):
                for gauge, age_ms in stage.ages(state).items():
                    ages.add_metric([name, str(runner.partition), gauge], age_ms / 1000)
            if isinstance(stage, CountsRoots):
                for root, gauge, value in stage.root_gauges(state):
                    roots.add_metric([name, root, gauge], value)
        yield from (ages, overdue, unasked, furthest, messages, roots)


def _buckets(found: Histogram, unit: int) -> tuple[list[tuple[str, float]], float]:
    """Cumulative, as Prometheus has them, and the sum."""
    names = [str(edge / unit) for edge in found.edges] + ["+Inf"]
    return list(zip(names, map(float, accumulate(found.counts)), strict=True)), found.total / unit


def _since_s(due_ms: int | None) -> float:
    """Seconds since then by our clock; 0 if it is still to come, or nothing is."""
    return 0.0 if due_ms is None else max(0.0, time.time() - due_ms / 1000)


def make_web(worker: Worker, ticks: Mapping[int, int], watchdog: Watchdog) -> web.Application:
    """The web application of a worker."""
    registry = CollectorRegistry()
    registry.register(StageCollector(worker, ticks))
    ProcessCollector(registry=registry)

    async def healthz(_: web.Request) -> web.Response:
        if slow := watchdog.slow(time.monotonic()):
            return web.json_response({"status": "no progress", "stopped": slow}, status=503)
        return web.json_response({"status": "ok"})

    async def readyz(_: web.Request) -> web.Response:
        found = {"ready": worker.ready, "recovering": worker.recovering}
        return web.json_response(found, status=200 if worker.ready else 503)

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": "text/plain; version=0.0.4"})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics)])
    return app


async def serve(worker: Worker, ticks: Mapping[int, int], watchdog: Watchdog, host: str, port: int) -> web.AppRunner:
    """Listen. `await runner.cleanup()` ends it."""
    runner = web.AppRunner(make_web(worker, ticks, watchdog), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    return runner
