"""Prometheus metrics and health of the job (spark-writer.md 9).

Theory: what must add up comes from the ledger's totals, read at each scrape, so the numbers go on where they were after
kill -9. What only this process knows (progress, target and achieved rate, ledger hits) is a gauge beside them. While
the state store is down the totals are away, not wrong, and all the rest is told: that is when somebody looks.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from headrace_spark.counts import NAMES, Counts
from headrace_spark.database import StateDown
from headrace_spark.observed import PREFIX, Observed

RESTARTS: Final = "HEADRACE_WRITER_RESTARTS"
"""Where the supervisor says how often it started the writer again."""

_SHORTEST_MS: Final = 25_000
_HELP: Final = {
    "records": "Kafka records read",
    "ticks": "tick and flush records, skipped",
    "rejected": "records refused whole",
    "documents": "batch documents taken",
    "documents_repeated": "batch documents that were written before",
    "members": "members of the documents taken",
    "members_taken": "members that were taken",
    "members_rejected": "members refused alone",
    "members_repeated": "members of repeated documents",
    "members_empty": "members taken that have no measurement",
    "text_leaves_dropped": "text leaves dropped",
    "rows": "measurements of the members taken",
    "inserted": "rows that are new in the sink",
    "replaced": "rows that replaced a lower version",
    "repeats": "rows without effect: their version or a higher one was there",
    "rows_refused": "rows that the store refused for good",
    "rows_postponed": "rows whose records went to the delayed retry topic",
    "records_postponed": "records that went to the delayed retry topic",
    "requests": "requests to the sink",
    "retries": "tries of a request, of a staged chunk or of its merge, after the first",
    "cost": "capacity units of the requests",
    "charged": "capacity units that the destination says it took, where it says so",
    "microbatches": "micro-batches committed",
    "offsets_lost": "offsets that were gone before they were read, accepted by --accept-loss",
}


def silence_ms(trigger_ms: int) -> int:
    """How long a query may give no sign of life: five triggers. With short ones it is longer, because Spark says only
    every 10 s that there is no input, and a start of the query takes its time."""
    return max(5 * trigger_ms, _SHORTEST_MS)


class Progress:
    """What this process knows. Ready while the query runs; healthy unless it runs and gives no sign of life for
    `limit_ms`: no step of a micro-batch, none that begins or ends, and no word from Spark that there is no input. So a
    query that stands still between two micro-batches is seen as well as one that stands still in one."""

    def __init__(self, limit_ms: int, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._limit_ns = limit_ms * 1_000_000
        self._clock_ns = clock_ns
        self._lock = threading.Lock()
        self._since_ns: int | None = None
        """The latest sign of life; None while nothing runs."""
        self.ledger_hits = 0
        self.batch_id = -1
        self.batch_seconds = 0.0
        self.max_offsets = 0
        self.restarts = int(os.environ.get(RESTARTS, "0"))
        self.observed = Observed()

    @property
    def running(self) -> bool:
        """Whether the query runs."""
        return self._since_ns is not None

    def start(self) -> None:
        """The query runs from now on."""
        with self._lock:
            self._since_ns = self._clock_ns()

    def stop(self) -> None:
        """It runs no more."""
        with self._lock:
            self._since_ns = None

    def alive(self) -> None:
        """A sign of life: something was done, or Spark says that there is nothing to do."""
        with self._lock:
            if self._since_ns is not None:
                self._since_ns = self._clock_ns()

    def observe(self, found: Observed) -> None:
        """What Spark tells of the latest micro-batch."""
        self.observed = found
        self.alive()

    def begin(self, batch_id: int) -> None:
        """A micro-batch begins."""
        self.batch_id = batch_id
        self.alive()

    def end(self, seconds: float, hit: bool) -> None:
        """The micro-batch is committed, or was before (`hit`)."""
        self.batch_seconds = seconds
        self.ledger_hits += hit
        self.alive()

    def healthy(self) -> bool:
        """False if the query stands still for too long."""
        with self._lock:
            return self._since_ns is None or self._clock_ns() - self._since_ns < self._limit_ns


class Tells(Protocol):
    """What has metrics."""

    def collect(self) -> Iterator[Metric]: ...


class Collector:
    """Turns totals and progress into metric families. `used` is what went out in the last second, in units; `more` have
    families of their own."""

    def __init__(
        self, totals: Callable[[], Counts], progress: Progress, capacity: int, used: Callable[[], int], *more: Tells
    ) -> None:
        self._more = more
        self._totals = totals
        self._progress = progress
        self._capacity = capacity
        self._used = used

    def collect(self) -> Iterator[Metric]:
        """Called at each scrape."""
        with suppress(StateDown):
            yield from _families(self._totals())
        for name, text, value in self._gauges():
            yield GaugeMetricFamily(PREFIX + name, text, value=value)
        for one in (self._progress.observed, *self._more):
            yield from one.collect()

    def _gauges(self) -> list[tuple[str, str, float]]:
        progress = self._progress
        return [
            ("up", "1 as long as the process answers", 1),
            ("ledger_hits", "micro-batches of this process that the ledger had already", progress.ledger_hits),
            ("restarts", "starts of the query after the first, those by the supervisor too", progress.restarts),
            ("batch_id", "the latest micro-batch", progress.batch_id),
            ("batch_seconds", "how long the latest micro-batch took", progress.batch_seconds),
            ("max_offsets_per_trigger", "most offsets of a micro-batch, as now in force", progress.max_offsets),
            ("target_rate", "units per second that may be used", self._capacity),
            ("achieved_rate", "units that went out in the last second", self._used()),
        ]


def _families(totals: Counts) -> Iterator[Metric]:
    """What the ledger has."""
    for name in NAMES:
        yield CounterMetricFamily(PREFIX + name, _HELP[name], value=getattr(totals, name))
    letters = CounterMetricFamily(PREFIX + "dead_letters", "dead letters by reason", labels=["reason"])
    for reason, number in sorted(totals.dead_letters.items()):
        letters.add_metric([reason], number)
    yield letters
    again = CounterMetricFamily(PREFIX + "again", "records from the retry topic", labels=["round"])
    for label, number in sorted(totals.rounds.items()):
        again.add_metric([label], number)
    yield again
    mean = totals.rows / totals.requests if totals.requests else 0.0
    text = "rows by the number of requests; on the staged path each row is in two, a chunk and a slice"
    yield GaugeMetricFamily(PREFIX + "rows_per_request", text, value=mean)


class MetricsServer:
    """/metrics and /healthz on the loopback interface; port 0 takes a free one, `port` says which."""

    def __init__(self, collector: Collector, progress: Progress, port: int, host: str = "127.0.0.1") -> None:
        registry = CollectorRegistry()
        registry.register(collector)
        self._server = ThreadingHTTPServer((host, port), _handler(registry, progress))
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)

    def start(self) -> None:
        """Answer from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


def _problem(progress: Progress, *, ready: bool) -> bytes:
    """What is wrong; empty if nothing is."""
    if not progress.healthy():
        return b"no progress\n"
    return b"the query is not started\n" if ready and not progress.running else b""


def _handler(registry: CollectorRegistry, progress: Progress) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._answer(200, generate_latest(registry))
            elif self.path in ("/healthz", "/readyz"):
                problem = _problem(progress, ready=self.path == "/readyz")
                self._answer(503 if problem else 200, problem or b"ok\n")
            else:
                self._answer(404, b"not found\n")

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Scrapes are not logged."""

    return Handler
