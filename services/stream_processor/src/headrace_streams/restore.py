"""Restoring a partition's state from its changelog, before anything is processed (`streams.md` 3, 5).

The changelog holds record batches, each one chunk's mutations and marker, appended whole or not at all, and now and
then a transaction in the same role; so the end offset is always the end of a chunk. A transaction that a killed worker
left open is aborted first, and only what is committed is read. Reading is judged by the consumer's position, because
compaction leaves holes.
Every record carries the source offset of its chunk: per key the value with the highest one wins, so that a late writer
cannot put an older value over a newer one, and what is not newer than the local marker is already contained.
Derived keys are deleted and written anew by the stage, once, after the last record.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition

from headrace_core.changelog import ChangelogError, Delta, source_of
from headrace_core.stage import Stage
from headrace_core.state import Overlay
from headrace_streams.store import META_FAMILY, Position, RocksState
from headrace_streams.transactions import end_offset

log = structlog.get_logger(__name__)

FETCH_BYTES = 4 * 1024 * 1024
STUCK_S = 60.0


def changelog_consumer(bootstrap: str) -> AIOKafkaConsumer:
    """A consumer of what is committed, for reading in bulk."""
    return AIOKafkaConsumer(
        bootstrap_servers=bootstrap, enable_auto_commit=False, auto_offset_reset="earliest",
        isolation_level="read_committed",
        max_partition_fetch_bytes=FETCH_BYTES, fetch_max_wait_ms=50, max_poll_records=20_000,
    )  # fmt: skip


async def read_delta(bootstrap: str, tp: TopicPartition, start: Position) -> tuple[Delta, int]:
    """Read `tp` from `start` to its end offset. Returns the delta and the end offset.

    Raises ChangelogError if the changelog ends before the position, or makes no progress for 60 s.
    """
    end = await end_offset(bootstrap, tp)
    consumer = changelog_consumer(bootstrap)
    await consumer.start()
    try:
        consumer.assign([tp])
        first = (await consumer.beginning_offsets([tp]))[tp]
        if start.changelog > end:
            raise ChangelogError(
                f"{tp}: local position {start.changelog} is past the end {end}; is this another Kafka?"
            )
        delta = Delta({}, start.marker)
        consumer.seek(tp, max(first, start.changelog))
        await _drain(consumer, tp, end, start.marker.source, delta)
        return delta, end
    finally:
        await consumer.stop()


async def _drain(consumer: AIOKafkaConsumer, tp: TopicPartition, end: int, contained: int, delta: Delta) -> None:
    async for records in batches(consumer, tp, end):
        for record in records:
            source = source_of(record.headers)
            if source > contained:
                delta.add(record.key, record.value, source)


async def batches(consumer: AIOKafkaConsumer, tp: TopicPartition, end: int) -> AsyncIterator[Sequence[Any]]:
    """The records of `tp` from the consumer's position to `end`, as they come in. Raises ChangelogError after 60 s
    without any."""
    deadline = time.monotonic() + STUCK_S
    while await consumer.position(tp) < end:
        fetched = (await consumer.getmany(tp, timeout_ms=500)).get(tp, ())
        yield [record for record in fetched if record.offset < end]
        if fetched:
            deadline = time.monotonic() + STUCK_S
        elif time.monotonic() > deadline:
            raise ChangelogError(f"{tp}: no progress at {await consumer.position(tp)} of {end}")


def apply_delta(state: RocksState, stage: Stage, delta: Delta, end: int) -> None:
    """Write the delta, derive the derived keys anew, and only then move the position."""
    if delta.items:
        state.load({key: value for key, (_, value) in delta.items.items()})
        rederive(state, stage)
    state.commit({}, Position(marker=delta.marker, changelog=end))


def rederive(state: RocksState, stage: Stage) -> None:
    """Delete all derived families and let the stage write them from the primary items, in key order."""
    primary = set(stage.primary)
    derived: dict[bytes, bytes | None] = {}
    for family in range(META_FAMILY):
        if family not in primary:
            derived.update((key, None) for key, _ in state.scan(bytes([family]), bytes([family + 1])))
    state.load(derived)
    overlay = Overlay(state)
    for family in sorted(primary):
        for key, value in state.scan(bytes([family]), bytes([family + 1])):
            stage.derive(overlay, key, value)
    state.load(overlay.mutations)
    stage.forget()


async def restore(bootstrap: str, tp: TopicPartition, state: RocksState, stage: Stage) -> Mapping[str, float]:
    """Bring `state` to the end of its changelog. Returns figures for the log line."""
    started = time.monotonic()
    delta, end = await read_delta(bootstrap, tp, state.position)
    apply_delta(state, stage, delta, end)
    seconds = time.monotonic() - started
    figures = {"records": delta.records, "keys": len(delta.items), "end": end, "seconds": round(seconds, 3)}
    log.info("restored", topic=tp.topic, partition=tp.partition, source=delta.marker.source, **figures)
    return figures
