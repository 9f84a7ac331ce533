"""The batcher's engine: when work may go out, and in which groups (capacity.md 3 to 11).

A front end calls `enqueue`, `flush`, `pause`, `stop` as its users do, `step(now_ms)` whenever the time that the last
step named has come, `enter` just before a callback and `leave` after it. It calls nobody itself.

    new --start--> running --stop--> draining --empty, or time over--> stopped
                   '-- pause --> (no flush, audit, request) -- resume --'

    buffered --flush--> raised --enter--> running --leave--> returned
        ^                  |                 '--operation time over--> over --leave--> returned
        '----put back------'

At one instant: user calls, completions and ends of operation times, lease deadlines, resume, capacity tick, audit
tick, flush. Never: a target that is not buffered + live cost; an operation that is neither raised nor handed back.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from headrace_core.capacity.audit import Books, verdict
from headrace_core.capacity.buffer import Buffer, Waiter
from headrace_core.capacity.config import BatcherConfig, change_config
from headrace_core.capacity.errors import (
    BatcherError,
    BufferFull,
    BufferShutdown,
    CapacityConfig,
    ImproperOrder,
    InitializationOnly,
    NoOperation,
    NoWatcher,
    TooExpensive,
    TooManyAttempts,
    UnknownDimension,
)
from headrace_core.capacity.events import Event, EventLog
from headrace_core.capacity.flush import Scan, scan
from headrace_core.capacity.operation import Batch, Entry, Operation, Phase, Watcher
from headrace_core.capacity.pacing import NS_PER_MS, FreePacing, Pacer, SlicePacing, StrictPacing
from headrace_core.capacity.pause import PauseRule
from headrace_core.capacity.resources import WHOLE, Resource
from headrace_core.capacity.tick import Tick
from headrace_core.capacity.units import PLAIN, Amount, Units, add, amount, is_zero, units

SCALE = WHOLE * 1000


class Life(Enum):
    NEW = "new"
    RUNNING = "running"
    DRAINING = "draining"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Failure:
    """Operations that left without being raised; their watcher's `on_error` gets `batch` and `error`."""

    batch: Batch
    error: BatcherError


@dataclass(frozen=True, slots=True)
class Step:
    """What a step decided. `next_ms`: when to step again unless something is called before; None: never."""

    batches: list[Batch]
    failures: list[Failure]
    next_ms: int | None


