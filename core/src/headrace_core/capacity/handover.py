"""Handing a partition over with its ledger, without waiting (capacity.md 13, "Quarantine", `handover="inherit"`).

The old owner stops using the partitions, and names with them the newest entries of its ledger worth what it spent
above the capacity that remains. The store keeps them with the freed partitions and passes them on; the new owner starts
with them in its ledger. So at every moment each dispatch of the last second is in a ledger whose owner holds capacity
for it, or lies with a free partition that is worth as much. A crash says nothing and pays the quarantine.

The old owner keeps the entries too, and the store keeps them while they are young, as a message may be lost: a cost
that is counted twice is safe. For the same reason ages are only ever rounded down, a millisecond at each station.

    entry: old ledger --released--> with the free partition --granted--> new ledger
                                              ^----- reply lost, or late -----'
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace_core.capacity.lease_state import Carried, Partition
from headrace_core.capacity.protocol import WINDOW_MS, Claim, LeaseRequest, Spent, as_capacity, by_dimension
from headrace_core.capacity.units import Units, add, amount, is_zero, units

NS_PER_MS = 1_000_000
GRAIN_MS = 10
"""Ages are told in steps of this, so that a message has at most a hundred entries for each partition."""


def hand_over(
    newest: Iterable[tuple[int, Units]], freed: Sequence[tuple[int, Units]], now_ms: int
) -> tuple[Spent, ...]:
    """What to name with the freed (partition, worth): each takes up to its worth of `newest` (entered ns, cost), the
    last one the rest."""
    told: dict[tuple[int, int], dict[str, int]] = {}
    rooms = [(partition, dict(worth)) for partition, worth in freed]
    for at_ns, cost in newest:
        age_ms = max(0, now_ms - at_ns // NS_PER_MS - 1) // GRAIN_MS * GRAIN_MS
        left = dict(cost)
        while rooms and not is_zero(left):
            partition, room = rooms[0]
            last = len(rooms) == 1
            part = {name: value if last else min(value, room.get(name, 0)) for name, value in left.items()}
            add(told.setdefault((partition, age_ms), {}), part)
            add(room, part, -1)
            add(left, part, -1)
            if not is_zero(left):
                rooms.pop(0)
    return tuple(Spent(partition, age_ms, amount(cost)) for (partition, age_ms), cost in told.items() if cost)


def take_over(inherited: Iterable[Spent], now_ms: int) -> list[tuple[int, dict[str, int]]]:
    """The entries for the new owner's ledger: (entered ns on its own clock, cost)."""
    return [((now_ms + 1 - each.age_ms) * NS_PER_MS, units(each.cost, "cost")) for each in inherited]


def carried_with(request: LeaseRequest, claim: Claim, lease: Partition, now_ms: int) -> tuple[Carried, ...]:
    """What the store keeps with a partition that `request` gives back: what it already carried may not have arrived."""
    told = [
        Carried(now_ms + 1 - each.age_ms, as_capacity(by_dimension(each.cost)), request.owner)
        for each in request.spent
        if each.partition == claim.partition
    ]
    return (*young(lease.carried, now_ms), *told)


def young(carried: Iterable[Carried], now_ms: int) -> tuple[Carried, ...]:
    """What may still be inside a window."""
    return tuple(each for each in carried if now_ms - each.at_ms < WINDOW_MS)


def passed_on(lease: Partition, partition: int, owner: str, now_ms: int) -> list[Spent]:
    """What a new owner of the partition must take into its ledger; it still has what it spent itself."""
    return [
        Spent(partition, max(0, now_ms - each.at_ms), each.cost)
        for each in young(lease.carried, now_ms)
        if each.owner != owner
    ]
