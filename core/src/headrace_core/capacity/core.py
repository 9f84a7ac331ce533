"""The batcher's engine: when work may go out, and in which groups (capacity.md 3 to 11).

A front end calls `enqueue`, `flush`, `pause`, `stop` as its users do, `step(now_ms)` whenever the time that the last
step named has come, `enter` just before a callback and `leave` after it. It calls nobody itself.

    life      start     stop, drain > 0   stop, drain 0   empty, or time over
    new       running   stopped           stopped         -
    running   refused   draining          stopped         -
    draining  refused   draining          stopped         stopped
    stopped   refused   -                 -               -

Refused: ImproperOrder, and nothing changed. A pause (running or draining) holds flush, audit and request until the
resume. An operation is buffered (`intake.py`), raised by a flush (`flush.py`, `pacing.py`), entered and done
(`dispatch.py`).

At one instant: user calls, completions and ends of operation times, lease deadlines, resume, capacity tick, audit
tick, flush. Never: a target that is not buffered + live cost; an operation that is neither raised nor handed back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from headrace_core.capacity.audit import Evidence, verdict
from headrace_core.capacity.books import Books
from headrace_core.capacity.buffer import Waiter
from headrace_core.capacity.config import BatcherConfig, change_config
from headrace_core.capacity.dispatch import Dispatch
from headrace_core.capacity.errors import (
    BatcherError,
    CapacityConfig,
    ImproperOrder,
    InitializationOnly,
    UnknownDimension,
)
from headrace_core.capacity.events import Event, EventLog
from headrace_core.capacity.flush import scan
from headrace_core.capacity.intake import Intake
from headrace_core.capacity.operation import Batch, Entry, Operation, Phase
from headrace_core.capacity.pacing import NS_PER_MS, Pacer, SlicePacing, StrictPacing
from headrace_core.capacity.pause import PauseRule
from headrace_core.capacity.resources import WHOLE, Resource
from headrace_core.capacity.stall import StallWatch
from headrace_core.capacity.tick import Tick
from headrace_core.capacity.units import PLAIN, Amount, Units, amount, exceeds, is_zero, units

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
        config = config or BatcherConfig()
        self.limiter = limiter
        self.life = Life.NEW
        self.returned: list[Operation] = []
        self.books = Books(limiter.max_units if limiter is not None else ())
        self._log = EventLog()
        self._watch = StallWatch(config.stall_ms)
        self._intake = Intake(config, limiter, self.books, self._watch)
        self._dispatch = Dispatch(config, self.books, self._log)
        self._rng = rng
        self._flush_asked = False
        self._told_head: Entry | None = None
        self._drain_until_ms: int | None = None
        self._use(config)

    # What can be seen

    @property
    def target(self) -> int | dict[str, int]:
        """Cost units that are buffered, or raised and not yet done."""
        return amount(self.books.target)

    @property
    def inflight(self) -> int:
        """Concurrency slots taken."""
        return self.books.inflight

    @property
    def buffered(self) -> int:
        return len(self._intake.buffer)

    @property
    def running(self) -> int:
        """Callbacks that were entered and have not returned."""
        return self._dispatch.running

    @property
    def raised(self) -> int:
        """Operations raised so far; every attempt counts."""
        return self._dispatch.raised

    @property
    def pacer(self) -> Pacer:
        return self._dispatch.pacer

    @property
    def paused(self) -> bool:
        return self._pause.until_ms is not None

    def waiting(self) -> list[Entry]:
        """What is buffered, oldest first."""
        return list(self._intake.buffer)

    def used(self, now_ns: int) -> int | dict[str, int]:
        """The ledger's sum: cost units raised in the second that ends at `now_ns` (strict pacing)."""
        return amount(self.pacer.used(now_ns))

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
        self._watch.note(now_ms)
        if self.limiter is not None:
            strict = self.config.pacing == "strict"
            start = StrictPacing(self.config.burst_ms, now_ms) if strict else None
            self._dispatch.pacer = start or SlicePacing(self.config.flush_interval_ms)
            self.limiter.pacer = self._dispatch.pacer

    def enqueue(self, op: Operation | None, now_ms: int, timeout_ms: int | None = None) -> Waiter | None:
        """Buffer `op`, or return the Waiter of a caller that must wait for room, `timeout_ms` at most (None: for ever).

        Raises the first of the errors of capacity.md 3; then nothing changed.
        """
        return self._intake.enqueue(op, now_ms, timeout_ms)

    def forget(self, waiter: Waiter) -> None:
        """A caller that waits for room gave up by itself."""
        self._intake.forget(waiter)

    def end_waits(self, now_ms: int) -> None:
        """Callers whose time ran out get BufferFull."""
        self._intake.end_waits(now_ms)

    def flush(self) -> None:
        """Ask for a flush at once; several calls collapse (capacity.md 4)."""
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
            self.limiter.pause(self._pause.until_ms)

    def stop(self, now_ms: int, drain_timeout_ms: int = 0) -> None:
        """Refuse new operations and drain (capacity.md 11); at the end `returned` is what was not raised, in order.
        0: now."""
        if self.life is Life.STOPPED:
            return
        was_new, self.life = self.life is Life.NEW, Life.DRAINING
        self._intake.close()
        self._drain_until_ms = now_ms + max(0, drain_timeout_ms)
        if was_new or drain_timeout_ms <= 0:
            self._finish(now_ms)

    # What the front end calls

    def step(self, now_ms: int) -> Step:
        """Do all that is due at `now_ms`, in the order of capacity.md 4."""
        batches: list[Batch] = []
        failures: list[Failure] = []
        if self.life in (Life.RUNNING, Life.DRAINING):
            self._dispatch.end_operation_times(now_ms)
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
        if self.limiter is not None:
            self.limiter.expire(now_ns // NS_PER_MS)
        if self._dispatch.enter(batch, now_ns, self._effective()):
            return True
        self._intake.buffer.put_back(self._dispatch.withdraw(batch))
        return False

    def leave(self, batch: Batch, now_ms: int, error: BaseException | None = None) -> None:
        """The callback has returned, or raised `error`."""
        if self._dispatch.leave(batch, error):
            self._finish_if_drained(now_ms)

    def settle(self, batch: Batch, op: Operation, charge: Amount, now_ns: int) -> None:
        """The datastore charged `charge` for `op` (capacity.md 15): what is above the estimate is spent now, and the
        cost model learns. Raises ValueError if `op` is not of `batch`, UnknownDimension; then nothing changed."""
        charged, estimate = units(charge, "charge"), batch.estimate(op)
        if self.limiter is not None and not charged.keys() <= self.limiter.max_units.keys():
            raise UnknownDimension(f"the resource has only the dimensions {sorted(self.limiter.max_units)}")
        extra = {name: value - estimate.get(name, 0) for name, value in charged.items()}
        extra = {name: value for name, value in extra.items() if value > 0}
        if extra:
            self.pacer.settle(extra, now_ns)
        op.learn(charge)

    def _use(self, config: BatcherConfig) -> None:
        self.config = self._dispatch.config = config
        self._kept = 1000 - config.headroom_in_force
        self._intake.use(config)
        self._watch.stall_ms = config.stall_ms
        self._pause = PauseRule(config, self._rng)
        self._set_ticks(0)

    # The loop (capacity.md 4)

    def _set_ticks(self, now_ms: int) -> None:
        self._flush_tick = Tick(self.config.flush_interval_ms, now_ms)
        self._capacity_tick_at = Tick(self.config.capacity_interval_ms, now_ms)
        self._audit_tick_at = Tick(self.config.audit_interval_ms, now_ms)

    def _follow_limiter(self, now_ms: int) -> None:
        """Lease deadlines, and a pause that came through the store (capacity.md 8)."""
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
        self.limiter.used_units = self.pacer.used(now_ms * NS_PER_MS)
        if "request" in self.config.emit:
            self._log.emit("request", self.target)
        self.limiter.request(self.target, amount(self._head_need()))

    def _head_need(self) -> dict[str, int]:
        """What must be held so that the head can pass (capacity.md 5, 13). Told once it is more than is held, and then
        until that operation has gone: what was gathered for it must not be taken away before."""
        head = self._intake.buffer.head
        if head is None or self.limiter is None or self.config.pacing == "slice":
            self._told_head = None
        elif head is not self._told_head:
            self._told_head = head if exceeds(head.cost, self._effective()) else None
        if self._told_head is None or self.limiter is None:
            return {}
        share = max(1, self.limiter.factor * self._kept)
        return {name: -(-value * SCALE // share) for name, value in self._told_head.cost.items()}

    def _audit_tick(self, now_ms: int) -> None:
        if not self._audit_tick_at.due(now_ms):
            return
        raised_ms = self._dispatch.last_raised_ms
        found = Evidence(
            buffered=self.buffered,
            since_raised_ms=None if raised_ms is None else now_ms - raised_ms,
            live_batches=len(self._dispatch.live),
            held_slots=self._dispatch.held_slots,
            target_left=not is_zero(self.books.target),
            inflight=self.books.inflight,
        )
        name, mask = verdict(found, self.config.max_operation_ms)
        if name == "audit-fail":
            self.books.repair()
        self._log.emit(name, mask)

    def _effective(self) -> Units:
        """C of capacity.md 5; slice pacing looks at what is held."""
        if self.limiter is None:
            return {}
        held = self.limiter.held_units
        share = self.limiter.factor * self._kept
        if self.config.pacing == "slice" or share == SCALE:
            return held
        return {name: value * share // SCALE for name, value in held.items()}

    def _flush(self, now_ms: int, batches: list[Batch], failures: list[Failure]) -> None:
        self._flush_asked = False
        if "flush" in self.config.emit:
            self._log.emit("flush-start", self.buffered)
        capacity = self._effective()
        self.pacer.begin(now_ms, capacity)
        slots, ceiling = self._dispatch.free_slots(), self._intake.ceiling()
        found = scan(self._intake.buffer, self.pacer, slots=slots, ceiling=ceiling)
        batches += [self._dispatch.raise_batch(watcher, entries, now_ms) for watcher, entries in found.groups]
        failures += [self._refuse(entry) for entry in found.hopeless]
        self._watch.learn(found, capacity)
        if found.groups or found.hopeless:
            self._watch.note(now_ms)
        self._intake.admit_waiters(now_ms)
        if "flush" in self.config.emit:
            self._log.emit("flush-done", sum(len(entries) for _, entries in found.groups))

    def _refuse(self, entry: Entry) -> Failure:
        batch = Batch(entry.watcher, [entry], -1)
        batch.phase = Phase.WITHDRAWN
        return Failure(batch, self._intake.refused(entry))

    # Stall and stop (capacity.md 10, 11)

    def _look_for_stall(self, now_ms: int) -> None:
        waited_ms = self._watch.look(now_ms) if self.buffered else None
        if waited_ms is not None:
            self._log.emit("stalled", waited_ms, reason="paused" if self.paused else self._watch.reason)

    def _finish_if_drained(self, now_ms: int) -> None:
        if self.life is not Life.DRAINING or self._drain_until_ms is None:
            return
        drained = not self.buffered and not self.running and not self._dispatch.never_entered()
        if drained or now_ms >= self._drain_until_ms:
            self._finish(now_ms)

    def _finish(self, now_ms: int) -> None:
        """Hand back what was not raised, batches that were never entered included."""
        for batch in self._dispatch.never_entered():
            self._intake.buffer.put_back(self._dispatch.withdraw(batch))
        self.returned = self._intake.hand_back()
        self.life = Life.STOPPED
        if self.limiter is not None:
            self.limiter.give_back(now_ms)
        self._log.emit("shutdown")

    def _next_ms(self, now_ms: int) -> int | None:
        times = [self._intake.buffer.next_timeout_ms()]
        if self.life in (Life.RUNNING, Life.DRAINING):
            times += [self._drain_until_ms, self._pause.until_ms, self._dispatch.next_deadline_ms()]
            times += [self.limiter.next_deadline_ms() if self.limiter is not None else None]
            times += [self._watch.due_ms if self.buffered else None]
            if not self.paused:
                times += [self._flush_tick.next_ms, self._capacity_tick_at.next_ms, self._audit_tick_at.next_ms]
                times += [now_ms if self._flush_asked else None]
        return min((time for time in times if time is not None), default=None)
