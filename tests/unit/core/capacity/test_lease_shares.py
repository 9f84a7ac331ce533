"""Shares against a deal that is slow and obvious, and what heads do to them."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_core.capacity.shares import Wish, fair_shares, shares

WISHES = st.lists(
    st.builds(
        Wish,
        owner=st.uuids().map(str),
        want=st.integers(0, 9),
        weight=st.integers(1, 4),
        held=st.integers(0, 9),
        head=st.integers(0, 12),
        head_since_ms=st.none() | st.integers(0, 3),
    ),
    max_size=6,
    unique_by=lambda wish: wish.owner,
)
PARTITIONS = st.integers(0, 20)


def slow_deal(partitions: int, wishes: list[Wish]) -> dict[str, int]:
    dealt = {wish.owner: 0 for wish in wishes}
    for _ in range(partitions):
        wanting = [wish for wish in wishes if dealt[wish.owner] < wish.want]
        if not wanting:
            break
        lowest = min(Fraction(dealt[wish.owner], wish.weight) for wish in wanting)
        ties = [wish for wish in wanting if Fraction(dealt[wish.owner], wish.weight) == lowest]
        holding = [wish for wish in ties if wish.held > dealt[wish.owner]]
        dealt[(holding or ties)[0].owner] += 1
    return dealt


@settings(max_examples=100)
@given(PARTITIONS, WISHES)
def test_the_deal_is_the_obvious_one(partitions: int, wishes: list[Wish]) -> None:
    assert fair_shares(partitions, wishes) == slow_deal(partitions, wishes)


@settings(max_examples=100)
@given(PARTITIONS, WISHES)
def test_nobody_wanting_is_without_while_there_are_enough_and_nothing_is_dealt_twice(
    partitions: int, wishes: list[Wish]
) -> None:
    dealt = fair_shares(partitions, wishes)
    wanting = [wish for wish in wishes if wish.want]
    assert sum(dealt.values()) == min(partitions, sum(wish.want for wish in wishes))
    if len(wanting) <= partitions:
        assert all(dealt[wish.owner] for wish in wanting)


@settings(max_examples=100)
@given(PARTITIONS, WISHES)
def test_with_heads_the_sum_stays_within_the_partitions_and_at_most_one_is_raised(
    partitions: int, wishes: list[Wish]
) -> None:
    fair, dealt = fair_shares(partitions, wishes), shares(partitions, wishes)
    assert sum(dealt.values()) <= partitions
    oversize = [wish for wish in wishes if min(wish.head, partitions) > fair[wish.owner]]
    if not oversize:
        assert dealt == fair
    else:
        raised = [wish for wish in oversize if dealt[wish.owner] == min(wish.head, partitions)]
        assert raised, "one oversize head can pass"


def test_the_head_that_waits_longest_is_raised_and_the_others_share_the_rest() -> None:
    wishes = [
        Wish("A", 10, head=6, head_since_ms=200),
        Wish("B", 10, head=7, head_since_ms=100),
        Wish("C", 10),
    ]
    assert shares(10, wishes) == {"A": 2, "B": 7, "C": 1}


def test_a_head_above_all_partitions_gets_them_all() -> None:
    assert shares(4, [Wish("A", 4), Wish("B", 4, head=9, head_since_ms=0)]) == {"A": 0, "B": 4}