class BatcherCore:
    """`rng` gives numbers in [0, 1) for the jitter of pauses; None: no jitter."""

    def __init__(
        self,
        config: BatcherConfig | None = None,
        limiter: Resource | None = None,
        rng: Callable[[], float] | None = None,
    ) -> None:
        self.limiter = limiter
        self._rng = rng
        self._buffer = Buffer()
        self._use(config or BatcherConfig())
        self.life = Life.NEW
        self.returned: list[Operation] = []
        self.raised = 0
        self.running = 0
        self._log = EventLog()
        self._pacer: Pacer = FreePacing()
        self._target: dict[str, int] = dict.fromkeys(limiter.max_units, 0) if limiter is not None else {}
        self._inflight = 0
        self._held_slots = 0
        self._live: dict[int, Batch] = {}
        self._deadlines: list[tuple[int, int]] = []
        self._next_batch = 0
        self._flush_asked = False
        self._last_raised_ms: int | None = None
        self._drain_until_ms: int | None = None
        self._progress_ms = 0
        self._stall_ms = 0
        self._reason = "capacity"
        self._set_ticks(0)

    # What can be seen

    @property
    def target(self) -> int | dict[str, int]:
        """Cost units that are buffered, or raised and not yet done."""
        return amount(self._target)

    @property
    def inflight(self) -> int:
        """Concurrency slots taken."""
        return self._inflight

    @property
    def buffered(self) -> int:
        return len(self._buffer)

    @property
    def pacer(self) -> Pacer:
        return self._pacer

    def waiting(self) -> list[Entry]:
        """What is buffered, oldest first."""
        return list(self._buffer)

    @property
    def paused(self) -> bool:
        return self._pause.until_ms is not None

    def used(self, now_ns: int) -> int | dict[str, int]:
        """The ledger's sum: cost units raised in the second that ends at `now_ns` (strict pacing)."""
        return amount(self._pacer.used(now_ns))

    def take_events(self) -> list[Event]:
        """Events since the last call, those of the resource included."""
        return [*self._log.take(), *(self.limiter.log.take() if self.limiter is not None else [])]

    # What users call

    def configure(self, **changes: Any) -> None:
        """Change settings before start. Raises InitializationOnly afterwards, CapacityConfig for a wrong value."""
        if self.life is not Life.NEW:
            raise InitializationOnly("settings are fixed once the batcher has started")
        if self.config.burst_ms == 2 * self.config.flush_interval_ms:
            changes.setdefault("burst_ms", 0)
        self._use(change_config(self.config, changes))

    def start(self, now_ms: int) -> None:
        """Begin the loop at `now_ms`. Raises ImproperOrder on a second start or after stop, CapacityConfig for
        slice pacing with several dimensions; then nothing changed."""
        if self.life is not Life.NEW:
            raise ImproperOrder(f"cannot start: {self.life.value}")
        if self.limiter is not None and self.config.pacing == "slice" and self.limiter.max_units.keys() != {PLAIN}:
            raise CapacityConfig("pacing", "slice has one dimension only")
        self.life = Life.RUNNING
        self._set_ticks(now_ms)
        self._note_progress(now_ms)
        if self.limiter is not None:
            strict = self.config.pacing == "strict"
            start = StrictPacing(self.config.burst_ms, now_ms) if strict else None
            self._pacer = start or SlicePacing(self.config.flush_interval_ms)

    def enqueue(self, op: Operation | None, now_ms: int, timeout_ms: int | None = None) -> Waiter | None:
        """Buffer `op`, or return the Waiter of a caller that must wait for room, `timeout_ms` at most (None: for ever).

        Raises the first of the errors of capacity.md 3; then nothing changed.
        """
        self._check(op)
        assert op is not None, "checked"
        if self._buffer.has_room:
            self._admit(op, now_ms)
            return None
        if self.config.error_on_full or (timeout_ms is not None and timeout_ms <= 0):
            raise BufferFull(f"{self.config.buffer_size} operations are buffered")
        return self._buffer.wait(op, None if timeout_ms is None else now_ms + timeout_ms)

    def flush(self) -> None:
        """Ask for a flush at once; several calls collapse."""
        if self.life is not Life.STOPPED:
            self._flush_asked = True

    def pause(self, now_ms: int, retry_after_ms: int | None = None, scope: str = "instance") -> None:
        """Pause this instance, with `scope="resource"` all of them (capacity.md 8). Ignored unless started."""
        if scope not in ("instance", "resource"):
            raise CapacityConfig("scope", f"must be instance or resource, not {scope!r}")
        if self.life not in (Life.RUNNING, Life.DRAINING):
            return
        self._report_pause(self._pause.ask(now_ms, retry_after_ms), now_ms)
        if scope == "resource" and self.limiter is not None and self._pause.until_ms is not None:
            self.limiter.pause(self._pause.until_ms - now_ms)

    def stop(self, now_ms: int, drain_timeout_ms: int = 0) -> None:
        """Refuse new operations and drain; at the end `returned` is what was not raised, in order. 0: now."""
        if self.life is Life.STOPPED:
            return
        was_new, self.life = self.life is Life.NEW, Life.DRAINING
        for waiter in self._buffer.all_waiters():
            waiter.error = BufferShutdown("the batcher is stopping")
        self._drain_until_ms = now_ms + max(0, drain_timeout_ms)
        if was_new or drain_timeout_ms <= 0:
            self._finish(now_ms)

    # What the front end calls

    def step(self, now_ms: int) -> Step:
        """Do all that is due at `now_ms`, in the order of capacity.md 4."""
        batches: list[Batch] = []
        failures: list[Failure] = []
        if self.life in (Life.RUNNING, Life.DRAINING):
            self._end_operation_times(now_ms)
            self._follow_limiter(now_ms)
            if self._pause.resume(now_ms):
                self._log.emit("resume")
            if not self.paused:
                self._capacity_tick(now_ms)
                self._audit_tick(now_ms)
                if self._flush_tick.due(now_ms) or self._flush_asked:
                    self._flush(now_ms, batches, failures)
        self.end_waits(now_ms)
        if self.life in (Life.RUNNING, Life.DRAINING):
            self._look_for_stall(now_ms)
            self._finish_if_drained(now_ms)
        return Step(batches, failures, self._next_ms(now_ms))

    def enter(self, batch: Batch, now_ns: int) -> bool:
        """The last look, just before the callback (capacity.md 6). False: put back; do not call."""
        if batch.phase is not Phase.RAISED:
            return False
        now_ms = now_ns // NS_PER_MS
        if self.limiter is not None:
            self.limiter.expire(now_ms)
        if not self._pacer.enter(batch.seq, now_ns, self._effective()):
            self._withdraw(batch)
            return False
        batch.phase = Phase.RUNNING
        batch.deadline_ms = now_ms + (batch.watcher.max_operation_ms or self.config.max_operation_ms)
        heapq.heappush(self._deadlines, (batch.deadline_ms, batch.seq))
        self.running += 1
        for entry in batch.entries:
            entry.op.count_attempt()
        return True

    def leave(self, batch: Batch, now_ms: int, error: BaseException | None = None) -> None:
        """The callback has returned, or raised `error`."""
        if batch.phase is Phase.RUNNING:
            self._done(batch)
            self._free_slot()
        elif batch.phase is Phase.OVER and self.config.hold_slot_until_return:
            self._held_slots -= 1
            self._free_slot()
        elif batch.phase is not Phase.OVER:
            return
        batch.phase = Phase.RETURNED
        self.running -= 1
        if error is not None:
            self._log.emit("callback-error", len(batch), str(error), error=type(error).__name__)
        self._finish_if_drained(now_ms)

    def settle(self, op: Operation, charge: Amount, now_ns: int) -> None:
        """The datastore charged `charge` for `op`; what is above the estimate is spent now (capacity.md 15)."""
        charged = units(charge, "charge")
        extra = {name: value - op.cost_units.get(name, 0) for name, value in charged.items()}
        extra = {name: value for name, value in extra.items() if value > 0}
        if extra:
            self._pacer.settle(extra, now_ns)

    def _use(self, config: BatcherConfig) -> None:
        self.config = config
        self._headroom = config.headroom_permille if config.pacing == "strict" else 0
        self._buffer.size = config.buffer_size
        self._pause = PauseRule(config, self._rng)

    # Enqueue

    def _check(self, op: Operation | None) -> None:
        if op is None:
            raise NoOperation("enqueue of nothing")
        if op.watcher is None:
            raise NoWatcher("the operation has no watcher")
        if self.limiter is not None:
            self._check_cost(op.cost_units, self.limiter.max_units)
        if op.watcher.max_attempts and op.attempt >= op.watcher.max_attempts:
            raise TooManyAttempts(f"{op.attempt} attempts of {op.watcher.max_attempts}")
        if self.life in (Life.DRAINING, Life.STOPPED):
            raise BufferShutdown("the batcher is stopping")

    def _check_cost(self, cost: Units, most: Units) -> None:
        for name in cost:
            if name not in most:
                raise UnknownDimension(f"the resource has no dimension {name!r}")
        if self._too_expensive(cost):
            raise TooExpensive(f"cost {amount(cost)} is above {amount(most)} less headroom")

    def _too_expensive(self, cost: Units) -> bool:
        if self.limiter is None:
            return False
        most = self.limiter.max_units
        return any(value > most.get(name, 0) * (1000 - self._headroom) // 1000 for name, value in cost.items())

    def _admit(self, op: Operation, now_ms: int) -> None:
        if not self._buffer:
            self._note_progress(now_ms)
        self._buffer.append(op)
        add(self._target, op.cost_units)

    def _admit_waiters(self, now_ms: int) -> None:
        while (waiter := self._buffer.next_to_admit()) is not None:
            self._admit(waiter.op, now_ms)
            waiter.admitted = True

    def end_waits(self, now_ms: int) -> None:
        """Callers whose time ran out get BufferFull."""
        for waiter in self._buffer.overdue(now_ms):
            waiter.error = BufferFull("no room in time")

    # The loop

    def _set_ticks(self, now_ms: int) -> None:
        self._flush_tick = Tick(self.config.flush_interval_ms, now_ms)
        self._capacity_tick_at = Tick(self.config.capacity_interval_ms, now_ms)
        self._audit_tick_at = Tick(self.config.audit_interval_ms, now_ms)

    def _follow_limiter(self, now_ms: int) -> None:
        """Lease deadlines, and a pause that came through the store."""
        if self.limiter is None:
            return
        self.limiter.expire(now_ms)
        until_ms = self.limiter.take_pause()
        if until_ms is not None and until_ms > now_ms:
            self._report_pause(self._pause.extend(until_ms), now_ms)

    def _report_pause(self, outcome: str, now_ms: int) -> None:
        if self._pause.until_ms is not None and outcome != "ignored":
            self._log.emit("pause" if outcome == "pause" else "pause-extended", self._pause.until_ms - now_ms)

    def _capacity_tick(self, now_ms: int) -> None:
        if not self._capacity_tick_at.due(now_ms) or self.limiter is None:
            return
        self.limiter.used_units = self._pacer.used(now_ms * NS_PER_MS)
        if "request" in self.config.emit:
            self._log.emit("request", self.target)
        self.limiter.request(self.target, amount(self._head_need()))

    def _head_need(self) -> dict[str, int]:
        """What must be held so that the head can pass, if that is more than is held now."""
        head, c = self._buffer.head, self._effective()
        if head is None or self.limiter is None or self.config.pacing == "slice":
            return {}
        if all(value <= c.get(name, 0) for name, value in head.op.cost_units.items()):
            return {}
        share = max(1, self.limiter.factor * (1000 - self._headroom))
        return {name: -(-value * SCALE // share) for name, value in head.op.cost_units.items()}

    def _audit_tick(self, now_ms: int) -> None:
        if not self._audit_tick_at.due(now_ms):
            return
        since = None if self._last_raised_ms is None else now_ms - self._last_raised_ms
        books = Books(
            buffered=len(self._buffer),
            since_raised_ms=since,
            live_batches=len(self._live),
            held_slots=self._held_slots,
            target_left=not is_zero(self._target),
            inflight=self._inflight,
        )
        name, mask = verdict(books, self.config.max_operation_ms)
        if name == "audit-fail":
            self._target = dict.fromkeys(self._target, 0)
            self._inflight = 0
        self._log.emit(name, mask)

    def _effective(self) -> dict[str, int]:
        """C of capacity.md 5; slice pacing looks at what is held."""
        if self.limiter is None:
            return {}
        share = self.limiter.factor * (1000 - self._headroom) if self.config.pacing == "strict" else SCALE
        return {name: value * share // SCALE for name, value in self.limiter.held_units.items()}

    def _flush(self, now_ms: int, batches: list[Batch], failures: list[Failure]) -> None:
        self._flush_asked = False
        if "flush" in self.config.emit:
            self._log.emit("flush-start", len(self._buffer))
        self._pacer.begin(now_ms, self._effective())
        limit = self.config.max_concurrent_batches
        slots = max(0, limit - self._inflight) if limit else None
        found = scan(self._buffer, self._pacer, slots=slots, hopeless=self._too_expensive)
        for watcher, entries in found.groups:
            batches.append(self._raise(watcher, entries, now_ms))
        failures += [self._refuse(entry) for entry in found.hopeless]
        self._note_reason(found)
        if found.groups or found.hopeless:
            self._note_progress(now_ms)
        self._admit_waiters(now_ms)
        if "flush" in self.config.emit:
            self._log.emit("flush-done", sum(len(entries) for _, entries in found.groups))

    def _raise(self, watcher: Watcher, entries: list[Entry], now_ms: int) -> Batch:
        batch = Batch(watcher, entries, self._next_batch)
        self._next_batch += 1
        self._live[batch.seq] = batch
        self._inflight += 1
        self.raised += len(entries)
        self._last_raised_ms = now_ms
        self._pacer.raised(batch.seq, batch.cost_units)
        if "batch" in self.config.emit:
            self._log.emit("batch", len(entries))
        return batch

    def _refuse(self, entry: Entry) -> Failure:
        add(self._target, entry.op.cost_units, -1)
        error = TooExpensive(f"cost {entry.op.cost} is above the maximum of now")
        batch = Batch(entry.watcher, [entry], -1)
        batch.phase = Phase.WITHDRAWN
        return Failure(batch, error)

    # Completion

    def _end_operation_times(self, now_ms: int) -> None:
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            batch = self._live.get(heapq.heappop(self._deadlines)[1])
            if batch is None or batch.phase is not Phase.RUNNING:
                continue
            self._done(batch)
            batch.phase = Phase.OVER
            batch.cancelled.set()
            if self.config.hold_slot_until_return:
                self._held_slots += 1
            else:
                self._free_slot()

    def _done(self, batch: Batch) -> None:
        """Once for each batch; never below zero, should an audit have repaired the books meanwhile."""
        if self._live.pop(batch.seq, None) is not None:
            add(self._target, batch.cost_units, -1)

    def _free_slot(self) -> None:
        self._inflight -= 1

    def _withdraw(self, batch: Batch) -> None:
        """Put back at the head: no attempt, no charge, no slot; the cost stays in the target."""
        batch.phase = Phase.WITHDRAWN
        del self._live[batch.seq]
        self.raised -= len(batch)
        self._pacer.withdraw(batch.seq)
        self._free_slot()
        self._buffer.put_back(batch.entries)

    # Stall and stop

    def _note_progress(self, now_ms: int) -> None:
        self._progress_ms = now_ms
        self._stall_ms = now_ms + self.config.stall_ms

    def _note_reason(self, found: Scan) -> None:
        """Why the oldest operation still waits."""
        if found.without_slot:
            self._reason = "slots"
        elif found.blocked is not None:
            c = self._effective()
            fits = all(value <= c.get(name, 0) for name, value in found.blocked.op.cost_units.items())
            self._reason = "capacity" if fits or is_zero(c) else "head"

    def _look_for_stall(self, now_ms: int) -> None:
        if not self._buffer or now_ms < self._stall_ms:
            return
        self._stall_ms = now_ms + self.config.stall_ms
        self._log.emit("stalled", now_ms - self._progress_ms, reason="paused" if self.paused else self._reason)

    def _finish_if_drained(self, now_ms: int) -> None:
        if self.life is not Life.DRAINING or self._drain_until_ms is None:
            return
        pending = any(batch.phase is Phase.RAISED for batch in self._live.values())
        drained = not self._buffer and not self.running and not pending
        if drained or now_ms >= self._drain_until_ms:
            self._finish(now_ms)

    def _finish(self, now_ms: int) -> None:
        """Hand back what was not raised, batches that were never entered included (capacity.md 11)."""
        for batch in [batch for batch in self._live.values() if batch.phase is Phase.RAISED]:
            self._withdraw(batch)
        for entry in self._buffer:
            add(self._target, entry.op.cost_units, -1)
        self.returned = self._buffer.clear()
        self.life = Life.STOPPED
        if self.limiter is not None:
            self.limiter.give_back(now_ms)
        self._log.emit("shutdown")

    def _next_ms(self, now_ms: int) -> int | None:
        times = [self._buffer.next_timeout_ms()]
        if self.life in (Life.RUNNING, Life.DRAINING):
            times += [self._drain_until_ms, self._pause.until_ms]
            times += [self._deadlines[0][0] if self._deadlines else None]
            times += [self.limiter.next_deadline_ms() if self.limiter is not None else None]
            times += [self._stall_ms if self._buffer else None]
            if not self.paused:
                times += [self._flush_tick.next_ms, self._capacity_tick_at.next_ms, self._audit_tick_at.next_ms]
                times += [now_ms if self._flush_asked else None]
        return min((time for time in times if time is not None), default=None)
