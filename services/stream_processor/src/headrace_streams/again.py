"""Replies that a worker may have taken with it: after a restore they are sent again (timeline.md 13.4).

A chunk's replies are written after it is durable, so a worker that dies in between has answered nobody, and its records
are not applied anew. Whose records they were, no position tells. So every reply of the last records before the marker
is written again for which somebody may still wait; who has it already drops the second one.

The wall clock decides only which replies are repeated, never what they say.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition

from headrace_core.stage import Emission, Record, RepeatsReplies
from headrace_core.state import State
from headrace_streams.faust_internals import unpack_at_once
from headrace_streams.producer import Outlet
from headrace_streams.restore import Changelog
from headrace_streams.sizes import REPLIES, record_size
from headrace_streams.turns import Turns

log = structlog.get_logger(__name__)

PAGE_BYTES = 1024 * 1024
AWAITED_MS = 60_000
"""Nobody waits longer for a reply: `wait_ms` of a poll is 30 s if its timeline's setting is left alone."""


async def send(
    outlet: Outlet, bootstrap: str, topic: TopicPartition, stage: RepeatsReplies, state: State, end: int, most: int
) -> None:
    """Write them: those to at most the last `most` records of an input before the offset `end`."""
    count, room = 0, outlet.limits.room(REPLIES)
    async for page in replies(bootstrap, topic, stage, state, end, most):
        fit = [reply for reply in page if record_size(reply) <= room]  # the others were dead letters at once
        await outlet.emit(fit, topic.partition)
        count += len(fit)
    log.info("replies sent again", topic=topic.topic, partition=topic.partition, replies=count)


async def replies(
    bootstrap: str, topic: TopicPartition, stage: RepeatsReplies, state: State, end: int, most: int
) -> AsyncIterator[list[Emission]]:
    """Replies to at most the last `most` records of an input before the offset `end`; `state` contains them all.

    In pages of about 1 MiB, since a reply may have 900 KB of bodies.
    """
    page, size, turns = list[Emission](), 0, Turns()
    async for records in _read(bootstrap, topic, end, most):
        for record in records:
            if (reply := stage.again(state, record)) is not None:
                page.append(reply)
                size += record_size(reply)
            if size > PAGE_BYTES:
                yield page
                page, size = [], 0
            if turns.over():
                await turns.give()
    yield page


async def _read(bootstrap: str, topic: TopicPartition, end: int, most: int) -> AsyncIterator[Sequence[Record]]:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, enable_auto_commit=False, auto_offset_reset="earliest", fetch_max_wait_ms=50
    )
    try:
        await consumer.start()
        unpack_at_once(consumer)
        consumer.assign([topic])
        since = (await consumer.offsets_for_times({topic: int(time.time() * 1000) - AWAITED_MS}))[topic]
        if since is not None and since.offset < end:
            async for records in Changelog(consumer, topic).read(max(since.offset, end - most), end):
                yield [record for record in records if record.offset < end]
    finally:
        await consumer.stop()
