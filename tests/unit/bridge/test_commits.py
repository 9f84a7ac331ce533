"""Only what has nothing open before it may be committed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace_bridge.commits import Commits


@given(st.permutations(range(8)), st.sets(st.integers(0, 7)))
def test_the_position_is_after_the_last_record_before_which_all_is_done(order: list[int], gaps: set[int]) -> None:
    offsets = [offset for offset in range(8) if offset not in gaps]
    commits = Commits()
    for offset in offsets:
        commits.sent(0, offset)
    done: set[int] = set()
    committed = 0
    for offset in order:
        if offset in gaps:
            continue
        commits.done(0, offset)
        done.add(offset)
        first_open = next((o for o in offsets if o not in done), None)
        before = [o for o in offsets if first_open is None or o < first_open]
        position = before[-1] + 1 if before else 0
        assert commits.take() == ({0: position} if position > committed else {})
        committed = position


def test_partitions_do_not_wait_for_each_other_and_can_be_forgotten() -> None:
    commits = Commits()
    for partition in (0, 1):
        commits.sent(partition, 5)
    commits.done(1, 5)
    assert commits.take() == {1: 6}
    commits.forget(0)
    commits.done(0, 5)
    assert commits.take() == {}


def test_a_late_answer_for_what_was_read_again_changes_nothing() -> None:
    commits = Commits()
    commits.sent(0, 5)
    commits.forget(0)
    commits.sent(0, 7)
    commits.done(0, 5)
    assert commits.take() == {}
