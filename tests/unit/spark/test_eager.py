"""A writer's lease client wants all as long as work waits or is announced, and nothing once it is said to be over."""

from __future__ import annotations

import pytest

from headrace_spark import capacity
from headrace_spark.seen import Watched
from tests.unit.spark.fakes import AtOnce

CAPACITY, WORTH = 1_000, 100


class NoStore:
    """Of what is tested here nothing asks the store."""


def eager() -> capacity.Eager:
    return capacity.Eager(NoStore(), name="r", shared_capacity=CAPACITY, factor=WORTH)  # type: ignore[arg-type]


def test_all_of_it_is_wanted_while_anything_waits_and_a_little_longer() -> None:
    one = eager()
    one.request(0)
    assert one.wanted == 0
    one.request(1)
    assert one.wanted == CAPACITY // WORTH
    one.request(0)
    assert one.wanted == CAPACITY // WORTH


def test_work_that_is_announced_is_wanted_before_it_waits() -> None:
    one = eager()
    one.expect()
    one.request(0)
    assert one.wanted == CAPACITY // WORTH


def test_when_work_is_over_only_what_still_goes_out_is_wanted_and_then_nothing() -> None:
    one = eager()
    one.request(500)
    one.rest()
    one.request(250)
    assert one.wanted == 3
    one.request(0)
    assert one.wanted == 0
    one.expect()
    one.request(0)
    assert one.wanted == CAPACITY // WORTH


def test_one_of_several_that_begin_together_asks_for_its_part_first_and_soon_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_ns = [10**12]
    monkeypatch.setattr(capacity.time, "monotonic_ns", lambda: now_ns[0])
    one = eager()
    one.first = CAPACITY // 2
    for _ in range(2):
        one.expect()
        one.request(10)
        assert one.wanted == CAPACITY // WORTH // 2
        one.request(10, head=CAPACITY)
        assert one.wanted == CAPACITY // WORTH, "one operation may need more than the part"
        now_ns[0] += capacity.FIRST_NS
        one.expect()
        one.request(10)
        assert one.wanted == CAPACITY // WORTH, "what nobody else asked for by now"
        one.rest()


class Told:
    """A limiter that remembers what it was told, with room for everything."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def expect(self) -> None:
        self.words.append("expect")

    def rest(self) -> None:
        self.words.append("rest")


def test_a_pacing_without_leases_needs_no_word() -> None:
    watched = Watched(AtOnce())
    watched.expect()
    watched.rest()
    assert watched.run(1, lambda _: "done") == "done"


def test_the_words_go_through_the_watched_pacer_to_the_leases() -> None:
    told = Told()

    class Leased(AtOnce):
        expect, rest = told.expect, told.rest

    watched = Watched(Leased())
    watched.expect()
    watched.rest()
    assert told.words == ["expect", "rest"]
