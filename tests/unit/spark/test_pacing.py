"""The driver's pacing with the real clock: no window above the capacity, and the capacity is used."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

import pytest

from headrace_core.capacity.errors import TooExpensive
from headrace_core.capacity.resources import ProvisionedResource
from headrace_spark.pacing import SECOND_NS, Pacer


@pytest.fixture
def make() -> Iterator[Callable[..., Pacer]]:
    made: list[Pacer] = []

    def start(capacity: int, headroom: float = 0.0) -> Pacer:
        made.append(Pacer(ProvisionedResource(capacity), headroom))
        return made[-1]

    yield start
    for pacer in made:
        pacer.stop()


def run(pacer: Pacer, costs: list[int]) -> list[tuple[int, int]]:
    out: list[tuple[int, int]] = []
    for cost in costs:
        pacer.run(cost, lambda at, cost=cost: out.append((at, cost)))
    return out


def largest_window(out: list[tuple[int, int]]) -> int:
    return max(sum(cost for at, cost in out if end - SECOND_NS < at <= end) for end, _ in out)


def test_no_window_is_above_the_capacity_and_the_capacity_is_used(make: Callable[..., Pacer]) -> None:
    """In a second 25 dispatches or so; what a machine is too slow for is done again."""
    dice = random.Random(3)
    costs, used = [dice.choice([5, 10, 20, 45]) for _ in range(90)], list[float]()
    while not used or (max(used) < 0.8 * 500 and len(used) < 5):
        out = run(make(500), costs)
        assert largest_window(out) <= 500
        used.append(sum(costs) * SECOND_NS / (out[-1][0] - out[0][0]))
    assert max(used) >= 0.8 * 500, used


def test_nothing_goes_out_in_the_first_second(make: Callable[..., Pacer]) -> None:
    began = time.monotonic_ns()
    [(at, cost)] = run(make(100), [7])
    assert at - began >= SECOND_NS
    assert cost == 7


def test_the_preset_is_that_of_spark(make: Callable[..., Pacer]) -> None:
    """spark-writer.md 6."""
    preset = make(100)._batcher._core.config
    assert (preset.flush_interval_ms, preset.capacity_interval_ms, preset.burst_ms) == (25, 25, 50)
    assert (preset.pacing, preset.max_concurrent_batches) == ("strict", 4)


def test_headroom_is_left_unused(make: Callable[..., Pacer]) -> None:
    assert largest_window(run(make(100, 0.25), [10] * 20)) <= 75


def test_a_failure_of_the_work_reaches_the_caller_and_the_next_goes_on(make: Callable[..., Pacer]) -> None:
    pacer = make(100)

    def fail(_: int) -> None:
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError, match="gone"):
        pacer.run(1, fail)
    assert pacer.run(1, lambda _: "fine") == "fine"


def test_a_cost_that_can_never_fit_is_refused(make: Callable[..., Pacer]) -> None:
    with pytest.raises(TooExpensive):
        make(10).run(11, lambda _: None)


def test_the_last_second_can_be_asked_for(make: Callable[..., Pacer]) -> None:
    pacer = make(10)
    pacer.run(4, lambda _: None)
    assert pacer.used() == 4
    pacer._sent[0] = (pacer._sent[0][0] - SECOND_NS, 4)
    assert pacer.used() == 0
