"""Pacing: may the operation at the head go now? (capacity.md 5, 14a)

Strict. `credit` in thousandths of a unit grows by capacity x time, holds at most `burst_ms` worth of it and may go
below zero; later flushes repay the debt. A head goes while credit is above zero and the ledger with it stays within the
capacity. The ledger is looked at again just before the callback. All arithmetic is exact, in integers.

Slice. The classic rule: a flush takes until the sum exceeds a slice of the capacity. It holds no limit in a window.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from headrace_core.capacity.ledger import Ledger
from headrace_core.capacity.units import PLAIN, Units, add

NS_PER_MS = 1_000_000


class Pacer(Protocol):
    """One flush: `begin`, then `allows` and `take` for each head. `seq` numbers the batches in the order raised.

    `newest` and `inherit` are for handing a ledger over (capacity.md 13, `Ledger`)."""

    def begin(self, now_ms: int, capacity: Units) -> None: ...
    def allows(self, cost: Units) -> bool: ...
    def take(self, cost: Units) -> None: ...
    def raised(self, seq: int, cost: Units) -> None: ...
    def enter(self, seq: int, now_ns: int, capacity: Units) -> bool: ...
    def withdraw(self, seq: int) -> None: ...
    def settle(self, extra: Units, now_ns: int) -> None: ...
    def used(self, now_ns: int) -> dict[str, int]: ...
    def newest(self, now_ns: int, kept: Units) -> list[tuple[int, dict[str, int]]]: ...
    def inherit(self, entries: Iterable[tuple[int, Units]]) -> None: ...


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
        for name, value in cost.items():
            if value and (
                self.credit.get(name, 0) <= 0 or self._used.get(name, 0) + value > self._capacity.get(name, 0)
            ):
                return False
        return True

    def take(self, cost: Units) -> None:
        for name, value in cost.items():
            if value:
                self.credit[name] = self.credit.get(name, 0) - 1000 * value
                self._used[name] = self._used.get(name, 0) + value

    def raised(self, seq: int, cost: Units) -> None:
        self._ledger.put_pending(seq, cost)

    def enter(self, seq: int, now_ns: int, capacity: Units) -> bool:
        """The second look, just before the callback. Batches raised later give way, so order is kept."""
        cost = self._ledger.pending(seq)
        used = self._ledger.used_before(seq, now_ns)
        for name, value in cost.items():
            if value and used.get(name, 0) + value > capacity.get(name, 0):
                return False
        self._ledger.drop_pending(seq)
        self._ledger.enter(cost, now_ns)
        return True

    def withdraw(self, seq: int) -> None:
        """The batch is not dispatched after all: its charge comes back, within the burst."""
        for name, value in self._ledger.drop_pending(seq).items():
            most = max(self._capacity.get(name, 0) * self._burst_ms, self.credit.get(name, 0))
            self.credit[name] = min(self.credit.get(name, 0) + 1000 * value, most)

    def settle(self, extra: Units, now_ns: int) -> None:
        """A charge above the estimate: an entry and a debit at once (capacity.md 15)."""
        self._ledger.enter(extra, now_ns)
        add(self.credit, {name: 1000 * value for name, value in extra.items()}, -1)

    def used(self, now_ns: int) -> dict[str, int]:
        return self._ledger.used(now_ns)

    def newest(self, now_ns: int, kept: Units) -> list[tuple[int, dict[str, int]]]:
        return self._ledger.newest(now_ns, kept)

    def inherit(self, entries: Iterable[tuple[int, Units]]) -> None:
        self._ledger.inherit(entries)


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

    def newest(self, now_ns: int, kept: Units) -> list[tuple[int, dict[str, int]]]:  # noqa: ARG002
        return []

    def inherit(self, entries: Iterable[tuple[int, Units]]) -> None:
        """Nothing to count."""


class SlicePacing(FreePacing):
    """`trunc(capacity / 1000 x flush_interval_ms)` in double precision; the one that crosses it is taken whole. The
    ledger limits nothing here: it only says what was used."""

    def __init__(self, flush_interval_ms: int) -> None:
        self._flush_interval_ms = flush_interval_ms
        self._slice = 0
        self._taken = 0
        self._ledger = Ledger()

    def begin(self, now_ms: int, capacity: Units) -> None:  # noqa: ARG002
        self._slice = int(capacity.get(PLAIN, 0) / 1000 * self._flush_interval_ms)
        self._taken = 0

    def allows(self, cost: Units) -> bool:  # noqa: ARG002
        return self._taken <= self._slice

    def take(self, cost: Units) -> None:
        self._taken += cost.get(PLAIN, 0)

    def raised(self, seq: int, cost: Units) -> None:
        self._ledger.put_pending(seq, cost)

    def enter(self, seq: int, now_ns: int, capacity: Units) -> bool:  # noqa: ARG002
        self._ledger.enter(self._ledger.drop_pending(seq), now_ns)
        return True

    def withdraw(self, seq: int) -> None:
        self._ledger.drop_pending(seq)

    def settle(self, extra: Units, now_ns: int) -> None:
        self._ledger.enter(extra, now_ns)

    def used(self, now_ns: int) -> dict[str, int]:
        return self._ledger.used(now_ns)
