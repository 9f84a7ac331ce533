"""What goes into the batcher and what comes out of it."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Reason(StrEnum):
    """Why a message was rejected (batching.md 6)."""

    INVALID = "invalid"
    DUPLICATE = "duplicate"
    FUTURE = "future"
    LATE = "late"


class Close(StrEnum):
    """What ended a batch (batching.md 8)."""

    TIMEOUT = "timeout"
    FLUSH = "flush"


class Cause(StrEnum):
    """Why a message opened a batch (batching.md 6.7, 6.8)."""

    NEW = "new"
    CONFLICT = "conflict"
    FULL = "full"


class Message(Struct, frozen=True, gc=False):
    """A readable measurement: `event_ms` when it was generated, `value` its encoded JSON value."""

    source: str
    type: str
    event_ms: int
    value: bytes


class Member(Struct, frozen=True, gc=False, array_like=True):
    """A message in a batch; `received_ms` is the clock when it was taken."""

    type: str
    event_ms: int
    received_ms: int
    value: bytes


class Batch(Struct, frozen=True, gc=False):
    """An emitted batch. `from_ms` is the smallest event time of its members, which are in order."""

    id: str
    source: str
    from_ms: int
    opened_ms: int
    closed_ms: int
    close: Close
    members: tuple[Member, ...]


class Rejected(Struct, frozen=True, gc=False):
    """The message of this record is in no batch."""

    reason: Reason
