"""MQTT in, Kafka out, acknowledgement back: every message ends in its record or in its dead letter (bridge.md 1, 2).

`publish` runs for each message, so it does little: what follows from the topic alone (Kafka topic, key, limit) is
looked up in a table of topics seen before, and the headers that many messages share are shared.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from functools import partial

import structlog
from confluent_kafka import KafkaError, Message

from headrace_bridge import packets
from headrace_bridge.inflight import Entry, Window
from headrace_bridge.kafka import PERMANENT, Outlet
from headrace_bridge.ledger import Ledger, identity_of
from headrace_bridge.packets import PUBACK, PUBCOMP, PUBREC, Publish
from headrace_bridge.record import DEAD_LETTER, Refusal, Route, Router

log = structlog.get_logger(__name__)

LATENCY_BUCKETS_MS = (5, 10, 25, 50, 100, 250, 500, 1000, 5000, 30_000, 120_000)
ACK_HEADS = (0, PUBACK << 28 | 2 << 16, PUBREC << 28 | 2 << 16)  # of four bytes, by QoS
MOST_ROUTES, LONGEST_KEPT = 4096, 1024


class Receiver:
    """One client's incoming messages. `clock_ms`: wall clock, for the header `received` and ages."""

    def __init__(
        self, outlet: Outlet, window: Window, router: Router, clock_ms: Callable[[], int], ledger: Ledger | None = None
    ) -> None:
        self._outlet = outlet
        self._produce = outlet.produce
        self._router = router
        self._clock_ms = clock_ms
        self._ledger = ledger
        self._routes: dict[bytes, Route | None] = {}
        self._now_ms = 0
        self._received = ("received", b"0")
        self._settle = window.settle
        self.window = window
        self.by_qos = [0, 0, 0]
        self.dead_letters: Counter[str] = Counter()
        self.ignored = 0
        self.latency = [0] * (len(LATENCY_BUCKETS_MS) + 1)
        self.latency_sum_ms = 0
        if ledger is not None:
            for packet_id, kept in ledger.kept.items():
                window.remember(packet_id, kept.identity)

    def begin(self) -> None:
        """A read begins: its messages have one time of arrival."""
        self._now_ms = now = self._clock_ms()
        self._received = ("received", b"%d" % now)

    def publish(self, message: Publish) -> None:
        """A message came; `begin` was called before."""
        topic, payload, qos, retain, dup, _, properties, missing, malformed = message
        self.by_qos[qos] += 1
        identity = identity_of(topic, payload) if qos == 2 else b""
        entry, fresh = self.window.arrived(message, self._now_ms, identity)
        if not fresh:
            return
        try:
            route = self._routes[topic]
        except KeyError:
            route = self._route(topic)
        if route is None:
            self._unusual(message, entry)
            return
        if qos == 2 and self._ledger is not None:
            self._ledger.begin(message.packet_id, identity, self._now_ms, route.topic)
        if len(payload) > route.limit or missing or malformed:
            refusal = self._router.refusal(message)
            assert refusal is not None
            self._bury(message, refusal, entry)
            return
        if properties:
            headers = self._router.headers(message, route, self._received)
        elif route.made_for == (made_for := (qos, retain, dup, self._now_ms)):
            headers = route.headers
        else:
            route.headers = headers = self._router.headers(message, route, self._received)
            route.made_for = made_for
        self._produce(route.topic, payload, route.key, partial(self._delivered, entry), headers)

    def _route(self, topic: bytes) -> Route | None:
        route = self._router.route(topic)
        if len(topic) <= LONGEST_KEPT:
            if len(self._routes) >= MOST_ROUTES:
                self._routes.clear()
            self._routes[topic] = route
        return route

    def _unusual(self, message: Publish, entry: Entry) -> None:
        """A `$` topic, or one that is no topic name."""
        if message.topic.startswith(b"$"):
            self.ignored += 1
            self.window.settle(entry)
            return
        if message.qos == 2 and self._ledger is not None:
            identity = identity_of(message.topic, message.payload)
            self._ledger.begin(message.packet_id, identity, entry.arrived_ms, self._router.prefix + DEAD_LETTER)
        refusal = self._router.refusal(message)
        assert refusal is not None
        self._bury(message, refusal, entry)

    def _delivered(self, entry: Entry, error: KafkaError | None, report: Message) -> None:
        """Kafka's answer to a record."""
        if error is not None:
            self._failed(entry, error)
            return
        self._outlet.produced += 1
        if entry.qos == 2:
            entry.place = report.topic() or "", report.partition() or 0, report.offset() or 0
        self._settle(entry)

    def _failed(self, entry: Entry, error: KafkaError) -> None:
        message = entry.message
        if self._outlet.fatal(error) or message is None:
            return
        if reason := PERMANENT.get(error.code()):
            self._bury(message, Refusal(reason, error.str()), entry)
        else:
            self._outlet.later(partial(self._produce_again, message, entry), error.str())

    def _produce_again(self, message: Publish, entry: Entry) -> None:
        record = self._router.record(message, entry.arrived_ms)
        self._outlet.produce(
            record.topic, record.value, record.key, partial(self._delivered, entry), record.headers
        )  # fmt: skip

    def _bury(self, message: Publish, refusal: Refusal, entry: Entry) -> None:
        log.warning("dead letter", reason=refusal.reason, detail=refusal.detail, topic=repr(message.topic[:200]))
        letter = self._router.dead_letter(message, refusal, entry.arrived_ms)

        def buried(_reason: str | None, _detail: str) -> None:
            self.dead_letters[refusal.reason] += 1
            self.window.settle(entry)

        self._outlet.send(letter, buried, surely=True)

    def release(self, packet_id: int) -> bytes:
        """PUBREL came; returns PUBCOMP."""
        if self._ledger is not None:
            self._ledger.end(packet_id)
        self.window.released(packet_id)
        return packets.acknowledge(PUBCOMP, packet_id)

    def session_lost(self) -> None:
        """The broker has forgotten this client."""
        if self._ledger is not None:
            self._ledger.lost()
        self.window.session_lost()

    def acknowledgements(self) -> bytes:
        """What may be acknowledged now, in order of arrival. QoS 2: the ledger has it before."""
        taken = self.window.take()
        if not taken:
            return b""
        self._measure(taken)
        if self._ledger is not None:
            second = [(entry.packet_id, entry.place) for entry in taken if entry.qos == 2]
            if second:
                self._ledger.done(second)
        answers = [ACK_HEADS[entry.qos] | entry.packet_id for entry in taken if entry.qos]
        return struct.pack(f"!{len(answers)}I", *answers)

    def _measure(self, taken: list[Entry]) -> None:
        """Latencies; entries of a read have the same time of arrival."""
        now, at = self._clock_ms(), 0
        while at < len(taken):
            arrived, first = taken[at].arrived_ms, at
            while at < len(taken) and taken[at].arrived_ms == arrived:
                at += 1
            self.latency[bisect_left(LATENCY_BUCKETS_MS, now - arrived)] += at - first
            self.latency_sum_ms += (now - arrived) * (at - first)
