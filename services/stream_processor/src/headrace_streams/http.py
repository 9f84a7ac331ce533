"""/healthz (no partition stands still), /readyz (all partitions restored), /metrics (Prometheus text)."""

from __future__ import annotations

import time
from collections.abc import Iterator

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace_streams.watchdog import Watchdog
from headrace_streams.worker import Worker


class StageCollector(Collector):
    """Reads gauges from the states when asked: state and gauges cannot disagree."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def collect(self) -> Iterator[Metric]:
        """`headrace_stage{stage,partition,name}`, `headrace_stage_lag` and `headrace_stage_offset{stage,partition}`."""
        stage = GaugeMetricFamily("headrace_stage", "Stage.gauges", labels=["stage", "partition", "name"])
        for name, partition, gauge, value in self._worker.stage_gauges():
            stage.add_metric([name, str(partition), gauge], value)
        lag = GaugeMetricFamily("headrace_stage_lag", "records not applied yet", labels=["stage", "partition"])
        offset = GaugeMetricFamily("headrace_stage_offset", "next offset to apply", labels=["stage", "partition"])
        for runner in self._worker.runners.values():
            labels = [runner.spec.name, str(runner.partition)]
            if (records := self._worker.lag(runner)) is not None:
                lag.add_metric(labels, records)
            if (position := runner.next_offset) is not None:
                offset.add_metric(labels, position)
        yield from (stage, lag, offset)


def make_web(worker: Worker, watchdog: Watchdog) -> web.Application:
    """The web application of a worker."""
    registry = CollectorRegistry()
    registry.register(StageCollector(worker))

    async def healthz(_: web.Request) -> web.Response:
        if slow := watchdog.slow(time.monotonic()):
            return web.json_response({"status": "no progress", "partitions": slow}, status=503)
        return web.json_response({"status": "ok"})

    async def readyz(_: web.Request) -> web.Response:
        return web.json_response({"ready": worker.ready}, status=200 if worker.ready else 503)

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": "text/plain; version=0.0.4"})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics)])
    return app


async def serve(worker: Worker, watchdog: Watchdog, host: str, port: int) -> web.AppRunner:
    """Listen. `await runner.cleanup()` ends it."""
    runner = web.AppRunner(make_web(worker, watchdog), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    return runner
