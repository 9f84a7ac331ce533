"""MQTT in, Kafka out, acknowledgement back: every message ends in its record or in its dead letter (bridge.md 1, 2)."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable

import structlog

from headrace_bridge import packets
from headrace_bridge.inflight import Entry, Window
from headrace_bridge.kafka import Outlet
from headrace_bridge.packets import PUBACK, PUBCOMP, PUBREC, Publish
from headrace_bridge.record import Refusal, Router

log = structlog.get_logger(__name__)

LATENCY_BUCKETS_MS = (5, 10, 25, 50, 100, 250, 500, 1000, 5000, 30_000, 120_000)


class Receiver:
    """One client's incoming messages. `clock_ms`: wall clock, for the header `received` and ages."""

    def __init__(self, outlet: Outlet, window: Window, router: Router, clock_ms: Callable[[], int]) -> None:
        self._outlet = outlet
        self._router = router
        self._clock_ms = clock_ms
        self.window = window
        self.by_qos = [0, 0, 0]
        self.dead_letters: Counter[str] = Counter()
        self.ignored = 0
        self.latency = [0] * (len(LATENCY_BUCKETS_MS) + 1)
        self.latency_sum_ms = 0

    def publish(self, message: Publish) -> None:
        """A message came."""
        now = self._clock_ms()
        size = len(message.topic) + len(message.payload)
        self.by_qos[message.qos] += 1
        entry, fresh = self.window.arrived(
            message.packet_id, message.qos, dup=message.dup, size=size, now_ms=now
        )  # fmt: skip
        if not fresh:
            return
        if message.topic.startswith(b"$"):
            self.ignored += 1
            self.window.settle(entry)
        elif refusal := self._router.refusal(message):
            self._bury(message, refusal, entry)
        else:
            self._outlet.send(
                self._router.record(message, now), lambda reason, detail: self._done(message, entry, reason, detail)
            )  # fmt: skip

    def _done(self, message: Publish, entry: Entry, reason: str | None, detail: str) -> None:
        if reason is not None:
            self._bury(message, Refusal(reason, detail), entry)
            return
        took = self._clock_ms() - entry.arrived_ms
        self.latency[bisect_left(LATENCY_BUCKETS_MS, took)] += 1
        self.latency_sum_ms += took
        self.window.settle(entry)

    def _bury(self, message: Publish, refusal: Refusal, entry: Entry) -> None:
        log.warning("dead letter", reason=refusal.reason, detail=refusal.detail, topic=repr(message.topic[:200]))
        letter = self._router.dead_letter(message, refusal, entry.arrived_ms)

        def buried(_reason: str | None, _detail: str) -> None:
            self.dead_letters[refusal.reason] += 1
            self.window.settle(entry)

        self._outlet.send(letter, buried, surely=True)

    def release(self, packet_id: int) -> bytes:
        """PUBREL came; returns PUBCOMP."""
        self.window.released(packet_id)
        return packets.acknowledge(PUBCOMP, packet_id)

    def acknowledgements(self) -> bytes:
        """What may be acknowledged now, in order of arrival."""
        return b"".join(
            packets.acknowledge(PUBACK if entry.qos == 1 else PUBREC, entry.packet_id)
            for entry in self.window.take()
            if entry.qos
        )
