"""The books: what is outstanding (capacity.md 1, 6, 9).

*Target* is the cost that is buffered, or raised and not yet done; *inflight* the concurrency slots taken. A cost comes
when its operation enters the buffer and goes when its batch is done, its operation is refused at the head or handed
back; putting a batch back moves nothing. The audit sets both to 0 when nothing is left that could account for them.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace_core.capacity.units import Units, add


class Books:
    """`dimensions`: those of the resource; without one, costs appear as they come."""

    __slots__ = ("inflight", "target")

    def __init__(self, dimensions: Iterable[str] = ()) -> None:
        self.target: dict[str, int] = dict.fromkeys(dimensions, 0)
        self.inflight = 0

    def come(self, cost: Units) -> None:
        add(self.target, cost)

    def go(self, cost: Units) -> None:
        add(self.target, cost, -1)

    def repair(self) -> None:
        """What the audit does when it fails (capacity.md 9)."""
        self.target = dict.fromkeys(self.target, 0)
        self.inflight = 0
