"""Learned cost: the mean of what the datastore charged, for each kind of operation (capacity.md 15).

Given to an `Operation` in place of a number, it is asked at each enqueue, and the answer is the cost of that copy; what
`Batch.settle` reports changes only the estimates after it. All in integers: the estimate is the mean of the last
charges, rounded up, so that costs are rarely below what is charged (14e). Each dimension has a mean of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from headrace_core.capacity.units import Amount, amount, units

MEMORY = 1000
"""Weight of the past, in charges: beyond it the oldest fade."""


class LearnedCost:
    """`base(payload)` is the cost in units until something was learned; `kind(payload)` names the kind."""

    def __init__(self, base: Callable[[Any], Amount], kind: Callable[[Any], Hashable]) -> None:
        self._base = base
        self._kind = kind
        self._learned: dict[Hashable, tuple[dict[str, int], int]] = {}

    def __call__(self, payload: Any) -> Amount:
        """The estimate of now, in units. A dimension that was never charged costs nothing."""
        learned = self._learned.get(self._kind(payload))
        if learned is None:
            return self._base(payload)
        totals, count = learned
        return amount({name: -(-total // count) for name, total in totals.items()})

    def learn(self, payload: Any, charge: Amount) -> None:
        """The datastore charged `charge` units for `payload`. Raises CapacityConfig for what is not an amount."""
        kind, charged = self._kind(payload), units(charge, "charge")
        totals, count = self._learned.get(kind, ({}, 0))
        if count >= MEMORY:
            totals, count = {name: total - total // count for name, total in totals.items()}, count - 1
        names = totals.keys() | charged.keys()
        self._learned[kind] = {name: totals.get(name, 0) + charged.get(name, 0) for name in names}, count + 1
