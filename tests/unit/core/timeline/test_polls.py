"""Polls, waiting polls and parking: what the vectors leave out."""

from __future__ import annotations

import pytest

from headrace_core.timeline import polls
from headrace_core.timeline.polls import Parked, Served
from tests.unit.core.timeline.driver import Driver


def test_a_grant_shows_expiry_due_time_deliveries_headers_and_body() -> None:
    d = Driver()
    d.ok("create", id="a", group="P", timestamp=3, body=b"\xff", headers={"k": "v"})
    d.now = 10
    (lease,) = d.ok("poll", consumer="C", lease_ms=100, limit=1)["leases"]
    assert lease == {
        "id": "a", "version": 2, "expires_at": 110, "due_at": 3, "deliveries": 1, "headers": {"k": "v"}, "body": b"\xff"
    }  # fmt: skip


def test_a_poll_answer_holds_at_most_900_kb_of_bodies() -> None:
    """Section 9.6: the rest is omitted and read with read_body."""
    d = Driver()
    for id_ in ("a", "b", "c"):
        d.ok("create", id=id_, group="P", timestamp=0, body=b"x" * 400_000)
    leases = d.ok("poll", consumer="C", lease_ms=100, limit=3)["leases"]
    assert [len(lease.get("body", b"")) for lease in leases] == [400_000, 400_000, 0]
    assert [lease.get("body_omitted", False) for lease in leases] == [False, False, True]
    assert len(d.ok("read_body", id="c", consumer="C")["body"]) == 400_000


def test_a_replayed_grant_of_a_message_that_is_gone_has_no_body() -> None:
    d = Driver()
    d.ok("create", id="a", group="P", timestamp=0, body=b"x")
    poll = {"consumer": "C", "lease_ms": 100, "limit": 1, "request_id": "r"}
    assert d.ok("poll", **poll)["leases"][0]["body"] == b"x"
    d.ok("complete", id="a", consumer="C")
    (lease,) = d.ok("poll", **poll)["leases"]
    assert "body" not in lease
    assert lease["body_omitted"]


def test_an_ended_wait_is_answered_empty_even_if_something_is_due() -> None:
    """Section 9.3: the end comes first, at exactly its instant."""
    d = Driver()
    d.ok("poll", consumer="C", lease_ms=50, limit=1, wait_ms=10)
    d.ok("create", id="a", group="P", timestamp=10)
    d.now = 10
    assert d.ok("tick")["served"] == [{"consumer": "C", "ids": [], "has_more": False}]
    assert d.ok("due")["ids"] == ["a"]


def test_one_before_its_end_a_wait_is_granted() -> None:
    d = Driver()
    d.ok("poll", consumer="C", lease_ms=50, limit=1, wait_ms=10)
    d.ok("create", id="a", group="P", timestamp=9)
    d.now = 9
    assert d.ok("tick")["served"] == [{"consumer": "C", "ids": ["a"], "has_more": False}]


def test_a_wait_of_other_buckets_does_not_block_the_next() -> None:
    d = Driver()
    bucket = d.ok("create", id="a", group="P", timestamp=5)["bucket"]
    d.ok("poll", consumer="C1", lease_ms=50, limit=1, wait_ms=100, buckets=[(bucket + 1) % 8])
    d.ok("poll", consumer="C2", lease_ms=50, limit=1, wait_ms=100, buckets=[bucket])
    d.now = 5
    assert d.ok("tick")["served"] == [{"consumer": "C2", "ids": ["a"], "has_more": False}]


def test_a_repeated_poll_that_waits_is_queued_once_and_then_gets_the_grants() -> None:
    d = Driver()
    poll = {"consumer": "C", "lease_ms": 50, "limit": 1, "wait_ms": 100, "request_id": "r"}
    assert d.ok("poll", **poll)["waiting"]
    assert d.ok("poll", **poll)["replayed"]
    d.ok("create", id="a", group="P", timestamp=1)
    d.ok("create", id="b", group="P", timestamp=1)
    d.now = 1
    assert [served["ids"] for served in d.ok("tick")["served"]] == [["a"]]
    again = d.ok("poll", **poll)
    assert (again["ids"], again["waiting"], again["replayed"]) == (["a"], False, True)


def test_a_poll_that_still_waits_is_remembered_beyond_the_window() -> None:
    d = Driver(dedup_window_ms=5)
    poll = {"consumer": "C", "lease_ms": 50, "limit": 1, "wait_ms": 100, "request_id": "r"}
    d.ok("poll", **poll)
    d.now = 50
    assert d.ok("purge")["requests"] == 0
    assert d.ok("poll", **poll)["replayed"]
    assert len(list(d.state.scan(b"w", b"x"))) == 1


