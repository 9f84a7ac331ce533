"""Calibration: which cost must an operation have, so that the datastore keeps a target latency? (capacity.md 15)

The capacity is given in units per second, so a cost c lets `capacity / c` operations out per second: the higher the
cost, the slower, the shorter the latency. The search looks for the lowest integer cost at which the latency holds.

    widen   cost, 2 cost, 4 cost ... until one holds          -> narrow
            none up to the capacity (one a second)            -> failed
    narrow  halve between the last that failed and the first that held, until they are neighbours -> found

It measures nothing: `headrace capacity calibrate` runs a load at `cost` and reports a latency to `observe`.
"""

from __future__ import annotations

from headrace_core.capacity.errors import CapacityConfig, ImproperOrder


class Calibration:
    """`capacity` units per second, `target_ms` the latency to keep (any percentile, as the caller measures it),
    `first` the cost to begin with. Raises CapacityConfig for a capacity below 1, a target of 0 or less, and a first
    cost that is not between 1 and the capacity."""

    def __init__(self, capacity: int, target_ms: float, first: int = 1) -> None:
        if capacity < 1:
            raise CapacityConfig("capacity", "must be 1 or more")
        if target_ms <= 0:
            raise CapacityConfig("target_ms", "must be above 0")
        if not 1 <= first <= capacity:
            raise CapacityConfig("first", f"must be between 1 and the capacity of {capacity}")
        self._capacity = capacity
        self._target_ms = target_ms
        self._too_low = 0
        self._holds: int | None = None
        self.cost: int | None = first
        """What to try next; None: the search is over."""

    @property
    def found(self) -> int | None:
        """The lowest cost that holds; None: not yet, or no cost does."""
        return self._holds if self.cost is None else None

    @property
    def rate(self) -> float:
        """Operations per second at the cost to try. Raises ImproperOrder when the search is over."""
        if self.cost is None:
            raise ImproperOrder("the search is over")
        return self._capacity / self.cost

    def observe(self, latency_ms: float) -> None:
        """What was measured at `cost`. Raises ImproperOrder when the search is over."""
        if self.cost is None:
            raise ImproperOrder("the search is over")
        if latency_ms <= self._target_ms:
            self._holds = self.cost
        else:
            self._too_low = self.cost
        self.cost = self._next()

    def _next(self) -> int | None:
        if self._holds is None:
            return min(2 * self._too_low, self._capacity) if self._too_low < self._capacity else None
        if self._holds - self._too_low <= 1:
            return None
        return (self._too_low + self._holds) // 2
