"""A regular tick. One that was missed several times runs once, then the old rhythm goes on (capacity.md 4)."""

from __future__ import annotations


class Tick:
    """Due every `interval_ms` after `start_ms`."""

    def __init__(self, interval_ms: int, start_ms: int) -> None:
        self._interval_ms = interval_ms
        self.next_ms = start_ms + interval_ms

    def due(self, now_ms: int) -> bool:
        """True once when the time has come; the next tick is then after `now_ms`."""
        if now_ms < self.next_ms:
            return False
        self.next_ms += self._interval_ms * (1 + (now_ms - self.next_ms) // self._interval_ms)
        return True
