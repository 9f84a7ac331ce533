"""Intake: the checks of an enqueue, the buffer, and the callers that wait for room (capacity.md 3).

The first check that fails is raised and nothing changes. A caller that must wait is neither in the buffer nor in the
target; callers get in in the order in which they came, when a flush makes room. The cost of an operation is fixed here,
in its entry: what is learned later, or a second copy of the same object, changes nothing of it.
"""

from __future__ import annotations

from headrace_core.capacity.books import Books
from headrace_core.capacity.buffer import Buffer, Waiter
from headrace_core.capacity.config import BatcherConfig
from headrace_core.capacity.errors import (
    BatcherError,
    BufferFull,
    BufferShutdown,
    NoOperation,
    NoWatcher,
    TooExpensive,
    TooManyAttempts,
    UnknownDimension,
)
from headrace_core.capacity.operation import Entry, Operation, Watcher
from headrace_core.capacity.resources import Resource
from headrace_core.capacity.stall import StallWatch
from headrace_core.capacity.units import Units, amount, exceeds


class Intake:
    """`closed`: the batcher is stopping or stopped."""

    def __init__(self, config: BatcherConfig, limiter: Resource | None, books: Books, watch: StallWatch) -> None:
        self.buffer = Buffer()
        self.closed = False
        self._limiter = limiter
        self._books = books
        self._watch = watch
        self.use(config)

    def use(self, config: BatcherConfig) -> None:
        self._config = config
        self._kept = 1000 - config.headroom_in_force
        self.buffer.size = config.buffer_size

    def enqueue(self, op: Operation | None, now_ms: int, timeout_ms: int | None) -> Waiter | None:
        """See `BatcherCore.enqueue`. The order of the checks is that of the table in capacity.md 3."""
        if op is None:
            raise NoOperation("enqueue of nothing")
        watcher = op.watcher
        if watcher is None:
            raise NoWatcher("the operation has no watcher")
        cost = op.fix_cost()
        if self._limiter is not None:
            self._check_cost(cost)
        if watcher.max_attempts and op.attempt >= watcher.max_attempts:
            raise TooManyAttempts(f"{op.attempt} attempts of {watcher.max_attempts}")
        if self.closed:
            raise BufferShutdown("the batcher is stopping")
        if self.buffer.has_room:
            self._admit(op, watcher, cost, now_ms)
            return None
        if self._config.error_on_full or (timeout_ms is not None and timeout_ms <= 0):
            raise BufferFull(f"{self._config.buffer_size} operations are buffered")
        return self.buffer.wait(op, watcher, cost, None if timeout_ms is None else now_ms + timeout_ms)

    def ceiling(self) -> Units | None:
        """The most that one operation may cost: max capacity less headroom (check 4); None: no limit."""
        if self._limiter is None:
            return None
        most, kept = self._limiter.max_units, self._kept
        return most if kept == 1000 else {name: value * kept // 1000 for name, value in most.items()}

    def refused(self, entry: Entry) -> TooExpensive:
        """The maximum fell below the cost of a buffered operation; it is in the target no more."""
        self._books.go(entry.cost)
        return TooExpensive(f"cost {amount(entry.cost)} is above the maximum of now")

    def admit_waiters(self, now_ms: int) -> None:
        """After a flush: those who wait longest get the room."""
        while (waiter := self.buffer.next_to_admit()) is not None:
            self._admit(waiter.op, waiter.watcher, waiter.cost, now_ms)
            waiter.admitted = True

    def forget(self, waiter: Waiter) -> None:
        """The caller gave up by itself."""
        self.buffer.forget(waiter)

    def end_waits(self, now_ms: int) -> None:
        """Callers whose time ran out get BufferFull."""
        for waiter in self.buffer.overdue(now_ms):
            waiter.error = BufferFull("no room in time")

    def close(self) -> None:
        """Refuse new operations and wake all who wait (capacity.md 11)."""
        self.closed = True
        for waiter in self.buffer.all_waiters():
            waiter.error = BufferShutdown("the batcher is stopping")

    def hand_back(self) -> list[Operation]:
        """Empty the buffer; its operations, in order."""
        for entry in self.buffer:
            self._books.go(entry.cost)
        return self.buffer.clear()

    def _check_cost(self, cost: Units) -> None:
        ceiling = self.ceiling()
        assert ceiling is not None, "there is a limiter"
        if not cost.keys() <= ceiling.keys():
            raise self._unknown(cost, ceiling)
        if exceeds(cost, ceiling):
            raise TooExpensive(f"cost {amount(cost)} is above {amount(ceiling)}, the maximum less headroom")

    def _unknown(self, cost: Units, ceiling: Units) -> BatcherError:
        return UnknownDimension(f"the resource has no dimension {min(cost.keys() - ceiling.keys())!r}")

    def _admit(self, op: Operation, watcher: Watcher, cost: Units, now_ms: int) -> None:
        if not self.buffer:
            self._watch.note(now_ms)
        self.buffer.append(op, watcher, cost)
        self._books.come(cost)
