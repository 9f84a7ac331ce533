"""Learned cost: the mean of what the datastore charged, for each kind of operation (capacity.md 15).

All in integers: the estimate is the mean of the last charges, rounded up, so that costs are rarely below what is
charged. The estimate in force is fixed when an operation is made; a later charge changes only those after it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

MEMORY = 1000
"""Weight of the past, in charges: beyond it the oldest fade."""


class LearnedCost:
    """`base(payload)` is the cost in units until something was learned; `kind(payload)` names the kind."""

    def __init__(self, base: Callable[[Any], int], kind: Callable[[Any], Hashable]) -> None:
        self._base = base
        self._kind = kind
        self._learned: dict[Hashable, tuple[int, int]] = {}

    def __call__(self, payload: Any) -> int:
        """The estimate of now, in units."""
        total, count = self._learned.get(self._kind(payload), (0, 0))
        return -(-total // count) if count else self._base(payload)

    def learn(self, payload: Any, charge: int) -> None:
        """The datastore charged `charge` units for `payload`."""
        kind = self._kind(payload)
        total, count = self._learned.get(kind, (0, 0))
        if count >= MEMORY:
            total, count = total - total // count, count - 1
        self._learned[kind] = (total + charge, count + 1)
