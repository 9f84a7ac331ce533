"""Which change is counted in which bucket; and the last message's minute, whatever is gone since."""

from __future__ import annotations

import random
from typing import Any

import pytest

from headrace_core.state import MemoryState
from headrace_core.timeline.histograms import EDGES, histograms, observed
from headrace_core.timeline.keys import MINUTE_MS
from headrace_core.timeline.load import furthest
from headrace_core.timeline.message import Message
from headrace_core.timeline.store import Change, Store
from tests.unit.core.timeline.test_statuses import filled

NOW = 10_000_000


def message(**changes: Any) -> Message:
    return Message(**{"timestamp": NOW - 70, "group": "P", "bucket": 0, "created_at": 5, **changes})


@pytest.mark.parametrize(
    ("before", "late_ms", "bucket"),
    [
        ({"timestamp": NOW}, 0, "10"),
        ({"timestamp": NOW - 10}, 10, "10"),
        ({"timestamp": NOW - 11}, 11, "50"),
        ({"timestamp": 0, "created_at": NOW - 99}, 99, "100"),
        ({"timestamp": 0, "created_at": NOW - 3_600_000}, 3_600_000, "3600000"),
        ({"timestamp": 0, "created_at": NOW - 3_600_001}, 3_600_001, "more"),
        ({"timestamp": NOW + 1}, -1, "10"),
    ],
)
def test_a_grant_is_as_late_as_its_timestamp_or_creation_is_past(
    before: dict[str, int], late_ms: int, bucket: str
) -> None:
    one = message(**before, deliveries=2)
    found = observed([Change(b"a", one, message(**before, deliveries=3, lock="C"))], NOW)
    assert found == {f"h.lateness_ms.{bucket}": 1, "h.lateness_ms.sum": max(0, late_ms)}


def test_deliveries_are_counted_once_a_message_ends() -> None:
    leased, done = message(deliveries=4, lock="C"), message(deliveries=4, deleted_at=NOW, completed=True)
    parked = message(deliveries=51, parked_at=NOW, parking=1)
    assert observed([Change(b"a", leased, done)], NOW) == {"h.deliveries.5": 1, "h.deliveries.sum": 4}
    assert observed([Change(b"a", message(deliveries=51), parked)], NOW) == {
        "h.deliveries.more": 1, "h.deliveries.sum": 51,
    }  # fmt: skip
    silent = [
        Change(b"a", None, message()),
        Change(b"a", done, None),
        Change(b"a", done, done),
        Change(b"a", parked, message(deliveries=51)),
        Change(b"a", leased, message(deliveries=4)),
        Change(b"a", message(), message(deleted_at=NOW)),
    ]
    assert observed(silent, NOW) == {}


def test_nothing_seen_is_zero_in_each_bucket() -> None:
    for name, found in histograms(MemoryState()).items():
        assert (found.edges, found.counts, found.total) == (EDGES[name], (0,) * (len(EDGES[name]) + 1), 0)


@pytest.mark.parametrize("seed", range(20))
def test_the_furthest_is_the_minute_of_the_last_message_that_is_not_parked(seed: int) -> None:
    rng = random.Random(seed)
    d = filled(rng)
    store, left = Store(d.state, {}), dict[bytes, int]()
    for key, _ in d.state.scan(b"m", b"n"):
        found = store.message(key[1:])
        if found is not None and not found.deleted and not found.parked:
            left[key[1:]] = found.timestamp
    while left:
        assert furthest(d.state) == max(left.values()) // MINUTE_MS * MINUTE_MS
        last = max(left, key=lambda id_: left[id_])
        if d.ok("get", id=last.decode())["status"] == "processing":
            return
        d.ok("cancel", id=last.decode(), group="P")
        del left[last]
    assert furthest(d.state) is None
