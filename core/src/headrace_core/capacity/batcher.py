"""The batcher for threads: real clock, threads and chance around the engine of `core.py` (capacity.md 19).

One loop thread steps the engine and sleeps until the time that the step named; it is woken only when that time comes
nearer. Callbacks run in the executor. Callers that wait, for room or for the end, wait on the same lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, Literal

from headrace_core.capacity.buffer import Waiter
from headrace_core.capacity.core import Life
from headrace_core.capacity.errors import BatcherError
from headrace_core.capacity.front import Front, chance
from headrace_core.capacity.operation import Batch, Operation
from headrace_core.capacity.pacing import NS_PER_MS
from headrace_core.capacity.resources import Resource

MAX_CALLBACK_THREADS = 512


class Batcher(Front):
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
        super().__init__(limiter, clock, rng, config)
        self._executor = executor
        self._own_executor = executor is None
        self._sooner = threading.Condition(self._lock)
        self._changed = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._next_ms: int | None = None
        self._woken = False

    def start(self) -> None:
        """Start resource and loop. Raises ImproperOrder on a second start, LeaseStoreUnavailable, CapacityConfig."""
        with self._lock:
            self._check_new()
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

    def stop(self, drain_timeout_ms: int = 30_000) -> list[Operation]:
        """Drain for `drain_timeout_ms` at most (0: now), give everything back, and return what was not raised, in
        order. A second call returns nothing."""
        with self._lock:
            self._core.stop(self._now_ms(), drain_timeout_ms)
            self._wake()
            while self._core.life is not Life.STOPPED:
                self._changed.wait()
            returned = self._take_returned()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._close()
        if self._own_executor and self._executor is not None:
            self._executor.shutdown(wait=False)
        return returned

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
                self._sooner.wait(None if wait_ns is None else wait_ns / 1e9)

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

    def _submit(self, task: Callable[..., None], *args: Any) -> None:
        assert self._executor is not None, "made at start"
        self._executor.submit(task, *args)

    # Small change, all with the lock held

    def _wake(self) -> None:
        self._woken = True
        self._sooner.notify_all()
        self._publish()

    def _wake_by(self, when_ms: int) -> None:
        if self._next_ms is None or when_ms < self._next_ms:
            self._woken = True
            self._sooner.notify_all()

    def _publish(self) -> None:
        """Events go out; callers that wait look again; the loop sees an end."""
        super()._publish()
        self._changed.notify_all()
        if self._core.life is Life.STOPPED:
            self._sooner.notify_all()

    def _await(self, waiter: Waiter) -> None:
        if waiter.deadline_ms is not None:
            self._wake_by(waiter.deadline_ms)
        while not waiter.done:
            left = None if waiter.deadline_ms is None else waiter.deadline_ms * NS_PER_MS - self._clock()
            self._changed.wait(None if left is None else max(0, left) / 1e9)
            self._core.end_waits(self._now_ms())
        if waiter.error is not None:
            raise waiter.error
