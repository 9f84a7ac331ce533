"""What a partition's stage reads of its database, without reading in vain.

Three habits of the stages are dear in RocksDB, where a deleted key stays in the way until a compaction takes it out:
- Most messages of a chunk ask for the same few keys (their entity, the clock). Nothing is written before step 5 of
  `streams.md` 2, so a value is read once a chunk.
- A time index is taken from at its front, so a scan of a family begins among deleted keys; 11,000 of them took 2.6 ms a
  chunk. `_floors`: a key of each family below which nothing is left.
- Whether a source has an open batch is a scan of its prefix, which walks over all the closed ones to find nothing;
  after 40 of them it took 8 us. `_living`: all keys that are left under a prefix, once a scan has found none.

Whoever commits to the database tells `committed`, and nobody else writes to it. What is kept is bounded, and may be
forgotten at any time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from headrace_core.state import Item, State

MOST_PREFIXES = 10_000
MOST_LENGTHS = 16


class Living(NamedTuple):
    """All keys that are there in `[prefix, stop)`, in order; all keys of that range begin with the prefix."""

    stop: bytes
    keys: list[bytes]


class Reads:
    """A state over `base`. `begin` a chunk, read, tell `committed` what the chunk has written."""

    __slots__ = ("_base", "_floors", "_known", "_lengths", "_living")

    def __init__(self, base: State) -> None:
        self._base = base
        self._known: dict[bytes, bytes | None] = {}
        self._floors: dict[bytes, bytes] = {}
        self._living: dict[bytes, Living] = {}
        self._lengths: dict[bytes, set[int]] = {}
        """Of the prefixes of `_living`, by family."""

    def begin(self) -> Reads:
        """A chunk begins: what the last one read is forgotten."""
        self._known.clear()
        return self

    def get(self, key: bytes, /) -> bytes | None:
        known = self._known
        if key in known:
            return known[key]
        value = known[key] = self._base.get(key)
        return value

    def scan(self, start: bytes, stop: bytes, /) -> Iterator[Item]:
        """As the base's, lazily."""
        if len(start) == 1:
            return self._family(start, stop)
        for length in self._lengths.get(start[:1], ()):
            living = self._living.get(start[:length])
            if living is not None and stop <= living.stop:
                keys = living.keys
                return self._items(keys[bisect_left(keys, start) : bisect_left(keys, stop)])
        return self._unknown(start, stop) if stop.startswith(start) else self._base.scan(start, stop)

    def put(self, key: bytes, value: bytes, /) -> None:
        self._base.put(key, value)
        self.committed({key: value})

    def delete(self, key: bytes, /) -> None:
        self._base.delete(key)
        self.committed({key: None})

    def committed(self, mutations: Mapping[bytes, bytes | None]) -> None:
        """These are in the base now (None = deleted)."""
        self._known.clear()
        floors, lengths = self._floors, self._lengths
        for key, value in mutations.items():
            family = key[:1]
            if value is not None and family in floors and key < floors[family]:
                floors[family] = key
            if family in lengths:
                self._note(key, lengths[family], there=value is not None)

    def _note(self, key: bytes, lengths: set[int], *, there: bool) -> None:
        for length in lengths:
            living = self._living.get(key[:length])
            if living is None or key >= living.stop:
                continue
            at = bisect_left(living.keys, key)
            known = living.keys[at : at + 1] == [key]
            if there and not known:
                living.keys.insert(at, key)
            elif known and not there:
                del living.keys[at]

    def _family(self, start: bytes, stop: bytes) -> Iterator[Item]:
        """A scan from the beginning of a family: nothing is left below what it finds first."""
        floor = self._floors.get(start, start)
        items = self._base.scan(floor, stop)
        item = next(items, None)
        self._floors[start] = max(floor, stop) if item is None else item[0]
        while item is not None:
            yield item
            item = next(items, None)

    def _items(self, keys: list[bytes]) -> Iterator[Item]:
        for key in keys:
            value = self.get(key)
            assert value is not None, f"{key!r} is not there"
            yield key, value

    def _unknown(self, prefix: bytes, stop: bytes) -> Iterator[Item]:
        """A scan of a prefix; if it finds nothing, what comes under it is noted from now on."""
        items = self._base.scan(prefix, stop)
        item = next(items, None)
        if item is None:
            self._remember(prefix, stop)
        while item is not None:
            yield item
            item = next(items, None)

    def _remember(self, prefix: bytes, stop: bytes) -> None:
        if len(self._living) >= MOST_PREFIXES:
            self._living.clear()
            self._lengths.clear()
        lengths = self._lengths.setdefault(prefix[:1], set())
        if len(prefix) in lengths or len(lengths) < MOST_LENGTHS:
            lengths.add(len(prefix))
            self._living[prefix] = Living(stop, [])
