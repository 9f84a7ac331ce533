"""Command records in, replies and other records out (timeline.md 13, 18)."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from headrace_core.partitioner import partition_of
from headrace_core.stage import Emission, Record, header
from headrace_core.state import MemoryState
from headrace_core.timeline.buffer import SourceRecord
from headrace_core.timeline.settings import Buffer, Settings
from headrace_core.timeline.stage import TimelineStage

T = 1_700_000_000_000
REPLY = (("tl-reply-to", b"api-1"), ("tl-reply-partition", b"3"))
SETTINGS = Settings(bucket_count=8, partitions=1, max_deliveries=1)


class Bench:
    def __init__(self, settings: Settings = SETTINGS) -> None:
        self.stage, self.state, self.offset = TimelineStage(settings, "jobs"), MemoryState(), 0

    def record(
        self, *headers: tuple[str, bytes], key: bytes | None = None, value: bytes | None = b"", at: int = T, p: int = 0
    ) -> list[Emission]:
        out: list[Emission] = []
        self.stage.apply(self.state, Record(p, self.offset, at, key, value, tuple(headers)), out.append)
        self.offset += 1
        return out

    def command(self, op: str, args: dict[str, Any], correlation: bytes = b"c", **more: Any) -> list[Emission]:
        named = (("tl-op", op.encode()), ("tl-args", json.dumps(args).encode()), ("tl-correlation-id", correlation))
        return self.record(*named, *REPLY, **more)


def test_a_command_is_answered_where_it_asked_to_be() -> None:
    bench = Bench()
    (reply,) = bench.command("create", {"group": "P", "delay_ms": 5}, key=b"a", value=b"x")
    assert (reply.topic, reply.key, reply.partition) == ("replies", b"c", 3)
    assert dict(reply.headers) == {"tl-reply-to": b"api-1", "id": b"timeline.jobs:0:0:0"}
    answer = json.loads(reply.value or b"")
    assert answer == {
        "ok": True, "id": "a", "version": 1, "timestamp": T + 5, "bucket": partition_of(b"a", 8), "status": "waiting",
        "now": T, "emitted": [], "served": [],
    }  # fmt: skip


def test_a_waiting_poll_is_answered_twice_first_that_it_waits_then_with_its_grants() -> None:
    bench = Bench()
    poll = {"consumer": "C", "lease_ms": 100, "limit": 1, "wait_ms": 50}
    (first,) = bench.command("poll", poll, b"poll-1")
    assert json.loads(first.value or b"")["waiting"]
    bench.command("create", {"group": "P", "delay_ms": 5}, key=b"a", value=b"\xff")
    assert bench.stage.next_due(bench.state) == T + 5
    (second,) = bench.record(("kind", b"tick"), at=T + 5)
    assert (second.topic, second.key, header(second.headers, "tl-reply-to")) == ("replies", b"poll-1", b"api-1")
    (lease,) = json.loads(second.value or b"")["leases"]
    assert (lease["id"], lease["body_base64"]) == ("a", "/w==")
    assert bench.stage.next_due(bench.state) is None


def test_next_due_is_the_end_of_a_wait_or_the_first_message() -> None:
    bench = Bench()
    assert bench.stage.next_due(bench.state) is None
    bench.command("create", {"group": "P", "delay_ms": 500}, key=b"a")
    assert bench.stage.next_due(bench.state) is None
    bench.command("poll", {"consumer": "C", "lease_ms": 100, "limit": 1, "wait_ms": 50})
    assert bench.stage.next_due(bench.state) == T + 50
    bench.command("create", {"group": "P", "delay_ms": 20}, key=b"b")
    assert bench.stage.next_due(bench.state) == T + 20
    bench.command("clock", {"offsets": [9_000]})
    assert bench.stage.next_due(bench.state) == T + 50


def test_asking_for_the_next_due_time_of_an_older_state_hides_nothing() -> None:
    bench = Bench()
    bench.command("poll", {"consumer": "C", "lease_ms": 100, "limit": 1, "wait_ms": 50})
    older = MemoryState(bench.state.snapshot())
    bench.command("create", {"group": "P", "delay_ms": 0}, key=b"a")
    bench.stage.next_due(older)
    served = bench.record(("kind", b"tick"))
    assert [json.loads(e.value or b"")["ids"] for e in served] == [["a"]]


def test_the_plain_form_creates_and_cancels() -> None:
    bench = Bench()
    group = ("tl-producer-group", b"P")
    assert bench.record(group, ("deliver-at", b"%d" % (T + 9)), ("h", b"v"), key=b"a", value=b"x") == []
    (got,) = bench.command("get", {"id": "a"})
    shown = json.loads(got.value or b"")
    assert (shown["timestamp"], shown["headers"], shown["group"]) == (T + 9, {"h": "v"}, "P")
    assert bench.record(group, key=b"a", value=None) == []
    (gone,) = bench.command("get", {"id": "a"})
    assert json.loads(gone.value or b"")["code"] == "NOT_FOUND"


def test_a_refusal_without_reply_address_goes_to_the_events() -> None:
    bench = Bench()
    for key, headers in (
        (b"a", ()),
        (b"a", (("delay-ms", b"x"), ("tl-producer-group", b"P"))),
        (None, ()),
        (b"\xff", ()),
    ):
        (event,) = bench.record(*headers, key=key, value=b"x")
        assert event.topic == "timeline.jobs.events"
        assert json.loads(event.value or b"")["code"] == "BAD_REQUEST"
    assert bench.stage.gauges(bench.state)["refused.BAD_REQUEST"] == 4


def test_unreadable_arguments_are_refused_and_the_clock_goes_on() -> None:
    bench = Bench()
    for args in (b"{", b"[]", b"\xff"):
        (reply,) = bench.record(("tl-op", b"poll"), ("tl-args", args), *REPLY)
        assert json.loads(reply.value or b"")["code"] == "BAD_REQUEST"
    assert bench.stage.gauges(bench.state)["clock"] == T


def test_a_record_in_another_partitions_log_is_refused_counted_and_copied() -> None:
    """Section 9.1."""
    bench = Bench(Settings(bucket_count=8, partitions=2))
    wrong = 1 - partition_of(b"a", 8) % 2
    copy, reply = bench.command("create", {"group": "P", "delay_ms": 5}, key=b"a", value=b"x", p=wrong)
    assert (copy.topic, copy.key, copy.value) == ("timeline.jobs.parked", b"a", b"x")
    assert header(copy.headers, "reason") == b"MISROUTED"
    assert json.loads(reply.value or b"")["code"] == "MISROUTED"
    assert bench.stage.gauges(bench.state)["refused.MISROUTED"] == 1


def test_a_parked_message_is_copied_with_body_and_reason() -> None:
    bench = Bench()
    bench.command("create", {"group": "P", "delay_ms": 0, "headers": {"h": "v"}}, key=b"a", value=b"x")
    bench.command("lease", {"consumer": "C", "lease_ms": 10}, key=b"a")
    copy, _ = bench.command("poll", {"consumer": "C", "lease_ms": 10, "limit": 1}, at=T + 10)
    assert (copy.topic, copy.key, copy.value) == ("timeline.jobs.parked", b"a", b"x")
    assert dict(copy.headers) == {"reason": b"DELIVERIES_EXHAUSTED", "h": b"v", "id": b"timeline.jobs:0:2:0"}


def test_a_time_buffer_puts_the_same_key_value_and_headers_out() -> None:
    bench = Bench(Settings(bucket_count=8, partitions=2, buffer=Buffer(source="in", target="out", delay_ms=10)))
    args = json.dumps({"topic": "in", "partition": 3, "offset": 7, "record_timestamp": T}).encode()
    source = msgspec.msgpack.encode(SourceRecord(b"\xff", b"\x00", [("h", b"\xfe")]))
    assert bench.record(("tl-op", b"buffer_in"), ("tl-args", args), value=source, p=1) == []
    assert bench.stage.next_due(bench.state) == T + 10
    (out,) = bench.record(("kind", b"tick"), at=T + 10, p=1)
    assert (out.topic, out.key, out.value) == ("out", b"\xff", b"\x00")
    assert dict(out.headers) == {"h": b"\xfe", "tl-source": b"in-3-7", "id": b"timeline.jobs:1:1:0"}


def test_the_owner_of_a_time_buffer_reaches_a_message_in_its_source_partition() -> None:
    bench = Bench(Settings(bucket_count=8, partitions=2, buffer=Buffer(source="in", target="out", delay_ms=10)))
    args = json.dumps({"topic": "in", "partition": 3, "offset": 7, "record_timestamp": T}).encode()
    source = msgspec.msgpack.encode(SourceRecord(None, b"x"))
    assert bench.record(("tl-op", b"buffer_in"), ("tl-args", args), value=source, p=1) == []
    (reply,) = bench.command("cancel", {"group": "buffer"}, key=b"in-3-7", p=1)
    assert json.loads(reply.value or b"")["ok"]


def test_a_step_of_the_clock_by_more_than_a_minute_is_counted() -> None:
    bench = Bench()
    for at in (T, T + 60_000, T + 120_001, T):
        bench.record(("kind", b"tick"), at=at)
    assert bench.stage.gauges(bench.state)["clock_steps"] == 1


def test_forgetting_the_hints_changes_no_answer() -> None:
    bench = Bench()
    for n in range(5):
        bench.command("create", {"group": "P", "delay_ms": n}, key=b"m%d" % n)
        bench.stage.forget()
        bench.command("poll", {"consumer": "C", "lease_ms": 10, "limit": 1, "buckets": [n]})
    bench.stage.forget()
    (due,) = bench.command("due", {}, at=T + 100)
    assert len(json.loads(due.value or b"")["ids"]) == 5


def test_a_purge_is_due_at_the_end_of_the_first_window() -> None:
    bench = Bench(Settings(bucket_count=8, partitions=1, dedup_window_ms=100))
    assert bench.stage.next_purge(bench.state) is None
    bench.command("create", {"group": "P", "delay_ms": 5}, key=b"a")
    assert bench.stage.next_purge(bench.state) is None
    bench.command("cancel", {"group": "P"}, key=b"a", at=T + 7)
    assert bench.stage.next_purge(bench.state) == T + 107
    bench.command("purge", {}, at=T + 107)
    assert bench.stage.next_purge(bench.state) is None


def again(bench: Bench, op: str, args: dict[str, Any], *more: tuple[str, bytes], **place: Any) -> dict[str, Any] | None:
    """What is sent again for a command that was applied."""
    named = (("tl-op", op.encode()), ("tl-args", json.dumps(args).encode()), ("tl-correlation-id", b"c"), *REPLY, *more)
    reply = bench.stage.again(bench.state, Record(0, 0, T, place.get("key"), place.get("value", b""), named))
    if reply is None:
        return None
    assert (reply.topic, reply.key, reply.partition) == ("replies", b"c", 3)
    found: dict[str, Any] = json.loads(reply.value or b"")
    return found


def test_an_answer_that_is_remembered_is_sent_again_as_it_was_and_changes_nothing() -> None:
    bench, id_ = Bench(), ("tl-request-id", b"r1")
    named = {"group": "P", "delay_ms": 0}
    head = (("tl-op", b"create"), ("tl-args", json.dumps(named).encode()), ("tl-correlation-id", b"c"), *REPLY, id_)
    (first,) = bench.record(*head, key=b"a", value=b"x")
    poll = {"consumer": "C", "lease_ms": 500, "limit": 1}
    asked = (("tl-op", b"poll"), ("tl-args", json.dumps(poll).encode()), ("tl-correlation-id", b"c"), *REPLY, id_)
    (granted,) = bench.record(*asked)
    before = dict(bench.state.scan(b"", b"\xff"))
    for told, op, args, place in ((first, "create", named, {"key": b"a", "value": b"x"}), (granted, "poll", poll, {})):
        was = json.loads(told.value or b"")
        assert again(bench, op, args, id_, **place) == {k: v for k, v in was.items() if k not in ("emitted", "served")}
    assert dict(bench.state.scan(b"", b"\xff")) == before


def test_nothing_is_sent_again_that_is_not_remembered_or_that_nobody_asked_for() -> None:
    bench, id_ = Bench(), ("tl-request-id", b"r1")
    named = {"group": "P", "delay_ms": 0}
    head = (("tl-op", b"create"), ("tl-args", json.dumps(named).encode()), id_)
    bench.record(*head, key=b"a", value=b"x")
    assert bench.stage.again(bench.state, Record(0, 0, T, b"a", b"x", head)) is None
    assert again(bench, "create", named, key=b"a", value=b"x") is None
    assert again(bench, "create", named, ("tl-request-id", b"r2"), key=b"a", value=b"x") is None
    assert again(bench, "create", named | {"delay_ms": 1}, id_, key=b"a", value=b"x") is None
    assert again(bench, "get", {"id": "a"}, id_, key=b"a") is None
    assert again(bench, "create", {"id": 7}, id_) is None


def test_a_waiting_poll_that_was_served_is_sent_again_with_what_it_got() -> None:
    bench, id_ = Bench(), ("tl-request-id", b"r1")
    poll = {"consumer": "C", "lease_ms": 500, "limit": 1, "wait_ms": 1_000}
    asked = (("tl-op", b"poll"), ("tl-args", json.dumps(poll).encode()), ("tl-correlation-id", b"c"), *REPLY, id_)
    bench.record(*asked)
    assert (again(bench, "poll", poll, id_) or {})["waiting"]
    bench.command("create", {"group": "P", "delay_ms": 0}, key=b"a", value=b"x")
    bench.record(("kind", b"tick"), at=T + 1)
    [lease] = (again(bench, "poll", poll, id_) or {})["leases"]
    assert (lease["id"], lease["body"]) == ("a", "x")


def test_what_stands_first_is_told_whether_or_not_somebody_asks() -> None:
    bench = Bench()
    assert bench.stage.oldest(bench.state) is None
    bench.command("create", {"group": "P", "delay_ms": 700}, key=b"a")
    bench.command("create", {"group": "P", "timestamp": T - 5_000}, key=b"b")
    assert bench.stage.oldest(bench.state) == T - 5_000
    bench.command("poll", {"consumer": "C", "lease_ms": 60_000, "limit": 1})
    assert bench.stage.oldest(bench.state) == T + 700
