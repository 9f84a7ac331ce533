"""A batch's latency is the sum of its legs, and the worst batches tell which leg it was."""

from __future__ import annotations

import pytest

from bench.streams.latency import summary
from bench.streams.trail import LEGS, Closer, Seen, Trail, legs, place, shares


def trail(sent_ms: float, *each: float, kind: bytes = b"data") -> Trail:
    """With these legs, of a batch that waits for 1,000 ms."""
    opened = sent_ms + each[0]
    raw, routed, appended, read = (opened + 1_000 + sum(each[1:n]) for n in (2, 3, 4, 5))
    seen = Seen(0, b"batching:0:7:0", sent_ms, int(opened), int(opened) + 1_000, int(appended), read)
    closer = Closer(int(raw), int(routed), kind)
    return Trail(seen, closer, legs(seen, closer))


def test_the_legs_are_in_order_and_their_sum_is_what_the_document_is_late() -> None:
    one = trail(5_000, 1, 20, 300, 4_000, 50_000)
    assert dict(zip(LEGS, one.legs, strict=True)) == {
        "before_raw": 1, "clock": 20, "registration": 300, "batching": 4_000, "reading": 50_000,
    }  # fmt: skip
    assert one.beyond == one.seen.read_ms - one.seen.sent_ms - 1_000 == 54_321


def test_the_legs_of_the_worst_hundredth_are_told_apart_from_those_of_all() -> None:
    found = [trail(5_000 + n, 1, 2, 3, 4, 5) for n in range(990)]
    found += [trail(9_000 + n, 1, 2, 300, 4, 5, kind=b"tick") for n in range(10)]
    told = shares(found)
    assert told["closed_by_tick"] == 10
    assert [told[f"{leg}_of_the_worst_ms"] for leg in LEGS] == [1, 2, 300, 4, 5]
    assert [told[f"{leg}_p99_ms"] for leg in LEGS if leg != "registration"] == [1, 2, 4, 5]


def test_only_what_was_sent_in_the_measured_time_counts_and_the_end_of_the_load_is_told_apart() -> None:
    found = [
        trail(sent_ms, 1, 2, 3, 4, late) for sent_ms, late in ((1_000, 900), (5_000, 5), (6_000, 15), (9_000, 800))
    ]
    told = summary(found, 5.0, 9.0)
    assert (told["batches"], told["max_ms"], told["end_of_load_max_ms"]) == (2, 25, 810)


def test_an_id_names_a_place() -> None:
    assert place(b"registration:3:1234:0") == (3, 1234)
    with pytest.raises(ValueError):
        place(b"1234")
