"""Order and windows of the batcher over whole runs, for random loads and changes of capacity (capacity.md 5, 14)."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_core.capacity.config import BatcherConfig
from headrace_core.capacity.core import BatcherCore
from headrace_core.capacity.operation import Batch, Operation, Watcher
from headrace_core.capacity.pacing import NS_PER_MS
from headrace_core.capacity.resources import ProvisionedResource

COST = st.sampled_from([0, 1, 9, 80, 200])
LOAD = st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 1), COST, st.booleans()), max_size=60)


@dataclass
class Run:
    dispatched: list[tuple[int, Batch]]
    left: int


def run(load: list[tuple[int, int, int, bool]], capacity: int, delay_ms: int, slots: int, until_ms: int) -> Run:
    """Callbacks are entered `delay_ms` after their batch is raised, as with a busy pool, and take 30 ms."""
    core = BatcherCore(BatcherConfig(max_concurrent_batches=slots), ProvisionedResource(capacity))
    watchers = [Watcher(lambda batch: batch), Watcher(lambda batch: batch, max_batch_size=2)]
    arrivals = sorted(enumerate(load), key=lambda item: item[1][0])
    core.start(0)
    raised: list[tuple[int, Batch]] = []
    running: list[tuple[int, Batch]] = []
    result = Run([], 0)
    for now_ms in range(0, until_ms, 10):
        while arrivals and arrivals[0][1][0] <= now_ms:
            number, (_, watcher, cost, batchable) = arrivals.pop(0)
            core.enqueue(Operation(watchers[watcher], cost, number, batchable), now_ms)
        for _, batch in [item for item in running if item[0] <= now_ms]:
            core.leave(batch, now_ms)
        running = [item for item in running if item[0] > now_ms]
        raised += [(now_ms + delay_ms, batch) for batch in core.step(now_ms).batches]
        for _, batch in [item for item in raised if item[0] <= now_ms]:
            if core.enter(batch, now_ms * NS_PER_MS):
                result.dispatched.append((now_ms, batch))
                running.append((now_ms + 30, batch))
        raised = [item for item in raised if item[0] > now_ms]
    result.left = core.buffered + len(raised)
    return result


@settings(max_examples=60, deadline=None)
@given(LOAD, st.sampled_from([200, 1000]), st.sampled_from([0, 50, 400]), st.sampled_from([0, 1, 2]))
def test_no_window_is_above_the_capacity_and_nothing_starves(
    load: list[tuple[int, int, int, bool]], capacity: int, delay_ms: int, slots: int
) -> None:
    total_ms = 4000 + sum(max(cost, 20) for _, _, cost, _ in load) * 1000 // capacity * 3 + len(load) * 1000
    result = run(load, capacity, delay_ms, slots, total_ms)
    for end_ms, _ in result.dispatched:
        window = [batch.cost for at_ms, batch in result.dispatched if end_ms - 1000 < at_ms <= end_ms]
        assert sum(cost for cost in window if isinstance(cost, int)) <= capacity
    assert result.left == 0
    assert sorted(op.payload for _, batch in result.dispatched for op in batch) == list(range(len(load)))


@settings(max_examples=60, deadline=None)
@given(LOAD, st.sampled_from([200, 1000]), st.sampled_from([0, 50]), st.sampled_from([0, 1, 2]))
def test_each_watcher_sees_its_singles_and_its_batchable_ones_in_order(
    load: list[tuple[int, int, int, bool]], capacity: int, delay_ms: int, slots: int
) -> None:
    arrival = {number: index for index, (number, _) in enumerate(sorted(enumerate(load), key=lambda i: i[1][0]))}
    result = run(load, capacity, delay_ms, slots, 60_000)
    seen: dict[tuple[int, bool], list[int]] = {}
    for _, batch in result.dispatched:
        for op in batch:
            seen.setdefault((id(op.watcher), op.batchable), []).append(arrival[op.payload])
    assert all(numbers == sorted(numbers) for numbers in seen.values())