def test_unwait_withdraws_a_wait_once() -> None:
    d = Driver()
    number = d.ok("poll", consumer="C", lease_ms=50, limit=1, wait_ms=100)["waiter"]
    outcome = d.outcome("unwait", waiter=number)
    assert outcome.answer["withdrawn"]
    assert [effect.answer["ids"] for effect in outcome.effects if isinstance(effect, Served)] == [[]]
    assert d.ok("unwait", waiter=number)["withdrawn"] is False
    d.ok("create", id="a", group="P", timestamp=0)
    assert d.ok("tick")["served"] == []


def test_more_than_10000_waits_are_overloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Section 9.3; refused before anything is parked."""
    assert polls.MAX_WAITERS == 10_000
    monkeypatch.setattr(polls, "MAX_WAITERS", 2)
    d = Driver(max_deliveries=1)
    wait = {"consumer": "C", "lease_ms": 50, "limit": 1, "wait_ms": 100}
    d.ok("poll", **wait)
    d.ok("poll", **wait)
    assert d.code("poll", **wait) == "OVERLOADED"
    assert d.code("poll", consumer="C", lease_ms=50, limit=1) is None


def test_messages_parked_in_one_poll_are_listed_in_the_order_of_parking() -> None:
    d = Driver(max_deliveries=1)
    d.ok("create", id="b", group="P", timestamp=0, body=b"B")
    d.ok("create", id="a", group="P", timestamp=1)
    d.now = 10
    assert d.ok("poll", consumer="C", lease_ms=20, limit=2)["ids"] == ["b", "a"]
    d.now = 30
    d.ok("move", id="a", group="P", timestamp=25)
    d.ok("move", id="b", group="P", timestamp=20)
    outcome = d.outcome("poll", consumer="C", lease_ms=20, limit=2)
    assert outcome.answer["ids"] == []
    assert [(effect.id, effect.body) for effect in outcome.effects if isinstance(effect, Parked)] == [
        (b"b", b"B"),
        (b"a", b""),
    ]
    assert d.ok("parked")["ids"] == ["b", "a"]


def test_has_more_counts_an_available_message_that_would_be_parked() -> None:
    """Section 9.2: the poll stops at its limit; what lies behind is not met on the way."""
    d = Driver(max_deliveries=1)
    d.ok("create", id="z", group="P", timestamp=0)
    d.ok("lease", id="z", consumer="C", lease_ms=20)
    d.ok("create", id="a", group="P", timestamp=0)
    d.now = 20
    assert d.ok("poll", consumer="C", lease_ms=20, limit=1)["has_more"]
    assert d.ok("parked")["ids"] == []


def test_an_index_entry_without_its_record_is_skipped_counted_and_removed() -> None:
    """Section 13.7."""
    d = Driver()
    bucket = d.ok("create", id="a", group="P", timestamp=0)["bucket"]
    stray = b"t" + bucket.to_bytes(2) + (0).to_bytes(8) + b"A"
    d.state.put(stray, b"\x00")
    assert d.ok("poll", consumer="C", lease_ms=20, limit=2)["ids"] == ["a"]
    assert d.state.get(stray) is None
    assert d.ok("verify") | {"now": 0} == {
        "ok": True, "missing": 0, "wrong": 0, "surplus": 0, "now": 0, "emitted": [], "served": []
    }  # fmt: skip


def test_verify_reports_and_repairs_differences() -> None:
    d = Driver()
    bucket = d.ok("create", id="a", group="P", timestamp=0)["bucket"]
    right = d.state.snapshot()
    d.state.delete(b"t" + bucket.to_bytes(2) + (0).to_bytes(8) + b"a")
    d.state.put(b"oQ\x00z", b"")
    d.state.put(b"cm" + bytes(8), b"\x92\x05\x00")
    report = d.ok("verify")
    assert (report["missing"], report["wrong"], report["surplus"]) == (1, 1, 1)
    mended = d.state.snapshot()
    assert {key: value for key, value in mended.items() if key[:1] != b"s"} == {
        key: value for key, value in right.items() if key[:1] != b"s"
    }


def test_many_waits_are_answered_in_the_order_in_which_they_came() -> None:
    """Grants and ends mixed, over more than one page of waiters."""
    d = Driver()
    for n in range(150):
        d.ok("poll", consumer=f"C{n}", lease_ms=50, limit=1, wait_ms=10 if n % 3 == 0 else 100)
    for n in range(20):
        d.ok("create", id=f"m{n:02}", group="P", timestamp=10)
    d.now = 10
    served = d.ok("tick")["served"]
    assert [s["consumer"] for s in served if s["ids"]] == [f"C{n}" for n in range(150) if n % 3][:20]
    assert [s["consumer"] for s in served if not s["ids"]] == [f"C{n}" for n in range(0, 150, 3)]
    numbers = [int(s["consumer"][1:]) for s in served]
    assert numbers == sorted(numbers)
    assert [s["has_more"] for s in served if s["ids"]] == [True] * 19 + [False]
