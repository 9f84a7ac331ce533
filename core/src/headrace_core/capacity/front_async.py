"""The batcher for asyncio: the same names as coroutines, callbacks are coroutines (capacity.md 19).

Everything runs on one event loop: one task steps the engine, each batch is a task. A shared resource's lease calls
still have their own thread, because stores block; the lock that guards the resource is therefore taken here too, and
only for as long as a step lasts.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Iterable
from typing import Any, Literal

from headrace_core.capacity.buffer import Waiter
from headrace_core.capacity.core import Life
from headrace_core.capacity.errors import BatcherError
from headrace_core.capacity.front import Front, chance
from headrace_core.capacity.operation import Batch, Operation
from headrace_core.capacity.pacing import NS_PER_MS
from headrace_core.capacity.resources import Resource


class AsyncBatcher(Front):
    """One long-lived object per datastore and event loop. Arguments and errors as `Batcher`."""

    def __init__(
        self,
        limiter: Resource | None = None,
        *,
        clock: Callable[[], int] = time.monotonic_ns,
        rng: Callable[[], float] = chance,
        **config: Any,
    ) -> None:
        super().__init__(limiter, clock, rng, config)
        self._loop_task: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._changed = asyncio.Condition()

    async def start(self) -> None:
        """Start resource and loop. Raises ImproperOrder on a second start, LeaseStoreUnavailable, CapacityConfig."""
        self._check_new()
        await asyncio.to_thread(self._start_limiter)
        with self._lock:
            self._core.start(self._now_ms())
        if self._leases is not None:
            self._leases.start()
        self._loop_task = asyncio.create_task(self._run())

    async def enqueue(self, op: Operation | None, timeout_ms: int | None = None) -> None:
        """Buffer `op`; waits for room, `timeout_ms` at most. Raises an error of capacity.md 3; then nothing changed."""
        with self._lock:
            waiter = self._core.enqueue(op, self._now_ms(), timeout_ms)
        if waiter is not None:
            await self._await(waiter)

    async def enqueue_many(
        self, ops: Iterable[Operation | None], timeout_ms: int | None = None
    ) -> list[BatcherError | None]:
        """`enqueue` of each; None for what was taken, its error for what was not, in the order of `ops`."""
        results: list[BatcherError | None] = []
        for op in ops:
            try:
                await self.enqueue(op, timeout_ms)
                results.append(None)
            except BatcherError as error:
                results.append(error)
        return results

    async def flush(self) -> None:
        """Ask for a flush at once; does not wait for it."""
        with self._lock:
            self._core.flush()
        self._wake.set()

    async def pause(
        self, retry_after_ms: int | None = None, scope: Literal["instance", "resource"] = "instance"
    ) -> None:
        """Pause this instance or, with "resource", all that use the store (capacity.md 8)."""
        with self._lock:
            self._core.pause(self._now_ms(), retry_after_ms, scope)
        self._wake.set()

    async def stop(self, drain_timeout_ms: int = 30_000) -> list[Operation]:
        """As `Batcher.stop`: what was not raised, in order; nothing at a second call."""
        with self._lock:
            self._core.stop(self._now_ms(), drain_timeout_ms)
        self._wake.set()
        if self._loop_task is not None:
            await asyncio.shield(self._loop_task)
        await self._notify()
        returned = self._take_returned()
        await asyncio.to_thread(self._close)
        return returned

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            with self._lock:
                step = self._core.step(self._now_ms())
                self._publish()
            for failure in step.failures:
                self._spawn(self._tell(failure.batch, failure.error))
            for batch in step.batches:
                batch.settler = self._settle
                self._spawn(self._call(batch))
            await self._notify()
            if self._core.life is Life.STOPPED:
                return
            await self._sleep(step.next_ms)

    async def _sleep(self, next_ms: int | None) -> None:
        wait_s = None if next_ms is None else max(0.0, (next_ms * NS_PER_MS - self._clock()) / 1e9)
        try:
            await asyncio.wait_for(self._wake.wait(), wait_s)
        except TimeoutError:
            return

    async def _call(self, batch: Batch) -> None:
        """In the task of the callback: the last look, the call, the books."""
        with self._lock:
            if not self._core.enter(batch, self._clock()):
                return
        self._wake.set()
        error: BaseException | None = None
        try:
            await batch.watcher.callback(batch)
        except BaseException as raised:
            error = raised
        with self._lock:
            self._core.leave(batch, self._now_ms(), error)
            self._publish()
        self._wake.set()
        if error is not None:
            await self._tell(batch, error)
        if isinstance(error, asyncio.CancelledError):
            raise error

    async def _tell(self, batch: Batch, error: BaseException) -> None:
        if batch.watcher.on_error is not None:
            answer = batch.watcher.on_error(batch, error)
            if inspect.isawaitable(answer):
                await answer

    async def _await(self, waiter: Waiter) -> None:
        """A caller that is cancelled meanwhile leaves the queue; its operation does not get in."""
        self._wake.set()
        try:
            await self._wait_for(waiter)
        except asyncio.CancelledError:
            with self._lock:
                self._core.forget(waiter)
            raise
        if waiter.error is not None:
            raise waiter.error

    async def _wait_for(self, waiter: Waiter) -> None:
        while not waiter.done:
            left_s = None
            if waiter.deadline_ms is not None:
                left_s = max(0.0, (waiter.deadline_ms * NS_PER_MS - self._clock()) / 1e9)
            try:
                await asyncio.wait_for(self._until_done(waiter), left_s)
            except TimeoutError:
                with self._lock:
                    self._core.end_waits(self._now_ms())

    async def _until_done(self, waiter: Waiter) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: waiter.done)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
