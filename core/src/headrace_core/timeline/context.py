"""What an operation works with, and the checks that several operations share (timeline.md 5)."""

from __future__ import annotations

from typing import Any, NamedTuple

from headrace_core.timeline.message import Message
from headrace_core.timeline.refusals import NOT_FOUND, Refused
from headrace_core.timeline.settings import MAX_MS, Settings
from headrace_core.timeline.store import Store

Answer = dict[str, Any]


class Context(NamedTuple):
    """`now_ms` is NOW of the record; `partition` None: the engine holds all buckets (vectors, tests).

    `effects` takes what leaves the engine beside the answer: served polls, emitted and parked messages.
    """

    store: Store
    settings: Settings
    now_ms: int
    partition: int | None
    effects: list[Any]
    reply: bytes = b""

    def live(self, id_: bytes) -> Message:
        """Unknown: NOT_FOUND; a deleted message is unknown too (section 4)."""
        message = self.store.message(id_)
        if message is None or message.deleted:
            raise Refused(NOT_FOUND)
        return message

    def open(self) -> None:
        """After `freeze` every change answers FROZEN."""
        if self.store.clock.frozen:
            raise Refused("FROZEN")

    def sound(self) -> None:
        """Degraded: no lease, poll or extend (section 12.3)."""
        if self.store.clock.degraded:
            raise Refused("DEGRADED")

    def no_buffer(self) -> None:
        """A time buffer knows neither poll nor lease (section 11)."""
        if self.settings.buffer is not None or self.store.clock.buffers:
            raise Refused("NOT_ALLOWED")

    def not_far(self, time_ms: int) -> None:
        limit = self.settings.max_future_ms
        if time_ms > MAX_MS or (limit and time_ms > self.now_ms + limit):
            raise Refused("TIMESTAMP_TOO_FAR", limit=limit)

    def not_soon(self, time_ms: int) -> None:
        if time_ms <= self.now_ms + self.settings.min_lead_ms:
            raise Refused("TIMESTAMP_TOO_SOON", limit=self.settings.min_lead_ms)

    def not_long(self, time_ms: int) -> None:
        if time_ms > min(self.now_ms + self.settings.max_lease_ms, MAX_MS):
            raise Refused("LEASE_TOO_LONG", limit=self.settings.max_lease_ms)


def same_version(message: Message, version: int | None) -> None:
    """Given and stale: refused (section 6.6)."""
    if version is not None and version != message.version:
        raise Refused("VERSION_MISMATCH", version=message.version)
