"""The one state port of the engines: an ordered map from bytes to bytes.

An engine is given a `State`, reads values, builds the next ones and assigns them; it never mutates a value in place.
Keys start with one family byte; integers in keys are big-endian, so that time indexes are ordered scans.

Implementations: `MemoryState` (tests, simulation, benches), `Overlay` (one chunk's writes over another state,
`streams.md` 2.2) and the RocksDB store of the stream processor.

Order is made when it is asked for. A family gets its sorted keys with the first scan of it; from then on a new key
goes into a set, and the next scan sorts it in. So a family that is only read key by key (counters, identities) never
pays for order.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Protocol

Item = tuple[bytes, bytes]


class State(Protocol):
    """Ordered bytes map. `scan` yields `start <= key < stop` in byte order, lazily: do not write while reading one."""

    def get(self, key: bytes, /) -> bytes | None: ...
    def put(self, key: bytes, value: bytes, /) -> None: ...
    def delete(self, key: bytes, /) -> None: ...
    def scan(self, start: bytes, stop: bytes, /) -> Iterator[Item]: ...


def first(state: State, start: bytes, stop: bytes) -> Item | None:
    """The first item with `start <= key < stop`, or None."""
    if isinstance(state, IN_MEMORY):
        return state.first(start, stop)
    return next(iter(state.scan(start, stop)), None)


def hold(state: State, settle: Callable[[], None]) -> bool:
    """Ask to be called before the writes of a chunk are read, to write what was held back until then.

    False: `state` is no chunk, its writes count at once; so nothing may be held back over the end of a record.
    """
    if isinstance(state, Overlay):
        state.hold(settle)
        return True
    return False


BLOCK_KEYS = 512


class SortedKeys:
    """Keys in byte order, in blocks of at most `2 * BLOCK_KEYS`, so that adding one does not move all the others.

    `fresh` takes new keys; they are sorted in when the order is asked for.
    """

    __slots__ = ("_blocks", "_count", "_firsts", "fresh")

    def __init__(self, keys: Iterable[bytes] = ()) -> None:
        self.fresh = set(keys)
        self._blocks: list[list[bytes]] = []
        self._firsts: list[bytes] = []
        self._count = 0

    def remove(self, key: bytes) -> None:
        """Remove a key that is there."""
        if key in self.fresh:
            self.fresh.remove(key)
            return
        at = bisect_left(self._firsts, key)
        if at == len(self._firsts) or self._firsts[at] != key:
            at -= 1
        block = self._blocks[at]
        del block[bisect_left(block, key)]
        self._count -= 1
        if block:
            self._firsts[at] = block[0]
        else:
            del self._blocks[at], self._firsts[at]

    def between(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        """Keys with `start <= key < stop`, lazily; the keys must not change meanwhile."""
        if self.fresh:
            self._sort_in()
        for at in range(max(0, bisect_left(self._firsts, start) - 1), len(self._blocks)):
            block = self._blocks[at]
            if block[0] >= stop:
                return
            lowest = bisect_left(block, start) if block[0] < start else 0
            last = len(block) if block[-1] < stop else bisect_left(block, stop)
            for i in range(lowest, last):
                yield block[i]

    def first(self, start: bytes, stop: bytes) -> bytes | None:
        """The first of `between`, without a generator."""
        if self.fresh:
            self._sort_in()
        at = bisect_left(self._firsts, start)
        if at and start <= self._blocks[at - 1][-1]:
            block = self._blocks[at - 1]
            found = block[bisect_left(block, start)]
        elif at < len(self._firsts):
            found = self._firsts[at]
        else:
            return None
        return found if found < stop else None

    def _sort_in(self) -> None:
        """Keys above all others are appended, a few are put in one by one, many by sorting all: O(log n) a key."""
        fresh = sorted(self.fresh)
        if not self._blocks or fresh[0] > self._blocks[-1][-1]:
            self._append(fresh)
        elif len(fresh) * 8 > self._count:
            keys = sorted([key for block in self._blocks for key in block] + fresh)
            self._blocks, self._firsts = [], []
            self._append(keys)
        else:
            for key in fresh:
                self._insert(key)
        self._count += len(fresh)
        self.fresh.clear()

    def _append(self, keys: list[bytes]) -> None:
        """Keys in order, above all that are there; the last block is filled up first."""
        room = max(0, BLOCK_KEYS - len(self._blocks[-1])) if self._blocks else 0
        if room:
            self._blocks[-1] += keys[:room]
        for at in range(room, len(keys), BLOCK_KEYS):
            self._blocks.append(keys[at : at + BLOCK_KEYS])
            self._firsts.append(keys[at])

    def _insert(self, key: bytes) -> None:
        at = max(0, bisect_left(self._firsts, key) - 1)
        block = self._blocks[at]
        insort(block, key)
        self._firsts[at] = block[0]
        if len(block) > 2 * BLOCK_KEYS:
            self._blocks[at : at + 1] = [block[:BLOCK_KEYS], block[BLOCK_KEYS:]]
            self._firsts[at : at + 1] = [block[0], block[BLOCK_KEYS]]


class Families:
    """Sorted keys, by family byte, of the families that a scan has asked for.

    `items` are all items of the state; a value of None is no item. The owner tells a family in `ordered` of new keys
    (`fresh`) and removed ones; to all others it need say nothing.
    """

    __slots__ = ("_items", "ordered")

    def __init__(self, items: Mapping[bytes, bytes | None]) -> None:
        self._items = items
        self.ordered: dict[int, SortedKeys] = {}

    def between(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        """Keys with `start <= key < stop`, lazily."""
        if in_one_family(start, stop):
            return self._family(start[0]).between(start, stop)
        families = sorted({key[0] for key in self._items})
        within = [family for family in families if start[:1] <= bytes([family]) < stop]
        return chain.from_iterable(self._family(family).between(start, stop) for family in within)

    def first(self, start: bytes, stop: bytes) -> bytes | None:
        """The first of `between`."""
        if in_one_family(start, stop):
            return self._family(start[0]).first(start, stop)
        return next(self.between(start, stop), None)

    def _family(self, family: int) -> SortedKeys:
        keys = self.ordered.get(family)
        if keys is None:
            there = (key for key, value in self._items.items() if key[0] == family and value is not None)
            keys = self.ordered[family] = SortedKeys(there)
        return keys


def in_one_family(start: bytes, stop: bytes) -> bool:
    """Whether all keys with `start <= key < stop` have the same first byte."""
    if not start or not stop:
        return False
    return start[0] == stop[0] or (len(stop) == 1 and stop[0] == start[0] + 1)


class MemoryState:
    """A state in memory. A key costs O(log n) once its family is scanned, O(1) before."""

    __slots__ = ("_keys", "_values", "get")

    get: Callable[[bytes], bytes | None]

    def __init__(self, items: Mapping[bytes, bytes] | None = None) -> None:
        self._values: dict[bytes, bytes] = dict(items or {})
        self._keys = Families(self._values)
        self.get = self._values.get

    def put(self, key: bytes, value: bytes, /) -> None:
        keys = self._keys.ordered.get(key[0])
        if keys is not None and key not in self._values:
            keys.fresh.add(key)
        self._values[key] = value

    def delete(self, key: bytes, /) -> None:
        if self._values.pop(key, None) is not None:
            keys = self._keys.ordered.get(key[0])
            if keys is not None:
                keys.remove(key)

    def commit(self, mutations: Mapping[bytes, bytes | None]) -> None:
        """Take the writes of a chunk; None = deleted."""
        values, ordered = self._values, self._keys.ordered
        for key, value in mutations.items():
            if value is None:
                if values.pop(key, None) is not None and key[0] in ordered:
                    ordered[key[0]].remove(key)
            else:
                if key[0] in ordered and key not in values:
                    ordered[key[0]].fresh.add(key)
                values[key] = value

    def scan(self, start: bytes, stop: bytes, /) -> Iterator[Item]:
        for key in self._keys.between(start, stop):
            yield key, self._values[key]

    def first(self, start: bytes, stop: bytes, /) -> Item | None:
        """The first item of a scan."""
        key = self._keys.first(start, stop)
        return None if key is None else (key, self._values[key])

    def snapshot(self) -> dict[bytes, bytes]:
        """All items in byte order."""
        return {key: self._values[key] for key in sorted(self._values)}


class Overlay:
    """The writes of one chunk over `base`, which stays as it is until the chunk is durable."""

    __slots__ = ("_base", "_below", "_held", "_keys", "_written")

    def __init__(self, base: State) -> None:
        self._base = base
        self._below = base.get
        self._written: dict[bytes, bytes | None] = {}
        self._keys = Families(self._written)
        """Own keys that have a value."""
        self._held: list[Callable[[], None]] = []

    def hold(self, settle: Callable[[], None]) -> None:
        """`settle` is called each time before the mutations are read."""
        self._held.append(settle)

    def settle(self) -> None:
        """Have written what was held back."""
        for settle in self._held:
            settle()

    @property
    def mutations(self) -> dict[bytes, bytes | None]:
        """Each written key with its last value, None = deleted, in order of first writing."""
        self.settle()
        return self._written

    def get(self, key: bytes, /) -> bytes | None:
        if key in self._written:
            return self._written[key]
        return self._below(key)

    def put(self, key: bytes, value: bytes, /) -> None:
        keys = self._keys.ordered.get(key[0])
        if keys is not None and self._written.get(key) is None:
            keys.fresh.add(key)
        self._written[key] = value

    def delete(self, key: bytes, /) -> None:
        keys = self._keys.ordered.get(key[0])
        if keys is not None and self._written.get(key) is not None:
            keys.remove(key)
        self._written[key] = None

    def scan(self, start: bytes, stop: bytes, /) -> Iterator[Item]:
        """Merge of base and own writes, both lazily."""
        own = self._keys.between(start, stop)
        mine = next(own, None)
        for key, value in self._base.scan(start, stop):
            while mine is not None and mine < key:
                yield mine, self._value(mine)
                mine = next(own, None)
            if key not in self._written:
                yield key, value
        while mine is not None:
            yield mine, self._value(mine)
            mine = next(own, None)

    def first(self, start: bytes, stop: bytes, /) -> Item | None:
        """The first item of a scan."""
        mine = self._keys.first(start, stop)
        below = first(self._base, start, stop if mine is None else mine)
        if below is not None and below[0] in self._written:
            below = next(
                (item for item in self._base.scan(below[0], mine or stop) if item[0] not in self._written), None
            )
        if below is not None or mine is None:
            return below
        return mine, self._value(mine)

    def _value(self, key: bytes) -> bytes:
        value = self._written[key]
        assert value is not None, f"{key!r} is among the own keys without a value"
        return value


IN_MEMORY = (MemoryState, Overlay)
