"""A timeline by its topic on a real Kafka: commands in, replies, events and parked messages out (timeline.md 18)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message, Producer

from headrace_core.partitioner import partition_of
from headrace_core.timeline.message import STATUSES
from tests.integration.test_time_buffer import FAULT_EXIT, headers_of, read
from tests.support.streams_worker import StreamsWorker, until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

JOBS = {"partitions": 2, "bucket_count": 8, "max_deliveries": 1, "dedup_window_ms": 1000, "max_wait_ms": 600_000}


@pytest.fixture
def worker(kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[StreamsWorker]:
    one = StreamsWorker(kafka, topic_prefix, tmp_path / "data", tmp_path / "worker.log", stages="")
    one.settings["TIMELINES"] = json.dumps({"jobs": JOBS})
    yield one.at_once()
    one.end()


class Client:
    """Sends commands and reads the replies."""

    def __init__(self, worker: StreamsWorker) -> None:
        self.worker, self.sent = worker, 0
        self.producer = Producer(
            {"bootstrap.servers": worker.kafka, "partitioner": "murmur2_random", "enable.idempotence": True}
        )

    def write(self, key: bytes | None, value: bytes | None, headers: dict[str, bytes], **place: int) -> None:
        topic = f"{self.worker.prefix}timeline.jobs.commands"
        self.producer.produce(topic, key=key, value=value, headers=list(headers.items()), **place)
        assert self.producer.flush(240) == 0

    def do(
        self, op: str, args: dict[str, Any], key: bytes | None = None, value: bytes = b"", request: bytes = b"",
        **place: int,
    ) -> bytes:  # fmt: skip
        """Send a command, with a request id if there is one; returns its correlation id."""
        self.sent += 1
        correlation = b"c%d" % self.sent
        asked = {"tl-reply-to": b"me", "tl-reply-partition": b"99999", "tl-correlation-id": correlation}
        asked |= {"tl-request-id": request} if request else {}
        self.write(key, value, {"tl-op": op.encode(), "tl-args": json.dumps(args).encode(), **asked}, **place)
        return correlation

    def replies(self, correlation: bytes) -> list[dict[str, Any]]:
        return [json.loads(one.value()) for one in read(self.worker, "replies") if one.key() == correlation]

    def answer(self, correlation: bytes, number: int = 1) -> dict[str, Any]:
        """The reply number `number`."""
        until(lambda: len(self.replies(correlation)) >= number, f"a reply, see {self.worker.log}")
        return self.replies(correlation)[number - 1]


def events(worker: StreamsWorker, kind: str) -> list[Message]:
    return read(worker, f"timeline.jobs.{kind}")


def test_a_waiting_poll_gets_its_message_when_it_is_due_over_a_kill_and_a_poisonous_one_is_parked(
    worker: StreamsWorker,
) -> None:
    worker.start().wait_ready()
    client = Client(worker)

    # the poll waits in the state, not in the process
    partition = partition_of(b"job-1", 2)
    poll = {"consumer": "C", "lease_ms": 300, "limit": 5}
    waits = client.do("poll", poll | {"wait_ms": 600_000}, partition=partition)
    assert client.answer(waits)["waiting"]
    created = client.answer(client.do("create", {"group": "P", "delay_ms": 4_000}, b"job-1", b"\xff body"))
    assert (created["ok"], created["status"], created["bucket"] % 2) == (True, "waiting", partition)
    worker.kill()
    worker.delete_databases()
    worker.start().wait_ready()
    served = client.answer(waits, 2)
    [lease] = served["leases"]
    assert (lease["id"], lease["body_base64"]) == ("job-1", "/yBib2R5")
    assert served["now"] >= created["timestamp"]

    # nobody completes it, and it has had its one delivery: the next poll parks it
    until(lambda: client.answer(client.do("get", {"id": "job-1"}, partition=partition))["status"] == "available", "end")
    assert client.answer(client.do("poll", poll, partition=partition))["ids"] == []
    [parked] = events(worker, "parked")
    assert (parked.key(), parked.value(), headers_of(parked)["reason"]) == (
        b"job-1",
        b"\xff body",
        b"DELIVERIES_EXHAUSTED",
    )

    # the plain form: created, cancelled; refused without a reply address: told in the events
    client.write(b"plain", b"x", {"tl-producer-group": b"P", "delay-ms": b"60000"})
    client.write(b"plain", b"x", {"tl-producer-group": b"P", "delay-ms": b"60000"})
    client.write(b"plain", None, {"tl-producer-group": b"P"})
    until(lambda: len(events(worker, "events")) == 1, f"a refusal, see {worker.log}")
    [refused] = events(worker, "events")
    assert (refused.key(), json.loads(refused.value())["code"]) == (b"plain", "ALREADY_EXISTS")

    # what was deleted is purged by the owner, without anybody's asking
    home = partition_of(b"plain", 2)
    assert client.answer(client.do("get", {"id": "plain"}, partition=home))["code"] == "NOT_FOUND"
    until(
        lambda: b"purge" in [headers_of(one).get("tl-op") for one in read(worker, "timeline.jobs.commands")], "a purge"
    )
    tombstones = r'headrace_stage{name="tombstones"'
    until(lambda: worker.ready() and worker.metric(tombstones) == 0, "purged")
    assert worker.terminate() == 0


def test_replies_that_a_worker_took_with_it_are_sent_by_the_next_one_without_anybody_asking_again(
    worker: StreamsWorker,
) -> None:
    client = Client(worker)
    kept = JOBS | {"max_deliveries": 0, "dedup_window_ms": 600_000}  # no purge is a chunk that would be counted
    worker.settings["TIMELINES"] = json.dumps({"jobs": kept})
    worker.start(FAULT="5:1").wait_ready()
    created = client.do("create", {"group": "P", "delay_ms": 0}, b"job-1", b"x", b"r1")
    assert worker.running.wait(300) == FAULT_EXIT
    assert client.replies(created) == []

    # the poll's chunk is answered, that of its grant, made by the owner's tick, is not
    worker.start(FAULT="5:4").wait_ready()
    first = client.answer(created)
    assert (first["ok"], first["id"], first["version"], "replayed" in first) == (True, "job-1", 1, False)
    partition = first["bucket"] % 2
    poll = {"consumer": "C", "lease_ms": 60_000, "limit": 1}
    assert client.answer(client.do("poll", poll, request=b"r2", partition=partition))["ids"] == ["job-1"]
    waits = client.do("poll", poll | {"wait_ms": 30_000}, request=b"r3", partition=partition)
    assert client.answer(waits)["waiting"]
    moved = client.do("release", {"id": "job-1", "consumer": "C", "delay_ms": 300}, b"job-1")
    assert client.answer(moved)["status"] == "waiting"
    assert worker.running.wait(300) == FAULT_EXIT
    assert [one["ids"] for one in client.replies(waits)] == [[]]
    worker.start().wait_ready()
    [lease] = client.answer(waits, 2)["leases"]
    assert (lease["id"], lease["body"], lease["deliveries"]) == ("job-1", "x", 2)

    # and a job that nobody leases is told, though nothing happens in its log
    due = client.answer(client.do("create", {"group": "P", "timestamp": 1}, b"job-2"))["timestamp"]
    assert due == 1
    until(lambda: worker.metric("headrace_timeline_overdue_seconds") > 1_000_000_000, "overdue")
    assert worker.metric("headrace_stage_overdue_seconds") == 0

    # each message has a status; the lease of 60 s is active, and what was counted outlived the kills
    told = {status: worker.metric(rf'headrace_timeline_messages{{.*status="{status}"}}') for status in STATUSES}
    assert told == {"waiting": 0, "available": 1, "processing": 1, "parked": 0}
    names = ("created", "released", "granted", "moved")
    assert [worker.metric(rf'headrace_stage{{name="{name}",.*timeline.jobs"}}') for name in names] == [2, 1, 2, 0]
    assert worker.metric("headrace_timeline_lateness_seconds_count") == 2
    assert worker.metric("headrace_timeline_deliveries_count") == 0
    assert abs(worker.metric("headrace_timeline_furthest_timestamp_seconds") - time.time()) < 600
    assert worker.terminate() == 0


def test_a_log_whose_clock_is_far_from_the_senders_leases_nothing_until_it_is_near_again(worker: StreamsWorker) -> None:
    worker.settings["TIMELINES"] = json.dumps({"jobs": JOBS | {"max_deliveries": 0}})
    worker.start().wait_ready()
    client = Client(worker)
    partition = client.answer(client.do("create", {"group": "P", "delay_ms": 0}, b"job-1"))["bucket"] % 2

    def hear(behind_ms: int) -> None:
        for _ in range(8):
            sent = b"%d" % (time.time() * 1000 - behind_ms)
            named = {"tl-op": b"get", "tl-args": b"{}", "tl-instance": b"api-1", "tl-sent-at": sent}
            client.write(b"job-1", b"", named)

    poll = {"consumer": "C", "lease_ms": 60_000, "limit": 1}
    hear(60_000)
    degraded = r'headrace_stage\{name="degraded"'
    until(lambda: worker.metric(degraded) == 1, f"degraded, see {worker.log}")
    assert client.answer(client.do("poll", poll, partition=partition))["code"] == "DEGRADED"
    hear(0)
    until(lambda: worker.metric(degraded) == 0, f"no longer, see {worker.log}")
    assert client.answer(client.do("poll", poll, partition=partition))["ids"] == ["job-1"]
    assert worker.terminate() == 0
