"""Freeze, drop, configure, purge, subscriptions, clock quality."""

from __future__ import annotations

import pytest

from headrace_core.errors import ConfigError
from headrace_core.timeline.clock_quality import best, median, sample
from headrace_core.timeline.settings import Buffer, Settings
from tests.unit.core.timeline.driver import Driver


def test_after_freeze_every_change_is_refused_and_reads_go_on() -> None:
    d = Driver()
    d.ok("create", id="a", group="P", timestamp=0)
    d.ok("freeze")
    assert d.code("create", id="b", group="P", timestamp=0) == "FROZEN"
    assert d.code("poll", consumer="C", lease_ms=50, limit=1) == "FROZEN"
    assert d.code("cancel", id="a", group="P") == "FROZEN"
    assert d.code("create", id="b", group="P") == "BAD_REQUEST"
    assert d.ok("get", id="a")["status"] == "available"
    d.ok("unfreeze")
    d.ok("cancel", id="a", group="P")


def test_freeze_and_drop_are_refused_under_a_lease_until_its_end() -> None:
    d = Driver()
    for id_ in ("b", "a"):
        d.ok("create", id=id_, group="P", timestamp=0)
        d.ok("lease", id=id_, consumer="C", lease_ms=50)
    d.now = 49
    for op in ("freeze", "drop"):
        answer = d.do(op)
        assert (answer["code"], answer["ids"]) == ("LEASE_ACTIVE", ["a", "b"])
    d.now = 50
    d.ok("drop")
    assert {key[:1] for key in d.state.snapshot()} == {b"s"}
    assert d.ok("create", id="a", group="Q", timestamp=0)["version"] == 1


def test_drop_answers_the_waiting_polls() -> None:
    d = Driver()
    d.ok("poll", consumer="C", lease_ms=50, limit=1, wait_ms=100)
    assert [effect.answer["ids"] for effect in d.outcome("drop").effects] == [[]]


def test_a_changed_setting_holds_from_its_record_on() -> None:
    d = Driver()
    assert d.code("create", id="a", group="P", timestamp=0, body=b"123") is None
    assert d.ok("configure", settings={"max_body_bytes": 2})["created"]
    assert "created" not in d.ok("configure", settings={"max_body_bytes": 2})
    assert d.code("create", id="b", group="P", timestamp=0, body=b"123") == "BODY_TOO_LARGE"
    assert d.code("configure", settings={"bucket_count": 16}) == "SETTING_IMMUTABLE"
    for wrong in ({"max_poll": 0}, {"nonsense": 1}, {"max_poll": "1"}, {}, None):
        assert d.code("configure", settings=wrong) == "BAD_REQUEST"


@pytest.mark.parametrize(
    "wrong", [{"bucket_count": 0}, {"bucket_count": 10, "partitions": 4}, {"bucket_count": 65_540, "partitions": 1},
              {"min_lead_ms": -1}, {"max_future_ms": 2**63}]
)  # fmt: skip
def test_wrong_settings_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        Settings(**wrong)


def test_purge_takes_parked_messages_and_requests_at_the_end_of_their_windows() -> None:
    d = Driver(max_deliveries=1, parked_retention_ms=500, dedup_window_ms=300)
    d.ok("create", id="a", group="P", timestamp=0, body=b"x", request_id="r")
    d.ok("lease", id="a", consumer="C", lease_ms=10)
    d.now = 10
    d.ok("poll", consumer="C", lease_ms=10, limit=1)
    d.now = 299
    assert d.ok("purge")["requests"] == 0
    d.now = 300
    assert d.ok("purge")["requests"] == 1
    d.now = 509
    assert d.ok("purge")["parked"] == 0
    d.now = 510
    assert d.ok("purge")["parked"] == 1
    assert d.code("get", id="a") == "NOT_FOUND"
    assert {key[:1] for key in d.state.snapshot()} == {b"s"}


