"""The front of a time index beside a sorted list, over any cut into chunks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_core.batching.ahead import NEVER, Ahead, Timed
from headrace_core.batching.keys import DUE, FORGET, timed_key
from headrace_core.state import MemoryState, Overlay

STEP = st.tuples(st.sampled_from(["put"] * 6 + ["take", "settle", "chunk"]), st.integers(0, 40))


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 12), st.lists(STEP, max_size=60))
def test_it_gives_what_is_due_in_order_and_leaves_the_rest_in_the_state(
    before: int, steps: list[tuple[str, int]]
) -> None:
    slow: list[Timed] = [(number * 5 % 40, -number, b"") for number in range(1, before)]
    base = MemoryState({timed_key(DUE, at, number): value for at, number, value in slow})
    base.put(b"e", b"of another family")
    overlay, taken_ms = Overlay(base), 0
    ahead = Ahead(overlay, DUE)
    for number, (do, at) in enumerate(steps):
        assert ahead.next_ms == min((item[0] for item in slow), default=NEVER)
        if do == "put":
            slow.append((taken_ms + at, number, b"%d" % number))
            ahead.put(*slow[-1])
        elif do == "take":
            taken_ms += at // 8
            assert ahead.take(taken_ms) == sorted(item for item in slow if item[0] < taken_ms)
            slow = [item for item in slow if item[0] >= taken_ms]
        else:
            ahead.settle()
            if do == "chunk":
                base.commit(overlay.mutations)
                overlay = Overlay(base)
                ahead = Ahead(overlay, DUE)
    ahead.settle()
    base.commit(overlay.mutations)
    left = {timed_key(DUE, at, number): value for at, number, value in slow}
    assert base.snapshot() == left | {b"e": b"of another family"}
    assert ahead.take(NEVER) == sorted(slow)
    assert (ahead.take(NEVER), ahead.next_ms) == ([], NEVER)


@pytest.mark.parametrize(("index", "gone"), [(DUE, []), (FORGET, [1, 2, 4])])
def test_what_is_taken_before_it_was_settled_is_written_as_deleted_in_a_primary_index(
    index: bytes, gone: list[int]
) -> None:
    overlay = Overlay(MemoryState())
    ahead = Ahead(overlay, index)
    for at in (3, 1, 2):
        ahead.put(at, at, b"")
    assert [at for at, _, _ in ahead.take(3)] == [1, 2]
    ahead.put(2, 4, b"")  # among those that are left
    assert [at for at, _, _ in ahead.take(3)] == [2]
    ahead.settle()
    deleted = dict.fromkeys(timed_key(index, min(number, 2), number) for number in gone)
    assert overlay.mutations == deleted | {timed_key(index, 3, 3): b""}
