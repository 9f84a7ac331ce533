"""Shares: how many partitions each owner should have (capacity.md 13, "Shares", "Oversize head").

Weighted max-min over whole partitions: one at a time goes to the owner with the lowest share / weight that still wants
more; ties go to one that holds more than it has been dealt, then to the first seen. So everyone gets one before anyone
gets two, and what a modest owner does not want goes to the others.

An owner whose `head` needs more than its share can never send it. The one that has waited longest gets its share raised
to the head, the others share the rest; one at a time, so two such owners cannot block each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace
from math import lcm
from typing import NamedTuple


class Wish(NamedTuple):
    """What one owner wants, in partitions. `head_since_ms`: since when its head needs more than its fair share."""

    owner: str
    want: int
    weight: int = 1
    held: int = 0
    head: int = 0
    head_since_ms: int | None = None


def shares(partitions: int, wishes: Sequence[Wish]) -> dict[str, int]:
    """Share by owner; `wishes` in order of first seen."""
    fair = fair_shares(partitions, wishes)
    raised = _raised(partitions, wishes, fair)
    if raised is None:
        return fair
    head = min(raised.head, partitions)
    rest = [wish for wish in wishes if wish.owner != raised.owner]
    return {**fair_shares(partitions - head, rest), raised.owner: head}


def fair_shares(partitions: int, wishes: Sequence[Wish]) -> dict[str, int]:
    """The deal without regard to heads. O(partitions x log owners)."""
    dealt = [0] * len(wishes)
    scale = lcm(*(wish.weight for wish in wishes))
    heap = [_rank(wish, 0, scale, at) for at, wish in enumerate(wishes) if wish.want > 0]
    heapify(heap)
    for _ in range(partitions):
        if not heap:
            break
        at = heap[0][2]
        dealt[at] += 1
        if dealt[at] < wishes[at].want:
            heapreplace(heap, _rank(wishes[at], dealt[at], scale, at))
        else:
            heappop(heap)
    return {wish.owner: share for wish, share in zip(wishes, dealt, strict=True)}


def _rank(wish: Wish, dealt: int, scale: int, at: int) -> tuple[int, bool, int]:
    return dealt * (scale // wish.weight), wish.held <= dealt, at


def _raised(partitions: int, wishes: Sequence[Wish], fair: dict[str, int]) -> Wish | None:
    """The owner whose oversize head has waited longest; of equals the first seen."""
    oversize = [wish for wish in wishes if min(wish.head, partitions) > fair[wish.owner]]
    return min(oversize, key=lambda wish: (wish.head_since_ms is None, wish.head_since_ms or 0), default=None)
