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

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from headrace_core.registration import topics
from headrace_core.registration.message import Message, read_json
from headrace_core.state import Item, State, first, hold

PRIMARY = b"cntETGVPWMZLH"
METADATA, TELEMETRY = b"0", b"1"
NEVER = 1 << 64
CLOCK = b"cclock"


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
    def place(self) -> tuple[int, int, bool]:
        """What its index items depend on."""
        return self.since, self.seq, self.suitable > 0

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
    return family + _texts(parts)


@lru_cache(256)
def _texts(parts: tuple[str, ...]) -> bytes:
    """One message asks for many keys of its entity."""
    return "".join([part + "\0" for part in parts]).encode("utf-8", "surrogatepass")


@lru_cache(4096)
def counter_key(name: str) -> bytes:
    """Key of a counter of the stage."""
    return b"n" + name.encode()


@lru_cache(4096)
def tally_key(root: str, name: str) -> bytes:
    """Key of a counter of a root."""
    return key(b"t", root) + name.encode()


def after(prefix: bytes) -> bytes:
    """The end of the range of keys that start with `prefix` (whose last byte is never 0xff)."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


@lru_cache(256)
def parts(raw: bytes, count: int) -> tuple[tuple[str, ...], bytes]:
    """The first `count` texts of a key and what follows them."""
    pieces = raw[1:].split(b"\0", count)
    return tuple([p.decode("utf-8", "surrogatepass") for p in pieces[:count]]), pieces[count]


def derived(raw: bytes, value: bytes) -> dict[bytes, bytes]:
    """Index items that follow from one primary item."""
    kind = INDEXED.get(raw[:1])
    return {} if kind is None else index_items(raw, msgspec.msgpack.decode(value, type=kind))


def sound_items(raw: bytes, value: bytes) -> dict[bytes, bytes] | None:
    """As `derived`; None if the item is damaged. Restoring asks for a million of them."""
    try:
        found = _read(raw, value)
        return index_items(raw, found) if raw[:1] in INDEXED else {}
    except DAMAGE:
        return None


def index_items(raw: bytes, value: object) -> dict[bytes, bytes]:
    """Index items that follow from one primary item, which has been read."""
    (root, tid), rest = parts(raw, 2)
    name = tid.encode("utf-8", "surrogatepass")
    match value:
        case Cached():
            return {key(b"O", root) + rest[1:]: name} if rest[:1] == TELEMETRY else {}
        case Pending():
            return _derived_pending(root, tid, value)
        case Entity():
            end = raw.index(b"\0") + 1
            above = raw[1:end]
            parent = (value.parent or "").encode("utf-8", "surrogatepass")
            items = {b"K" + above + parent + b"\0" + name + b"\0": b""}
            if value.type != "device":
                items[b"I" + above + value.id.encode("utf-8", "surrogatepass") + b"\0"] = name
            return items
        case Waiting():
            return {key(b"Q", root, value.parent) + number(value.order): name}
        case Idle():
            place = number(value.at) + number(value.seq)
            return {b"A" + place: key(b"", root, tid), key(b"B", root) + place: name}
    return {}


def _derived_pending(root: str, tid: str, entry: Pending) -> dict[bytes, bytes]:
    items = {b"X" + number(entry.since) + number(entry.seq): key(b"", root, tid)}
    if entry.suitable and topics.default_type(tid) == "service":
        service = tid.encode("utf-8", "surrogatepass")
        items[key(b"S", root, topics.device_of(tid)) + number(entry.seq)] = service
    return items


INDEXED: dict[bytes, type] = {b"E": Entity, b"P": Pending, b"W": Waiting, b"M": Cached, b"Z": Idle}
VALUES: dict[bytes, type] = INDEXED | {b"L": LastError}
DECODERS: dict[bytes, msgspec.msgpack.Decoder[Any]] = {
    family: msgspec.msgpack.Decoder(kind) for family, kind in VALUES.items()
}


def sound(raw: bytes, value: bytes) -> bool:
    """Whether a primary item can be read; a damaged one is skipped at a restore (section 10)."""
    try:
        _read(raw, value)
    except DAMAGE:
        return False
    return True


DAMAGE = (ValueError, IndexError, msgspec.MsgspecError)
_plain_json = re.compile(rb'"[ !#-\[\]-~]*"|-?(?:0|[1-9][0-9]{0,14})|true|false|null').fullmatch
"""Short texts and whole numbers, which most twin data is: they need no parser to be known as JSON."""


def _read(raw: bytes, value: bytes) -> object:
    """The value of a primary item. Raises one of DAMAGE if it, or its key, cannot be read."""
    family = raw[:1]
    if family in VALUES:
        parts(raw, 2)
        return DECODERS[family].decode(value)
    if family in (b"T", b"G"):
        return None if _plain_json(value) else read_json(value)
    if family == b"H":
        return msgspec.msgpack.decode(value, type=list[list[str]])
    if family in (b"c", b"n", b"t") and len(value) != 8:
        raise ValueError("a number has 8 bytes")
    return None


class Store:
    """Typed access to a State. Writing a primary item keeps its index items right.

    With `keep`, over the writes of a chunk, numbers (clock, sequence, counters) are read once and written at its end,
    items are decoded once, and it is known what does not have to be looked for in the time indexes. Only one store of a
    chunk may keep.
    """

    __slots__ = ("_changed", "_earliest", "_items", "_keep", "_numbers", "_state")

    def __init__(self, state: State, *, keep: bool = False) -> None:
        self._state = state
        self._keep = keep and hold(state, self.settle)
        self._numbers: dict[bytes, int] = {}
        self._changed: set[bytes] = set()
        self._earliest: dict[bytes, int] = {}
        self._items: dict[bytes, Any] = {}

    @property
    def keeps(self) -> bool:
        """Whether this store may serve all records of a chunk."""
        return self._keep

    def settle(self) -> None:
        """Write the numbers that have changed."""
        for raw in sorted(self._changed):
            self._state.put(raw, self._numbers[raw].to_bytes(8, "big", signed=True))
        self._changed.clear()

    def get(self, raw: bytes, kind: type[T]) -> T | None:
        if raw in self._items:
            found: T | None = self._items[raw]
            return found
        value = self._state.get(raw)
        found = None if value is None else msgspec.msgpack.decode(value, type=kind)
        if self._keep:
            self._items[raw] = found
        return found

    def raw(self, raw: bytes) -> bytes | None:
        return self._state.get(raw)

    def put(self, raw: bytes, value: object) -> None:
        """Set a primary item and its index items."""
        if raw[:1] in INDEXED:
            self._index(raw, self.get(raw, INDEXED[raw[:1]]), value)
        if self._keep:
            self._items[raw] = value
        self._state.put(raw, _encode(value))

    def write(self, raw: bytes, value: bytes | None) -> None:
        """`put` of an encoded value, or with None `delete`."""
        if value is None:
            self.delete(raw)
        elif raw[:1] in VALUES:
            self.put(raw, msgspec.msgpack.decode(value, type=VALUES[raw[:1]]))
        else:
            self._state.put(raw, value)

    def delete(self, raw: bytes) -> None:
        """Delete a primary item, if it is there, and its index items."""
        if raw[:1] in INDEXED:
            self._index(raw, self.get(raw, INDEXED[raw[:1]]), None)
        if self._state.get(raw) is not None:
            self._state.delete(raw)
        if raw in self._items:
            self._items[raw] = None

    def _index(self, raw: bytes, old: object, new: object) -> None:
        """Bring the index items from those of `old` to those of `new`."""
        if isinstance(old, Pending) and isinstance(new, Pending) and old.place == new.place:
            return
        before = {} if old is None else index_items(raw, old)
        now = {} if new is None else index_items(raw, new)
        for index in before:
            if index not in now:
                self._state.delete(index)
        for index, item in now.items():
            if before.get(index) != item:
                self._state.put(index, item)
                self._earliest.pop(index[:1], None)

    def under(self, prefix: bytes) -> Iterator[Item]:
        """All items whose keys start with `prefix`, in order; do not write while reading."""
        self.settle()
        return self._state.scan(prefix, after(prefix))

    def span(self, start: bytes, stop: bytes) -> Iterator[Item]:
        """All items from `start` on, below `stop`, in order; do not write while reading."""
        self.settle()
        return self._state.scan(start, stop)

    def first_under(self, prefix: bytes) -> Item | None:
        """The first item whose key starts with `prefix`, which is no number's."""
        return first(self._state, prefix, after(prefix))

    def first_due(self, family: bytes, limit: int) -> Item | None:
        """The first item of a time index, if its time is at or below `limit`."""
        if self._keep and self._earliest.get(family, limit) > limit:
            return None
        found = self.first_under(family)
        at = NEVER if found is None else int.from_bytes(found[0][1:9], "big")
        self._earliest[family] = at
        return found if at <= limit else None

    def number(self, raw: bytes) -> int:
        if raw in self._numbers:
            return self._numbers[raw]
        value = self._state.get(raw)
        found = 0 if value is None else int.from_bytes(value, "big", signed=True)
        if self._keep:
            self._numbers[raw] = found
        return found

    def set_number(self, raw: bytes, value: int) -> None:
        if self._keep:
            self._numbers[raw] = value
            self._changed.add(raw)
        else:
            self._state.put(raw, value.to_bytes(8, "big", signed=True))

    def add(self, raw: bytes, amount: int) -> int:
        """Add to a counter item (0 if it is missing) and return the sum."""
        total = self._numbers[raw] + amount if raw in self._numbers else self.number(raw) + amount
        self.set_number(raw, total)
        return total

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a counter of the stage."""
        self.add(counter_key(name), amount)

    def tally(self, root: str, name: str, amount: int = 1) -> int:
        """Add to a counter of a root and return the sum."""
        return self.add(tally_key(root, name), amount)

    def total(self, root: str, name: str) -> int:
        return self.number(tally_key(root, name))

    def has_entity(self, root: str, tid: str) -> bool:
        return self._state.get(key(b"E", root, tid)) is not None

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
        return self.number(CLOCK)

    def sequence(self) -> int:
        return self.add(b"csequence", 1)
