"""The events of a timeline on a real Kafka, whose worker dies at each step of a chunk (timeline.md 18)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Message

from tests.integration.test_time_buffer import FAULT_EXIT, gauge, headers_of, read, shown
from tests.integration.test_timeline_commands import Client
from tests.support.streams_worker import StreamsWorker, until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]


@pytest.fixture
def worker(kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[StreamsWorker]:
    one = StreamsWorker(kafka, topic_prefix, tmp_path / "data", tmp_path / "worker.log", stages="")
    one.settings |= {"TIMELINES": json.dumps({"jobs": {"partitions": 2, "bucket_count": 8, "events": True}})}
    one.settings |= {"CHUNK_RECORDS": "10"}
    yield one.at_once()
    one.end()


def test_each_change_is_told_once_or_again_byte_by_byte_over_kills_and_lost_databases(worker: StreamsWorker) -> None:
    client, ids = Client(worker), list[bytes]()
    owner = {"tl-producer-group": b"P"}
    worker.start().wait_ready()  # makes the topics
    assert worker.terminate() == 0
    for step in range(2, 6):
        for number in range(40):
            ids.append(b"m-%d-%d" % (step, number))
            client.write(ids[-1], b"x", owner | {"delay-ms": b"3600000"})
            if number % 2:
                client.write(ids[-1], None, owner)
        worker.start(FAULT=f"{step}:3")
        assert worker.running.wait(300) == FAULT_EXIT
        if step % 2:
            worker.delete_databases()
    worker.start().wait_ready()
    until(lambda: gauge(worker, "timeline.jobs", "in") == len(ids) * 3 // 2, f"all applied, see {worker.log}")
    changed = [gauge(worker, "timeline.jobs", name) for name in ("created", "cancelled", "refused.BAD_REQUEST")]
    assert changed == [len(ids), len(ids) // 2, 0]
    assert worker.terminate() == 0
    once: dict[bytes, Message] = {}
    repeats = 0
    for message in read(worker, "timeline.jobs.events"):
        first = once.setdefault(headers_of(message)["id"], message)
        assert shown(first) == shown(message)
        repeats += first is not message
    told = Counter((one.key(), headers_of(one)["event"]) for one in once.values())
    assert told == Counter(
        [*((id_, b"created") for id_ in ids), *((id_, b"cancelled") for id_ in ids[1::2])]
    )  # fmt: skip
    assert repeats > 0, "a worker that dies behind step 3 has told what it tells again"
