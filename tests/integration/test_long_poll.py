"""The stalls of `streams.md` 1, their cause: a long poll for drained partitions holds up the full one, and a full one
that nobody consumes holds up all others.

The fetcher of aiokafka has one fetch a broker in flight and leaves out partitions whose records are still buffered. If
somebody takes longer than 0.1 s to consume a buffer, the next fetch is for the drained partitions alone, and the broker
keeps it for `fetch_max_wait_ms`; meanwhile the full one's buffer runs empty, and nobody asks for more. Faster consumers
do not see it: the same settings are slow and fast.

So that those which are consumed soon are asked for again together, the fetcher asks for nothing at all for
`prefetch_backoff` (100 ms) after a fetch that is not consumed. A partition that has no room is never consumed soon.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace_streams.faust_internals import FETCHED_S, LONG_POLL_MS, ChunkConsumer, ChunkThread, make_app
from tests.support.streams_worker import produce

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

POLL_MS, TRIES = 2_000, 8
RECORD, COUNT = 10_000, 300
FETCH_BYTES = 1_000_000  # so three fetches
SLOW_S = 0.05  # five times a fetch


async def longer_by_a_poll(short: Callable[[], Awaitable[float]], long: Callable[[], Awaitable[float]]) -> None:
    """The machine adds to both, now more, now less; where that hides a poll, once more. What is always equal fails."""
    found = []
    for _ in range(TRIES):
        found.append((await short(), await long()))
        print("{:.1f} s without, {:.1f} s with the wait".format(*found[-1]))
        if found[-1][1] - found[-1][0] > POLL_MS / 1000:
            return
    raise AssertionError(f"(without, with the wait) in seconds: {found}")


async def seconds_to_read(kafka: str, topic: str, fetch_max_wait_ms: int) -> float:
    """Read partition 0, which has all records, while the others have none."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=kafka, enable_auto_commit=False, auto_offset_reset="earliest",
        fetch_max_wait_ms=fetch_max_wait_ms, max_partition_fetch_bytes=FETCH_BYTES, max_poll_records=20,
    )  # fmt: skip
    await consumer.start()
    try:
        consumer.assign([TopicPartition(topic, partition) for partition in range(4)])
        started, got = time.monotonic(), 0
        while got < COUNT:
            batches = await consumer.getmany(timeout_ms=100)
            got += sum(map(len, batches.values()))
            await asyncio.sleep(SLOW_S)
        return time.monotonic() - started
    finally:
        await consumer.stop()


async def test_a_full_partition_waits_for_the_long_poll_of_the_drained_ones(kafka: str, topic_prefix: str) -> None:
    """The difference of the two is what the longer poll costs: at least one whole poll."""
    topic = topic_prefix + "raw"
    admin = AdminClient({"bootstrap.servers": kafka})
    for future in admin.create_topics([NewTopic(topic, 4, 1)]).values():
        future.result(240)
    produce(kafka, topic, ((0, b"k", b"x" * RECORD) for _ in range(COUNT)))
    await longer_by_a_poll(
        lambda: seconds_to_read(kafka, topic, LONG_POLL_MS), lambda: seconds_to_read(kafka, topic, POLL_MS)
    )


async def seconds_beside_a_full_one(kafka: str, topic: str, backoff_s: float) -> float:
    """Read partition 1 while what has been fetched of partition 0 is not consumed."""
    full, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    consumer = AIOKafkaConsumer(bootstrap_servers=kafka, enable_auto_commit=False, auto_offset_reset="earliest")
    await consumer.start()
    try:
        consumer._fetcher._prefetch_backoff = backoff_s
        consumer.assign([full, other])
        consumer.pause(other)
        while full not in consumer._fetcher._records:
            await asyncio.sleep(0.001)
        started = time.monotonic()
        consumer.resume(other)
        assert await consumer.getmany(other, timeout_ms=60_000)
        return time.monotonic() - started
    finally:
        await consumer.stop()


async def test_a_full_partition_that_is_not_consumed_holds_up_the_others(kafka: str, topic_prefix: str) -> None:
    topic = topic_prefix + "raw"
    admin = AdminClient({"bootstrap.servers": kafka})
    for future in admin.create_topics([NewTopic(topic, 2, 1)]).values():
        future.result(240)
    produce(kafka, topic, [(0, b"k", b"full"), (1, b"k", b"other")])
    await longer_by_a_poll(
        lambda: seconds_beside_a_full_one(kafka, topic, FETCHED_S),
        lambda: seconds_beside_a_full_one(kafka, topic, 2 * POLL_MS / 1000),
    )


async def test_the_consumer_of_a_worker_polls_shortly(tmp_path) -> None:
    app = make_app(
        group="g", bootstrap="127.0.0.1:1", data_dir=tmp_path, markers=None, chunk_records=10, session_timeout_s=6
    )  # type: ignore[arg-type]
    assert isinstance(app.consumer, ChunkConsumer)
    thread = app.consumer._thread
    assert isinstance(thread, ChunkThread)
    assert thread._create_worker_consumer(app.transport)._fetch_max_wait_ms == LONG_POLL_MS
