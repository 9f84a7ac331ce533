"""The batcher beside a slow and obvious model (capacity.md 17.4): nothing is lost, raised twice, or over the limit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace_core.capacity.config import BatcherConfig
from headrace_core.capacity.core import BatcherCore, Life
from headrace_core.capacity.errors import BatcherError
from headrace_core.capacity.operation import Batch, Operation, Phase, Watcher
from headrace_core.capacity.pacing import NS_PER_MS, StrictPacing
from headrace_core.capacity.resources import ProvisionedResource

OPERATIONS = st.tuples(st.integers(0, 2), st.sampled_from([0, 1, 7, 50, 120, 300]), st.booleans())


class BatcherMachine(RuleBasedStateMachine):
    """The model knows each copy of an operation by itself: where it is, and what was dispatched when."""

    @initialize(
        capacity=st.sampled_from([0, 90, 300, 1000]),
        slots=st.sampled_from([0, 1, 3]),
        size=st.sampled_from([2, 50]),
        hold=st.booleans(),
        headroom=st.sampled_from([0.0, 0.05]),
        sizes=st.lists(st.sampled_from([0, 1, 3]), min_size=3, max_size=3),
    )
    def begin(self, capacity: int, slots: int, size: int, hold: bool, headroom: float, sizes: list[int]) -> None:
        config = BatcherConfig(
            buffer_size=size,
            error_on_full=True,
            max_concurrent_batches=slots,
            hold_slot_until_return=hold,
            headroom=headroom,
            max_operation_ms=700,
            audit_interval_ms=900,
        )
        self.limiter = ProvisionedResource(capacity)
        self.core = BatcherCore(config, self.limiter)
        self.watchers = [Watcher(lambda batch: batch, max_batch_size=size) for size in sizes]
        self.now_ms = 0
        self.core.start(0)
        self.buffered: list[Operation] = []
        self.raised: list[Batch] = []
        self.running: list[Batch] = []
        self.dispatched: list[tuple[int, int]] = []
        self.numbers: dict[Operation, int] = {}
        self.returned: list[Operation] | None = None

    @property
    def limit(self) -> int:
        capacity = self.limiter.capacity
        assert isinstance(capacity, int)
        return capacity * (1000 - self.core.config.headroom_permille) // 1000

    def entered_in_window(self) -> int:
        return sum(cost for at, cost in self.dispatched if self.now_ms - 1000 < at <= self.now_ms)

    @rule(ops=st.lists(OPERATIONS, min_size=1, max_size=8))
    def enqueue(self, ops: list[tuple[int, int, bool]]) -> None:
        for watcher, cost, batchable in ops:
            op = Operation(self.watchers[watcher], cost, None, batchable)
            expected = None
            if cost > self.limit:
                expected = "TooExpensive"
            elif self.returned is not None:
                expected = "BufferShutdown"
            elif len(self.buffered) >= self.core.config.buffer_size:
                expected = "BufferFull"
            if expected is not None:
                with pytest.raises(BatcherError) as refused:
                    self.core.enqueue(op, self.now_ms)
                assert refused.value.code == expected
                continue
            self.core.enqueue(op, self.now_ms)
            self.numbers[op] = len(self.numbers)
            self.buffered.append(op)

    @rule(passed_ms=st.sampled_from([0, 1, 40, 100, 350, 1100]))
    def step(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        self.take(self.core.step(self.now_ms))

    @rule()
    def flush(self) -> None:
        self.core.flush()
        self.take(self.core.step(self.now_ms))

    def take(self, step: Any) -> None:
        for batch in step.batches:
            for op in batch:
                self.buffered.remove(op)
            self.raised.append(batch)
        for failure in step.failures:
            for op in failure.batch:
                assert op.cost > self.limit
                self.buffered.remove(op)

    @rule(data=st.data())
    def enter(self, data: st.DataObject) -> None:
        if not self.raised:
            return
        batch = self.raised.pop(data.draw(st.integers(0, len(self.raised) - 1)))
        before = [op.attempt for op in batch]
        assert isinstance(batch.cost, int)
        if self.core.enter(batch, self.now_ms * NS_PER_MS):
            self.dispatched.append((self.now_ms, batch.cost))
            assert batch.cost == 0 or self.entered_in_window() <= self.limit
            assert [op.attempt for op in batch] == [n + 1 for n in before]
            self.running.append(batch)
        else:
            assert [op.attempt for op in batch] == before
            self.buffered += list(batch)

    @rule(data=st.data(), fails=st.booleans())
    def leave(self, data: st.DataObject, fails: bool) -> None:
        if self.running:
            batch = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
            self.core.leave(batch, self.now_ms, ValueError("x") if fails else None)

    @rule(capacity=st.sampled_from([0, 60, 300, 1000]))
    def change_capacity(self, capacity: int) -> None:
        self.limiter.set_capacity(capacity)

    @rule(retry_after_ms=st.sampled_from([None, 100, 900]))
    def pause(self, retry_after_ms: int | None) -> None:
        self.core.pause(self.now_ms, retry_after_ms)

    @rule(sure=st.sampled_from([False] * 9 + [True]))
    def stop(self, sure: bool) -> None:
        if not sure or self.returned is not None:
            return
        self.core.stop(self.now_ms)
        self.returned = self.core.returned
        withdrawn = [op for batch in self.raised for op in batch]
        assert sorted(map(self.numbers.__getitem__, self.returned)) == sorted(
            map(self.numbers.__getitem__, self.buffered + withdrawn)
        )
        assert self.returned == sorted(self.returned, key=self.numbers.__getitem__)
        assert not any(self.core.enter(batch, self.now_ms * NS_PER_MS) for batch in self.raised)
        self.buffered, self.raised = [], []

    @invariant()
    def target_is_what_is_buffered_and_live(self) -> None:
        live = [*self.raised, *(batch for batch in self.running if batch.phase is Phase.RUNNING)]
        expected = sum(op.cost for op in self.buffered) + sum(batch.cost for batch in live)
        assert self.core.target == expected
        assert self.core.buffered == len(self.buffered)

    @invariant()
    def buffer_keeps_the_order_of_arrival(self) -> None:
        numbers = [self.numbers[entry.op] for entry in self.core.waiting()]
        assert numbers == sorted(numbers)

    @invariant()
    def slots_are_those_of_batches_not_done(self) -> None:
        hold = self.core.config.hold_slot_until_return
        kept = [batch for batch in self.running if hold or batch.phase is Phase.RUNNING]
        assert self.core.inflight == len(self.raised) + len(kept)
        assert self.core.running == len(self.running)

    @invariant()
    def credit_is_never_above_the_burst_of_the_last_flush(self) -> None:
        pacer = self.core.pacer
        assert isinstance(pacer, StrictPacing)
        for name, credit in pacer.credit.items():
            assert credit <= 1000 * self.core.config.burst_ms, name

    @invariant()
    def no_audit_ever_fails(self) -> None:
        assert all(event.name != "audit-fail" for event in self.core.take_events())
        assert self.core.life is (Life.RUNNING if self.returned is None else Life.STOPPED)


BatcherMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestBatcherAgainstTheModel = BatcherMachine.TestCase
