"""Pacing of the job's requests in the driver (capacity.md 5 and 12, spark-writer.md 6).

Theory: the driver sends every request of the job, one at a time, through one batcher, so one ledger in one process
bounds them all. A request is one operation, not batchable (spark-writer.md 4). The moment of dispatch that is recorded
is the very clock reading that the batcher's ledger got for this dispatch, so the record shows what the rule saw.

With a fixed resource, a process that starts does not know what its predecessor sent just before a kill -9, so for one
second nothing goes out (the quarantine of capacity.md 13, in one process). A lease store knows, and waits itself.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, Literal, Protocol, TypeVar

from headrace_core.capacity.batcher import Batcher
from headrace_core.capacity.events import Event
from headrace_core.capacity.operation import Batch, Operation, Watcher
from headrace_core.capacity.resources import Resource
from headrace_spark.exits import Stopping

SECOND_NS: Final = 1_000_000_000
FLUSH_INTERVAL_MS: Final = 25  # the Spark preset
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
    """Strict pacing for one caller at a time. `limiter` is a fixed resource or a leased one, `headroom` the part left
    unused; `quarantine`: nothing goes out for a second, where no store knows what went out before. Raises
    `CapacityConfig` for a wrong value, `LeaseStoreUnavailable`; `stop` ends its threads."""

    def __init__(self, limiter: Resource, headroom: float = 0.0, *, quarantine: bool = True) -> None:
        self._limiter = limiter
        self._last = threading.local()
        self._free_ns = time.monotonic_ns() + (SECOND_NS if quarantine else 0)
        self._sent: deque[tuple[int, int]] = deque()
        self._answers: deque[tuple[int, bool]] = deque()
        self._watcher = Watcher(self._dispatched, on_error=_failed)
        self._batcher = Batcher(
            limiter,
            clock=self._clock,
            flush_interval_ms=FLUSH_INTERVAL_MS,
            max_concurrent_batches=1,
            headroom=headroom,
        )
        self._batcher.start()

    def run(self, cost: int, work: Callable[[int], T]) -> T:
        """See `Pacing`. Raises what `work` raises, and `TooExpensive` for a cost above the capacity."""
        return self.settled(cost, work, _unknown)

    def settled(self, cost: int, work: Callable[[int], T], charge: Callable[[T], int | None]) -> T:
        """See `PausingPacing`. Raises as `run`."""
        time.sleep(max(0, self._free_ns - time.monotonic_ns()) / SECOND_NS)
        answer: Future[T] = Future()
        self._tell("expect")
        self._batcher.enqueue(Operation(self._watcher, cost, (work, charge, answer)))
        self._batcher.flush()
        return answer.result()

    def pause(self, retry_after_ms: int | None, scope: Literal["instance", "resource"]) -> None:
        """See `PausingPacing`."""
        self._batcher.pause(retry_after_ms, scope)

    def answered(self, *, well: bool) -> None:
        """See `PausingPacing`."""
        now_ns = time.monotonic_ns()
        self._answers.append((now_ns, well))
        while now_ns - self._answers[0][0] >= SECOND_NS:
            self._answers.popleft()
        self._batcher.throttled(sum(not fine for _, fine in self._answers) / len(self._answers))

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
            answer: Future[Any] = operation.payload[-1]
            answer.set_exception(Stopping("the job ends; this request did not go out"))

    def _clock(self) -> int:
        """The monotonic clock; each thread remembers its last reading."""
        self._last.at_ns = time.monotonic_ns()
        return int(self._last.at_ns)

    def _dispatched(self, batch: Batch) -> None:
        """In the thread that took the last look: its last reading is the one in the ledger."""
        at_ns, operation = int(self._last.at_ns), batch[0]
        while self._sent and at_ns - self._sent[0][0] >= SECOND_NS:
            self._sent.popleft()
        self._sent.append((at_ns, sum(operation.cost_units.values())))
        work, charge, answer = operation.payload
        try:
            found = work(at_ns)
            charged = charge(found)
            if charged is not None:
                batch.settle(operation, charged)
            answer.set_result(found)
        except BaseException as error:
            answer.set_exception(error)


def _unknown(_: object) -> None:
    """A destination that tells no charge."""


def _failed(batch: Batch, error: BaseException) -> None:
    answer: Future[Any] = batch[0].payload[-1]
    if not answer.done():
        answer.set_exception(error)
