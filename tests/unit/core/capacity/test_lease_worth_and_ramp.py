"""Worth of partitions and the ramp, beyond the worked examples."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_core.capacity.protocol import RampSetting
from headrace_core.capacity.ramp import Ramp, steady
from headrace_core.capacity.worth import even_worth, factor_worth, worths

SETTING = RampSetting(step=100, per_ms=1_000)


@settings(max_examples=100)
@given(st.integers(0, 10_000), st.integers(1, 400), st.integers(1, 500))
def test_the_worths_add_up_and_even_ones_differ_by_one_at_most(shared: int, factor: int, partitions: int) -> None:
    count = -(-shared // factor)
    assert sum(factor_worth(shared, factor, i) for i in range(count)) == shared
    assert factor_worth(shared, factor, count) == 0
    even = [even_worth(shared, partitions, i) for i in range(partitions)]
    assert sum(even) == shared
    assert max(even) - min(even) <= 1


def test_a_partition_that_does_not_exist_is_worth_nothing() -> None:
    assert [even_worth(10, 3, i) for i in (-1, 3)] == [0, 0]
    assert worths({"a": 5, "b": 1}, partitions=2) == [{"a": 2, "b": 0}, {"a": 3, "b": 1}]


def test_a_decrease_is_immediate_also_during_a_climb() -> None:
    climbing = steady(500).change(SETTING, 0, 900)
    assert climbing.effective(SETTING, 1_000) == 600
    assert climbing.change(SETTING, 1_500, 200).effective(SETTING, 1_500) == 200


def test_a_lower_target_above_what_is_effective_keeps_the_rhythm_of_the_climb() -> None:
    climbing = steady(500).change(SETTING, 0, 900).change(SETTING, 1_500, 750)
    assert [climbing.effective(SETTING, at) for at in (1_999, 2_000, 3_000)] == [600, 700, 750]


def test_a_change_after_a_climb_starts_a_new_rhythm() -> None:
    ramp = steady(500).change(SETTING, 0, 600).change(SETTING, 5_300, 800)
    assert [ramp.effective(SETTING, at) for at in (5_300, 6_299, 6_300, 7_300)] == [600, 600, 700, 800]


def test_without_a_ramp_every_change_is_immediate() -> None:
    assert steady(500).change(None, 10, 900) == Ramp(900, 10, 900)
    assert Ramp(500, 0, 900).effective(None, 0) == 900


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 2_000)), max_size=6))
def test_in_any_per_ms_the_rise_is_at_most_one_step_and_never_above_the_target(changes: list[tuple[int, int]]) -> None:
    ramp, now, effective = steady(300), 0, list[int]()
    for passed, target in [*changes, (6_000, 0)]:
        effective += [ramp.effective(SETTING, at) for at in range(now, now + passed, 100)]
        assert ramp.effective(SETTING, now + passed) <= ramp.target
        now += passed
        ramp = ramp.change(SETTING, now, target)
    for first, later in zip(effective, effective[9:], strict=False):
        assert later - first <= SETTING.step
