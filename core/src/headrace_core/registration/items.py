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
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import msgspec

from headrace_core.registration import topics
from headrace_core.registration.message import Message, read_json

PRIMARY = b"cntETGVPWMZLHR"
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
        if type(found) is Entity:
            return _entity_items(raw, found)
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
        if not (raw.isascii() and raw.count(0) >= 2):
            parts(raw, 2)
        return DECODERS[family].decode(value)
    if family in (b"T", b"G"):
        return None if _plain_json(value) else read_json(value)
    if family == b"H":
        return msgspec.msgpack.decode(value, type=list[list[str]])
    if family in (b"c", b"n", b"t") and len(value) != 8:
        raise ValueError("a number has 8 bytes")
    return None
