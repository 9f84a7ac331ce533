"""The buffer: operations in the order of arrival, and the callers that wait for room (capacity.md 3, 6).

What was put back keeps its number and so its place: the buffer is always sorted by it. A caller that waits is not in
the buffer and not in the target; callers get in in the order in which they came.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from headrace_core.capacity.errors import BatcherError
from headrace_core.capacity.operation import Entry, Operation, Watcher
from headrace_core.capacity.units import Units


class Waiter:
    """A blocked enqueue. It ends with `admitted` or with `error`."""

    __slots__ = ("admitted", "cost", "deadline_ms", "error", "op", "watcher")

    def __init__(self, op: Operation, watcher: Watcher, cost: Units, deadline_ms: int | None) -> None:
        self.op = op
        self.watcher = watcher
        self.cost = cost
        self.deadline_ms = deadline_ms
        self.admitted = False
        self.error: BatcherError | None = None

    @property
    def done(self) -> bool:
        return self.admitted or self.error is not None


class Buffer:
    """Holds at most `size` operations, more only while some are put back."""

    def __init__(self, size: int = 1) -> None:
        self.size = size
        self._entries: deque[Entry] = deque()
        self._waiters: deque[Waiter] = deque()
        self._next_seq = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    @property
    def head(self) -> Entry | None:
        return self._entries[0] if self._entries else None

    @property
    def has_room(self) -> bool:
        return len(self._entries) < self.size and not self._waiters

    def append(self, op: Operation, watcher: Watcher, cost: Units) -> None:
        self._entries.append(Entry(op, watcher, cost, self._next_seq))
        self._next_seq += 1

    def popleft(self) -> Entry:
        return self._entries.popleft()

    def put_back(self, entries: Iterable[Entry]) -> None:
        """Return entries to where they came from."""
        returned = sorted(entries, key=lambda entry: entry.seq)
        if not returned:
            return
        while self._entries and self._entries[0].seq < returned[-1].seq:
            returned.append(self._entries.popleft())
            returned.sort(key=lambda entry: entry.seq)
        self._entries.extendleft(reversed(returned))

    def put_back_left(self, entries: list[Entry]) -> None:
        """Return what a scan passed over; all of it is older than what is left."""
        self._entries.extendleft(reversed(entries))

    def clear(self) -> list[Operation]:
        ops = [entry.op for entry in self._entries]
        self._entries.clear()
        return ops

    def wait(self, op: Operation, watcher: Watcher, cost: Units, deadline_ms: int | None) -> Waiter:
        waiter = Waiter(op, watcher, cost, deadline_ms)
        self._waiters.append(waiter)
        return waiter

    def next_to_admit(self) -> Waiter | None:
        """The caller that gets in now, taken off the queue; None without room or callers."""
        if not self._waiters or len(self._entries) >= self.size:
            return None
        return self._waiters.popleft()

    def forget(self, waiter: Waiter) -> None:
        """The caller waits no more; nothing happens if it is not in the queue."""
        self._waiters = deque(w for w in self._waiters if w is not waiter)

    def overdue(self, now_ms: int) -> list[Waiter]:
        """Callers whose time ran out, taken off the queue."""
        late = [w for w in self._waiters if w.deadline_ms is not None and w.deadline_ms <= now_ms]
        if late:
            self._waiters = deque(w for w in self._waiters if w not in late)
        return late

    def all_waiters(self) -> list[Waiter]:
        """All callers, taken off the queue."""
        waiters = list(self._waiters)
        self._waiters.clear()
        return waiters

    def next_timeout_ms(self) -> int | None:
        return min((w.deadline_ms for w in self._waiters if w.deadline_ms is not None), default=None)
