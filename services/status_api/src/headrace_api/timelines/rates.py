"""How many requests a client may send (`client_rate`, timeline.md 16): a bucket of as many as a second's for each.

Each instance counts for itself; a client of several may send as much at each.
"""

from __future__ import annotations

from collections import OrderedDict

MOST_CLIENTS = 10_000


class Rates:
    """Times are monotonic seconds. Who was heard of longest ago is forgotten first; its bucket was full again."""

    def __init__(self) -> None:
        self._left: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()

    def may(self, timeline: str, client: str, rate: int, now: float) -> bool:
        """Whether one more request may pass."""
        at, left = self._left.pop((timeline, client), (now, float(rate)))
        left = min(float(rate), left + (now - at) * rate)
        self._left[timeline, client] = now, left - 1 if left >= 1 else left
        if len(self._left) > MOST_CLIENTS:
            self._left.popitem(last=False)
        return left >= 1
