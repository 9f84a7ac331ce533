"""The stall watch: something is buffered and nothing has been raised for `stall_ms` (capacity.md 2, 10).

Progress is an operation that enters an empty buffer, and a flush that raises or refuses something. Told once each
`stall_ms`, with the reason why the oldest operation still waits: `paused`, `slots`, `head` (it needs more than the
capacity held) or `capacity`.
"""

from __future__ import annotations

from headrace_core.capacity.flush import Scan
from headrace_core.capacity.units import Units, exceeds, is_zero


class StallWatch:
    """Times are those of the batcher's clock."""

    def __init__(self, stall_ms: int) -> None:
        self.stall_ms = stall_ms
        self.reason = "capacity"
        self.due_ms = 0
        self._progress_ms = 0

    def note(self, now_ms: int) -> None:
        """There was progress."""
        self._progress_ms = now_ms
        self.due_ms = now_ms + self.stall_ms

    def learn(self, found: Scan, capacity: Units) -> None:
        """Why the oldest operation still waits after this flush; `capacity`: C of capacity.md 5."""
        if found.without_slot:
            self.reason = "slots"
        elif found.blocked is not None:
            too_big = exceeds(found.blocked.cost, capacity) and not is_zero(capacity)
            self.reason = "head" if too_big else "capacity"

    def look(self, now_ms: int) -> int | None:
        """Milliseconds without progress, if it is time to say so."""
        if now_ms < self.due_ms:
            return None
        self.due_ms = now_ms + self.stall_ms
        return now_ms - self._progress_ms
