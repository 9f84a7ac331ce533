"""The front of an index whose keys begin with a time: read ahead, so that taking what is due is no scan each.

`_page` holds the lowest items of the index that are left in the state; if it is not `_whole`, those above its last item
are still unread. Pages double, so that a chunk of one record reads one item. `_new` holds what was put in since it was
settled: what is taken again before that never gets into the state.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import islice

from headrace_core.batching import keys
from headrace_core.state import Item, State

BEFORE_ALL, NEVER = -keys.SHIFT, keys.SHIFT - 1
LARGEST_PAGE = 256


class Ahead:
    """`next_ms`: the lowest time in the index, NEVER if it is empty."""

    __slots__ = ("_family", "_new", "_page", "_size", "_state", "_whole", "next_ms")

    def __init__(self, state: State, family: bytes) -> None:
        self._state = state
        self._family = family
        self._page: list[Item] = []
        self._new: list[Item] = []
        self._size = 1
        self._whole = False
        self.next_ms = BEFORE_ALL
        self._read(family)

    def put(self, key: bytes, value: bytes) -> None:
        """Put an item into the index; its time is not below what was taken."""
        insort(self._new, (key, value))
        if self._new[0][0] is key:
            self._look()

    def take(self, stop_ms: int) -> list[Item]:
        """Take all items with times below `stop_ms` out of the index, in order."""
        stop, taken = (self._family + keys.rising(stop_ms), b""), list[Item]()
        while self._page and self._page[0] < stop:
            count = bisect_left(self._page, stop)
            taken += self._page[:count]
            del self._page[:count]
            if not self._page and not self._whole:
                self._read(taken[-1][0] + b"\0")
        for key, _ in taken:
            self._state.delete(key)
        if self._new and self._new[0] < stop:
            count = bisect_left(self._new, stop)
            taken = sorted(taken + self._new[:count])
            del self._new[:count]
        self._look()
        return taken

    def settle(self) -> None:
        """Write what is new into the state."""
        for item in self._new:
            self._state.put(*item)
            if self._whole or item < self._page[-1]:
                insort(self._page, item)
        self._new.clear()

    def _read(self, start: bytes) -> None:
        end = bytes([self._family[0] + 1])
        self._page = list(islice(self._state.scan(start, end), self._size))
        self._whole = len(self._page) < self._size
        self._size = min(2 * self._size, LARGEST_PAGE)
        self._look()

    def _look(self) -> None:
        fronts = [items[0][0] for items in (self._page, self._new) if items]
        self.next_ms = keys.number_of(min(fronts)[1:9]) if fronts else NEVER
