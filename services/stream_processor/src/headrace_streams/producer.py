"""Producing: emissions as few record batches, and one chunk's mutations as exactly one.

One idempotent producer (acks=all) for the worker. Everything is built into record batches here, per topic and
partition in order, which costs a fraction of sending record by record.

A single record can change more than one batch holds: the removal of a large tree, or the first record after a long
stop, which finds every open batch due. Its mutations and its marker go as one transaction (`transactions.py`), so they
too are there whole or not at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.partitioner import murmur2

from headrace_core.changelog import MARKER_KEY, SOURCE_HEADER, Marker
from headrace_core.errors import HeadraceError
from headrace_core.stage import Emission
from headrace_streams.sizes import BATCH_OVERHEAD, RECORD_OVERHEAD, REPLIES, Limits
from headrace_streams.sizes import record_size as _size
from headrace_streams.transactions import DELIVERY_TIMEOUT_MS, transactional
from headrace_streams.turns import Turns

log = structlog.get_logger(__name__)

EMISSION_BATCH_BYTES = 800_000
USUAL_BYTES = 16_384
"""Records with values below it are not measured before they join a batch: with the longest names, one of them more than
`EMISSION_BATCH_BYTES` still fits the 1 MiB of a topic that somebody else made. A topic that takes less is measured."""


class TooLarge(HeadraceError):
    """A batch holds more than was reckoned: an error of ours. What is too large by itself is seen to in `sizes.py`."""

    code = "too-large"


def mutations_size(mutations: Mapping[bytes, bytes | None]) -> int:
    """Upper estimate, in bytes, of the changelog batch that holds these mutations and a marker."""
    return BATCH_OVERHEAD + sum(len(k) + len(v or b"") + RECORD_OVERHEAD for k, v in mutations.items())


class Outlet:
    """Everything the worker writes to Kafka. `start` before use, `stop` at the end."""

    def __init__(self, bootstrap: str, prefix: str, max_request_bytes: int, limits: Limits) -> None:
        """`limits`: what the topics take, as read at start."""
        self._bootstrap = bootstrap
        self._prefix = prefix
        self._max_request_bytes = max_request_bytes
        self.limits = limits
        self._producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap, acks="all", enable_idempotence=True, linger_ms=0,
            max_batch_size=max_request_bytes, max_request_size=max_request_bytes,
            request_timeout_ms=DELIVERY_TIMEOUT_MS,
        )  # fmt: skip

    async def start(self) -> None:
        """Connect. Raises what aiokafka raises if no broker answers."""
        await self._producer.start()

    async def stop(self) -> None:
        """Flush and disconnect."""
        await self._producer.stop()

    def batch_bytes(self, topic: str) -> int:
        """How large a batch of several records is at most: the request bounds it, and the topic."""
        return min(self._max_request_bytes - 1024, self.limits.room(topic))

    async def emit(
        self, emissions: Sequence[Emission], partition: int, producer: AIOKafkaProducer | None = None
    ) -> None:
        """Produce all and wait until all are acknowledged. `partition` is the input's, for emissions without key.

        `producer`: one with an open transaction, which they become part of.
        """
        groups: dict[tuple[str, int], list[Emission]] = {}
        counts: dict[str, int] = {}
        for emission in emissions:
            if emission.topic not in counts:
                counts[emission.topic] = len(await self._producer.partitions_for(self._prefix + emission.topic))
            groups.setdefault((emission.topic, partition_of(emission, partition, counts)), []).append(emission)
        by = producer or self._producer
        await asyncio.gather(*(self._emit_group(by, topic, to, group) for (topic, to), group in groups.items()))

    async def _emit_group(self, by: AIOKafkaProducer, topic: str, partition: int, group: Sequence[Emission]) -> None:
        futures = []
        turns = Turns()
        batch, size = by.create_batch(), 0
        most = min(EMISSION_BATCH_BYTES, self.batch_bytes(topic))
        usual = USUAL_BYTES if most == EMISSION_BATCH_BYTES else 0
        for emission in group:
            if turns.over():
                await turns.give()
            _, key, value, headers, _ = emission
            room = not size or (size < most if len(value or b"") < usual else size + _size(emission) <= most)
            added = batch.append(timestamp=None, key=key, value=value, headers=list(headers)) if room else None
            if added is None:  # full: a batch that refuses a record is as it was
                futures.append(await self._send_by(by, batch, topic, partition))
                batch, size = by.create_batch(), 0
                added = batch.append(timestamp=None, key=key, value=value, headers=list(headers))
                if added is None:
                    raise TooLarge(f"{topic}-{partition}: an emission of {_size(emission)} bytes")
            size += added.size
        futures.append(await self._send_by(by, batch, topic, partition))
        await asyncio.gather(*futures)

    async def _send(self, batch: Any, topic: str, partition: int) -> Any:
        return await self._send_by(self._producer, batch, topic, partition)

    async def changelog(
        self, topic: str, partition: int, mutations: Mapping[bytes, bytes | None], marker: Marker
    ) -> int:
        """Append mutations and marker as one record batch to a topic (logical name) and wait.

        Returns the changelog offset after it.
        """
        batch, turns = self._producer.create_batch(), Turns()
        headers = [(SOURCE_HEADER, marker.source.to_bytes(8, "big", signed=True))]
        for key, value in mutations.items():
            if turns.over():
                await turns.give()
            if batch.append(timestamp=None, key=key, value=value, headers=headers) is None:
                raise TooLarge(f"{topic}-{partition}: mutations up to {marker.source} do not fit one batch")
        if batch.append(timestamp=None, key=MARKER_KEY, value=msgspec.json.encode(marker), headers=headers) is None:
            raise TooLarge(f"{topic}-{partition}: marker of {marker.source} does not fit")
        metadata = await (await self._send(batch, topic, partition))
        return int(metadata.offset) + len(mutations) + 1

    async def changelog_in_transaction(
        self,
        topic: str,
        partition: int,
        mutations: Mapping[bytes, bytes | None],
        marker: Marker,
        before_commit: Callable[[], None],
    ) -> int:
        """As `changelog`, for mutations of any size: as many record batches as they need, in one transaction."""
        made = transactional(self._bootstrap, self._prefix + topic, partition, self.batch_bytes(topic))
        async with made as producer, producer.transaction():
            end = await self.append(producer, topic, partition, mutations, marker)
            before_commit()
        return end

    async def append(
        self,
        producer: AIOKafkaProducer,
        topic: str,
        partition: int,
        mutations: Mapping[bytes, bytes | None],
        marker: Marker,
    ) -> int:
        """Mutations and marker as part of the open transaction of `producer`. Returns the offset behind the marker."""
        headers = [(SOURCE_HEADER, marker.source.to_bytes(8, "big", signed=True))]
        futures, turns = [], Turns()
        batch = producer.create_batch()
        for key, value in (*mutations.items(), (MARKER_KEY, msgspec.json.encode(marker))):
            if turns.over():
                await turns.give()
            if batch.append(timestamp=None, key=key, value=value, headers=headers) is None:
                futures.append(await self._send_by(producer, batch, topic, partition))
                batch = producer.create_batch()
                if batch.append(timestamp=None, key=key, value=value, headers=headers) is None:
                    raise TooLarge(f"{topic}-{partition}: a mutation of {len(value or b'')} bytes")
        last = await (await self._send_by(producer, batch, topic, partition))
        await asyncio.gather(*futures)
        return int(last.offset) + int(batch.record_count())

    async def _send_by(self, producer: AIOKafkaProducer, batch: Any, topic: str, partition: int) -> Any:
        batch.close()
        return await producer.send_batch(batch, self._prefix + topic, partition=partition)

    async def tick(self, partition: int) -> None:
        """Write a tick to `raw` (`batching.md` 4.5): no key, no payload, the partition named."""
        await self._producer.send_and_wait(
            self._prefix + "raw", value=b"", key=None, partition=partition, headers=[("kind", b"tick")]
        )

    async def own(self, topic: str, partition: int, headers: Sequence[tuple[str, bytes]]) -> int:
        """Write a record of the owner of a partition, with headers only, and wait. Returns its offset."""
        written = await self._producer.send_and_wait(
            self._prefix + topic, value=b"", key=None, partition=partition, headers=list(headers)
        )
        return int(written.offset)


def fits(outlet: Outlet, topic: str, mutations: Mapping[bytes, bytes | None]) -> bool:
    """Whether one record batch of a changelog holds these mutations and a marker."""
    return mutations_size(mutations) <= outlet.batch_bytes(topic)


async def durable(
    outlet: Outlet,
    topic: str,
    partition: int,
    mutations: Mapping[bytes, bytes | None],
    marker: Marker,
    before_commit: Callable[[], None],
) -> int:
    """Step 4 of `streams.md` 2: one batch, or if that cannot be, one transaction. Returns the offset behind it."""
    if fits(outlet, topic, mutations):
        return await outlet.changelog(topic, partition, mutations, marker)
    log.info("one record, one transaction", topic=topic, partition=partition, keys=len(mutations))
    return await outlet.changelog_in_transaction(topic, partition, mutations, marker, before_commit)


def partition_of(emission: Emission, partition: int, counts: Mapping[str, int]) -> int:
    """The one the emission names, else murmur2 of its key as Java has it, else the input's.

    Where a reply goes was said by who asked; one that is not there must not stop everything.
    """
    if emission.partition is not None:
        return emission.partition % counts[emission.topic] if emission.topic == REPLIES else emission.partition
    if emission.key is None:
        return partition % counts[emission.topic]
    return int((murmur2(emission.key) & 0x7FFFFFFF) % counts[emission.topic])
