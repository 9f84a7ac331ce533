"""Reading and writing the durable state over the records of a chunk (registration.md 6.6, 10, 14).

What changes with each message, or comes and goes soon (numbers, pending entries, cached messages and their index), is
*held back* over the writes of a chunk: it is kept decoded, and encoded once, at the chunk's end, if it is still there.
A primary item that has come and gone within the chunk is among its writes all the same, as deleted: a late writer with
another cut of the log may have written it to the changelog, and only a newer record of the key can outdo that one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from headrace_core.registration.items import (
    ARRIVAL,
    CLOCK,
    INDEXED,
    MESSAGE,
    NEVER,
    NO_RETAINED,
    VALUES,
    Entity,
    Idle,
    LastError,
    Pending,
    Waiting,
    after,
    counter_key,
    index_items,
    key,
    name_of,
    parts,
    tally_key,
)
from headrace_core.state import Item, State, first, hold

HELD_BACK = frozenset(b"cntPM")
"""Families that are written at the end of a chunk."""
T = TypeVar("T")
_encode = msgspec.msgpack.encode


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
