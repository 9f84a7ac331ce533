"""What is too large for a topic is a dead letter, harms nothing else, and never a crash loop (`streams.md` 1)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.integration.test_runner import create_raw
from tests.support.streams_worker import Output, StreamsWorker, produce, read_all

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

PARTITIONS = 4
REQUEST = 64 * 1024
TOO_MUCH = 200_000  # the topics take 128 KiB
TOO_LARGE = 'headrace_stage{name="too_large"'


@pytest.fixture
def worker(kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[StreamsWorker]:
    one = StreamsWorker(kafka, topic_prefix, tmp_path / "data", tmp_path / "worker.log")
    one.settings["MAX_REQUEST_BYTES"] = str(REQUEST)
    yield one.at_once()
    one.end()


def outputs(worker: StreamsWorker) -> tuple[list[Output], dict[bytes, dict[str, Any]]]:
    """Outputs of partition 0, and all dead letters by id."""
    routed = [output for output in read_all(worker.kafka, worker.prefix + "routed") if output.partition == 0]
    letters = read_all(worker.kafka, worker.prefix + "dead-letter")
    return routed, {letter.id: json.loads(letter.value) for letter in letters}


@pytest.mark.parametrize("chunk", [pytest.param(1, marks=pytest.mark.soak), 500])
def test_an_output_and_a_state_item_that_are_too_large_are_dead_letters_and_all_else_goes_on(
    worker: StreamsWorker, chunk: int
) -> None:
    emit, keep = b"emit:%d" % TOO_MUCH, b"keep:%d" % TOO_MUCH
    values = [b"1", emit, b"emit:90000", keep, b"keep:90000", b"1", keep, keep, b"1"]
    create_raw(worker)
    produce(worker.kafka, worker.prefix + "raw", [(0, b"k0", value) for value in values])
    worker.start(CHUNK_RECORDS=str(chunk)).wait_ready()
    worker.wait_applied(len(values))
    assert worker.metric(TOO_LARGE) == 4
    assert worker.metric('headrace_stage{name="total"') == 6
    assert worker.terminate() == 0
    routed, letters = outputs(worker)
    assert [output.id.decode().split(":", 2)[2] for output in routed] == [
        "0:0",
        "1:0",
        "2:0",
        "2:1",
        "4:0",
        "5:0",
        "8:0",
    ]
    assert [int(output.value) for output in routed if output.id.endswith(b":0")] == [1, 2, 3, 4, 5, 6]
    assert set(letters) == {b"counting:0:1:1", b"counting:0:3:0", b"counting:0:6:0", b"counting:0:7:0"}
    assert {letter["reason"] for letter in letters.values()} == {"too_large"}
    assert letters[b"counting:0:3:0"]["payload"] == keep.decode()
    assert letters[b"counting:0:1:1"]["truncated"]
    before = worker.snapshot()
    assert len(before[0][b"xkeptk0"]) == 90_000
    worker.delete_databases()
    worker.start().wait_ready()
    assert worker.metric(TOO_LARGE) == 4
    assert worker.terminate() == 0
    assert worker.snapshot() == before


@pytest.mark.parametrize("step", [3, pytest.param(4, marks=pytest.mark.soak)])
def test_a_crash_repeats_the_letter_byte_by_byte_and_counts_it_once(worker: StreamsWorker, step: int) -> None:
    values = [b"1", b"emit:%d" % TOO_MUCH, b"keep:%d" % TOO_MUCH] * 2
    create_raw(worker)
    produce(worker.kafka, worker.prefix + "raw", [(0, b"k0", value) for value in values])
    worker.start(CHUNK_RECORDS="1", FAULT=f"{step}:5")
    assert worker.running.wait(300) == 86
    worker.start().wait_ready()
    worker.wait_applied(6)
    assert worker.metric(TOO_LARGE) == 4
    assert worker.terminate() == 0
    by_id: dict[bytes, bytes] = {}
    for letter in read_all(worker.kafka, worker.prefix + "dead-letter"):
        assert by_id.setdefault(letter.id, letter.value) == letter.value
    assert set(by_id) == {
        b"counting:0:1:1",
        b"counting:0:2:0",
        b"counting:0:4:1",
        b"counting:0:5:0",
    }


def test_batches_keep_to_what_a_topic_takes_that_somebody_else_made(worker: StreamsWorker) -> None:
    total, narrow = 3_000, 20_000
    admin = AdminClient({"bootstrap.servers": worker.kafka})
    names = ("routed", "counting.changelog", "dead-letter")
    news = [NewTopic(worker.prefix + name, PARTITIONS, 1, config={"max.message.bytes": str(narrow)}) for name in names]
    for future in admin.create_topics(news).values():
        future.result(240)
    create_raw(worker)
    produce(worker.kafka, worker.prefix + "raw", [(0, b"k%d" % (i % 1_000), b"1") for i in range(total)])
    produce(worker.kafka, worker.prefix + "raw", [(0, b"k0", b"wide"), (0, b"k0", b"emit:50000"), (0, b"k0", b"1")])
    worker.start().wait_ready()
    worker.wait_applied(total + 3)
    assert worker.terminate() == 0
    routed, letters = outputs(worker)
    assert len(routed) == total + 3
    assert list(letters) == [b"counting:0:%d:1" % (total + 1)]
    before = worker.snapshot()
    worker.delete_databases()
    worker.start().wait_ready()
    assert worker.terminate() == 0
    assert worker.snapshot() == before


def test_a_topic_that_cannot_take_dead_letters_ends_the_start(worker: StreamsWorker) -> None:
    admin = AdminClient({"bootstrap.servers": worker.kafka})
    new = NewTopic(worker.prefix + "dead-letter", PARTITIONS, 1, config={"max.message.bytes": "10000"})
    for future in admin.create_topics([new]).values():
        future.result(240)
    worker.start()
    assert worker.running.wait(300) == 2
    assert f"{worker.prefix}dead-letter: max.message.bytes is 10000, must be 16384 or more" in worker.log.read_text()
