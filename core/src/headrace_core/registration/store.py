"""Keys and values of the durable state, and the indexes that follow from them (registration.md 6.6, 10, 14).

A key is one family byte, then texts that end with NUL (root, topic id), then integers in 8 bytes big-endian.

    c clock, sequence            n counters of the stage        t counters of a root
    E entity                     T twin value                   G published configuration
    V retained data topic        P pending entry                W waiting registration
    M one cached message         Z idle status                  L last error
    H a changed parent (listing)  R a registration's topic, if spelled otherwise

Derived (rebuilt by `derived` from one primary item each):

    I external id -> entity      K parent -> child              X pending by age
    S device -> service to follow  Q parent -> waiting child    O telemetry by arrival
    A idle by age                B idle by age, per root

So adding or evicting a cached message writes that message's key, its index, its pending entry and counters, nothing
else (section 6.6).

What changes with each message, or comes and goes soon (numbers, pending entries, cached messages and their index), is
*held back* over the writes of a chunk: it is kept decoded, and encoded once, at the chunk's end, if it is still there.
A primary item that has come and gone within the chunk is among its writes all the same, as deleted: a late writer with
another cut of the log may have written it to the changelog, and only a newer record of the key can outdo that one.
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

PRIMARY = b"cntETGVPWMZLHR"
HELD_BACK = frozenset(b"cntPM")
"""Families that are written at the end of a chunk."""
MESSAGE, ARRIVAL = b"MO"
METADATA, TELEMETRY = b"0", b"1"
NEVER = 1 << 64
CLOCK = b"cclock"


class Entity(msgspec.Struct, frozen=True, array_like=True):
    """A registered entity. `content` is the last accepted content as JSON (section 8.2).

    `retained`: whether it has had a retained data topic, so that its other messages need not look for theirs; True
    where nobody has kept it.
    """

    type: str
    id: str
    parent: str | None
    health: str | None
    automatic: bool
    since: int
    content: bytes
    retained: bool = True


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

    def indexed_as(self, other: Pending) -> bool:
        """Whether both have the same index items."""
        if self.suitable != other.suitable and not (self.suitable and other.suitable):
            return False
        return self.seq == other.seq and self.since == other.since

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


NO_RETAINED = msgspec.msgpack.encode(False)[0]
"""Last byte of an entity without retained data topics; else it is that of True or the end of the content, a brace."""
T = TypeVar("T")
_encode = msgspec.msgpack.encode


def number(value: int) -> bytes:
    return value.to_bytes(8, "big")


def key(family: bytes, *texts: str) -> bytes:
    """A key of texts, each ended by NUL."""
    return family + "".join([text + "\0" for text in texts]).encode("utf-8", "surrogatepass")


@lru_cache(64)
def name_of(root: str, tid: str) -> bytes:
    """How the keys of an entity go on after the family byte; one message asks for many keys of its entity."""
    return f"{root}\0{tid}\0".encode("utf-8", "surrogatepass")


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
    match value:
        case Cached():
            return _cached_items(raw)
        case Pending():
            return _pending_items(raw, value)
        case Entity():
            return _entity_items(raw, value)
        case Waiting():
            root, name = split_name(raw)
            return {b"Q" + root + value.parent.encode("utf-8", "surrogatepass") + b"\0" + number(value.order): name}
        case Idle():
            root, name = split_name(raw)
            place = number(value.at) + number(value.seq)
            return {b"A" + place: raw[1:], b"B" + root + place: name}
    return {}


def split_name(raw: bytes) -> tuple[bytes, bytes]:
    """Root, with its NUL, and topic id, without, in the key of an entity's item."""
    root_end = raw.index(0) + 1
    return raw[1:root_end], raw[root_end : raw.index(0, root_end)]


def _cached_items(raw: bytes) -> dict[bytes, bytes]:
    root_end = raw.index(0) + 1
    end = raw.index(0, root_end)
    if raw[end + 1 : end + 2] != TELEMETRY:
        return {}
    return {b"O" + raw[1:root_end] + raw[end + 2 :]: raw[root_end:end]}


def _entity_items(raw: bytes, value: Entity) -> dict[bytes, bytes]:
    root, name = split_name(raw)
    parent = (value.parent or "").encode("utf-8", "surrogatepass")
    items = {b"K" + root + parent + b"\0" + name + b"\0": b""}
    if value.type != "device":
        items[b"I" + root + value.id.encode("utf-8", "surrogatepass") + b"\0"] = name
    return items


