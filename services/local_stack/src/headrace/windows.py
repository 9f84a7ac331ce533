"""The figures of a run that are not sums: cost in a sliding window, used share, and latency percentiles. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypeVar

SECOND_NS = 1_000_000_000
BUSY_S = 10
Number = TypeVar("Number", int, float)


def highest(dispatches: Iterable[tuple[int, int]], width_ns: int = SECOND_NS) -> int:
    """The highest sum of cost in any half-open window `[t, t + width_ns)` (capacity.md 5).

    `dispatches` are (moment in ns of one monotonic clock, cost). A window that holds the most begins at a dispatch, so
    only these are looked at.
    """
    ordered = sorted(dispatches)
    most = inside = first = 0
    for at_ns, cost in ordered:
        inside += cost
        while ordered[first][0] <= at_ns - width_ns:
            inside -= ordered[first][1]
            first += 1
        most = max(most, inside)
    return most


def used_share(dispatches: Iterable[tuple[int, int]], capacity: int, seconds: int = BUSY_S) -> float:
    """Which part of the capacity (units per second) was used in the busiest stretch of so many seconds."""
    return highest(dispatches, seconds * SECOND_NS) / (capacity * seconds)


def percentile(values: Sequence[Number], part: float) -> Number | None:
    """The nearest-rank percentile: the smallest value that at least `part` (0 to 1) of all do not exceed; None of
    nothing."""
    if not values:
        return None
    return sorted(values)[max(1, math.ceil(part * len(values))) - 1]
