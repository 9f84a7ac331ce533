"""The cost of a kind is the mean of its charges, rounded up, and its base before the first."""

from __future__ import annotations

import pytest

from headrace_core.capacity.core import BatcherCore
from headrace_core.capacity.errors import UnknownDimension
from headrace_core.capacity.learned import MEMORY, LearnedCost
from headrace_core.capacity.operation import Operation, Watcher
from headrace_core.capacity.pacing import NS_PER_MS
from headrace_core.capacity.resources import ProvisionedResource


def cost() -> LearnedCost:
    return LearnedCost(base=len, kind=lambda payload: payload[0])


def test_a_kind_costs_its_base_until_something_is_charged_for_it() -> None:
    model = cost()
    model.learn("a", 50)
    assert (model("bbb"), model("aaa")) == (3, 50)


def test_the_mean_is_rounded_up() -> None:
    model = cost()
    for charge in (1, 2, 2):
        model.learn("a", charge)
    assert model("a") == 2


def test_the_past_fades() -> None:
    model = cost()
    for charge in [1000] * MEMORY + [1] * 20 * MEMORY:
        model.learn("a", charge)
    estimate = model("a")
    assert isinstance(estimate, int)
    assert estimate <= 2


def test_each_dimension_has_a_mean_of_its_own() -> None:
    model = LearnedCost(base=lambda payload: {"rows": 1, "bytes": len(payload)}, kind=lambda payload: payload[0])
    assert model("abc") == {"rows": 1, "bytes": 3}
    model.learn("abc", {"rows": 2, "bytes": 10})
    model.learn("abc", {"bytes": 20})
    assert model("a") == {"rows": 1, "bytes": 15}


def settled(charges: list[int], capacity: int = 1_000) -> tuple[list[object], BatcherCore]:
    """The costs of operations that are enqueued, dispatched and charged one after another."""
    core = BatcherCore(limiter=ProvisionedResource(capacity))
    core.start(0)
    model, costs = LearnedCost(base=lambda _: 10, kind=lambda _: "kind"), list[object]()
    for index, charge in enumerate(charges):
        now_ms = 5_000 * (index + 1)
        op = Operation(Watcher(lambda batch: batch), model, "payload")
        core.enqueue(op, now_ms)
        (batch,) = core.step(now_ms).batches
        assert core.enter(batch, now_ms * NS_PER_MS)
        costs.append(batch.cost)
        core.settle(batch, op, charge, now_ms * NS_PER_MS)
        core.leave(batch, now_ms)
    return costs, core


def test_a_charge_changes_the_cost_of_what_is_enqueued_after_it() -> None:
    assert settled([20, 40, 2])[0] == [10, 20, 30]


def test_a_lower_charge_gives_nothing_back() -> None:
    core = settled([4])[1]
    assert core.used(5_000 * NS_PER_MS) == 10


def test_the_cost_of_a_copy_is_fixed_when_it_is_enqueued() -> None:
    core = BatcherCore(limiter=ProvisionedResource(100))
    model = LearnedCost(base=lambda _: 10, kind=lambda _: "kind")
    op = Operation(Watcher(lambda batch: batch), model, "payload")
    core.enqueue(op, 0)
    model.learn("payload", 30)
    assert (core.target, op.cost) == (10, 10)
    core.enqueue(op, 0)
    assert (core.target, op.cost) == (40, 30)


def test_settling_what_is_not_there_is_refused_and_changes_nothing() -> None:
    core = BatcherCore(limiter=ProvisionedResource(100))
    core.start(0)
    op, other = (Operation(Watcher(lambda batch: batch), 10, None) for _ in range(2))
    core.enqueue(op, 0)
    (batch,) = core.step(100).batches
    core.enter(batch, 100 * NS_PER_MS)
    with pytest.raises(ValueError, match="not of this batch"):
        core.settle(batch, other, 50, 100 * NS_PER_MS)
    with pytest.raises(UnknownDimension):
        core.settle(batch, op, {"bytes": 50}, 100 * NS_PER_MS)
    assert core.used(100 * NS_PER_MS) == 10
