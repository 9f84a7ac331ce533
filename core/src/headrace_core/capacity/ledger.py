"""The ledger: what was spent in the last second, in nanoseconds of a monotonic clock (capacity.md 5, 13, 14a).

An entry is *pending*, of age zero, from the moment its batch is raised until its callback is entered; then it gets that
time. So a slow thread pool cannot make entries old too early. Batches are numbered in the order raised.

With `handover="inherit"` the newest entries go to the new owner of a partition with their ages (`newest`) and are put
into its ledger (`inherit`). They stay in the old one too: counting a cost twice is safe, and a message that is lost
leaves no gap.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from headrace_core.capacity.units import Units, add, is_zero

WINDOW_NS = 1_000_000_000


class Ledger:
    """Sums are kept, so that looking costs no more than what changed."""

    def __init__(self) -> None:
        self._entered: deque[tuple[int, Units]] = deque()
        self._sum: dict[str, int] = {}
        self._pending: dict[int, Units] = {}
        self._pending_sum: dict[str, int] = {}
        self._raised: deque[int] = deque()

    def put_pending(self, seq: int, cost: Units) -> None:
        self._pending[seq] = cost
        self._raised.append(seq)
        add(self._pending_sum, cost)

    def drop_pending(self, seq: int) -> Units:
        """The batch is pending no more; its cost."""
        cost = self._pending.pop(seq, {})
        add(self._pending_sum, cost, -1)
        while self._raised and self._raised[0] not in self._pending:
            self._raised.popleft()
        return cost

    def pending(self, seq: int) -> Units:
        return self._pending.get(seq, {})

    def enter(self, cost: Units, now_ns: int) -> None:
        """Times never run backwards here: an entry that is too young is on the safe side."""
        if is_zero(cost):
            return
        at_ns = max(now_ns, self._entered[-1][0]) if self._entered else now_ns
        self._entered.append((at_ns, cost))
        add(self._sum, cost)

    def used(self, now_ns: int) -> dict[str, int]:
        """Spent in the window that ends at `now_ns`, with all that is pending."""
        self._forget(now_ns)
        total = dict(self._sum)
        add(total, self._pending_sum)
        return total

    def used_before(self, seq: int, now_ns: int) -> dict[str, int]:
        """The same, but of what is pending only batches raised before `seq`."""
        self._forget(now_ns)
        total = dict(self._sum)
        for earlier in self._raised:
            if earlier >= seq:
                break
            add(total, self._pending.get(earlier, {}))
        return total

    def newest(self, now_ns: int, kept: Units) -> list[tuple[int, dict[str, int]]]:
        """(entered ns, cost) of the newest entries, worth what is spent above `kept` in each dimension."""
        self._forget(now_ns)
        above = {name: spent - kept.get(name, 0) for name, spent in self._sum.items()}
        found: list[tuple[int, dict[str, int]]] = []
        for at_ns, cost in reversed(self._entered):
            part = {name: min(value, above.get(name, 0)) for name, value in cost.items() if above.get(name, 0) > 0}
            if part:
                found.append((at_ns, part))
                add(above, part, -1)
            if all(value <= 0 for value in above.values()):
                break
        return found

    def inherit(self, entries: Iterable[tuple[int, Units]]) -> None:
        """Take over (entered ns, cost) from another owner's ledger."""
        merged = sorted([*self._entered, *entries], key=lambda entry: entry[0])
        self._entered, self._sum = deque(merged), {}
        for _, cost in merged:
            add(self._sum, cost)

    def _forget(self, now_ns: int) -> None:
        while self._entered and now_ns - self._entered[0][0] >= WINDOW_NS:
            add(self._sum, self._entered.popleft()[1], -1)
