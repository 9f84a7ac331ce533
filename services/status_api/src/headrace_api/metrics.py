"""Prometheus metrics: what the replica has read and how far it is behind, and what was asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace_api.progress import Progress

PREFIX = "headrace_api_"
BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
WRITE_BUCKETS_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
COUNTS = {
    "records": "changelog records taken into the replica",
    "transactions": "transactions of the replica",
    "stale": "changelog records of a late writer, older than what is known",
    "damaged": "items that could not be read and were left out",
    "rebuilt": "times the replica was built from the start",
}


class ProgressCollector(Collector):
    """Metrics of the replica and the events, from one Progress value each: the numbers of an answer agree."""

    def __init__(self, current: Callable[[], Progress], events: Callable[[], Progress]) -> None:
        self._current = current
        self._events = events

    def collect(self) -> Iterator[Metric]:
        """All metrics of the replica and the events."""
        now = self._current()
        yield GaugeMetricFamily(PREFIX + "ready", "1 = caught up with the ends at start", value=int(now.ready))
        yield GaugeMetricFamily(PREFIX + "kafka_up", "1 = a broker is connected", value=int(now.kafka_up))
        lag = GaugeMetricFamily(PREFIX + "replica_lag", "changelog records not in the replica", labels=["partition"])
        offset = GaugeMetricFamily(PREFIX + "replica_offset", "next changelog offset", labels=["partition"])
        source = GaugeMetricFamily(PREFIX + "replica_source", "offset in raw that is contained", labels=["partition"])
        for number, part in enumerate(now.partitions):
            for family, value in ((lag, part.lag), (offset, part.offset), (source, part.source)):
                family.add_metric([str(number)], value)
        yield from (lag, offset, source)
        of_events = self._events().partitions
        lag = GaugeMetricFamily(PREFIX + "events_lag", "records of registrations not read", labels=["partition"])
        offset = GaugeMetricFamily(PREFIX + "events_offset", "next offset of registrations", labels=["partition"])
        for number, part in enumerate(of_events):
            lag.add_metric([str(number)], part.lag)
            offset.add_metric([str(number)], part.offset)
        yield from (lag, offset)
        for name, count in now.counts:
            yield CounterMetricFamily(f"{PREFIX}replica_{name}", COUNTS[name], value=count)


class Metrics:
    """The registry of the process, and the metrics that the handlers write."""

    def __init__(
        self, current: Callable[[], Progress], events: Callable[[], Progress], writes_possible: Callable[[], bool]
    ) -> None:
        """How far replica and events are now, and whether writes are possible now."""
        self.registry = CollectorRegistry()
        self.registry.register(ProgressCollector(current, events))
        self.writes_possible = Gauge(PREFIX + "writes_possible", "1 = requests can be sent", registry=self.registry)
        self.writes_possible.set_function(writes_possible)
        self.requests = Counter(
            PREFIX + "requests", "answers by method and status", ["method", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            PREFIX + "request_seconds", "time to answer", buckets=BUCKETS_S, registry=self.registry
        )  # fmt: skip
        self.writes = Counter(
            PREFIX + "writes", "answers to writes by route, method and status", ["route", "method", "status"],
            registry=self.registry,
        )  # fmt: skip
        self.write_seconds = Histogram(
            PREFIX + "write_seconds", "time from a write to its answer", ["route", "method"], buckets=WRITE_BUCKETS_S,
            registry=self.registry,
        )  # fmt: skip
        self.writes_open = Gauge(PREFIX + "writes_open", "writes that wait for their answers", registry=self.registry)
        self.streams_open = Gauge(PREFIX + "streams_open", "open streams and long polls", registry=self.registry)
        self._timeline_calls = Counter(
            PREFIX + "timeline_calls", "answers of timelines by call and status", ["call", "status"],
            registry=self.registry,
        )  # fmt: skip
        self._timeline_seconds = Histogram(
            PREFIX + "timeline_seconds", "time to answer a call on a timeline; a poll may wait", ["call"],
            buckets=(*WRITE_BUCKETS_S, 30.0), registry=self.registry,
        )  # fmt: skip
        self._timeline_open = Gauge(PREFIX + "timeline_open", "open calls on timelines", registry=self.registry)
        self.replies = Counter(
            PREFIX + "replies", "replies read: own, late (nobody waited), other (of another instance)", ["whose"],
            registry=self.registry,
        )  # fmt: skip

    def timeline_answered(self, call: str, status: int, seconds: float) -> None:
        """A call on a timeline has its answer."""
        self._timeline_calls.labels(call, str(status)).inc()
        self._timeline_seconds.labels(call).observe(seconds)

    def timeline_open(self, number: int) -> None:
        """So many calls on timelines are open now."""
        self._timeline_open.set(number)
