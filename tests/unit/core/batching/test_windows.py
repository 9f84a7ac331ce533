"""Windows of a source beside a plain list of them, few and many, over any cut into chunks (batching.md 6.6 to 6.8)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_core.batching.windows import FEW, Window, Windows
from headrace_core.state import MemoryState, Overlay

STEP = st.tuples(st.sampled_from(["take"] * 5 + ["close", "chunk"]), st.sampled_from(["s", "t"]), st.integers(-30, 30))


def covering(windows: list[Window], at: int) -> int | None:
    found = [number for start, number, until in windows if start <= at < until]
    assert len(found) <= 1
    return found[0] if found else None


@settings(max_examples=100, deadline=None)
@given(st.lists(STEP, max_size=40), st.sampled_from([0, 1, 20]), st.sampled_from([0, FEW - 1, FEW + 1, 2 * FEW]))
def test_they_agree_with_a_list_and_a_restore_makes_the_same_items(
    steps: list[tuple[str, str, int]], length: int, before: int
) -> None:
    base, slow = MemoryState(), dict[str, list[Window]](s=[], t=[])
    steps = [("take", "s", number * 7 % 31 - 15) for number in range(before)] + steps
    overlay = Overlay(base)
    windows = Windows(overlay)
    for number, (do, source, at) in enumerate(steps):
        mine = slow[source]
        above = min((start for start, _, _ in mine if start > at), default=None)
        assert windows.covering(source, at) == covering(mine, at)
        assert windows.above(source, at) == above
        if do == "take":
            old = next((window for window in mine if window[1] == covering(mine, at)), None)
            if old is not None:
                windows.cut(source, old, at)
                mine[mine.index(old)] = (old[0], old[1], at)
            mine.append((at, number, min(at + length + 1, at + length + 1 if above is None else above)))
            windows.open(source, mine[-1])
        elif do == "close" and mine:
            windows.close(source, mine.pop(at % len(mine)))
        elif do == "chunk":
            windows.settle()
            base.commit(overlay.mutations)
            overlay = Overlay(base)
            windows = Windows(overlay)
    windows.settle()
    base.commit(overlay.mutations)
    assert base.snapshot() == made_anew(slow)
    assert all(isinstance(value, bytes) for value in base.snapshot().values())


def made_anew(windows: dict[str, list[Window]]) -> dict[bytes, bytes]:
    state = MemoryState()
    for source, its_windows in windows.items():
        for window in its_windows:
            anew = Windows(state)
            anew.open(source, window)
            anew.settle()
    return state.snapshot()


@pytest.mark.parametrize("count", [FEW, FEW + 1])
def test_few_windows_are_one_item_and_many_are_two_each_and_one(count: int) -> None:
    state, opened = MemoryState(), [(10 * number, number, 10 * number + 5) for number in range(count)]
    windows = Windows(state)
    for window in opened:
        windows.open("s", window)
    windows.settle()
    assert len(state.snapshot()) == (1 if count == FEW else 1 + 2 * count)
    for window in opened:
        windows.close("s", window)
    windows.settle()
    assert state.snapshot() == {}


def test_windows_that_came_and_went_within_a_chunk_are_not_written() -> None:
    overlay = Overlay(MemoryState())
    windows = Windows(overlay)
    windows.open("s", (1, 1, 9))
    windows.close("s", (1, 1, 9))
    windows.settle()
    assert overlay.mutations == {}


def test_of_many_windows_the_one_that_covers_is_found_up_to_its_end_and_again_when_few_are_left() -> None:
    base, opened = MemoryState(), [(10 * number, number, 10 * number + 5) for number in range(2 * FEW)]
    windows = Windows(base)
    for window in opened:
        windows.open("s", window)
    windows.cut("s", opened[3], 32)
    opened[3] = (30, 3, 32)
    while opened:
        windows.settle()
        windows = Windows(base)
        for start, number, until in opened:
            found = [windows.covering("s", at) for at in (start - 1, start, until - 1, until)]
            assert found == [None, number, number, None]
        assert windows.above("s", -1) == opened[0][0]
        assert windows.above("s", opened[-1][0]) is None
        assert windows.covering("s", -1) is None
        windows.close("s", opened.pop(len(opened) // 2))
