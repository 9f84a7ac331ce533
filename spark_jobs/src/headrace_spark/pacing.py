"""Strict pacing of requests that go out one after the other (capacity.md 5, `ProvisionedResource` of section 12).

Theory: the driver sends every request of the job, one at a time, so one ledger in one process bounds them all. At time
`t` a request of cost `c` may go if `c = 0`, or if credit is above zero and what went out in the last second plus `c` is
within the capacity. Credit grows by the capacity per ms, up to a burst; it may fall below zero and is repaid. All
arithmetic is in integers: credit in millionths of a thousandth (unit x ns), times in monotonic ns.

A process that starts does not know what its predecessor sent just before a kill -9, so a pacer begins with a full
ledger: nothing goes out for one second (the quarantine of capacity.md 13, in one process).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final, TypeVar

from headrace_core.errors import ConfigError

SECOND_NS: Final = 1_000_000_000
_MS_NS: Final = 1_000_000
T = TypeVar("T")


class Pacer:
    """`capacity` in units per second; `burst_ms` is the most credit that piles up, as time; `headroom` in thousandths
    of the capacity left unused. `clock_ns` is monotonic, `sleep` takes seconds."""

    def __init__(
        self,
        capacity: int,
        *,
        burst_ms: int = 50,
        headroom_thousandths: int = 0,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.capacity = capacity * (1000 - headroom_thousandths) // 1000
        if self.capacity < 1:
            raise ConfigError("capacity", "must leave at least 1 unit per second")
        self._burst = self.capacity * burst_ms * _MS_NS
        self._clock_ns = clock_ns
        self._sleep = sleep
        self._credit = 0
        self._seen_ns = clock_ns()
        self._ledger: deque[tuple[int, int]] = deque([(self._seen_ns, self.capacity)])
        self._used = self.capacity
        self.waited_ns = 0

    def run(self, cost: int, work: Callable[[int], T]) -> T:
        """Wait until `cost` fits, then call `work` with the moment of dispatch (monotonic ns). A cost above the
        capacity never fits: ValueError."""
        if cost > self.capacity:
            raise ValueError(f"a cost of {cost} never fits a capacity of {self.capacity}")
        began = self._clock_ns()
        while (wait := self._wait_ns(cost)) > 0:
            self._sleep(wait / SECOND_NS)
        now = self._clock_ns()
        self.waited_ns += now - began
        self._credit -= cost * SECOND_NS
        self._used += cost
        self._ledger.append((now, cost))
        return work(now)

    def used(self) -> int:
        """Units that went out in the last second."""
        now = self._clock_ns()
        return sum(cost for at, cost in tuple(self._ledger) if now - at < SECOND_NS)

    def _wait_ns(self, cost: int) -> int:
        now = self._clock_ns()
        self._credit = min(self._credit + self.capacity * (now - self._seen_ns), self._burst)
        self._seen_ns = now
        while self._ledger and now - self._ledger[0][0] >= SECOND_NS:
            self._used -= self._ledger.popleft()[1]
        if cost == 0:
            return 0
        return max(self._until_credit(), self._until_room(cost, now))

    def _until_credit(self) -> int:
        return 0 if self._credit > 0 else -self._credit // self.capacity + 1

    def _until_room(self, cost: int, now: int) -> int:
        over = self._used + cost - self.capacity
        for at, spent in self._ledger:
            if over <= 0:
                break
            over -= spent
            if over <= 0:
                return at + SECOND_NS - now
        return 0
