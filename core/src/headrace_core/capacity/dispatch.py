"""Dispatch: batches from the moment they are raised until their callback has returned (capacity.md 6).

    phase      what happens        next       books
    raised     enter, it fits      running    attempts + 1
    raised     enter, too much     withdrawn  slot free, charge undone; the cost stays in the target
    raised     the batcher stops   withdrawn  the same, and its operations are handed back
    running    leave               returned   target and slot free
    running    operation time over over       target free; slot free unless it is held until the return
    over       leave               returned   a held slot free
    any other  enter or leave      as it was  nothing

A batch is *live* while raised or running. Never: a cost or a slot that is given back twice.
"""

from __future__ import annotations

import heapq

from headrace_core.capacity.books import Books
from headrace_core.capacity.config import BatcherConfig
from headrace_core.capacity.events import EventLog
from headrace_core.capacity.operation import Batch, Entry, Phase, Watcher
from headrace_core.capacity.pacing import NS_PER_MS, FreePacing, Pacer
from headrace_core.capacity.units import Units


class Dispatch:
    """`raised`: operations raised so far, every attempt counts; `running`: callbacks that have not returned;
    `held_slots`: slots whose operation time is over and that `hold_slot_until_return` keeps."""

    def __init__(self, config: BatcherConfig, books: Books, log: EventLog) -> None:
        self.config = config
        self.pacer: Pacer = FreePacing()
        self.raised = 0
        self.running = 0
        self.held_slots = 0
        self.live: dict[int, Batch] = {}
        self.last_raised_ms: int | None = None
        self._books = books
        self._log = log
        self._deadlines: list[tuple[int, int]] = []
        self._next_seq = 0

    def free_slots(self) -> int | None:
        """None: no limit."""
        limit = self.config.max_concurrent_batches
        return max(0, limit - self._books.inflight) if limit else None

    def raise_batch(self, watcher: Watcher, entries: list[Entry], now_ms: int) -> Batch:
        """Charged already; takes a slot."""
        batch = Batch(watcher, entries, self._next_seq)
        self._next_seq += 1
        self.live[batch.seq] = batch
        self._books.inflight += 1
        self.raised += len(entries)
        self.last_raised_ms = now_ms
        self.pacer.raised(batch.seq, batch.cost_units)
        if "batch" in self.config.emit:
            self._log.emit("batch", len(entries))
        return batch

    def enter(self, batch: Batch, now_ns: int, capacity: Units) -> bool:
        """The last look, with C of this moment. False: it must be withdrawn."""
        if not self.pacer.enter(batch.seq, now_ns, capacity):
            return False
        batch.phase = Phase.RUNNING
        batch.deadline_ms = now_ns // NS_PER_MS + (batch.watcher.max_operation_ms or self.config.max_operation_ms)
        heapq.heappush(self._deadlines, (batch.deadline_ms, batch.seq))
        self.running += 1
        for entry in batch.entries:
            entry.op.count_attempt()
        return True

    def leave(self, batch: Batch, error: BaseException | None) -> bool:
        """The callback has returned, or raised `error`. False: it was not running."""
        if batch.phase is Phase.RUNNING:
            self._done(batch)
            self._books.inflight -= 1
        elif batch.phase is not Phase.OVER:
            return False
        elif self.config.hold_slot_until_return:
            self.held_slots -= 1
            self._books.inflight -= 1
        batch.phase = Phase.RETURNED
        self.running -= 1
        if error is not None:
            self._log.emit("callback-error", len(batch), str(error), error=type(error).__name__)
        return True

    def end_operation_times(self, now_ms: int) -> None:
        """A batch that ran for its `max_operation_ms` counts as done; its callback is not killed."""
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            batch = self.live.get(heapq.heappop(self._deadlines)[1])
            if batch is None or batch.phase is not Phase.RUNNING:
                continue
            self._done(batch)
            batch.phase = Phase.OVER
            batch.cancelled.set()
            if self.config.hold_slot_until_return:
                self.held_slots += 1
            else:
                self._books.inflight -= 1

    def withdraw(self, batch: Batch) -> list[Entry]:
        """Undo the raise: no attempt, no charge, no slot. Returns what belongs back in the buffer."""
        batch.phase = Phase.WITHDRAWN
        del self.live[batch.seq]
        self.raised -= len(batch)
        self.pacer.withdraw(batch.seq)
        self._books.inflight -= 1
        return batch.entries

    def never_entered(self) -> list[Batch]:
        return [batch for batch in self.live.values() if batch.phase is Phase.RAISED]

    def next_deadline_ms(self) -> int | None:
        return self._deadlines[0][0] if self._deadlines else None

    def _done(self, batch: Batch) -> None:
        """Once for each batch; never below zero, should an audit have repaired the books meanwhile."""
        if self.live.pop(batch.seq, None) is not None:
            self._books.go(batch.cost_units)
