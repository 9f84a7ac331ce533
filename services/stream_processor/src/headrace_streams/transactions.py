"""Transactions on a changelog partition, for the rare record whose mutations do not fit one record batch.

The transactional id belongs to the partition, so opening it aborts what a killed worker left open and fences off a
worker that slept. Restoring does so before it reads, and reads only what is committed: an aborted transaction is as if
it had never been, for the log cleaner too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

log = structlog.get_logger(__name__)

DELIVERY_TIMEOUT_MS = 120_000
REQUEST_BYTES = 1024 * 1024


@asynccontextmanager
async def transactional(
    bootstrap: str, topic: str, partition: int, max_request_bytes: int
) -> AsyncIterator[AIOKafkaProducer]:
    """The producer of a changelog partition's transactions; opening it aborts a transaction that was left open."""
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap, transactional_id=f"{topic}-{partition}", linger_ms=0,
        max_batch_size=max_request_bytes, max_request_size=max_request_bytes,
        transaction_timeout_ms=DELIVERY_TIMEOUT_MS, request_timeout_ms=DELIVERY_TIMEOUT_MS,
    )  # fmt: skip
    try:
        await producer.start()
        yield producer
    finally:
        await producer.stop()


async def end_offset(bootstrap: str, tp: TopicPartition) -> int:
    """The end of the log, whatever is committed there; an open transaction is aborted before. Own ones only: nobody
    else writes to a changelog."""
    stable, high = [await _end(bootstrap, tp, level) for level in ("read_committed", "read_uncommitted")]
    if stable < high:
        log.warning("aborting an open transaction", topic=tp.topic, partition=tp.partition, at=stable, end=high)
        async with transactional(bootstrap, tp.topic, tp.partition, REQUEST_BYTES):
            high = await _end(bootstrap, tp, "read_uncommitted")
    return high


async def _end(bootstrap: str, tp: TopicPartition, isolation_level: str) -> int:
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False, isolation_level=isolation_level)
    try:
        await consumer.start()
        return int((await consumer.end_offsets([tp]))[tp])
    finally:
        await consumer.stop()
