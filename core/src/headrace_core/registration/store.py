"""Keys and values of the durable state, and the indexes that follow from them.

A key is one family byte, then texts that end with NUL (root, topic id), then integers in 8 bytes big-endian.

    c clock, sequence            n counters of the stage        t counters of a root
    E entity                     T twin value                   G published configuration
    V retained data topic        P pending entry                W waiting registration
    M one cached message         Z idle status                  L last error
    H a changed parent (listing)

Derived (rebuilt by `derived` from one primary item each):

    I external id -> entity      K parent -> child              X pending by age
    S device -> service to follow  Q parent -> waiting child    O telemetry by arrival
    A idle by age                B idle by age, per root

So adding or evicting a cached message writes that message's key, its index and counters, nothing else (section 6.6).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import msgspec

from headrace_core.registration import topics
from headrace_core.registration.message import Message, read_json
from headrace_core.state import State

PRIMARY = b"cntETGVPWMZLH"
METADATA, TELEMETRY = b"0", b"1"


class Entity(msgspec.Struct, frozen=True, array_like=True):
    """A registered entity. `content` is the last accepted content as JSON (section 8.2)."""

    type: str
    id: str
    parent: str | None
    health: str | None
    automatic: bool
    since: int
    content: bytes


class Pending(msgspec.Struct, frozen=True, array_like=True):
    """A pending entry. `suitable` counts cached messages whose channel registers automatically."""

    since: int
    seq: int
    telemetry: int = 0
    telemetry_bytes: int = 0
    metadata: int = 0
    metadata_bytes: int = 0
    suitable: int = 0
    waiting_bytes: int = -1

    @property
    def waiting(self) -> bool:
        return self.waiting_bytes >= 0

    @property
    def empty(self) -> bool:
        return not (self.telemetry or self.metadata or self.waiting)


class Waiting(msgspec.Struct, frozen=True, array_like=True):
    """A registration that waits for `parent`; `order` is its place in that queue."""

    order: int
    parent: str
    type: str
    message: Message


class Cached(msgspec.Struct, frozen=True, array_like=True):
    channel: str
    suitable: bool
    message: Message


class Idle(msgspec.Struct, frozen=True, array_like=True):
    """Status of an id neither registered nor pending; `at` counts for retention (`since`, or the last error's time)."""

    state: str
    since: int | None
    at: int
    seq: int


class LastError(msgspec.Struct, frozen=True, array_like=True):
    reason: str
    receipt_ms: int
    detail: str = ""


T = TypeVar("T")
_encode = msgspec.msgpack.encode


def number(value: int) -> bytes:
    return value.to_bytes(8, "big")


def key(family: bytes, *parts: str) -> bytes:
    """A key of texts, each ended by NUL."""
    return family + b"".join(p.encode("utf-8", "surrogatepass") + b"\0" for p in parts)


def after(prefix: bytes) -> bytes:
    """The end of the range of keys that start with `prefix` (whose last byte is never 0xff)."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def parts(raw: bytes, count: int) -> tuple[list[str], bytes]:
    """The first `count` texts of a key and what follows them."""
    pieces = raw[1:].split(b"\0", count)
    return [p.decode("utf-8", "surrogatepass") for p in pieces[:count]], pieces[count]


def derived(raw: bytes, value: bytes) -> dict[bytes, bytes]:
    """Index items that follow from one primary item."""
    family = raw[:1]
    if family not in b"EPWMZ" or not family:
        return {}
    (root, tid), rest = parts(raw, 2)
    name = tid.encode("utf-8", "surrogatepass")
    if family == b"E":
        entity = msgspec.msgpack.decode(value, type=Entity)
        items = {key(b"K", root, entity.parent or "", tid): b""}
        if entity.type != "device":
            items[key(b"I", root, entity.id)] = name
        return items
    if family == b"P":
        return _derived_pending(root, tid, msgspec.msgpack.decode(value, type=Pending))
    if family == b"W":
        waiting = msgspec.msgpack.decode(value, type=Waiting)
        return {key(b"Q", root, waiting.parent) + number(waiting.order): name}
    if family == b"M":
        return {key(b"O", root) + rest[1:]: name} if rest[:1] == TELEMETRY else {}
    idle = msgspec.msgpack.decode(value, type=Idle)
    place = number(idle.at) + number(idle.seq)
    return {b"A" + place: key(b"", root, tid), key(b"B", root) + place: name}


def _derived_pending(root: str, tid: str, entry: Pending) -> dict[bytes, bytes]:
    items = {b"X" + number(entry.since) + number(entry.seq): key(b"", root, tid)}
    if entry.suitable and topics.default_type(tid) == "service":
        service = tid.encode("utf-8", "surrogatepass")
        items[key(b"S", root, topics.device_of(tid)) + number(entry.seq)] = service
    return items


VALUES: dict[bytes, type] = {b"E": Entity, b"P": Pending, b"W": Waiting, b"M": Cached, b"Z": Idle, b"L": LastError}


def sound(raw: bytes, value: bytes) -> bool:
    """Whether a primary item can be read; a damaged one is skipped at a restore (section 10)."""
    family = raw[:1]
    try:
        if family in VALUES:
            msgspec.msgpack.decode(value, type=VALUES[family])
            parts(raw, 2)
        elif family in (b"T", b"G"):
            read_json(value)
        elif family == b"H":
            msgspec.msgpack.decode(value, type=list[list[str]])
        elif family in (b"c", b"n", b"t"):
            return len(value) == 8
    except (ValueError, IndexError, msgspec.MsgspecError):
        return False
    return True


class Store:
    """Typed access to a State. Writing a primary item keeps its index items right."""

    __slots__ = ("_state",)

    def __init__(self, state: State) -> None:
        self._state = state

    def get(self, raw: bytes, kind: type[T]) -> T | None:
        value = self._state.get(raw)
        return None if value is None else msgspec.msgpack.decode(value, type=kind)

    def raw(self, raw: bytes) -> bytes | None:
        return self._state.get(raw)

    def put(self, raw: bytes, value: object) -> None:
        self.write(raw, _encode(value))

    def write(self, raw: bytes, value: bytes | None) -> None:
        """Set (or with None delete) a primary item and its index items."""
        old = self._state.get(raw)
        before = {} if old is None else derived(raw, old)
        now = {} if value is None else derived(raw, value)
        for index in before:
            if index not in now:
                self._state.delete(index)
        for index, item in now.items():
            if before.get(index) != item:
                self._state.put(index, item)
        if value is not None:
            self._state.put(raw, value)
        elif old is not None:
            self._state.delete(raw)

    def delete(self, raw: bytes) -> None:
        self.write(raw, None)

    def under(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """All items whose keys start with `prefix`, in order; do not write while reading."""
        return self._state.scan(prefix, after(prefix))

    def span(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._state.scan(start, stop)

    def number(self, raw: bytes) -> int:
        value = self._state.get(raw)
        return 0 if value is None else int.from_bytes(value, "big", signed=True)

    def add(self, raw: bytes, amount: int) -> int:
        """Add to a counter item (0 if it is missing) and return the sum."""
        total = self.number(raw) + amount
        self._state.put(raw, total.to_bytes(8, "big", signed=True))
        return total

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a counter of the stage."""
        self.add(b"n" + name.encode(), amount)

    def tally(self, root: str, name: str, amount: int = 1) -> int:
        """Add to a counter of a root and return the sum."""
        return self.add(key(b"t", root) + name.encode(), amount)

    def total(self, root: str, name: str) -> int:
        return self.number(key(b"t", root) + name.encode())

    def entity(self, root: str, tid: str) -> Entity | None:
        return self.get(key(b"E", root, tid), Entity)

    def pending(self, root: str, tid: str) -> Pending | None:
        return self.get(key(b"P", root, tid), Pending)

    def waiting(self, root: str, tid: str) -> Waiting | None:
        return self.get(key(b"W", root, tid), Waiting)

    def error(self, root: str, tid: str) -> LastError | None:
        return self.get(key(b"L", root, tid), LastError)

    def idle(self, root: str, tid: str) -> Idle | None:
        return self.get(key(b"Z", root, tid), Idle)

    def owner(self, root: str, external_id: str) -> str | None:
        """The registered entity with this external id."""
        value = self._state.get(key(b"I", root, external_id))
        return None if value is None else value.decode("utf-8", "surrogatepass")

    def children(self, root: str, parent: str | None) -> list[str]:
        """Registered children sorted by topic id; None: those without parent."""
        return [parts(k, 3)[0][2] for k, _ in self.under(key(b"K", root, parent or ""))]

    def names(self, prefix: bytes) -> list[str]:
        """Topic ids in an index, in its order."""
        return [v.decode("utf-8", "surrogatepass") for _, v in self.under(prefix)]

    @property
    def clock(self) -> int:
        return self.number(b"cclock")

    def sequence(self) -> int:
        return self.add(b"csequence", 1)
