"""The outputs of a chunk, its changelog records and its replies as one Kafka transaction (timeline.md 13.3).

Committed before the database is written: a worker that dies before the commit has put out nothing that a reader of what
is committed sees, and one that dies after it finds the marker in the changelog and repeats nothing. So such a reader
gets each output once.

The transactional id belongs to the changelog partition, as for the rare transactions of `transactions.py`. It is opened
before the state is restored: that ends what a killed worker left open, and whoever still believes to own the partition
is fenced off, so it can commit nothing more (14.2).

What it costs: a commit a chunk, and what is committed is seen only then. Readers of what is committed wait for a
transaction that a killed worker left open until the next owner ends it, or the broker after 2 minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack

from aiokafka import AIOKafkaProducer
from aiokafka.errors import ProducerFenced

from headrace_core.changelog import Marker
from headrace_core.stage import Emission
from headrace_streams.producer import Outlet
from headrace_streams.transactions import transactional

END_RECORDS = 1
"""A commit takes one offset of each partition that it ends in."""


class Fenced(Exception):
    """Another worker has opened the partition's transactions; nothing of the chunk was committed."""


class Atomic:
    """The transactions of one changelog partition. `open` before use, and again after Fenced; `close` at the end."""

    def __init__(self, outlet: Outlet, bootstrap: str, prefix: str, changelog: str, partition: int) -> None:
        self._outlet, self._bootstrap, self._prefix = outlet, bootstrap, prefix
        self._changelog, self._partition = changelog, partition
        self._stack = AsyncExitStack()
        self._producer: AIOKafkaProducer | None = None

    async def open(self) -> None:
        """End open transactions of this partition, fence off others. Raises KafkaError."""
        await self.close()
        most, topic = self._outlet.batch_bytes(self._changelog), self._prefix + self._changelog
        opened = transactional(self._bootstrap, topic, self._partition, most)
        self._producer = await self._stack.enter_async_context(opened)

    async def close(self) -> None:
        """Leave nothing under way."""
        self._producer = None
        await self._stack.aclose()

    async def write(
        self,
        emissions: Sequence[Emission],
        mutations: Mapping[bytes, bytes | None],
        marker: Marker,
        before_commit: Callable[[], None],
    ) -> int:
        """Write a chunk's outputs and replies, and its changelog, and commit. Returns the changelog offset behind it.

        Raises Fenced. After any other error nobody knows what was committed: the state has to be restored.
        """
        producer = self._producer
        assert producer is not None
        try:
            async with producer.transaction():
                await self._outlet.emit(emissions, self._partition, producer)
                end = await self._outlet.append(producer, self._changelog, self._partition, mutations, marker)
                before_commit()
        except ProducerFenced as error:
            raise Fenced from error
        return end + END_RECORDS
