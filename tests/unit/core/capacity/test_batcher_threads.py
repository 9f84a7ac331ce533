"""The batcher for threads: real clock and threads; each test waits for a condition with a deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from headrace_core.capacity.batcher import Batcher
from headrace_core.capacity.config import LeaseConfig
from headrace_core.capacity.errors import (
    BatcherError,
    BufferFull,
    BufferShutdown,
    CapacityConfig,
    ImproperOrder,
    InitializationOnly,
    LeaseStoreUnavailable,
)
from headrace_core.capacity.events import Event
from headrace_core.capacity.memory_store import MemoryStore
from headrace_core.capacity.operation import Batch, Operation, Watcher
from headrace_core.capacity.protocol import LeaseReply, LeaseRequest
from headrace_core.capacity.resources import ProvisionedResource, SharedResource

WAIT_S = 10.0


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        threading.Event().wait(0.002)


class Sink:
    """Keeps what it was given, with the time at which its callback was entered."""

    def __init__(self) -> None:
        self.payloads: list[Any] = []
        self.entered: list[tuple[float, int]] = []
        self.errors: list[tuple[list[Any], str]] = []

    def write(self, batch: Batch) -> None:
        assert isinstance(batch.cost, int)
        self.entered.append((time.monotonic(), batch.cost))
        self.payloads += [op.payload for op in batch]

    def failed(self, batch: Batch, error: BaseException) -> None:
        self.errors.append(([op.payload for op in batch], type(error).__name__))


class WatchedStore(MemoryStore):
    """The real store in memory, with the real clock; keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__(lambda: time.monotonic_ns() // 1_000_000)
        self.asks: list[LeaseRequest] = []

    def sync(self, request: LeaseRequest, timeout_ms: int = 2_000) -> LeaseReply:
        self.asks.append(request)
        return super().sync(request, timeout_ms)


FAST = LeaseConfig(
    ttl_ms=300,
    renew_interval_ms=50,
    margin_ms=50,
    quarantine_ms=20,
    call_timeout_ms=200,
    min_sync_interval_ms=10,
    for_tests=True,
)


def test_everything_enqueued_is_dispatched_and_stop_returns_nothing() -> None:
    sink = Sink()
    watcher = Watcher(sink.write, max_batch_size=7)
    batcher = Batcher(flush_interval_ms=5)
    batcher.start()
    assert batcher.enqueue_many([Operation(watcher, 1, n, batchable=True) for n in range(500)]) == [None] * 500
    assert batcher.stop() == []
    assert sorted(sink.payloads) == list(range(500))
    assert (batcher.target, batcher.inflight, batcher.buffered) == (0, 0, 0)


def test_a_real_second_never_holds_more_than_the_capacity() -> None:
    sink = Sink()
    watcher = Watcher(sink.write)
    batcher = Batcher(ProvisionedResource(400), flush_interval_ms=20)
    batcher.start()
    batcher.enqueue_many([Operation(watcher, 20, n) for n in range(40)])
    assert batcher.stop() == []
    assert len(sink.entered) == 40
    for end, _ in sink.entered:
        window = sum(cost for at, cost in sink.entered if end - 0.99 < at <= end)
        assert window <= 400


def test_stop_now_hands_back_in_order_and_a_second_stop_returns_nothing() -> None:
    watcher = Watcher(lambda batch: batch)
    batcher = Batcher(flush_interval_ms=60_000)
    ops = [Operation(watcher, 1, n) for n in range(3)]
    batcher.enqueue_many(ops)
    batcher.start()
    assert batcher.stop(0) == ops
    assert batcher.stop(0) == []
    with pytest.raises(BufferShutdown):
        batcher.enqueue(ops[0])
    with pytest.raises(ImproperOrder):
        batcher.start()


def test_a_blocked_caller_gets_in_when_a_flush_makes_room() -> None:
    sink = Sink()
    watcher = Watcher(sink.write)
    batcher = Batcher(buffer_size=1, flush_interval_ms=10)
    batcher.start()
    for n in range(5):
        batcher.enqueue(Operation(watcher, 1, n))
    assert batcher.stop() == []
    assert sink.payloads == sorted(sink.payloads)


def test_a_blocked_caller_gives_up_when_its_time_is_over() -> None:
    watcher = Watcher(lambda batch: batch)
    batcher = Batcher(buffer_size=1)
    batcher.enqueue(Operation(watcher, 1, "a"))
    began = time.monotonic()
    with pytest.raises(BufferFull):
        batcher.enqueue(Operation(watcher, 1, "b"), timeout_ms=30)
    assert time.monotonic() - began >= 0.029


def test_stop_wakes_a_blocked_caller() -> None:
    watcher = Watcher(lambda batch: batch)
    batcher = Batcher(buffer_size=1)
    batcher.enqueue(Operation(watcher, 1, "a"))
    seen: list[str] = []

    def blocked() -> None:
        try:
            batcher.enqueue(Operation(watcher, 1, "b"))
        except BatcherError as error:
            seen.append(error.code)

    thread = threading.Thread(target=blocked)
    thread.start()
    threading.Event().wait(0.02)
    batcher.stop(0)
    thread.join(WAIT_S)
    assert seen == ["BufferShutdown"]


def test_a_callback_that_raises_reaches_on_error_and_a_listener() -> None:
    sink = Sink()
    events: list[Event] = []

    def fail(batch: Batch) -> None:
        raise ValueError(f"{len(batch)} refused")

    batcher = Batcher(flush_interval_ms=5)
    batcher.add_listener(events.append)
    batcher.start()
    batcher.enqueue(Operation(Watcher(fail, on_error=sink.failed), 1, "a"))
    until(lambda: bool(sink.errors))
    batcher.stop()
    assert sink.errors == [(["a"], "ValueError")]
    assert [e.msg for e in events if e.name == "callback-error"] == ["1 refused"]
    assert [e.name for e in events][-1] == "shutdown"


def test_the_cancel_token_is_set_at_the_end_of_the_operation_time() -> None:
    tokens: list[bool] = []

    def slow(batch: Batch) -> None:
        until(lambda: batch.cancelled.is_set())
        tokens.append(bool(batch.cancelled))

    batcher = Batcher(flush_interval_ms=5)
    batcher.start()
    batcher.enqueue(Operation(Watcher(slow, max_operation_ms=30), 1, "a"))
    until(lambda: batcher.target == 0 and batcher.buffered == 0)
    batcher.stop()
    assert tokens == [True]


def test_a_slow_listener_delays_no_flush_and_may_remove_itself() -> None:
    sink = Sink()
    gate = threading.Event()
    batcher = Batcher(flush_interval_ms=5, emit={"flush"})
    seen: list[str] = []

    def listener(event: Event) -> None:
        gate.wait(WAIT_S)
        seen.append(event.name)
        batcher.remove_listener(token)

    token = batcher.add_listener(listener)
    batcher.start()
    batcher.enqueue(Operation(Watcher(sink.write), 1, "a"))
    until(lambda: sink.payloads == ["a"])
    gate.set()
    batcher.stop()
    assert len(seen) == 1


def test_settings_are_fixed_once_started_and_wrong_ones_name_their_key() -> None:
    batcher = Batcher()
    batcher.configure(buffer_size=3)
    batcher.start()
    with pytest.raises(InitializationOnly):
        batcher.configure(buffer_size=4)
    batcher.stop(0)
    for key, value in (("buffer_size", 0), ("pacing", "fast"), ("headroom", 0.6), ("no_such_key", 1), ("emit", {"x"})):
        with pytest.raises(CapacityConfig, match=key):
            Batcher(**{key: value})


def test_slice_pacing_warns() -> None:
    with pytest.warns(UserWarning, match="no limit"):
        Batcher(pacing="slice")


@pytest.mark.filterwarnings("ignore:slice pacing")
def test_a_batcher_whose_start_was_refused_can_be_stopped() -> None:
    shared = SharedResource(WatchedStore(), shared_capacity={"rows": 10, "bytes": 10}, partitions=2, lease=FAST)
    batcher = Batcher(shared, pacing="slice")
    with pytest.raises(CapacityConfig, match="one dimension"):
        batcher.start()
    assert batcher.stop(0) == []


def test_a_shared_resource_leases_what_is_wanted_and_gives_it_back() -> None:
    sink, store = Sink(), WatchedStore()
    shared = SharedResource(store, shared_capacity=4000, factor=1000, lease=FAST)
    batcher = Batcher(shared, flush_interval_ms=10, capacity_interval_ms=20)
    batcher.start()
    batcher.enqueue_many([Operation(Watcher(sink.write), 100, n) for n in range(5)])
    assert batcher.stop() == []
    assert sorted(sink.payloads) == list(range(5))
    assert max(ask.want for ask in store.asks) == 1
    assert [ask.seq for ask in store.asks] == list(range(1, len(store.asks) + 1))
    assert (store.asks[-1].want, store.asks[-1].held) == (0, ())


def test_without_a_store_the_capacity_ends_at_the_local_deadline_and_comes_back() -> None:
    sink, store = Sink(), WatchedStore()
    events: list[Event] = []
    shared = SharedResource(store, shared_capacity=1000, factor=1000, lease=FAST)
    batcher = Batcher(shared, flush_interval_ms=10, capacity_interval_ms=20)
    batcher.add_listener(events.append)
    batcher.start()
    watcher = Watcher(sink.write)
    batcher.enqueue_many([Operation(watcher, 300, n) for n in range(6)])
    until(lambda: len(sink.payloads) >= 1)
    store.reachable = False
    until(lambda: any(e.name == "released" for e in events))
    assert shared.capacity == 0
    store.reachable = True
    until(lambda: len(sink.payloads) == 6)
    batcher.stop()
    names = [e.name for e in events]
    assert names.index("store-lost") < names.index("released") < names.index("store-back")


def test_a_store_that_is_away_at_start_is_an_error_that_can_be_retried() -> None:
    store = WatchedStore()
    store.reachable = False
    batcher = Batcher(SharedResource(store, shared_capacity=10, lease=FAST))
    with pytest.raises(LeaseStoreUnavailable) as refused:
        batcher.start()
    assert refused.value.retry
    store.reachable = True
    batcher.start()
    batcher.stop(0)


def test_a_store_that_forgot_the_resource_is_told_of_it_again() -> None:
    sink, store = Sink(), WatchedStore()
    batcher = Batcher(SharedResource(store, shared_capacity=1000, factor=1000, lease=FAST), flush_interval_ms=10)
    batcher.start()
    store._states.clear()
    batcher.enqueue(Operation(Watcher(sink.write), 10, "a"))
    until(lambda: sink.payloads == ["a"])
    batcher.stop()


def test_a_charge_above_the_estimate_slows_what_follows() -> None:
    sink = Sink()

    def write(batch: Batch) -> None:
        sink.write(batch)
        batch.settle(batch[0], 100)

    batcher = Batcher(ProvisionedResource(100), flush_interval_ms=10)
    batcher.start()
    began = time.monotonic()
    batcher.enqueue(Operation(Watcher(write), 1, 0))
    until(lambda: batcher.buffered + batcher.inflight == 0)
    batcher.enqueue(Operation(Watcher(write), 1, 1))
    assert batcher.stop() == []
    assert sink.entered[1][0] - began >= 0.9
