"""Keys and values of the batcher's state. Integers are big-endian and shifted, so that byte order is number order.

| key | value | |
|---|---|---|
| `c` | clock, next batch number | primary |
| `b` number | the open batch with its last members | primary |
| `m` number, page | source and `PAGE` earlier members | primary |
| `x` closed_at + horizon, number | the identities of a closed batch | primary |
| `w` source | its open windows, or how many there are | derived of `b` |
| `f` source, from falling, number falling | until; only of sources with many windows (see `windows`) | derived of `b` |
| `a` source, from, number | beside each `f` | derived of `b` |
| `d` deadline, number | | derived of `b` |
| `t` number, type | | derived of `m` |
| 0x93 source, event time, type | | derived of `b` and `m`, then of `x` |

`from` falls in `f`, so that the first item at or after an event time is the latest window that starts at or before it;
it rises in `a`, so that the first item after it is the next window above. An identity is in the state exactly while it
is known: from the message that brought it until its batch goes out of `x`; its key is MessagePack, 0x93 is how an array
of three begins. Adding a member rewrites at most `PAGE` members: when there are that many in `b`, they become a page of
their own (batching.md 12). Only `d`, `x`, `f` and `a` are ever read in order.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct

import msgspec

from headrace_core.batching.messages import Member

_encode = msgspec.msgpack.Encoder().encode
_numbered = Struct(">cQ").pack
_timed = Struct(">cQQ").pack
_parts_of_timed = Struct(">cQQ").unpack

PAGE = 16
PRIMARY = b"cbmx"
CLOCK, DUE, FORGET = b"c", b"d", b"x"
SHIFT = 1 << 63
TOP = (1 << 64) - 1
LOWEST_MS, HIGHEST_MS = -(1 << 62), (1 << 62) - 1
"""Times that a key can hold with room for windows and deadlines; an event time outside is not readable."""


class Clock(msgspec.Struct, frozen=True, array_like=True):
    """Clock of the partition and the batch numbers given out so far."""

    now_ms: int
    batches: int = 0


class Open(msgspec.Struct, array_like=True, gc=False):
    """An open batch. Its window, deadline and limits are those of the configuration at its opening.

    The value in the state is its encoding; this is a working copy, so joining may count on in it. `pages` counts the
    full pages, `last` are the members after them, in order of arrival.
    """

    source: str
    number: int
    from_ms: int
    until_ms: int
    opened_ms: int
    deadline_ms: int
    type: str
    max_members: int
    max_bytes: int
    horizon: int
    size: int = 0
    pages: int = 0
    last: list[Member] = []

    @property
    def window(self) -> tuple[int, int, int]:
        """As `windows` knows it."""
        return self.from_ms, self.number, self.until_ms


class Page(msgspec.Struct, frozen=True, array_like=True):
    """Members of an open batch that are not rewritten any more."""

    source: str
    members: list[Member]


def rising(number: int) -> bytes:
    """8 bytes in the order of signed numbers."""
    return (number + SHIFT).to_bytes(8)


def falling(number: int) -> bytes:
    """8 bytes in the reverse order of signed numbers."""
    return (TOP - number - SHIFT).to_bytes(8)


def number_of(eight: bytes) -> int:
    """The number that `rising` wrote."""
    return int.from_bytes(eight) - SHIFT


@lru_cache(65536)
def named(source: str) -> bytes:
    """The source with its length, so that no source is the beginning of another's keys."""
    text = source.encode()
    return len(text).to_bytes(4) + text


def after(prefix: bytes) -> bytes:
    """The end of a scan over all keys that start with `prefix`; none of them goes on with eight 0xff bytes."""
    return prefix + b"\xff" * 9


def windows_key(source: str) -> bytes:
    return b"w" + source.encode()


def falling_prefix(source: str) -> bytes:
    return b"f" + named(source)


def falling_key(source: str, from_ms: int, number: int) -> bytes:
    return falling_prefix(source) + falling(from_ms) + falling(number)


def from_of_falling(key: bytes) -> int:
    """The `from` in a key of family `f`."""
    return TOP - SHIFT - int.from_bytes(key[-16:-8])


def number_of_falling(key: bytes) -> int:
    """The number of the batch in a key of family `f`."""
    return TOP - SHIFT - int.from_bytes(key[-8:])


def rising_prefix(source: str) -> bytes:
    return b"a" + named(source)


def rising_key(source: str, from_ms: int, number: int) -> bytes:
    return rising_prefix(source) + rising(from_ms) + rising(number)


def open_key(number: int) -> bytes:
    return _numbered(b"b", number + SHIFT)


def timed_key(family: bytes, time_ms: int, number: int) -> bytes:
    """A key of `DUE` (`time_ms` is the deadline) or `FORGET` (the last clock at which identities are remembered)."""
    return _timed(family, time_ms + SHIFT, number + SHIFT)


def time_and_number(key: bytes) -> tuple[int, int]:
    """What is in a `timed_key`."""
    _, time_ms, number = _parts_of_timed(key)
    return time_ms - SHIFT, number - SHIFT


def page_key(number: int, page: int) -> bytes:
    return b"m" + rising(number) + page.to_bytes(4)


def type_key(number: int, type_: str) -> bytes:
    return b"t" + rising(number) + type_.encode()


def identity_key(source: str, event_ms: int, type_: str) -> bytes:
    """Only looked up, never scanned, so any encoding does that keeps the three apart."""
    return _encode((source, event_ms, type_))
