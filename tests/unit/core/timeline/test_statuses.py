"""Messages by status at a time without a record: the same that `count` tells once the log has come there."""

from __future__ import annotations

import random

import pytest

from headrace_core.timeline import statuses
from headrace_core.timeline.context import Context
from headrace_core.timeline.keys import DAY_MS, MINUTE_MS
from headrace_core.timeline.message import STATUSES
from headrace_core.timeline.statuses import by_status
from headrace_core.timeline.store import Store
from tests.unit.core.timeline.driver import Driver

START = 40 * DAY_MS + 17


def seen(d: Driver, at_ms: int) -> dict[str, int]:
    store = Store(d.state, {})
    return by_status(Context(store, d.engine.settings(d.state), store.clock.now_ms, None, []), at_ms)


def counted(d: Driver) -> dict[str, int]:
    return {status: d.ok("count", status=status)["total"] for status in STATUSES}


def filled(rng: random.Random) -> Driver:
    """Messages within seconds, minutes, days; some leased, lapsed, parked, deleted."""
    d = Driver(max_deliveries=1)
    d.now = START
    d.ok("create", id="poison", group="P", timestamp=0)
    d.ok("lease", id="poison", consumer="C", lease_ms=10)
    d.now += 10
    d.ok("poll", consumer="C", lease_ms=200_000, limit=1)  # parks on its way what was leased once
    for n in range(120):
        d.do("create", id=f"m{n}", group="P", timestamp=max(0, START + rng.choice([1, 900, 70_000, DAY_MS]) * (n - 20)))
        if n % 5 == 0:
            d.do("poll", consumer="C", lease_ms=rng.choice([10, 5_000, 200_000]), limit=2)
            d.now += rng.choice([1, 20, 30_000])
        if n % 11 == 0:
            d.do("cancel", id=f"m{n}", group="P")
    return d


@pytest.mark.parametrize("seed", range(20))
def test_what_is_told_ahead_of_time_is_what_the_log_will_count(seed: int) -> None:
    rng = random.Random(seed)
    d = filled(rng)
    assert seen(d, 0) == seen(d, d.now) == counted(d)
    assert all(counted(d).values()), "each status is there"
    for ahead in sorted(rng.choice([3, 900, 20_000, MINUTE_MS, DAY_MS]) * rng.randrange(1, 40) for _ in range(12)):
        told = seen(d, START + ahead)
        d.now = max(d.now, START + ahead)
        assert told == counted(d)


def test_a_minute_with_very_many_messages_is_ahead_until_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statuses, "MOST_ENTRIES", 5)
    d = Driver()
    minute = START // MINUTE_MS * MINUTE_MS
    d.now = minute - 1
    for n in range(6):
        d.ok("create", id=f"m{n}", group="P", timestamp=minute + n * 1_000)
    d.ok("create", id="before", group="P", timestamp=minute - 1)
    none = {"processing": 0, "parked": 0}
    for at_ms in (minute, minute + 3_000, minute + MINUTE_MS - 2):
        assert seen(d, at_ms) == {"waiting": 6, "available": 1, **none}
    assert seen(d, minute + MINUTE_MS - 1) == {"waiting": 0, "available": 7, **none}
    d.ok("cancel", id="m5", group="P")
    assert seen(d, minute + 3_000) == {"waiting": 1, "available": 5, **none}
