"""Which Kafka offsets may be committed when answers come out of order: pure (bridge.md 4).

Per partition, records are `sent` in order of offset and become `done` in any order. The committable position is the one
after the last record before which nothing is open.
"""

from __future__ import annotations

from collections import deque


class Commits:
    """Open records by partition."""

    def __init__(self) -> None:
        self._open: dict[int, deque[int]] = {}
        self._done: dict[int, set[int]] = {}
        self._ready: dict[int, int] = {}

    def sent(self, partition: int, offset: int) -> None:
        """A record is on its way; offsets of a partition rise."""
        self._open.setdefault(partition, deque()).append(offset)

    def done(self, partition: int, offset: int) -> None:
        """A record is settled; unknown ones are ignored."""
        waiting = self._open.get(partition)
        if not waiting or offset < waiting[0]:
            return
        done = self._done.setdefault(partition, set())
        done.add(offset)
        while waiting and waiting[0] in done:
            first = waiting.popleft()
            done.discard(first)
            self._ready[partition] = first + 1

    def take(self) -> dict[int, int]:
        """Positions that have become committable since the last call, by partition."""
        ready, self._ready = self._ready, {}
        return ready

    def forget(self, partition: int) -> None:
        """The partition is no longer ours."""
        for table in (self._open, self._done, self._ready):
            table.pop(partition, None)