def _pending_items(raw: bytes, entry: Pending) -> dict[bytes, bytes]:
    items = {b"X" + number(entry.since) + number(entry.seq): raw[1:]}
    if entry.suitable:
        root, tid = parts(raw, 2)[0]
        if topics.default_type(tid) == "service":
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

    With `keep`, over the writes of a chunk, items are read and decoded once, what is HELD_BACK is written at its end,
    and it is known what does not have to be looked for in the time indexes. Only one store of a chunk may keep.
    """

    __slots__ = ("_arrivals", "_earliest", "_fresh", "_items", "_late", "_numbers", "_raws", "_state", "keeps")

    def __init__(self, state: State, *, keep: bool = False) -> None:
        self._state = state
        self.keeps = keep and hold(state, self.settle)
        """Whether this store may serve all records of a chunk."""
        self._numbers: dict[bytes, int] = {}
        self._items: dict[bytes, Any] = {}
        self._raws: dict[bytes, bytes | None] = {}
        self._late: set[bytes] = set()
        """Keys of what is held back."""
        self._fresh: dict[bytes, list[bytes]] = {}
        """Keys of cached messages that are, or were, held back, by what comes before their number."""
        self._arrivals: dict[bytes, bytes] = {}
        """Items of the index of telemetry by arrival that are held back."""
        self._earliest: dict[bytes, int] = {}

    def settle(self) -> None:
        """Write what has been held back."""
        for raw in sorted(self._late):
            if raw in self._numbers:
                self._state.put(raw, self._numbers[raw].to_bytes(8, "big", signed=True))
            else:
                self._state.put(raw, _encode(self._items[raw]))
        self._late.clear()
        self._fresh.clear()
        self._settle_arrivals()

    def _settle_arrivals(self) -> None:
        for index, item in self._arrivals.items():
            self._state.put(index, item)
        self._arrivals.clear()

    def get(self, raw: bytes, kind: type[T]) -> T | None:
        """The item `raw`, which is a `kind`, or None."""
        if raw in self._items:
            found: T | None = self._items[raw]
            return found
        value = self._raws[raw] if raw in self._raws else self._state.get(raw)
        found = None if value is None else msgspec.msgpack.decode(value, type=kind)
        if self.keeps:
            self._items[raw] = found
        return found

    def raw(self, raw: bytes) -> bytes | None:
        """The bytes of an item that is not one of VALUES."""
        if raw in self._raws:
            return self._raws[raw]
        value = self._state.get(raw)
        if self.keeps:
            self._raws[raw] = value
        return value

    def put(self, raw: bytes, value: object) -> None:
        """Set a primary item and its index items."""
        kind = INDEXED.get(raw[:1])
        if kind is not None:
            self._index(raw, self.get(raw, kind), value)
        self._set(raw, value)

    def replace(self, raw: bytes, old: object, new: object) -> None:
        """`put` over `old`, which is known to be there, or None."""
        self._index(raw, old, new)
        self._set(raw, new)

    def _set(self, raw: bytes, value: object) -> None:
        if self.keeps:
            self._items[raw] = value
            if raw[0] in HELD_BACK:
                self._late.add(raw)
                if raw[0] == MESSAGE:
                    self._fresh.setdefault(raw[:-8], []).append(raw)
                return
        self._state.put(raw, _encode(value))

    def write(self, raw: bytes, value: bytes | None) -> None:
        """`put` of an encoded value, or with None `delete`."""
        if value is None:
            self.delete(raw)
        elif raw[:1] in VALUES:
            self.put(raw, msgspec.msgpack.decode(value, type=VALUES[raw[:1]]))
        else:
            if self.keeps:
                self._raws[raw] = value
            self._state.put(raw, value)

    def delete(self, raw: bytes) -> None:
        """Delete a primary item, if it is there, and its index items."""
        kind = INDEXED.get(raw[:1])
        if kind is not None:
            self._index(raw, self.get(raw, kind), None)
        if raw in self._late:
            self._late.remove(raw)
            self._state.delete(raw)
        elif self._state.get(raw) is not None:
            self._state.delete(raw)
        if self.keeps:
            (self._items if raw[:1] in VALUES else self._raws)[raw] = None

    def take_under(self, prefix: bytes, kind: type[T]) -> list[T]:
        """Delete all numbered items behind `prefix`, and return them in order; those held back are the newest."""
        taken = []
        for raw, value in list(self._state.scan(prefix, after(prefix))):
            item = self._items.pop(raw, None)
            if item is None:
                item = msgspec.msgpack.decode(value, type=kind)
            self._index(raw, item, None)
            self._state.delete(raw)
            taken.append(item)
        for raw in self._fresh.pop(prefix, ()):
            if raw in self._late:
                self._late.remove(raw)
                item = self._items.pop(raw)
                self._index(raw, item, None)
                self._state.delete(raw)
                taken.append(item)
        return taken

    def _index(self, raw: bytes, old: object, new: object) -> None:
        """Bring the index items from those of `old` to those of `new`."""
        if old is None:
            if new is not None:
                for index, item in index_items(raw, new).items():
                    self._put_index(index, item)
            return
        if isinstance(old, Pending) and isinstance(new, Pending) and old.indexed_as(new):
            return
        before = index_items(raw, old)
        now = {} if new is None else index_items(raw, new)
        for index in before:
            if index not in now and self._arrivals.pop(index, None) is None:
                self._state.delete(index)
        for index, item in now.items():
            if before.get(index) != item:
                self._put_index(index, item)

    def _put_index(self, index: bytes, item: bytes) -> None:
        if self.keeps and index[0] == ARRIVAL:
            self._arrivals[index] = item
            return
        self._state.put(index, item)
        self._earliest.pop(index[:1], None)

    def under(self, prefix: bytes) -> Iterator[Item]:
        """All items whose keys start with `prefix`, in order; do not write while reading."""
        if prefix[0] in HELD_BACK:
            self.settle()
        return self._state.scan(prefix, after(prefix))

    def span(self, start: bytes, stop: bytes) -> Iterator[Item]:
        """All items from `start` on, below `stop`, in order; do not write while reading."""
        if start[0] in HELD_BACK:
            self.settle()
        return self._state.scan(start, stop)

    def first_under(self, prefix: bytes) -> Item | None:
        """The first item whose key starts with `prefix`."""
        if prefix[0] == ARRIVAL:
            self._settle_arrivals()
        elif prefix[0] in HELD_BACK:
            self.settle()
        return first(self._state, prefix, after(prefix))

    def first_due(self, family: bytes, limit: int) -> Item | None:
        """The first item of a time index, if its time is at or below `limit`."""
        if self._earliest.get(family, limit) > limit:
            return None
        found = self.first_under(family)
        at = NEVER if found is None else int.from_bytes(found[0][1:9], "big")
        if self.keeps:
            self._earliest[family] = at
        return found if at <= limit else None

    def number(self, raw: bytes) -> int:
        """A counter item, 0 if it is missing."""
        if raw in self._numbers:
            return self._numbers[raw]
        value = self._state.get(raw)
        found = 0 if value is None else int.from_bytes(value, "big", signed=True)
        if self.keeps:
            self._numbers[raw] = found
        return found

    def set_number(self, raw: bytes, value: int) -> None:
        if self.keeps:
            self._numbers[raw] = value
            self._late.add(raw)
        else:
            self._state.put(raw, value.to_bytes(8, "big", signed=True))

    def add(self, raw: bytes, amount: int) -> int:
        """Add to a counter item and return the sum."""
        numbers = self._numbers
        if raw not in numbers:
            total = self.number(raw) + amount
            self.set_number(raw, total)
            return total
        numbers[raw] = total = numbers[raw] + amount
        self._late.add(raw)
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
        raw = b"E" + name_of(root, tid)
        if raw in self._items:
            return self._items[raw] is not None
        return self.raw(raw) is not None

    def has_retained(self, root: str, tid: str) -> bool:
        """Whether a registered entity may have retained data topics; does not decode it for that."""
        raw = b"E" + name_of(root, tid)
        entity: Entity | None = self._items.get(raw)
        if entity is not None:
            return entity.retained
        value = self.raw(raw)
        return value is None or value[-1] != NO_RETAINED

    def entity(self, root: str, tid: str) -> Entity | None:
        return self.get(b"E" + name_of(root, tid), Entity)

    def pending(self, root: str, tid: str) -> Pending | None:
        return self.get(b"P" + name_of(root, tid), Pending)

    def waiting(self, root: str, tid: str) -> Waiting | None:
        return self.get(b"W" + name_of(root, tid), Waiting)

    def error(self, root: str, tid: str) -> LastError | None:
        return self.get(b"L" + name_of(root, tid), LastError)

    def idle(self, root: str, tid: str) -> Idle | None:
        return self.get(b"Z" + name_of(root, tid), Idle)

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
