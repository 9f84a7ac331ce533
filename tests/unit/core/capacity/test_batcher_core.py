"""The engine under a virtual clock: what the vectors do not reach."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace_core.capacity import errors
from headrace_core.capacity.config import BatcherConfig, LeaseConfig
from headrace_core.capacity.core import BatcherCore, Step
from headrace_core.capacity.errors import BatcherError, CapacityConfig
from headrace_core.capacity.memory_store import MemoryStore
from headrace_core.capacity.operation import Batch, Operation, Watcher
from headrace_core.capacity.pacing import NS_PER_MS
from headrace_core.capacity.pause import PauseRule
from headrace_core.capacity.resources import ProvisionedResource, Resource, SharedResource


def watcher(**limits: Any) -> Watcher:
    return Watcher(lambda batch: batch, **limits)


def started(limiter: Resource | None = None, **config: Any) -> BatcherCore:
    core = BatcherCore(BatcherConfig(**config), limiter)
    core.start(0)
    return core


def names(core: BatcherCore) -> list[str]:
    return [event.name for event in core.take_events()]


def enter_all(core: BatcherCore, step: Step, now_ms: int) -> list[Batch]:
    return [batch for batch in step.batches if core.enter(batch, now_ms * NS_PER_MS)]


def test_a_batch_that_no_longer_fits_is_put_back_in_its_place_without_an_attempt() -> None:
    resource = ProvisionedResource(100)
    core = started(resource)
    ops = [Operation(watcher(), cost, cost) for cost in (5, 4, 3)]
    for op in ops:
        core.enqueue(op, 0)
    batches = core.step(100).batches
    resource.set_capacity(6)
    assert [core.enter(batch, 100 * NS_PER_MS) for batch in batches] == [True, False, False]
    assert [op.attempt for op in ops] == [1, 0, 0]
    assert (core.target, core.inflight, core.raised) == (12, 1, 1)
    assert [entry.op for entry in core.waiting()] == ops[1:]


def test_a_batch_raised_later_gives_way_so_that_order_is_kept() -> None:
    resource = ProvisionedResource(100)
    core = started(resource)
    ops = [Operation(watcher(), 4, n) for n in range(2)]
    for op in ops:
        core.enqueue(op, 0)
    first, second = core.step(100).batches
    resource.set_capacity(4)
    assert not core.enter(second, 100 * NS_PER_MS)
    assert core.enter(first, 100 * NS_PER_MS)


def test_a_batch_of_cost_zero_always_passes_the_last_look() -> None:
    resource = ProvisionedResource(100)
    core = started(resource)
    core.enqueue(Operation(watcher(), 0, "z"), 0)
    step = core.step(100)
    resource.set_capacity(0)
    assert len(enter_all(core, step, 100)) == 1


def test_an_entry_is_young_until_its_callback_is_entered() -> None:
    core = started(ProvisionedResource(100))
    for n in range(2):
        core.enqueue(Operation(watcher(), 60, n), 0)
    (first,) = core.step(100).batches
    assert [core.step(t).batches for t in range(200, 1600, 100)] == [[]] * 14
    assert core.enter(first, 1600 * NS_PER_MS)
    assert [core.step(t).batches for t in range(1600, 2600, 100)] == [[]] * 10
    assert len(core.step(2600).batches) == 1


def test_stop_hands_back_batches_that_were_raised_but_never_entered() -> None:
    core = started()
    ops = [Operation(watcher(), 1, n) for n in range(2)]
    core.enqueue(ops[0], 0)
    step = core.step(100)
    core.enqueue(ops[1], 110)
    core.stop(120)
    assert core.returned == ops
    assert enter_all(core, step, 130) == []
    assert (core.target, core.inflight) == (0, 0)


@pytest.mark.parametrize(("target", "inflight", "mask"), [(7, 0, 1), (0, 2, 2), (7, 2, 3)])
def test_the_audit_repairs_books_that_nothing_accounts_for(target: int, inflight: int, mask: int) -> None:
    core = started(audit_interval_ms=1000)
    core.books.target[""] = target
    core.books.inflight = inflight
    core.step(1000)
    assert [(e.name, e.val) for e in core.take_events()] == [("audit-fail", mask)]
    assert (core.target, core.inflight) == (0, 0)
    core.step(2000)
    assert [(e.name, e.val) for e in core.take_events()] == [("audit-pass", 0)]


def stalled(core: BatcherCore, until_ms: int) -> list[tuple[int, str]]:
    for now_ms in range(0, until_ms + 1, 100):
        enter_all(core, core.step(now_ms), now_ms)
    return [(e.val, e.metadata["reason"]) for e in core.take_events() if e.name == "stalled"]


def test_waiting_for_a_slot_is_a_stall_by_slots() -> None:
    core = started(stall_ms=500, max_concurrent_batches=1)
    for n in range(2):
        core.enqueue(Operation(watcher(), 1, n), 0)
    assert stalled(core, 1150) == [(500, "slots"), (1000, "slots")]


def test_a_pause_is_a_stall_by_pause() -> None:
    core = started(stall_ms=500)
    core.enqueue(Operation(watcher(), 1, "a"), 0)
    core.pause(0, retry_after_ms=5000)
    assert stalled(core, 600) == [(500, "paused")]


def shared(**config: Any) -> SharedResource:
    resource = SharedResource(MemoryStore(lambda: 0), **{"shared_capacity": 4000, "factor": 1000, **config})
    resource.start()
    return resource


def test_a_head_above_what_is_held_is_told_to_the_resource_with_its_headroom() -> None:
    resource = shared(shared_capacity=5000)
    resource.accept([(0, 1, 1000)], None)
    core = started(resource, headroom=0.05)
    core.enqueue(Operation(watcher(), 2000, "big"), 0)
    core.step(100)
    assert (resource.head_partitions, resource.wanted) == (3, 3)
    assert stalled(core, 30_200) == [(30_000, "head")]


def test_a_head_once_told_is_told_until_it_has_gone() -> None:
    resource = shared()
    core = started(resource)
    core.enqueue(Operation(watcher(), 2000, "big"), 0)
    core.step(100)
    resource.accept([(0, 1, 1000), (1, 2, 1000)], None)
    core.pacer.settle({"": 500}, 150 * NS_PER_MS)
    core.step(200)
    assert (resource.head_partitions, core.buffered) == (2, 1)
    (big,) = [batch for now_ms in range(1200, 2000, 100) for batch in core.step(now_ms).batches]
    assert [op.payload for op in big] == ["big"]
    core.step(2000)
    assert resource.head_partitions == 0


def test_a_head_asks_for_one_more_where_the_held_ones_are_worth_too_little() -> None:
    resource = shared(shared_capacity=3500)
    core = started(resource)
    resource.accept([(3, 1, 500), (0, 2, 1000)], None)
    core.enqueue(Operation(watcher(), 2000, "big"), 0)
    core.step(100)
    assert (resource.head_partitions, resource.wanted) == (3, 3)
    resource.accept([(1, 3, 1000)], None)
    core.step(200)
    assert (resource.head_partitions, resource.wanted) == (3, 3)


def test_nothing_held_is_a_stall_by_capacity() -> None:
    core = started(shared(), stall_ms=500)
    core.enqueue(Operation(watcher(), 1, "a"), 0)
    assert stalled(core, 600) == [(500, "capacity")]


def test_the_adaptive_factor_lowers_the_effective_capacity() -> None:
    resource = ProvisionedResource(1000)
    resource.factor = 500
    core = started(resource)
    for n in range(100):
        core.enqueue(Operation(watcher(), 10, n, batchable=False), 0)
    entered = [batch for t in range(100, 2100, 100) for batch in enter_all(core, core.step(t), t)]
    assert len(entered) == 100


def test_a_charge_above_the_estimate_is_spent_at_once_and_a_lower_one_is_not_given_back() -> None:
    core = started(ProvisionedResource(100))
    op = Operation(watcher(), 10, "a")
    core.enqueue(op, 0)
    (batch,) = enter_all(core, core.step(100), 100)
    core.settle(batch, op, 4, 110 * NS_PER_MS)
    assert core.used(110 * NS_PER_MS) == 10
    core.settle(batch, op, 35, 120 * NS_PER_MS)
    assert core.used(120 * NS_PER_MS) == 35
    assert core.used(1120 * NS_PER_MS) == 0


def test_slice_pacing_tells_what_was_used_although_it_limits_nothing_by_it() -> None:
    core = started(ProvisionedResource(50), pacing="slice")
    for number in range(3):
        core.enqueue(Operation(watcher(), 50, number), 0)
    step = core.step(100)
    (batch,) = enter_all(core, step, 100)
    core.settle(batch, batch[0], 70, 100 * NS_PER_MS)
    assert (core.used(1099 * NS_PER_MS), core.used(1100 * NS_PER_MS)) == (70, 0)


def test_a_pause_for_the_whole_resource_is_asked_of_it() -> None:
    resource = shared()
    core = started(resource)
    core.pause(10, retry_after_ms=700, scope="resource")
    assert resource.pause_wanted_until_ms == 710
    with pytest.raises(CapacityConfig, match="scope"):
        core.pause(10, scope="galaxy")


def test_a_pause_from_the_store_begins_and_extends_but_never_shortens() -> None:
    resource = shared()
    core = started(resource)
    resource.pause_until_ms = 900
    core.step(10)
    resource.pause_until_ms = 600
    core.step(20)
    resource.pause_until_ms = 1000
    core.step(30)
    pauses = [(e.name, e.val) for e in core.take_events() if e.name.startswith("pause")]
    assert pauses == [("pause", 890), ("pause-extended", 970)]
    assert core.paused
    core.step(1000)
    assert not core.paused


def test_jitter_moves_a_pause_both_ways_but_never_below_retry_after() -> None:
    def first(draw: float, retry_after_ms: int = 0) -> int | None:
        rule = PauseRule(BatcherConfig(), lambda: draw)
        rule.ask(0, retry_after_ms)
        return rule.until_ms

    assert (first(0.0), first(0.5), first(0.75)) == (400, 500, 550)
    assert first(0.0, retry_after_ms=600) == 600


def test_a_timeout_of_an_enqueue_is_buffer_full() -> None:
    core = BatcherCore(BatcherConfig(buffer_size=1))
    core.enqueue(Operation(watcher(), 1, "a"), 0)
    waiter = core.enqueue(Operation(watcher(), 1, "b"), 0, timeout_ms=50)
    assert waiter is not None
    assert core.step(49).next_ms == 50
    assert waiter.error is None
    core.step(50)
    assert waiter.error is not None
    assert waiter.error.code == "BufferFull"
    assert core.target == 1


def test_every_optional_event_is_silent_by_default() -> None:
    core = started(ProvisionedResource(10))
    core.enqueue(Operation(watcher(), 1, "a"), 0)
    core.step(100)
    assert names(core) == ["target"]


RAISERS: list[tuple[str, Callable[[], object]]] = [
    ("NoOperation", lambda: started().enqueue(None, 0)),
    ("NoWatcher", lambda: started().enqueue(Operation(None, 1, "a"), 0)),
    ("UnknownDimension", lambda: started(ProvisionedResource(1)).enqueue(Operation(watcher(), {"x": 1}, "a"), 0)),
    ("TooExpensive", lambda: started(ProvisionedResource(1)).enqueue(Operation(watcher(), 2, "a"), 0)),
    ("ImproperOrder", lambda: started().start(1)),
    ("InitializationOnly", lambda: started().configure(buffer_size=2)),
    ("UndefinedLeaseStore", lambda: SharedResource(None, shared_capacity=1)),
    ("UndefinedSharedCapacity", lambda: SharedResource(MemoryStore(lambda: 0))),
    ("PartitionsOutOfRange", lambda: shared(shared_capacity=501, factor=1)),
    ("SharedCapacityNotProvisioned", lambda: ProvisionedResource(1).set_shared_capacity(2)),
    ("CapacityConfig", lambda: shared(total_capacity=4500, reserved_capacity=300, max_instances=2)),
    ("CapacityConfig", lambda: LeaseConfig(ttl_ms=3000, renew_interval_ms=1001)),
    ("CapacityConfig", lambda: LeaseConfig(quarantine_ms=999)),
    ("CapacityConfig", lambda: shared(reserved_capacity=300)),
    ("CapacityConfig", lambda: shared(ramp=(0, 100))),
    ("CapacityConfig", lambda: shared(max_instances=0)),
    ("CapacityConfig", lambda: BatcherConfig(headroom="much")),  # type: ignore[arg-type]
    ("CapacityConfig", lambda: Watcher(None)),  # type: ignore[arg-type]
    ("CapacityConfig", lambda: Operation(watcher(), -1, "a")),
    ("CapacityConfig", lambda: started(ProvisionedResource({"a": 1, "b": 1}), pacing="slice")),
]


@pytest.mark.parametrize(("code", "call"), RAISERS)
def test_each_code_is_reached(code: str, call: Callable[[], object]) -> None:
    with pytest.raises(BatcherError) as raised:
        call()
    assert raised.value.code == code
    assert type(raised.value) is getattr(errors, code)
