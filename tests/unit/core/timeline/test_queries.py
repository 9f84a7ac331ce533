"""Lists in pages, and counts where slots cut days and minutes."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.unit.core.timeline.driver import Driver


def pages(d: Driver, **filters: Any) -> list[str]:
    found, cursor = [], None
    while True:
        page = d.ok("list", limit=3, cursor=cursor, **filters)
        found += page["ids"]
        assert len(page["ids"]) <= 3
        if (cursor := page["next_cursor"]) is None:
            return found


@pytest.fixture
def filled() -> Driver:
    d = Driver(max_deliveries=1)
    for n in range(10):
        d.ok("create", id=f"m{n}", group=f"P{n % 2}", timestamp=n * 10)
    d.ok("lease", id="m0", consumer="C", lease_ms=20)
    d.now = 25
    d.ok("poll", consumer="C", lease_ms=50, limit=2)
    d.ok("cancel", id="m9", group="P1")
    return d


def test_a_list_gives_every_item_once_over_its_pages(filled: Driver) -> None:
    assert sorted(pages(filled)) == [f"m{n}" for n in range(1, 9)]
    assert pages(filled, status="parked") == ["m0"]
    assert pages(filled, group="P0") == ["m0", "m2", "m4", "m6", "m8"]
    assert pages(filled, group="P0", status="waiting") == ["m4", "m6", "m8"]
    assert sorted(pages(filled, status="processing")) == ["m1", "m2"]
    assert sorted(pages(filled, from_=40, to=70)) == ["m4", "m5", "m6"]
    assert pages(filled, status="available") == []


def test_items_that_stay_appear_once_while_others_come_and_move(filled: Driver) -> None:
    page = filled.ok("list", limit=3)
    filled.ok("create", id="new", group="P0", timestamp=35)
    filled.ok("move", id="new", group="P0", timestamp=95)
    rest = filled.ok("list", limit=100, cursor=page["next_cursor"])["ids"]
    assert sorted([*page["ids"], *(id_ for id_ in rest if id_ != "new")]) == [f"m{n}" for n in range(1, 9)]


@pytest.mark.parametrize("cursor", ["zz", "00", "74", "", 5])
def test_a_bad_cursor_is_a_bad_request(filled: Driver, cursor: Any) -> None:
    assert filled.code("list", cursor=cursor) == "BAD_REQUEST"
    assert filled.code("list", group="P0", cursor=cursor) == "BAD_REQUEST"


@pytest.mark.parametrize(
    ("op", "args"),
    [("count", {"status": "deleted"}), ("count", {"from_": -1}), ("histogram", {"from_": 0, "to": 10}),
     ("histogram", {"from_": 0, "to": 10, "step": 0}), ("histogram", {"from_": 0, "to": 1001, "step": 1}),
     ("leases_of", {}), ("owned_by", {"group": ""}), ("list", {"limit": 0}), ("due", {"buckets": [8]})],
)  # fmt: skip
def test_the_shape_of_reads(op: str, args: dict[str, Any]) -> None:
    assert Driver().code(op, **args) == "BAD_REQUEST"


def test_a_thousand_slots_are_allowed() -> None:
    assert len(Driver().ok("histogram", from_=0, to=1_000, step=1)["slots"]) == 1_000


@pytest.mark.parametrize("step", [1_000, 60_000, 61_000, 3_600_000, 86_400_000, 90_000_000])
def test_counts_are_exact_where_slots_cut_days_and_minutes(step: int) -> None:
    dice, d = random.Random(step), Driver()
    now = 1_700_000_000_000
    d.now = now
    times = [now + dice.choice([dice.randint(-step, 30 * step), step * dice.randint(0, 20)]) for _ in range(300)]
    for n, time in enumerate(times):
        d.ok("create", id=f"m{n}", group="P", timestamp=time)
    for low in (now - step, now, now + 1, now - now % step):
        high = low + 20 * step + dice.randint(0, step)
        slots = d.ok("histogram", from_=low, to=high, step=step)["slots"]
        starts = range(low, high, step)
        assert slots == [sum(s <= t < min(s + step, high) for t in times) for s in starts]
        assert d.ok("count", from_=low, to=high)["total"] == sum(slots)
        waiting = d.ok("count", from_=low, to=high, status="waiting")["total"]
        assert waiting == sum(low <= t < high and t > now for t in times)


@pytest.mark.parametrize("before_end", [1, 2, 3])
def test_available_is_counted_to_the_millisecond_near_the_end_of_a_minute_and_a_day(before_end: int) -> None:
    for end in (60_000, 86_400_000):
        d = Driver(max_future_ms=0)
        for n in range(1, 5):
            d.ok("create", id=f"m{n}", group="P", timestamp=end - n)
        d.now = end - before_end
        available = 5 - before_end
        assert d.ok("count", status="available")["total"] == available
        assert d.ok("count", status="waiting")["total"] == 4 - available
