"""The packer against packing.md 3 written down word for word, on whatever rows come."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_core.packing.packer import UNTIMED, Open, pack, pack_rows
from tests.support.packing import Group, Row, broken_invariants, in_time_order, plain_count, slow_pack

SUBJECTS = ["", "a", "b", "c", "d", "e"]
GROUPS = st.lists(st.tuples(st.sampled_from(SUBJECTS), st.sampled_from([None, 0, 1, 2])), max_size=40)
MAXIMUM = st.integers(1, 7)


def codes(groups: list[Group]) -> tuple[np.ndarray, np.ndarray]:
    subjects = np.array([SUBJECTS.index(subject) for subject, _ in groups], np.int64)
    return subjects, np.array([UNTIMED if time is None else time for _, time in groups], np.int64)


def batches_by_number(numbers: np.ndarray) -> list[list[int]]:
    return [np.flatnonzero(numbers == n).tolist() for n in range(int(numbers.max(initial=-1)) + 1)]


@settings(max_examples=100)
@given(GROUPS, MAXIMUM)
def test_it_packs_as_the_words_say_and_keeps_the_invariants(groups: list[Group], maximum: int) -> None:
    rows = [Row(f"{subject}$m" if subject else "raw", time, i) for i, (subject, time) in enumerate(groups)]
    numbers = pack([r.id for r in rows], [r.time for r in rows], maximum)
    batches = batches_by_number(numbers)
    sent, open_ = slow_pack(groups, maximum)
    assert batches == [sorted(b) for b in [*sent, *([open_] if open_ else [])]]
    assert broken_invariants(rows, [[rows[i] for i in b] for b in batches], maximum) == []


@settings(max_examples=100)
@given(GROUPS, MAXIMUM, st.lists(st.sampled_from(SUBJECTS), min_size=1, max_size=6))
def test_a_carried_open_batch_is_bin_0(groups: list[Group], maximum: int, carried: list[str]) -> None:
    carried = carried[: max(maximum - 1, 1)]
    if maximum == 1:
        return  # an open batch with one row would have been sent
    subjects, times = codes(groups)
    held = Open(len(carried), np.array([SUBJECTS.index(s) for s in carried], np.int64))
    packed = pack_rows(subjects, times, maximum, unsplittable=0, carried=held, flush=False)
    sent, open_ = slow_pack(groups, maximum, carried)
    expected = [*sent, *([open_] if open_ else [])]
    assert packed.open == bool(open_)
    assert packed.sizes.tolist() == [len(b) for b in expected]
    assert [packed.numbers.tolist()[i] for b in expected for i in sorted(b) if i >= 0] == [
        n for n, b in enumerate(expected) for i in b if i >= 0
    ]


@settings(max_examples=100)
@given(GROUPS, MAXIMUM, st.integers(0, 40))
def test_cutting_the_input_between_two_times_changes_nothing(groups: list[Group], maximum: int, at: int) -> None:
    """What a stream lane relies on: packing time by time with the open batch carried is packing all at once."""
    ordered = [row for time in in_time_order(groups) for group in time for row in group]
    groups = [groups[row] for row in ordered]
    while 0 < at < len(groups) and groups[at][1] == groups[at - 1][1]:
        at += 1
    subjects, times = codes(groups)
    whole = pack_rows(subjects, times, maximum, unsplittable=0).numbers.tolist()
    first = pack_rows(subjects[:at], times[:at], maximum, unsplittable=0, flush=False)
    held = None
    if first.open:
        members = subjects[:at][first.numbers == len(first.sizes) - 1]
        held = Open(len(members), members)
    rest = pack_rows(subjects[at:], times[at:], maximum, unsplittable=0, carried=held)
    shift = len(first.sizes) - first.open
    assert [*first.numbers.tolist(), *(n + shift for n in rest.numbers.tolist())] == whole


@settings(max_examples=100)
@given(GROUPS, MAXIMUM)
def test_the_count_is_below_the_plain_one_where_every_group_has_the_same_size(
    groups: list[Group], maximum: int
) -> None:
    """Greedy packing is not always below the plain method; with one size it never is above."""
    single = list(dict.fromkeys(groups))
    numbers = pack([f"{s}$m" if s else "raw" for s, _ in single], [t for _, t in single], maximum)
    assert int(numbers.max(initial=-1)) + 1 == plain_count(single, maximum)
