"""The batcher for threads: real clock, threads and chance around the engine of `core.py` (capacity.md 19).

One lock guards engine and resource. One loop thread steps the engine; callbacks run in the executor, listeners in
their own thread, lease calls in theirs: nothing of the user's runs with the lock held.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, Literal

from headrace_core.capacity.buffer import Waiter
from headrace_core.capacity.config import BatcherConfig, change_config
from headrace_core.capacity.core import BatcherCore, Life
from headrace_core.capacity.delivery import Delivery, Listener, Token
from headrace_core.capacity.errors import BatcherError, ImproperOrder, LeaseStoreUnavailable
from headrace_core.capacity.lease_client import LeaseClient
from headrace_core.capacity.operation import Batch, Operation
from headrace_core.capacity.pacing import NS_PER_MS
from headrace_core.capacity.resources import Resource, SharedResource
from headrace_core.capacity.units import Amount

MAX_CALLBACK_THREADS = 512
CLOSE_S = 5.0


def chance() -> float:
    """A number in [0, 1) from the operating system."""
    return int.from_bytes(os.urandom(4)) / 2**32


def owner_id() -> str:
    """`host:pid:uuid4`, new for every process start (capacity.md 1)."""
    return f"{os.uname().nodename}:{os.getpid()}:{uuid.uuid4()}"


class Batcher:
    """One long-lived object per datastore and process. `config`: the keys of capacity.md 2. `clock` gives monotonic
    nanoseconds, `rng` numbers in [0, 1); `executor` runs callbacks. Raises CapacityConfig."""

    def __init__(
        self,
        limiter: Resource | None = None,
        *,
        clock: Callable[[], int] = time.monotonic_ns,
        rng: Callable[[], float] = chance,
        executor: Executor | None = None,
        **config: Any,
    ) -> None:
        settings = change_config(BatcherConfig(), {"burst_ms": 0, **config})
        if settings.pacing == "slice":
            warnings.warn("slice pacing holds no limit in a window", stacklevel=2)
        self._core = BatcherCore(settings, limiter, rng)
        self._clock = clock
        self._executor = executor
        self._own_executor = executor is None
        self._lock = threading.Condition()
        self._delivery = Delivery()
        self._thread: threading.Thread | None = None
        self._leases: LeaseClient | None = None
        self._next_ms: int | None = None
        self._woken = False
        self._handed_back = False

    @property
    def target(self) -> int | dict[str, int]:
        """Cost units buffered, or raised and not yet done."""
        with self._lock:
            return self._core.target

    @property
    def inflight(self) -> int:
        """Concurrency slots taken."""
        with self._lock:
            return self._core.inflight

    @property
    def buffered(self) -> int:
        with self._lock:
            return self._core.buffered

    @property
    def events_lost(self) -> int:
        """Events that did not fit into the listeners' queue."""
        return self._delivery.lost

    def configure(self, **changes: Any) -> None:
        """Change settings before start. Raises InitializationOnly afterwards, CapacityConfig for a wrong value."""
        with self._lock:
            self._core.configure(**changes)

    def start(self) -> None:
        """Start resource and loop. Raises ImproperOrder on a second start, LeaseStoreUnavailable, CapacityConfig."""
        with self._lock:
            if self._core.life is not Life.NEW:
                raise ImproperOrder(f"cannot start: {self._core.life.value}")
            self._start_limiter()
            self._core.start(self._now_ms())
            if self._executor is None:
                self._executor = ThreadPoolExecutor(MAX_CALLBACK_THREADS, thread_name_prefix="headrace-batch")
            self._thread = threading.Thread(target=self._run, name="headrace-batcher", daemon=True)
        if self._leases is not None:
            self._leases.start()
        self._thread.start()

    def enqueue(self, op: Operation | None, timeout_ms: int | None = None) -> None:
        """Buffer `op`; waits for room, `timeout_ms` at most. Raises an error of capacity.md 3; then nothing changed."""
        with self._lock:
            waiter = self._core.enqueue(op, self._now_ms(), timeout_ms)
            if waiter is not None:
                self._await(waiter)

    def enqueue_many(self, ops: Iterable[Operation | None], timeout_ms: int | None = None) -> list[BatcherError | None]:
        """`enqueue` of each; None for what was taken, its error for what was not, in the order of `ops`."""
        results: list[BatcherError | None] = []
        with self._lock:
            now_ms = self._now_ms()
            for op in ops:
                try:
                    waiter = self._core.enqueue(op, now_ms, timeout_ms)
                    if waiter is not None:
                        self._await(waiter)
                        now_ms = self._now_ms()
                    results.append(None)
                except BatcherError as error:
                    results.append(error)
        return results

    def flush(self) -> None:
        """Ask for a flush at once; does not block."""
        with self._lock:
            self._core.flush()
            self._wake()

    def pause(self, retry_after_ms: int | None = None, scope: Literal["instance", "resource"] = "instance") -> None:
        """Pause this instance or, with "resource", all that use the store (capacity.md 8)."""
        with self._lock:
            self._core.pause(self._now_ms(), retry_after_ms, scope)
            self._wake()

    def throttled(self, share: float) -> None:
        """Share of refused or timed-out requests of the last second, 0 to 1 (capacity.md 15)."""
        with self._lock:
            if self._core.limiter is not None:
                self._core.limiter.throttled(share)

    def stop(self, drain_timeout_ms: int = 30_000) -> list[Operation]:
        """Drain for `drain_timeout_ms` at most (0: now), give everything back, and return what was not raised, in
        order. A second call returns nothing."""
        with self._lock:
            self._core.stop(self._now_ms(), drain_timeout_ms)
            self._wake()
            while self._core.life is not Life.STOPPED:
                self._lock.wait()
            returned = [] if self._handed_back else self._core.returned
            self._handed_back = True
        self._end_threads()
        return returned

    def add_listener(self, fn: Listener) -> Token:
        return self._delivery.add(fn)

    def remove_listener(self, token: Token) -> None:
        self._delivery.remove(token)

    # The loop

    def _run(self) -> None:
        while True:
            with self._lock:
                self._woken = False
                step = self._core.step(self._now_ms())
                self._next_ms = step.next_ms
                stopped = self._core.life is Life.STOPPED
                self._publish()
            for failure in step.failures:
                self._submit(self._tell, failure.batch, failure.error)
            for batch in step.batches:
                batch.settler = self._settle
                self._submit(self._call, batch)
            if stopped:
                return
            self._sleep()

    def _sleep(self) -> None:
        with self._lock:
            while not self._woken and self._core.life is not Life.STOPPED:
                wait_ns = None if self._next_ms is None else self._next_ms * NS_PER_MS - self._clock()
                if wait_ns is not None and wait_ns <= 0:
                    return
                self._lock.wait(None if wait_ns is None else wait_ns / 1e9)

    def _call(self, batch: Batch) -> None:
        """In the thread of the callback: the last look, the call, the books."""
        with self._lock:
            if not self._core.enter(batch, self._clock()):
                return
            self._wake_by(batch.deadline_ms)
        error: BaseException | None = None
        try:
            batch.watcher.callback(batch)
        except BaseException as raised:
            error = raised
        with self._lock:
            self._core.leave(batch, self._now_ms(), error)
            self._publish()
        if error is not None:
            self._tell(batch, error)

    def _tell(self, batch: Batch, error: BaseException) -> None:
        if batch.watcher.on_error is not None:
            batch.watcher.on_error(batch, error)

    def _settle(self, op: Operation, charge: Amount) -> None:
        with self._lock:
            self._core.settle(op, charge, self._clock())

    def _submit(self, task: Callable[..., None], *args: Any) -> None:
        assert self._executor is not None, "made at start"
        self._executor.submit(task, *args)

    # Small change, all with the lock held

    def _now_ms(self) -> int:
        return self._clock() // NS_PER_MS

    def _wake(self) -> None:
        self._woken = True
        self._publish()

    def _wake_by(self, when_ms: int) -> None:
        if self._next_ms is None or when_ms < self._next_ms:
            self._woken = True
            self._lock.notify_all()

    def _publish(self) -> None:
        """Events go out, waiting callers look again, the lease client sees a changed need."""
        events = self._core.take_events()
        if events:
            self._delivery.put(events)
        if self._leases is not None and self._core.life is not Life.STOPPED:
            self._leases.poke()
        self._lock.notify_all()

    def _await(self, waiter: Waiter) -> None:
        if waiter.deadline_ms is not None:
            self._wake_by(waiter.deadline_ms)
        while not waiter.done:
            left = None if waiter.deadline_ms is None else waiter.deadline_ms * NS_PER_MS - self._clock()
            self._lock.wait(None if left is None else max(0, left) / 1e9)
            self._core.end_waits(self._now_ms())
        if waiter.error is not None:
            raise waiter.error

    def _start_limiter(self) -> None:
        limiter = self._core.limiter
        if limiter is None:
            return
        try:
            limiter.start(self._now_ms())
        except BatcherError:
            raise
        except Exception as error:
            raise LeaseStoreUnavailable(f"the lease store did not answer: {error}") from error
        if isinstance(limiter, SharedResource):
            limiter.guard = self._lock
            self._leases = LeaseClient(limiter, owner_id(), lock=self._lock, clock=self._clock, changed=self._publish)

    def _end_threads(self) -> None:
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        if self._leases is not None:
            self._leases.stop()
        with self._lock:
            if self._core.limiter is not None:
                self._core.limiter.stop(self._now_ms())
            self._publish()
        if self._own_executor and self._executor is not None:
            self._executor.shutdown(wait=False)
        self._delivery.close(CLOSE_S)
