"""/healthz (the loop turns), /readyz (bridge.md 6), /metrics (Prometheus text) of a running bridge."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace_bridge.bridge import Snapshot
from headrace_bridge.receive import LATENCY_BUCKETS_MS

PREFIX = "headrace_bridge_"
COUNTERS = {
    "received": "messages from the broker; equals acknowledged + in flight",
    "acknowledged": "messages whose acknowledgement was sent (QoS 0: that Kafka has)",
    "redelivered": "messages that came again on a later connection",
    "ignored": "messages of $ topics",
    "produced": "records that Kafka acknowledged, dead letters included",
    "retries": "records produced again after an error",
    "connects": "accepted connections",
    "reconnects": "accepted connections after the first",
    "connection_losses": "connections that ended by themselves",
    "sessions_lost": "connections for which the broker had no session any more: what it had queued is lost there",
    "decode_errors": "connections closed because of a malformed packet",
    "publish_sent": "outbound messages sent, repeats included",
    "publish_acked": "outbound messages acknowledged",
}
GAUGES = {
    "in_flight": "messages received and not acknowledged",
    "in_flight_bytes": "their bytes that Kafka does not have yet",
    "publish_in_flight": "outbound messages without acknowledgement",
    "kafka_queue": "records without answer from Kafka",
    "fruitless_in_a_row": "connections in a row that ended soon and before anything was acknowledged; 3: no progress",
}


class SnapshotCollector(Collector):
    """Metrics of one snapshot: the numbers of an answer agree."""

    def __init__(self, current: Callable[[], Snapshot]) -> None:
        self._current = current

    def collect(self) -> Iterator[Metric]:
        """All metrics of the bridge."""
        now = self._current()
        for name, words in COUNTERS.items():
            yield CounterMetricFamily(PREFIX + name, words, value=now.numbers.get(name, 0))
        for name, words in GAUGES.items():
            yield GaugeMetricFamily(PREFIX + name, words, value=now.numbers.get(name, 0))
        yield from _states(now)
        qos = CounterMetricFamily(PREFIX + "publishes", "PUBLISH packets, repeats included", labels=["qos"])
        for level, count in enumerate(now.by_qos):
            qos.add_metric([str(level)], count)
        letters = CounterMetricFamily(PREFIX + "dead_letters", "messages that became dead letters", labels=["reason"])
        for reason, count in now.dead_letters.items():
            letters.add_metric([reason], count)
        words = "connections that ended soon and before anything was acknowledged"
        fruitless = CounterMetricFamily(PREFIX + "fruitless_connections", words, labels=["cause"])
        for cause, count in now.fruitless.items():
            fruitless.add_metric([cause], count)
        yield from (qos, letters, fruitless, _expiry(now), _latency(now))


def _states(now: Snapshot) -> Iterator[Metric]:
    arrival = now.numbers.get("oldest_arrival_ms", 0)
    age = max(0.0, time.time() - arrival / 1000) if arrival else 0.0
    yield GaugeMetricFamily(PREFIX + "oldest_in_flight_seconds", "age of the oldest message in flight", value=age)
    for name, up in (("mqtt_up", now.connected), ("subscribed", now.subscribed), ("kafka_up", now.kafka_up)):
        yield GaugeMetricFamily(PREFIX + name, "1 = yes", value=int(up))


def _expiry(now: Snapshot) -> Metric:
    words = "how long the MQTT broker keeps the session without a connection, as granted; MQTT 3.1.1 does not tell"
    return GaugeMetricFamily(PREFIX + "session_expiry_seconds", words, value=now.session_expiry_s)


def _latency(now: Snapshot) -> Metric:
    buckets, total = [], 0
    edges = [str(edge / 1000) for edge in LATENCY_BUCKETS_MS] + ["+Inf"]
    for edge, count in zip(edges, now.latency or (0,) * len(edges), strict=True):
        total += count
        buckets.append((edge, float(total)))
    return HistogramMetricFamily(
        PREFIX + "kafka_latency_seconds", "from arrival to acknowledgement, which follows Kafka's", buckets=buckets,
        sum_value=now.numbers.get("latency_sum_ms", 0) / 1000,
    )  # fmt: skip


def serve(current: Callable[[], Snapshot], host: str, port: int) -> ThreadingHTTPServer:
    """Listen in a thread of its own. `shutdown()` ends it. Raises OSError if the port is taken."""
    registry = CollectorRegistry()
    registry.register(SnapshotCollector(current))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answers: dict[str, Callable[[], tuple[int, str, bytes]]] = {
                "/healthz": lambda: _healthy(current()),
                "/readyz": lambda: _ready(current()),
                "/metrics": lambda: (200, "text/plain; version=0.0.4", generate_latest(registry)),
            }
            answer = answers.get(self.path.partition("?")[0])
            status, kind, body = answer() if answer else (404, "text/plain", b"not found\n")
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Requests are not logged."""

    server = ThreadingHTTPServer((host, port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
    return server


def _healthy(now: Snapshot) -> tuple[int, str, bytes]:
    status = "ok" if now.alive else "the loop stands still"
    return (200 if now.alive else 503), "application/json", json.dumps({"status": status}).encode()


def _ready(now: Snapshot) -> tuple[int, str, bytes]:
    body: dict[str, bool | str] = {
        "ready": now.ready, "mqtt": now.connected, "subscribed": now.subscribed, "kafka": now.kafka_up
    }  # fmt: skip
    if now.stuck:
        body["stuck"] = now.stuck
    return (200 if now.ready else 503), "application/json", json.dumps(body).encode()
