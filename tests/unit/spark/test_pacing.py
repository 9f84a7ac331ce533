"""Strict pacing under a virtual clock: no window above the capacity, and the capacity is used."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_core.errors import ConfigError
from headrace_spark.pacing import SECOND_NS, Pacer


class Clock:
    def __init__(self, late_ns: int = 0) -> None:
        self.now = 5 * SECOND_NS
        self.late_ns = late_ns

    def __call__(self) -> int:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += max(1, round(seconds * SECOND_NS)) + self.late_ns


def run(capacity: int, costs: list[int], clock: Clock, **options: int) -> list[tuple[int, int]]:
    pacer = Pacer(capacity, clock_ns=clock, sleep=clock.sleep, **options)
    out: list[tuple[int, int]] = []
    for cost in costs:
        pacer.run(cost, lambda at, cost=cost: out.append((at, cost)))
    return out


def largest_window(out: list[tuple[int, int]]) -> int:
    return max(sum(cost for at, cost in out if end - SECOND_NS < at <= end) for end, _ in out)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 50), st.data(), st.integers(0, 300_000_000))
def test_no_window_is_above_the_capacity(capacity: int, data, late_ns: int) -> None:
    costs = data.draw(st.lists(st.integers(0, capacity), min_size=1, max_size=40))
    assert largest_window(run(capacity, costs, Clock(late_ns))) <= capacity


def test_nothing_goes_out_in_the_first_second() -> None:
    clock = Clock()
    began = clock.now
    assert run(100, [1], clock)[0][0] >= began + SECOND_NS


def test_the_capacity_is_used() -> None:
    clock = Clock()
    out = run(1000, [5] * 2000, clock)
    seconds = (out[-1][0] - out[0][0]) / SECOND_NS
    assert 10_000 / seconds >= 0.97 * 1000


def test_zero_cost_never_waits() -> None:
    clock = Clock()
    began = clock.now
    assert run(1, [0, 0], clock) == [(began, 0), (began, 0)]


def test_headroom_is_left_unused() -> None:
    clock = Clock()
    assert largest_window(run(100, [10] * 50, clock, headroom_thousandths=250)) <= 75


def test_a_cost_that_can_never_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="never fits"):
        run(10, [11], Clock())
    with pytest.raises(ConfigError, match=r"^capacity: "):
        Pacer(1, headroom_thousandths=500)


def test_the_last_second_can_be_asked_for() -> None:
    clock = Clock()
    pacer = Pacer(10, clock_ns=clock, sleep=clock.sleep)
    clock.now += 2 * SECOND_NS
    pacer.run(4, lambda _: None)
    assert pacer.used() == 4
    clock.now += SECOND_NS
    assert pacer.used() == 0
