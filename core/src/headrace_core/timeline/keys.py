"""Keys of the state (timeline.md 13.5). Integers big-endian; a family byte first.

| key | value | |
|---|---|---|
| `m` id | Message, also parked and deleted ones | primary |
| `b` id | body, until the soft delete | primary |
| `r` id 0 request id | Remembered; for polls the id is empty | primary |
| `w` sequence(8) | Waiter | primary |
| `s` name | clock, settings, subscriptions | primary |
| `n` name | counters of the stage | primary |
| `t` bucket(2) timestamp(8) id | lock flag; not for parked or deleted messages | derived of `m` |
| `l` consumer 0 timestamp(8) id | leases, the lapsed ones included | derived of `m` |
| `o` group 0 id | live and parked messages of an owner | derived of `m` |
| `p` parked_at(8) parking(8) id | parked, in the order of parking | derived of `m` |
| `x` deleted_at(8) id | tombstones by age | derived of `m` |
| `q` timestamp(8) partition(8) offset(8) id | time-buffer messages in the order they leave | derived of `m` |
| `c` `d` or `m` slot(8) | messages and locked ones per day, minute | derived of `m` |
| `e` time(8) id 0 request id | remembered requests by age | derived of `r` |
| `v` end(8) sequence(8) | waiting polls by end | derived of `w` |

No id, group or consumer contains NUL, and UTF-8 has no byte 0xff: so `prefix + 0xff` ends a scan over a prefix.
"""

from __future__ import annotations

PRIMARY = b"mbrwsn"
CLOCK, SETTINGS = b"sclock", b"ssettings"
LOCKED, FREE = b"\x01", b"\x00"
MINUTE_MS, DAY_MS = 60_000, 86_400_000
NUL, END = b"\x00", b"\xff"


def message_key(id_: bytes) -> bytes:
    return b"m" + id_


def body_key(id_: bytes) -> bytes:
    return b"b" + id_


def request_key(id_: bytes, request_id: str) -> bytes:
    return b"r" + id_ + NUL + request_id.encode()


def waiter_key(sequence: int) -> bytes:
    return b"w" + sequence.to_bytes(8)


def time_key(bucket: int, timestamp: int, id_: bytes = b"") -> bytes:
    return b"t" + bucket.to_bytes(2) + timestamp.to_bytes(8) + id_


def bucket_prefix(bucket: int) -> bytes:
    return b"t" + bucket.to_bytes(2)


def lease_key(consumer: str, timestamp: int, id_: bytes = b"") -> bytes:
    return b"l" + consumer.encode() + NUL + timestamp.to_bytes(8) + id_


def owner_key(group: str, id_: bytes = b"") -> bytes:
    return b"o" + group.encode() + NUL + id_


def parked_key(parked_at: int, parking: int, id_: bytes) -> bytes:
    return b"p" + parked_at.to_bytes(8) + parking.to_bytes(8) + id_


def tombstone_key(deleted_at: int, id_: bytes = b"") -> bytes:
    return b"x" + deleted_at.to_bytes(8) + id_


def buffer_key(timestamp: int, partition: int, offset: int, id_: bytes) -> bytes:
    return b"q" + timestamp.to_bytes(8) + partition.to_bytes(8) + offset.to_bytes(8) + id_


def day_key(day: int) -> bytes:
    return b"cd" + day.to_bytes(8)


def minute_key(minute: int) -> bytes:
    return b"cm" + minute.to_bytes(8)


def request_age_key(at_ms: int, rest: bytes = b"") -> bytes:
    """`rest`: the key in family `r` without its family byte."""
    return b"e" + at_ms.to_bytes(8) + rest


def waiter_end_key(end_ms: int, sequence: int = 0) -> bytes:
    return b"v" + end_ms.to_bytes(8) + sequence.to_bytes(8)


def id_in_time_key(key: bytes) -> bytes:
    return key[11:]
