"""The one state port of the engines: an ordered map from bytes to bytes.

An engine is given a `State`, reads values, builds the next ones and assigns them; it never mutates a value in place.
Keys start with one family byte; integers in keys are big-endian, so that time indexes are ordered scans.

Implementations: `MemoryState` (tests, simulation, benches), `Overlay` (one chunk's writes over another state,
`streams.md` 2.2) and the RocksDB store of the stream processor.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from typing import Protocol


class State(Protocol):
    """Ordered bytes map. `scan` yields `start <= key < stop` in byte order, lazily: do not write while reading one."""

    def get(self, key: bytes, /) -> bytes | None: ...
    def put(self, key: bytes, value: bytes, /) -> None: ...
    def delete(self, key: bytes, /) -> None: ...
    def scan(self, start: bytes, stop: bytes, /) -> Iterator[tuple[bytes, bytes]]: ...


BLOCK_KEYS = 512


class SortedKeys:
    """Keys in byte order, in blocks of at most `2 * BLOCK_KEYS`, so that adding one does not move all the others."""

    __slots__ = ("_blocks", "_firsts")

    def __init__(self) -> None:
        self._blocks: list[list[bytes]] = []
        self._firsts: list[bytes] = []

    def add(self, key: bytes) -> None:
        """Add a key that is not there yet."""
        if not self._blocks:
            self._blocks, self._firsts = [[key]], [key]
            return
        at = max(0, bisect_left(self._firsts, key) - 1)
        block = self._blocks[at]
        insort(block, key)
        self._firsts[at] = block[0]
        if len(block) > 2 * BLOCK_KEYS:
            self._blocks[at : at + 1] = [block[:BLOCK_KEYS], block[BLOCK_KEYS:]]
            self._firsts[at : at + 1] = [block[0], block[BLOCK_KEYS]]

    def remove(self, key: bytes) -> None:
        """Remove a key that is there."""
        at = bisect_left(self._firsts, key)
        if at == len(self._firsts) or self._firsts[at] != key:
            at -= 1
        block = self._blocks[at]
        del block[bisect_left(block, key)]
        if block:
            self._firsts[at] = block[0]
        else:
            del self._blocks[at], self._firsts[at]

    def between(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        """Keys with `start <= key < stop`, lazily; the keys must not change meanwhile."""
        for at in range(max(0, bisect_left(self._firsts, start) - 1), len(self._blocks)):
            block = self._blocks[at]
            if block[0] >= stop:
                return
            first = bisect_left(block, start) if block[0] < start else 0
            last = len(block) if block[-1] < stop else bisect_left(block, stop)
            for i in range(first, last):
                yield block[i]


class MemoryState:
    """A state in memory. Finding the place of a key costs O(log n), adding one O(log n) and a move of one block."""

    __slots__ = ("_keys", "_values")

    def __init__(self, items: Mapping[bytes, bytes] | None = None) -> None:
        self._values: dict[bytes, bytes] = {}
        self._keys = SortedKeys()
        for key in sorted(items or {}):
            self.put(key, (items or {})[key])

    def get(self, key: bytes, /) -> bytes | None:
        return self._values.get(key)

    def put(self, key: bytes, value: bytes, /) -> None:
        if key not in self._values:
            self._keys.add(key)
        self._values[key] = value

    def delete(self, key: bytes, /) -> None:
        if self._values.pop(key, None) is not None:
            self._keys.remove(key)

    def scan(self, start: bytes, stop: bytes, /) -> Iterator[tuple[bytes, bytes]]:
        for key in self._keys.between(start, stop):
            yield key, self._values[key]

    def snapshot(self) -> dict[bytes, bytes]:
        """All items in byte order."""
        return {key: self._values[key] for key in self._keys.between(b"", b"\xff" * 64)}


class Overlay:
    """The writes of one chunk over `base`, which stays as it is until the chunk is durable.

    `mutations` maps each written key to its last value, None = deleted, in order of first writing.
    """

    __slots__ = ("_base", "_keys", "mutations")

    def __init__(self, base: State) -> None:
        self._base = base
        self._keys = SortedKeys()
        self.mutations: dict[bytes, bytes | None] = {}

    def get(self, key: bytes, /) -> bytes | None:
        if key in self.mutations:
            return self.mutations[key]
        return self._base.get(key)

    def put(self, key: bytes, value: bytes, /) -> None:
        self._write(key, value)

    def delete(self, key: bytes, /) -> None:
        self._write(key, None)

    def _write(self, key: bytes, value: bytes | None) -> None:
        if key not in self.mutations:
            self._keys.add(key)
        self.mutations[key] = value

    def scan(self, start: bytes, stop: bytes, /) -> Iterator[tuple[bytes, bytes]]:
        """Merge of base and own writes; the own writes are those of the moment of the call."""
        own = list(self._keys.between(start, stop))
        at = 0
        for key, value in self._base.scan(start, stop):
            while at < len(own) and own[at] < key:
                yield from self._own(own[at])
                at += 1
            if at < len(own) and own[at] == key:
                at += 1
            if key in self.mutations:
                yield from self._own(key)
            else:
                yield key, value
        for key in own[at:]:
            yield from self._own(key)

    def _own(self, key: bytes) -> Iterator[tuple[bytes, bytes]]:
        value = self.mutations[key]
        if value is not None:
            yield key, value
