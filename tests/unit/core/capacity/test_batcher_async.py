"""The batcher for asyncio: callbacks are coroutines on one event loop."""

from __future__ import annotations

import asyncio

import pytest

from headrace_core.capacity.errors import BufferFull, BufferShutdown, ImproperOrder
from headrace_core.capacity.events import Event
from headrace_core.capacity.front_async import AsyncBatcher
from headrace_core.capacity.operation import Batch, Operation, Watcher
from headrace_core.capacity.resources import ProvisionedResource


class Sink:
    def __init__(self) -> None:
        self.payloads: list[object] = []
        self.errors: list[str] = []

    async def write(self, batch: Batch) -> None:
        await asyncio.sleep(0)
        self.payloads += [op.payload for op in batch]

    async def fail(self, batch: Batch) -> None:
        raise ValueError(f"{len(batch)} refused")

    async def failed(self, batch: Batch, error: BaseException) -> None:
        self.errors.append(f"{len(batch)}: {error}")


async def test_everything_is_dispatched_within_the_capacity_and_stop_drains() -> None:
    sink = Sink()
    watcher = Watcher(sink.write, max_batch_size=4)
    batcher = AsyncBatcher(ProvisionedResource(2000), flush_interval_ms=5, buffer_size=10)
    await batcher.start()
    results = await batcher.enqueue_many([Operation(watcher, 10, n, batchable=True) for n in range(40)])
    assert results == [None] * 40
    assert await batcher.stop() == []
    assert sorted(map(str, sink.payloads)) == sorted(map(str, range(40)))
    assert (batcher.target, batcher.inflight, batcher.buffered) == (0, 0, 0)


async def test_a_callback_that_raises_reaches_on_error_and_a_listener() -> None:
    sink, events = Sink(), list[Event]()
    batcher = AsyncBatcher(flush_interval_ms=5)
    batcher.add_listener(events.append)
    await batcher.start()
    await batcher.enqueue(Operation(Watcher(sink.fail, on_error=sink.failed), 1, "a"))
    assert await batcher.stop() == []
    assert sink.errors == ["1: 1 refused"]
    assert {event.name for event in events} >= {"callback-error", "shutdown"}


async def test_a_blocked_caller_gives_up_in_time_or_is_woken_by_stop() -> None:
    watcher = Watcher(Sink().write)
    batcher = AsyncBatcher(buffer_size=1, flush_interval_ms=60_000)
    await batcher.enqueue(Operation(watcher, 1, "a"))
    with pytest.raises(BufferFull):
        await batcher.enqueue(Operation(watcher, 1, "b"), timeout_ms=20)
    await batcher.start()
    blocked = asyncio.create_task(batcher.enqueue(Operation(watcher, 1, "c")))
    await asyncio.sleep(0)
    assert [op.payload for op in await batcher.stop(0)] == ["a"]
    with pytest.raises(BufferShutdown):
        await blocked
    with pytest.raises(ImproperOrder):
        await batcher.start()


async def test_the_operation_of_a_cancelled_caller_does_not_get_in() -> None:
    sink = Sink()
    watcher = Watcher(sink.write)
    batcher = AsyncBatcher(buffer_size=1, flush_interval_ms=60_000)
    await batcher.enqueue(Operation(watcher, 1, "a"))
    blocked = asyncio.create_task(batcher.enqueue(Operation(watcher, 1, "b")))
    await asyncio.sleep(0)
    blocked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await blocked
    await batcher.start()
    await batcher.flush()
    assert await batcher.stop() == []
    assert sink.payloads == ["a"]
