"""Pacing: may the operation at the head go now? (capacity.md 5, 14a)

Strict. `credit` in thousandths of a unit grows by capacity x time, holds at most `burst_ms` worth of it and may go
below zero; later flushes repay the debt. The *ledger* knows what was spent in the last second. An entry is *pending*,
of age zero, from the moment its batch is raised until its callback is entered; then it gets that time. A head goes
while credit is above zero and the ledger with it stays within the capacity. All arithmetic is exact, in integers.

Slice. The classic rule: a flush takes until the sum exceeds a slice of the capacity. It holds no limit in a window.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from headrace_core.capacity.units import PLAIN, Units, add, is_zero

WINDOW_NS = 1_000_000_000
NS_PER_MS = 1_000_000


class Pacer(Protocol):
    """One flush: `begin`, then `allows` and `take` for each head. `seq` numbers the batches in the order raised."""

    def begin(self, now_ms: int, capacity: Units) -> None: ...
    def allows(self, cost: Units) -> bool: ...
    def take(self, cost: Units) -> None: ...
    def raised(self, seq: int, cost: Units) -> None: ...
    def enter(self, seq: int, now_ns: int, capacity: Units) -> bool: ...
    def withdraw(self, seq: int) -> None: ...
    def settle(self, extra: Units, now_ns: int) -> None: ...
    def used(self, now_ns: int) -> dict[str, int]: ...


class Ledger:
    """Costs of the last second, in nanoseconds of a monotonic clock, and of what is raised but not entered."""

    def __init__(self) -> None:
        self._entered: deque[tuple[int, Units]] = deque()
        self._sum: dict[str, int] = {}
        self._pending: dict[int, Units] = {}

    def put_pending(self, seq: int, cost: Units) -> None:
        self._pending[seq] = cost

    def drop_pending(self, seq: int) -> Units:
        return self._pending.pop(seq, {})

    def enter(self, cost: Units, now_ns: int) -> None:
        """Times never run backwards here: an entry that is too young is on the safe side."""
        if is_zero(cost):
            return
        at_ns = max(now_ns, self._entered[-1][0]) if self._entered else now_ns
        self._entered.append((at_ns, cost))
        add(self._sum, cost)

    def used(self, now_ns: int, before: int | None = None) -> dict[str, int]:
        """Spent in the window that ends at `now_ns`, with what is pending (`before`: only lower batches)."""
        while self._entered and now_ns - self._entered[0][0] >= WINDOW_NS:
            add(self._sum, self._entered.popleft()[1], -1)
        total = dict(self._sum)
        for seq, cost in self._pending.items():
            if before is None or seq < before:
                add(total, cost)
        return total


class StrictPacing:
    """The default. `last_flush` starts with the batcher, so nothing is credited for the time before it."""

    def __init__(self, burst_ms: int, start_ms: int) -> None:
        self._burst_ms = burst_ms
        self._last_flush_ms = start_ms
        self._capacity: Units = {}
        self._ledger = Ledger()
        self._used: dict[str, int] = {}
        self.credit: dict[str, int] = {}

    def begin(self, now_ms: int, capacity: Units) -> None:
        passed_ms = min(now_ms - self._last_flush_ms, self._burst_ms)
        for name, c in capacity.items():
            self.credit[name] = min(self.credit.get(name, 0) + c * passed_ms, c * self._burst_ms)
        self._capacity = capacity
        self._used = self._ledger.used(now_ms * NS_PER_MS)
        self._last_flush_ms = now_ms

    def allows(self, cost: Units) -> bool:
        return all(
            self.credit.get(name, 0) > 0 and self._used.get(name, 0) + value <= self._capacity.get(name, 0)
            for name, value in cost.items()
            if value
        )

    def take(self, cost: Units) -> None:
        self._debit(cost)
        add(self._used, cost)

    def raised(self, seq: int, cost: Units) -> None:
        self._ledger.put_pending(seq, cost)

    def enter(self, seq: int, now_ns: int, capacity: Units) -> bool:
        """The second look, just before the callback. Batches raised later give way, so order is kept."""
        cost = self._ledger.drop_pending(seq)
        used = self._ledger.used(now_ns, before=seq)
        if all(used.get(name, 0) + value <= capacity.get(name, 0) for name, value in cost.items() if value):
            self._ledger.enter(cost, now_ns)
            return True
        self._ledger.put_pending(seq, cost)
        return False

    def withdraw(self, seq: int) -> None:
        """The batch is not dispatched after all: its charge comes back, within the burst."""
        for name, value in self._ledger.drop_pending(seq).items():
            most = max(self._capacity.get(name, 0) * self._burst_ms, self.credit.get(name, 0))
            self.credit[name] = min(self.credit.get(name, 0) + 1000 * value, most)

    def settle(self, extra: Units, now_ns: int) -> None:
        """A charge above the estimate: an entry and a debit at once (capacity.md 15)."""
        self._ledger.enter(extra, now_ns)
        self._debit(extra)

    def used(self, now_ns: int) -> dict[str, int]:
        return self._ledger.used(now_ns)

    def _debit(self, cost: Units) -> None:
        for name, value in cost.items():
            if value:
                self.credit[name] = self.credit.get(name, 0) - 1000 * value


class FreePacing:
    """Without a limiter everything goes."""

    def begin(self, now_ms: int, capacity: Units) -> None:
        """Nothing to count."""

    def allows(self, cost: Units) -> bool:  # noqa: ARG002
        return True

    def take(self, cost: Units) -> None:
        """Nothing to count."""

    def raised(self, seq: int, cost: Units) -> None:
        """Nothing to count."""

    def enter(self, seq: int, now_ns: int, capacity: Units) -> bool:  # noqa: ARG002
        return True

    def withdraw(self, seq: int) -> None:
        """Nothing to count."""

    def settle(self, extra: Units, now_ns: int) -> None:
        """Nothing to count."""

    def used(self, now_ns: int) -> dict[str, int]:  # noqa: ARG002
        return {}


class SlicePacing(FreePacing):
    """`trunc(capacity / 1000 x flush_interval_ms)` in double precision; the one that crosses it is taken whole."""

    def __init__(self, flush_interval_ms: int) -> None:
        self._flush_interval_ms = flush_interval_ms
        self._slice = 0
        self._taken = 0

    def begin(self, now_ms: int, capacity: Units) -> None:  # noqa: ARG002
        self._slice = int(capacity.get(PLAIN, 0) / 1000 * self._flush_interval_ms)
        self._taken = 0

    def allows(self, cost: Units) -> bool:  # noqa: ARG002
        return self._taken <= self._slice

    def take(self, cost: Units) -> None:
        self._taken += cost.get(PLAIN, 0)
