"""The front of an index whose keys begin with a time: read ahead, so that taking what is due is no scan each.

`_page` holds the lowest items of the index that are left in the state; if it is not `_whole`, those above its last item
are still unread. Pages double, so that a chunk of one record reads one item. `_new`, from `_at` on, holds what was put
in since it was settled. What is taken again before that is not written if the index is derived. Of a primary one it is
written as deleted: a late writer that has cut the log in between has put it into the changelog (streams.md 5).
"""

from __future__ import annotations

from bisect import insort
from itertools import islice

from headrace_core.batching import keys
from headrace_core.state import State

BEFORE_ALL, NEVER = -keys.SHIFT, keys.SHIFT - 1
LARGEST_PAGE = 256
Timed = tuple[int, int, bytes]
"""Time in ms, number of the batch (no two items of an index share both), value."""


class Ahead:
    """`next_ms`: the lowest time in the index, NEVER if it is empty."""

    __slots__ = ("_at", "_family", "_new", "_page", "_primary", "_size", "_state", "_whole", "next_ms")

    def __init__(self, state: State, family: bytes) -> None:
        self._state = state
        self._family = family
        self._primary = family in keys.PRIMARY
        self._page: list[Timed] = []
        self._new: list[Timed] = []
        self._at = 0
        self._size = 1
        self._whole = False
        self._read(family)
        self.next_ms = self._page[0][0] if self._page else NEVER

    def put(self, time_ms: int, number: int, value: bytes) -> None:
        """Put an item into the index; its time is not below what was taken."""
        item = time_ms, number, value
        if not self._new or item > self._new[-1]:
            self._new.append(item)
        else:
            insort(self._new, item, lo=self._at)
        if time_ms < self.next_ms:
            self.next_ms = time_ms

    def take(self, stop_ms: int) -> list[Timed]:
        """Take all items with times below `stop_ms` out of the index, in order."""
        taken = list[Timed]()
        while self.next_ms < stop_ms:
            taken.append(self._lowest())
        return taken

    def settle(self) -> None:
        """Write what is new into the state."""
        for item in self._new[self._at :]:
            self._state.put(keys.timed_key(self._family, item[0], item[1]), item[2])
            if self._whole or item < self._page[-1]:
                insort(self._page, item)
        self._new.clear()
        self._at = 0

    def _lowest(self) -> Timed:
        page, new = self._page, self._new
        if self._at < len(new) and not (page and page[0] < new[self._at]):
            item = new[self._at]
            self._at += 1
            if self._primary:
                self._state.delete(keys.timed_key(self._family, item[0], item[1]))
        else:
            item = page.pop(0)
            key = keys.timed_key(self._family, item[0], item[1])
            self._state.delete(key)
            if not page and not self._whole:
                self._read(key + b"\0")
                page = self._page
        self.next_ms = page[0][0] if page else NEVER
        if self._at < len(new) and new[self._at][0] < self.next_ms:
            self.next_ms = new[self._at][0]
        return item

    def _read(self, start: bytes) -> None:
        end = bytes([self._family[0] + 1])
        items = islice(self._state.scan(start, end), self._size)
        self._page = [(*keys.time_and_number(key), value) for key, value in items]
        self._whole = len(self._page) < self._size
        self._size = min(2 * self._size, LARGEST_PAGE)
