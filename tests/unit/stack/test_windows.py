"""Cost in sliding windows, and percentiles."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.windows import SECOND_NS, highest, percentile, used_share


def test_nothing_costs_nothing():
    assert highest([]) == 0


def test_a_window_is_half_open():
    """Exactly one second apart is not in one window; a nanosecond less is."""
    assert highest([(0, 60), (SECOND_NS, 50)]) == 60
    assert highest([(0, 60), (SECOND_NS - 1, 50)]) == 110


def test_the_order_of_the_dispatches_does_not_matter():
    assert highest([(2 * SECOND_NS, 5), (0, 1), (2 * SECOND_NS + 7, 5), (1, 2)]) == 10


def test_dispatches_of_one_moment_count_together():
    assert highest([(5, 100), (5, 100), (5, 1)]) == 201


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=30), st.integers(1, 15))
def test_it_is_the_most_of_all_windows(dispatches: list[tuple[int, int]], width: int):
    """Every window that begins at any instant, looked at one by one."""
    slow = max(sum(cost for at, cost in dispatches if begin <= at < begin + width) for begin in range(-15, 41))
    assert highest(dispatches, width) == slow


def test_a_steady_rate_at_the_capacity_uses_all_of_it():
    steady = [(number * SECOND_NS // 10, 20) for number in range(150)]
    assert used_share(steady, 200) == 1.0
    assert used_share(steady[::2], 200) == 0.5
    assert used_share(steady[:50], 200) == 0.5, "a stretch is ten seconds long, whatever is in it"
    assert used_share([], 200) == 0.0


def test_percentiles_are_values_that_occurred():
    values = list(range(1, 101))
    assert percentile(values[::-1], 0.5) == 50
    assert percentile(values, 0.99) == 99
    assert percentile([7], 0.99) == 7
    assert percentile([3, 9], 0.0) == 3
    assert percentile([], 0.5) is None
