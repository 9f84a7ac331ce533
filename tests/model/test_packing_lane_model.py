"""A stream lane over any micro-batches: what leaves, in which order, and that `late` counts what breaks the order."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_core.packing.ids import subject_of
from headrace_core.packing.lane import Lane, LaneState, Rows
from headrace_core.packing.packer import UNTIMED
from headrace_core.packing.settings import PackingSettings

IDS = ["a$x", "a$y", "b$x", "raw"]
ROWS = st.lists(st.tuples(st.sampled_from(IDS), st.none() | st.integers(0, 30)), max_size=6)
STEPS = st.lists(st.tuples(ROWS, st.integers(0, 12)), max_size=12)


def run(steps: list[tuple[list[tuple[str, int | None]], int]], lane: Lane) -> tuple[list[Rows], int]:
    """All batches and the late rows. After each step the state goes through its bytes, and the step is repeated."""
    state, now_ms, batches, late = LaneState(), 1_000, list[Rows](), 0
    for number, (rows, passed_ms) in enumerate([*steps, ([], 0)]):
        now_ms += passed_ms
        ids, times = [name for name, _ in rows], [time for _, time in rows]
        values = [f"{number}.{k}".encode() for k in range(len(rows))]
        end = number == len(steps)
        step = lane.step(state, ids, times, values, now_ms=now_ms, end=end)
        assert step == lane.step(LaneState.decode(state.encode()), ids, times, values, now_ms=now_ms, end=end)
        assert step.due_ms is None or step.due_ms > now_ms
        state, late = step.state, late + step.counts.late
        batches += step.batches
    assert (len(state.pending), len(state.open)) == (0, 0)
    return batches, late


def order_breaks(batches: list[Rows]) -> tuple[int, int]:
    """Timed rows behind a later time, and timed rows behind another batch with their group or a later time."""
    behind = repeated = 0
    latest, groups = UNTIMED, set[tuple[str, int]]()
    for batch in batches:
        members = [(subject_of(name), time) for name, time in zip(batch.ids, batch.times, strict=True)]
        for group in members:
            if group[1] != UNTIMED:
                behind += group[1] < latest
                repeated += group[1] < latest or group in groups
        latest, groups = max(latest, *batch.times), groups | set(members)
    return behind, repeated


@settings(max_examples=100, deadline=None)
@given(STEPS, st.integers(1, 5))
def test_every_row_leaves_once_and_late_counts_what_breaks_the_order(
    steps: list[tuple[list[tuple[str, int | None]], int]], maximum: int
) -> None:
    lane = Lane(PackingSettings(max=maximum, lateness_ms=5, linger_ms=20))
    batches, late = run(steps, lane)
    arrived = Counter(f"{n}.{k}".encode() for n, (rows, _) in enumerate(steps) for k in range(len(rows)))
    assert Counter(value for batch in batches for value in batch.values) == arrived
    assert all(1 <= len(batch) <= maximum for batch in batches)
    behind, repeated = order_breaks(batches)
    assert behind <= late <= repeated


@settings(max_examples=100, deadline=None)
@given(STEPS, st.integers(1, 5))
def test_nothing_is_late_when_times_arrive_in_order(
    steps: list[tuple[list[tuple[str, int | None]], int]], maximum: int
) -> None:
    """Each micro-batch brings times after all earlier ones, so closing never has to regret anything."""
    ordered = [
        ([(name, None if time is None else time + 100 * n) for name, time in rows], passed)
        for n, (rows, passed) in enumerate(steps)
    ]
    lane = Lane(PackingSettings(max=maximum, lateness_ms=5, linger_ms=20))
    batches, late = run(ordered, lane)
    assert (late, order_breaks(batches)[0]) == (0, 0)
