"""Pacing of the requests of one process (capacity.md 5 and 12, spark-writer.md 6).

Theory: a process sends every request through one batcher, so one ledger bounds them all. A request is one operation,
not batchable (spark-writer.md 4). The moment of dispatch that is recorded is the very clock reading that the batcher's
ledger got for this dispatch, so the record shows what the rule saw.

With a fixed resource, a process that starts does not know what its predecessor sent just before a kill -9, so for one
second nothing goes out (the quarantine of capacity.md 13, in one process). A lease store knows, and waits itself.

A request waits as long as there is progress anywhere: here, or at another owner of the resource. Without any for
`max_wait_ms` it is taken back and fails, with the batcher's reason (`Stalled`).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as NotYet
from contextlib import suppress
from typing import Any, Final, Literal, Protocol, TypeVar

import structlog

from headrace_core.capacity.batcher import Batcher
from headrace_core.capacity.errors import CapacityConfig
from headrace_core.capacity.events import Event
from headrace_core.capacity.operation import Batch, Operation, Watcher
from headrace_core.capacity.resources import Resource
from headrace_spark.exits import Stalled, Stopping

SECOND_NS: Final = 1_000_000_000
FLUSH_INTERVAL_MS: Final = 25  # the Spark preset
CONCURRENT: Final = 4
STALL_MS: Final = 30_000
MAX_WAIT_MS: Final = 600_000
_LOOK_S: Final = 0.5
_log = structlog.get_logger("headrace_spark")
T = TypeVar("T")


class Pacing(Protocol):
    """Lets work out when the capacity has room."""

    def run(self, cost: int, work: Callable[[int], T]) -> T:
        """Wait until `cost` units fit, then call `work` with the moment of dispatch (monotonic ns)."""
        ...

    def used(self) -> int:
        """Units that went out in the last second."""
        ...

    def stop(self) -> None:
        """Nothing goes out any more; what was leased goes back."""
        ...


class PausingPacing(Pacing, Protocol):
    """`Pacing` for a destination that answers: what it charged is settled, and it may ask for a pause."""

    def settled(self, cost: int, work: Callable[[int], T], charge: Callable[[T], int | None]) -> T:
        """As `run`; `charge` tells from the answer what the destination charged, None if it did not say."""
        ...

    def pause(self, retry_after_ms: int | None, scope: Literal["instance", "resource"]) -> None:
        """Nothing goes out for a while (capacity.md 8)."""
        ...

    def answered(self, *, well: bool) -> None:
        """A request was answered; not well if it was refused or timed out, even in part (capacity.md 15, adaptive)."""
        ...


class Pacer:
    """Strict pacing for the threads of one process. `limiter` is a fixed resource or a leased one, `headroom` the part
    left unused; `quarantine`: nothing goes out for a second, where no store knows what went out before; `concurrent`:
    most requests at work at one time. `elsewhere` says whether another owner of the resource makes progress. Raises
    `CapacityConfig` for a wrong value, `LeaseStoreUnavailable`; `stop` ends its threads."""

    def __init__(
        self,
        limiter: Resource,
        headroom: float = 0.0,
        *,
        quarantine: bool = True,
        concurrent: int = CONCURRENT,
        max_wait_ms: int = MAX_WAIT_MS,
        elsewhere: Callable[[], bool] = lambda: False,
    ) -> None:
        self._limiter = limiter
        self._last = threading.local()
        self._free_ns = time.monotonic_ns() + (SECOND_NS if quarantine else 0)
        self._sent: deque[tuple[int, int]] = deque()
        self._answers: deque[tuple[int, bool]] = deque()
        self._turn = threading.Lock()
        self._max_wait_ms, self._elsewhere = max_wait_ms, elsewhere
        self._progress_ns, self._reason = time.monotonic_ns(), "capacity"
        self._watcher = Watcher(self._dispatched, on_error=_failed)
        self._batcher = Batcher(
            limiter,
            clock=self._clock,
            flush_interval_ms=FLUSH_INTERVAL_MS,
            capacity_interval_ms=FLUSH_INTERVAL_MS,
            max_concurrent_batches=concurrent,
            headroom=headroom,
            stall_ms=min(STALL_MS, max_wait_ms),
        )
        self._batcher.add_listener(self._stalled)
        self._batcher.start()

    def run(self, cost: int, work: Callable[[int], T]) -> T:
        """See `Pacing`. Raises what `work` raises, `TooExpensive` for a cost above the capacity, and `Stalled`."""
        return self.settled(cost, work, _unknown)

    def settled(self, cost: int, work: Callable[[int], T], charge: Callable[[T], int | None]) -> T:
        """See `PausingPacing`. Raises as `run`."""
        time.sleep(max(0, self._free_ns - time.monotonic_ns()) / SECOND_NS)
        answer: Future[T] = Future()
        asked_ns = time.monotonic_ns()
        self._tell("expect")
        self._batcher.enqueue(Operation(self._watcher, cost, (work, charge, answer)))
        self._batcher.flush()
        while True:
            try:
                return answer.result(_LOOK_S)
            except NotYet:
                if answer.done():  # what the work raised
                    raise
                self._look(answer, asked_ns)

    def _look(self, answer: Future[T], asked_ns: int) -> None:
        """Take the request back if nothing made progress for too long. Raises `Stalled`."""
        waited_ms = (time.monotonic_ns() - max(asked_ns, self._progress_ns)) // 1_000_000
        if waited_ms < self._max_wait_ms:
            return
        if self._elsewhere():
            self._progress_ns = time.monotonic_ns()
        elif answer.cancel():
            raise Stalled(f"nothing has gone out for {waited_ms} ms (max_wait_ms): {self._reason}")

    def _stalled(self, event: Event) -> None:
        """The batcher says each `stall_ms` that nothing goes out here, and why; and what is otherwise at the store."""
        if event.name == "error" and event.metadata.get("error") == CapacityConfig.code:
            _log.warning("capacity configured otherwise", detail=event.msg)
        if event.name == "stalled":
            self._reason = str(event.metadata.get("reason", self._reason))
            if self._elsewhere():
                self._progress_ns = time.monotonic_ns()

    def pause(self, retry_after_ms: int | None, scope: Literal["instance", "resource"]) -> None:
        """See `PausingPacing`."""
        self._batcher.pause(retry_after_ms, scope)

    def answered(self, *, well: bool) -> None:
        """See `PausingPacing`."""
        now_ns = time.monotonic_ns()
        with self._turn:
            self._answers.append((now_ns, well))
            while now_ns - self._answers[0][0] >= SECOND_NS:
                self._answers.popleft()
            share = sum(not fine for _, fine in self._answers) / len(self._answers)
        self._batcher.throttled(share)

    def used(self) -> int:
        """See `Pacing`."""
        now = time.monotonic_ns()
        return sum(cost for at, cost in tuple(self._sent) if now - at < SECOND_NS)

    def expect(self) -> None:
        """Work comes soon: a leased capacity is asked for now."""
        self._tell("expect")
        self._batcher.flush()

    def rest(self) -> None:
        """All work is done for now: what is leased goes back."""
        self._tell("rest")
        self._batcher.flush()

    def _tell(self, what: str) -> None:
        """To a limiter that leases for a whole process."""
        told = getattr(self._limiter, what, None)
        if told is not None:
            told()

    def listen(self, heard: Callable[[Event], None]) -> None:
        """`heard` gets the batcher's events, in a thread of its own."""
        self._batcher.add_listener(heard)

    def stop(self) -> None:
        """Nothing goes out any more; who still waits gets `Stopping`."""
        for operation in self._batcher.stop(0):
            _told(operation.payload[-1], Stopping("the job ends; this request did not go out"))

    def _clock(self) -> int:
        """The monotonic clock; each thread remembers its last reading."""
        self._last.at_ns = time.monotonic_ns()
        return int(self._last.at_ns)

    def _dispatched(self, batch: Batch) -> None:
        """In the thread that took the last look: its last reading is the one in the ledger."""
        at_ns, operation = int(self._last.at_ns), batch[0]
        work, charge, answer = operation.payload
        if not answer.set_running_or_notify_cancel():
            return  # it was taken back
        with self._turn:
            while self._sent and at_ns - self._sent[0][0] >= SECOND_NS:
                self._sent.popleft()
            self._sent.append((at_ns, sum(operation.cost_units.values())))
        self._progress_ns = at_ns
        try:
            found = work(at_ns)
            charged = charge(found)
            if charged is not None:
                batch.settle(operation, charged)
            answer.set_result(found)
        except BaseException as error:
            answer.set_exception(error)
        self._progress_ns = time.monotonic_ns()


def _unknown(_: object) -> None:
    """A destination that tells no charge."""


def _failed(batch: Batch, error: BaseException) -> None:
    _told(batch[0].payload[-1], error)


def _told(answer: Future[Any], error: BaseException) -> None:
    """Who still waits for it gets the error."""
    with suppress(InvalidStateError):
        answer.set_exception(error)
