"""Costs and capacities as integers for each dimension (capacity.md 15).

A plain number lives in the one dimension `""`; several dimensions are a mapping. Inside the engine everything is a
mapping, so that each rule is written once; outside the form that the user chose comes back.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace_core.capacity.errors import CapacityConfig

Amount = int | Mapping[str, int]
Units = Mapping[str, int]
PLAIN = ""


def units(amount: Amount, field: str) -> dict[str, int]:
    """`amount` for each dimension. Raises CapacityConfig unless all numbers are integers of 0 or more."""
    if type(amount) is int and amount >= 0:
        return {PLAIN: amount}
    mapping = dict(amount) if isinstance(amount, Mapping) else {PLAIN: amount}
    for value in mapping.values():
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise CapacityConfig(field, f"must be an integer of 0 or more, not {value!r}")
    return mapping


def amount(mapping: Units) -> int | dict[str, int]:
    """The form the user sees: a number if there is only the plain dimension."""
    if mapping.keys() <= {PLAIN}:
        return mapping.get(PLAIN, 0)
    return {name: value for name, value in mapping.items() if name != PLAIN or value}


def add(total: dict[str, int], cost: Units, sign: int = 1) -> None:
    """Add `cost` to `total` in place (`sign` -1: subtract)."""
    for name, value in cost.items():
        if value:
            total[name] = total.get(name, 0) + sign * value


def exceeds(cost: Units, most: Units) -> bool:
    """True if any dimension of `cost` is above that of `most`."""
    for name, value in cost.items():  # noqa: SIM110 - runs for each operation; a generator takes three times as long
        if value > most.get(name, 0):
            return True
    return False


def is_zero(mapping: Units) -> bool:
    return not any(mapping.values())
