"""How late messages are granted, and how many deliveries one takes (timeline.md 19): counters of the state, by bucket.

A grant is as late as the log's clock is past the message's timestamp (the end of an earlier lease, too), or past its
creation if that is later. A message does not know when it was moved to a time that was over, or given back: then
the grant is late by the time since that timestamp. Deliveries are noted when a message ends: completed or parked.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from typing import Final

from headrace_core.stage import Histogram
from headrace_core.state import State
from headrace_core.timeline.store import Change

PREFIX: Final = b"nh."
"""Of their keys; no other counter begins with `h.`."""
EDGES: Final[dict[str, tuple[int, ...]]] = {
    "lateness_ms": (10, 50, 100, 250, 500, 1_000, 5_000, 30_000, 60_000, 600_000, 3_600_000),
    "deliveries": (1, 2, 3, 5, 10, 20, 50),
}
"""Upper edges of the buckets; one more bucket has what is above them all."""


def observed(changes: Iterable[Change], now_ms: int) -> Counter[str]:
    """What these changes add to which counter, by its name."""
    found: Counter[str] = Counter()
    for _, before, after in changes:
        if before is None or after is None:
            continue
        if after.deliveries > before.deliveries:
            _observe(found, "lateness_ms", now_ms - max(before.timestamp, before.created_at))
        if (after.completed and not before.completed) or (after.parked and not before.parked):
            _observe(found, "deliveries", after.deliveries)
    return found


def _observe(found: Counter[str], name: str, value: int) -> None:
    edges = EDGES[name]
    place = bisect_left(edges, value)
    found[f"h.{name}.{edges[place] if place < len(edges) else 'more'}"] += 1
    found[f"h.{name}.sum"] += max(0, value)


def histograms(state: State) -> dict[str, Histogram]:
    """All of them, by name, as the state has them."""
    counts = {key[1:].decode(): int.from_bytes(raw) for key, raw in state.scan(PREFIX, PREFIX + b"\xff")}
    return {
        name: Histogram(
            edges,
            tuple(counts.get(f"h.{name}.{edge}", 0) for edge in (*edges, "more")),
            counts.get(f"h.{name}.sum", 0),
        )
        for name, edges in EDGES.items()
    }