def test_parked_messages_stay_for_ever_without_a_retention() -> None:
    d = Driver(max_deliveries=1, parked_retention_ms=0)
    d.ok("create", id="a", group="P", timestamp=0)
    d.ok("lease", id="a", consumer="C", lease_ms=10)
    d.now = 10
    d.ok("poll", consumer="C", lease_ms=10, limit=1)
    d.now = 10**15
    assert d.ok("purge")["parked"] == 0
    assert d.ok("parked")["ids"] == ["a"]


def test_consumers_are_dealt_disjoint_buckets_that_differ_by_at_most_one() -> None:
    """Section 9.5."""
    d = Driver()
    tokens = {}
    for consumer in ("c2", "c1", "c3"):
        tokens[consumer] = d.ok("subscribe", consumer=consumer)["token"]
    dealt = [d.ok("subscribe", consumer=c, token=tokens[c])["buckets"] for c in ("c1", "c2", "c3")]
    assert dealt == [[0, 1], [2, 3, 4], [5, 6, 7]]


def test_a_subscription_is_kept_by_its_token_and_ends_after_30_s() -> None:
    d = Driver()
    token = d.ok("subscribe", consumer="c")["token"]
    assert d.code("subscribe", consumer="c") == "ALREADY_SUBSCRIBED"
    assert d.code("subscribe", consumer="c", token="other") == "ALREADY_SUBSCRIBED"
    d.now = 29_999
    assert d.ok("subscribe", consumer="c", token=token)["token"] == token
    d.now = 59_998
    assert d.code("subscribe", consumer="c") == "ALREADY_SUBSCRIBED"
    d.now = 59_999
    assert d.code("unsubscribe", consumer="c") == "NOT_SUBSCRIBED"
    assert d.ok("subscribe", consumer="c")["token"] != token
    d.ok("unsubscribe", consumer="c")
    assert d.code("unsubscribe", consumer="c") == "NOT_SUBSCRIBED"


def test_the_median_is_exact_for_whole_numbers() -> None:
    assert median([3]) == 3
    assert median([4, 1]) == 2.5
    assert median([2**62 + 2, 2**62]) == 2**62 + 1
    assert median([9, 1, 5]) == 5


@pytest.mark.parametrize("offsets", [None, [], ["1"], [True], [float("nan")], 5])
def test_clock_takes_numbers_only(offsets: object) -> None:
    assert Driver().code("clock", offsets=offsets) == "BAD_REQUEST"


def test_of_8_samples_the_one_with_the_least_round_trip_is_used() -> None:
    samples = [sample(0, rtt, rtt, 2 * rtt, Settings()) for rtt in (1, 5, 4, 6, 7, 8, 9, 10, 11)]
    assert best(samples).rtt_ms == 8


def test_poll_and_lease_are_not_allowed_in_a_time_buffer() -> None:
    """Section 11; the owner `buffer` may cancel and move."""
    d = Driver(buffer=Buffer(source="in", target="out", delay_ms=100))
    d.ok("buffer_in", topic="in", partition=0, offset=1, record_timestamp=0)
    assert d.ok("get", id="in-0-1")["timestamp"] == 100
    assert d.code("poll", consumer="C", lease_ms=50, limit=1) == "NOT_ALLOWED"
    assert d.code("lease", id="in-0-1", consumer="C", lease_ms=50) == "NOT_ALLOWED"
    d.ok("move", id="in-0-1", group="buffer", timestamp=7)
    d.now = 6
    assert d.ok("tick")["emitted"] == []
    d.now = 7
    assert d.ok("tick")["emitted"] == ["in-0-1"]
    assert d.ok("cancel", id="in-0-1", group="buffer")["noop"]


def test_at_most_1000_records_leave_a_buffer_at_once_in_numeric_order() -> None:
    d = Driver()
    for offset in range(1_005):
        d.ok("buffer_in", topic="in", partition=0, offset=offset, record_timestamp=0, delay_ms=1)
    d.now = 1
    assert d.ok("tick")["emitted"] == [f"in-0-{offset}" for offset in range(1_000)]
    assert d.ok("tick")["emitted"] == [f"in-0-{offset}" for offset in range(1_000, 1_005)]
