"""The message and its status (timeline.md 2, 4).

    create -> waiting | available          (timestamp ahead of NOW | not)
    waiting ----- its time comes ----> available
    available --- lease, poll -------> processing --- complete --> tombstone
    processing -- its time comes ----> available       (the lease is over; nothing has to clean up)
    processing -- release, give_back -> waiting | available
    available --- poll, max_deliveries reached --> parked --- move --> waiting | available
    waiting, available, parked --- cancel --> tombstone --- purge --> gone;  any but processing --- move --> waiting

Time alone moves a message from waiting or processing to available, so the status is computed, never stored. What
cannot happen: two active leases, a lower version, a move or cancel under an active lease, a body that changes.
"""

from __future__ import annotations

import msgspec

WAITING, AVAILABLE, PROCESSING, PARKED = "waiting", "available", "processing", "parked"
STATUSES = (WAITING, AVAILABLE, PROCESSING, PARKED)
NEVER = -1


class Message(msgspec.Struct, frozen=True, array_like=True):
    """Metadata of one message, live, parked or deleted; the id is in its key, the body under a key of its own.

    `parked_at`, `deleted_at` are NEVER while they do not apply; `parking` numbers the parkings of the partition;
    `completed`: deleted by the holder, not the owner; `source`: partition and offset of a time-buffer record.
    """

    timestamp: int
    group: str
    bucket: int
    created_at: int
    version: int = 1
    lock: str | None = None
    lease_version: int = 0
    due_at: int = 0
    deliveries: int = 0
    headers: dict[str, str] | None = None
    parked_at: int = NEVER
    parking: int = 0
    deleted_at: int = NEVER
    deleted_by: str | None = None
    completed: bool = False
    source: tuple[int, int] | None = None

    @property
    def deleted(self) -> bool:
        return self.deleted_at != NEVER

    @property
    def parked(self) -> bool:
        return self.parked_at != NEVER

    def status(self, now_ms: int) -> str:
        """Section 4, first hit wins. A deleted message has no status; do not ask."""
        if self.parked:
            return PARKED
        if self.timestamp <= now_ms:
            return AVAILABLE
        return WAITING if self.lock is None else PROCESSING

    def leased(self, now_ms: int) -> bool:
        """A lease is active exactly when the status is processing."""
        return self.lock is not None and self.timestamp > now_ms and not self.parked


class Waiter(msgspec.Struct, frozen=True, array_like=True):
    """A waiting poll (section 9.3); it ends at `end_ms`, its lease counts from the NOW of its service."""

    consumer: str
    lease_ms: int
    limit: int
    end_ms: int
    buckets: list[int] | None = None
    request_id: str | None = None
    reply: bytes = b""


class Remembered(msgspec.Struct, frozen=True, array_like=True):
    """A request and its answer (section 8.1). `waiter`: sequence of the poll that still waits, 0 = none."""

    at_ms: int
    fingerprint: bytes
    answer: bytes
    waiter: int = 0


class Clock(msgspec.Struct, frozen=True, array_like=True):
    """NOW and what is counted along with the state of a partition."""

    now_ms: int = 0
    degraded: bool = False
    frozen: bool = False
    buffers: bool = False
    sequence: int = 0
    waiting: int = 0
    buffered: int = 0
    live: int = 0
    parked: int = 0
    tombstones: int = 0
    repairs: int = 0
