"""The open windows of each source: which one covers a time, and which is the next above (batching.md 6.6 to 6.8).

Windows of a source are disjoint, so the one that covers a time is the highest `from` at or below it, or none. One that
a conflict has cut to nothing covers no time, but is still a neighbour.

A source with at most `FEW` open batches has all its windows in one item, found by its key: nothing is searched in the
store. With more of them they stand in two ordered families, each window an item in both, and the one item says how many
there are. Which of the two it is depends on their number alone, never on what was before; so a restore, which opens the
windows in any order, makes the same items.

What is read of a source is kept until it is settled, and so are changes of the one item.
"""

from __future__ import annotations

from bisect import insort

import msgspec

from headrace_core.batching import keys
from headrace_core.state import State, first

FEW = 8
Window = tuple[int, int, int]
"""`from`, number of the batch, `until`."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Window] | int).decode


class Windows:
    """The windows in a state, those of this chunk included."""

    __slots__ = ("_changed", "_known", "_state", "_stored")

    def __init__(self, state: State) -> None:
        self._state = state
        self._known: dict[str, list[Window] | int] = {}
        """By source: few windows in order, or how many there are."""
        self._changed: dict[str, None] = {}  # a set would not keep the order
        self._stored: set[str] = set()
        """Sources with an item in the state."""

    def covering(self, source: str, event_ms: int) -> int | None:
        """The number of the open batch whose window covers the time."""
        found = self._known.get(source)
        if found is None:
            found = self._read(source)
        if isinstance(found, int):
            return self._covering_of_many(source, event_ms)
        for from_ms, number, until_ms in reversed(found):
            if from_ms <= event_ms:
                return number if event_ms < until_ms else None
        return None

    def above(self, source: str, event_ms: int) -> int | None:
        """The lowest `from` above the time."""
        found = self._known.get(source)
        if found is None:
            found = self._read(source)
        if not isinstance(found, int):
            return next((window[0] for window in found if window[0] > event_ms), None)
        prefix = keys.rising_prefix(source)
        item = first(self._state, prefix + keys.rising(event_ms + 1), keys.after(prefix))
        return None if item is None else keys.number_of(item[0][len(prefix) : len(prefix) + 8])

    def open(self, source: str, window: Window) -> None:
        """A batch was opened."""
        found = self._known.get(source)
        if found is None:
            found = self._read(source)
        if isinstance(found, int):
            self._put(source, window)
            self._known[source] = found + 1
        else:
            insort(found, window)
            if len(found) > FEW:
                for each in found:
                    self._put(source, each)
                self._known[source] = len(found)
        self._changed[source] = None

    def cut(self, source: str, window: Window, until_ms: int) -> None:
        """The window ends where another begins, 6.7."""
        found, shorter = self._known[source], (window[0], window[1], until_ms)
        if isinstance(found, int):
            self._put(source, shorter)
        else:
            found[found.index(window)] = shorter
        self._changed[source] = None

    def close(self, source: str, window: Window) -> None:
        """The batch was put out."""
        found = self._known.get(source)
        if found is None:
            found = self._read(source)
        if isinstance(found, int):
            self._delete(source, window)
            self._known[source] = found - 1 if found - 1 > FEW else self._few_again(source)
        else:
            found.remove(window)
        self._changed[source] = None

    def settle(self) -> None:
        """Write what was kept back; again without effect until more is changed."""
        for source in self._changed:
            key, found = keys.windows_key(source), self._known[source]
            if found:
                self._state.put(key, _encode(found))
                self._stored.add(source)
            elif source in self._stored:
                self._state.delete(key)
                self._stored.discard(source)
        self._changed.clear()

    def _read(self, source: str) -> list[Window] | int:
        raw = self._state.get(keys.windows_key(source))
        if raw is None:
            found: list[Window] | int = []
        else:
            found = _decode(raw)
            self._stored.add(source)
        self._known[source] = found
        return found

    def _covering_of_many(self, source: str, event_ms: int) -> int | None:
        prefix = keys.falling_prefix(source)
        item = first(self._state, prefix + keys.falling(event_ms), keys.after(prefix))
        if item is None or event_ms >= keys.number_of(item[1]):
            return None
        return keys.number_of_falling(item[0])

    def _few_again(self, source: str) -> list[Window]:
        prefix = keys.falling_prefix(source)
        items = list(self._state.scan(prefix, keys.after(prefix)))
        found = [
            (keys.from_of_falling(key), keys.number_of_falling(key), keys.number_of(until)) for key, until in items
        ]
        for window in found:
            self._delete(source, window)
        return found[::-1]

    def _put(self, source: str, window: Window) -> None:
        from_ms, number, until_ms = window
        self._state.put(keys.falling_key(source, from_ms, number), keys.rising(until_ms))
        self._state.put(keys.rising_key(source, from_ms, number), b"")

    def _delete(self, source: str, window: Window) -> None:
        self._state.delete(keys.falling_key(source, *window[:2]))
        self._state.delete(keys.rising_key(source, *window[:2]))
