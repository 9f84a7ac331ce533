"""What a chunk reads of the database, read once.

Most messages of a chunk ask for the same few keys (their entity, the clock), and a chunk changes nothing in the
database before step 5 of `streams.md` 2. So a value stays what it is for as long as the chunk lasts, and to ask RocksDB
again, more than 1 us a time, is in vain. Lives for one chunk: what it holds is bounded by what the chunk asks for.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace_core.state import State


class Reads:
    """A state to which nobody else writes while this is in use; `get` remembers."""

    __slots__ = ("_base", "_known")

    def __init__(self, base: State) -> None:
        self._base = base
        self._known: dict[bytes, bytes | None] = {}

    def get(self, key: bytes, /) -> bytes | None:
        known = self._known
        if key in known:
            return known[key]
        value = known[key] = self._base.get(key)
        return value

    def scan(self, start: bytes, stop: bytes, /) -> Iterator[tuple[bytes, bytes]]:
        """The base's own; not remembered."""
        return self._base.scan(start, stop)

    def put(self, key: bytes, value: bytes, /) -> None:
        self._known[key] = value
        self._base.put(key, value)

    def delete(self, key: bytes, /) -> None:
        self._known[key] = None
        self._base.delete(key)
