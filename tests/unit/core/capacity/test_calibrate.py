"""The search for the lowest cost at which a target latency holds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_core.capacity.calibrate import Calibration
from headrace_core.capacity.errors import CapacityConfig, ImproperOrder


def search(capacity: int, lowest: int, first: int = 1) -> tuple[int | None, int]:
    """What is found, and in how many tries, where the latency holds from the cost `lowest` on."""
    calibration, tries = Calibration(capacity, 50.0, first), 0
    while calibration.cost is not None:
        tries += 1
        calibration.observe(50.0 if calibration.cost >= lowest else 50.1)
    return calibration.found, tries


@given(st.integers(1, 5_000), st.data())
def test_it_finds_the_lowest_cost_that_holds_in_few_tries(capacity: int, data: st.DataObject) -> None:
    lowest, first = data.draw(st.integers(1, capacity)), data.draw(st.integers(1, capacity))
    found, tries = search(capacity, lowest, first)
    assert (found, tries <= 28) == (lowest, True)


def test_nothing_is_found_where_not_even_one_operation_a_second_keeps_the_target() -> None:
    assert search(100, lowest=101)[0] is None


def test_it_tries_at_the_rate_that_the_cost_allows_and_no_longer_than_needed() -> None:
    calibration = Calibration(1_000, 50.0, first=4)
    assert (calibration.cost, calibration.rate, calibration.found) == (4, 250.0, None)
    for latency_ms in (80.0, 20.0, 60.0, 40.0):
        calibration.observe(latency_ms)
    assert (calibration.cost, calibration.found) == (None, 7)
    with pytest.raises(ImproperOrder):
        calibration.observe(1.0)
    with pytest.raises(ImproperOrder):
        _ = calibration.rate


@pytest.mark.parametrize(
    ("settings", "field"),
    [((0, 50.0, 1), "capacity"), ((9, 0.0, 1), "target_ms"), ((9, 50.0, 0), "first"), ((9, 50.0, 10), "first")],
)
def test_a_wrong_setting_is_refused_by_name(settings: tuple[int, float, int], field: str) -> None:
    with pytest.raises(CapacityConfig) as refused:
        Calibration(*settings)
    assert refused.value.field == field
