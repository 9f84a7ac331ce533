"""Restoring a partition's state from its changelog, before anything is processed (`streams.md` 3, 5).

The changelog holds record batches, each one chunk's mutations and marker, appended whole or not at all, and now and
then a transaction in the same role; so the end offset is always the end of a chunk. A transaction that a killed worker
left open is aborted first, and only what is committed is read. Reading is judged by the consumer's position, because
compaction leaves holes. What is read goes to the database in batches, so that memory does not grow with the state; the
position moves last, so that a crash in between begins again.

- **Late writers.** Every record carries the source offset of its chunk, and per key the highest one wins. Read in the
  log's order, sources rise, and the last value of a key is the newest. A record whose source is below one that was read
  is of a late writer: it is kept aside, and a second reading shows whether its key has a newer value. What is not newer
  than the local marker is contained.
- **Old databases.** A tombstone is removed from the changelog some time after the cleaner has met it
  (`delete.retention.ms`, 7 days). A database from before it would keep the deleted key for good. Neither clock nor
  setting has to be trusted to notice: what the cleaner removes leaves a hole in the offsets. So a database goes on only
  if from its position on no offset is missing; else it is emptied and restored from the beginning. (A transaction's end
  takes an offset too and looks like a hole: right behind the last record it is known to be none.)
- **Derived keys** are deleted and written anew by the stage, once, after the last record.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from typing import Any

import msgspec
import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition

from headrace_core.changelog import MARKER_KEY, ChangelogError, Marker, source_of
from headrace_core.stage import Stage
from headrace_core.state import Item
from headrace_streams.bulk import Logged, read_batches
from headrace_streams.store import META_FAMILY, WRITE_BATCH_RECORDS, Position, RocksState, new_batch
from headrace_streams.transactions import end_offset
from headrace_streams.turns import Turns

log = structlog.get_logger(__name__)

FETCH_BYTES = 4 * 1024 * 1024
POLL_RECORDS = 5_000
SLICE = 500
STUCK_S = 60.0


class Holes(Exception):
    """Something between the position of the database and the end of the changelog is not there any more."""


class Loader:
    """Takes the records of a changelog in order and writes the newest values to `state`, without its position."""

    def __init__(self, state: RocksState) -> None:
        start = state.position
        self.records = 0
        self.keys = 0
        """Items written, repeats of a key included."""
        self.late: dict[bytes, tuple[int, bytes | None]] = {}
        """Key to source offset and value, of records that came after newer ones."""
        self._state = state
        self._contained = start.marker.source
        self._newest = start.marker.source
        self._marker: bytes | None = None
        self._before = start.marker
        self._expected = start.changelog
        self._whole = start.changelog > 0
        self._batch = new_batch()

    @property
    def marker(self) -> Marker:
        """The newest marker that was read, or the database's own."""
        return self._before if self._marker is None else msgspec.json.decode(self._marker, type=Marker)

    def take(self, records: Sequence[Logged], end: int) -> None:
        """Take records below the offset `end`. Raises Holes if the database is of use only without them."""
        records = self._below(records, end)
        newest, contained, late, batch = self._newest, self._contained, self.late, self._batch
        put, delete, known, source = batch.put, batch.delete, None, -1
        for _, key, value, headers in records:
            if headers != known:
                known, source = headers, source_of(headers)
            if source < newest or source <= contained:
                if source > contained and key != MARKER_KEY and source >= late.get(key, (-1, None))[0]:
                    late[key] = (source, value)
                continue
            newest = source
            if key == MARKER_KEY:
                self._marker = value or self._marker
            elif value is None:
                delete(key)
            else:
                put(key, value)
        self._newest = newest
        if len(batch) >= WRITE_BATCH_RECORDS:
            self.flush()

    def _below(self, records: Sequence[Logged], end: int) -> Sequence[Logged]:
        """Those below `end`, counted. Raises Holes."""
        if records and records[-1][0] >= end:
            records = [record for record in records if record[0] < end]
        if records:
            first, last = records[0][0], records[-1][0]
            if self._whole and (first != self._expected or last - first + 1 != len(records)):
                raise Holes
            self._expected = last + 1
            self.records += len(records)
        return records

    def ended(self, end: int) -> None:
        """All was read. A hole of one offset at the end is that of a transaction's end."""
        if self._whole and end - self._expected > 1:
            raise Holes
        self.flush()

    def recheck(self, records: Sequence[Logged], end: int) -> None:
        """Second reading: a late value is dropped if its key has a newer one."""
        for offset, key, _, headers in records:
            if offset < end and key in self.late and source_of(headers) > self.late[key][0]:
                del self.late[key]

    def flush(self) -> None:
        """Write what has been taken."""
        self.keys += len(self._batch)
        self._state.write(self._batch)
        self._batch = new_batch()

    def flush_late(self) -> None:
        """Write the late values that are left."""
        self.keys += len(self.late)
        self._state.load({key: value for key, (_, value) in self.late.items()})


class Changelog:
    """One reader of a changelog partition, from offset to offset."""

    def __init__(self, consumer: AIOKafkaConsumer, tp: TopicPartition) -> None:
        self._consumer = consumer
        self._tp = tp

    async def first(self) -> int:
        """The first offset that is there."""
        return int((await self._consumer.beginning_offsets([self._tp]))[self._tp])

    async def read(self, start: int, end: int) -> AsyncIterator[Sequence[Any]]:
        """Records from `start` to the position `end`. Raises ChangelogError without progress for 60 s."""
        consumer, tp = self._consumer, self._tp
        consumer.seek(tp, start)
        deadline = time.monotonic() + STUCK_S
        while await consumer.position(tp) < end:
            batches = await consumer.getmany(tp, timeout_ms=500)
            if batches:
                yield batches.get(tp, ())
                deadline = time.monotonic() + STUCK_S
                await asyncio.sleep(0)
            elif time.monotonic() > deadline:
                raise ChangelogError(f"{tp}: no progress at {await consumer.position(tp)} of {end}")


class Batched(Changelog):
    """A changelog whose consumer hands over batches (`bulk.py`)."""

    async def read(self, start: int, end: int) -> AsyncIterator[Sequence[Logged]]:
        async for batches in super().read(start, end):
            for batch in batches:
                yield batch


def changelog_consumer(bootstrap: str) -> AIOKafkaConsumer:
    """A consumer of what is committed, for reading in bulk."""
    return AIOKafkaConsumer(
        bootstrap_servers=bootstrap, enable_auto_commit=False, auto_offset_reset="earliest",
        isolation_level="read_committed",
        max_partition_fetch_bytes=FETCH_BYTES, fetch_max_wait_ms=50, max_poll_records=POLL_RECORDS,
    )  # fmt: skip


@asynccontextmanager
async def reading(bootstrap: str, tp: TopicPartition) -> AsyncIterator[Changelog]:
    """A reader of what is committed."""
    consumer = changelog_consumer(bootstrap)
    try:
        await consumer.start()
        read_batches(consumer)
        consumer.assign([tp])
        yield Batched(consumer, tp)
    finally:
        await consumer.stop()


def nobody() -> None:
    """For who does not want to hear that it goes on."""


async def load(changelog: Changelog, state: RocksState, end: int, moved: Callable[[], None] = nobody) -> Loader:
    """Bring the primary items of `state` up to `end`. Raises Holes (the module's theory), ChangelogError.

    `moved` is called again and again, as long as it goes on.
    """
    loader, start, first = Loader(state), state.position.changelog, await changelog.first()
    if 0 < start < first:
        raise Holes
    start = max(start, first)
    async for records in changelog.read(start, end):
        loader.take(records, end)
        moved()
    loader.ended(end)
    if loader.late:
        async for records in changelog.read(start, end):
            loader.recheck(records, end)
            moved()
        loader.flush_late()
    return loader


class Derived:
    """A state over `base` that keeps what a stage derives, without the order of keys that an `Overlay` keeps."""

    def __init__(self, base: RocksState) -> None:
        self.written: dict[bytes, bytes | None] = {}
        self._base = base

    def get(self, key: bytes, /) -> bytes | None:
        return self.written[key] if key in self.written else self._base.get(key)

    def put(self, key: bytes, value: bytes, /) -> None:
        self.written[key] = value

    def delete(self, key: bytes, /) -> None:
        self.written[key] = None

    def scan(self, start: bytes, stop: bytes, /) -> Iterator[Item]:
        """Of all that is there by now."""
        self.flush()
        return self._base.scan(start, stop)

    def flush(self) -> None:
        """Write what has been derived."""
        self._base.load(self.written)
        self.written.clear()


async def rederive(state: RocksState, stage: Stage, moved: Callable[[], None] = nobody) -> None:
    """Delete all derived families and let the stage write them from the primary items, in key order."""
    primary = set(stage.primary)
    state.delete_families(family for family in range(META_FAMILY) if family not in primary)
    made, turns = Derived(state), Turns()
    derive, written = stage.derive, made.written
    for family in sorted(primary):
        items = state.sweep(bytes([family]), bytes([family + 1]))
        while some := list(islice(items, SLICE)):
            for key, value in some:
                derive(made, key, value)
            if len(written) >= WRITE_BATCH_RECORDS:
                made.flush()
            if turns.over():
                await turns.give()
                moved()
    made.flush()
    stage.forget()


async def restore(
    bootstrap: str, tp: TopicPartition, state: RocksState, stage: Stage, moved: Callable[[], None] = nobody
) -> Mapping[str, float]:
    """Bring `state` to the end of its changelog. Returns figures for the log line. `moved`: as for `load`.

    Raises ChangelogError if the changelog ends before the position, or cannot be read.
    """
    started = time.monotonic()
    end = await end_offset(bootstrap, tp)
    moved()
    if state.position.changelog > end:
        raise ChangelogError(
            f"{tp}: local position {state.position.changelog} is past the end {end}; is this another Kafka?"
        )
    async with reading(bootstrap, tp) as changelog:
        moved()
        try:
            loader = await load(changelog, state, end, moved)
        except Holes:
            log.warning("the changelog has lost records since the database was written, rebuilding it",
                        topic=tp.topic, partition=tp.partition, position=state.position.changelog, end=end)  # fmt: skip
            state.empty()
            loader = await load(changelog, state, end, moved)
    if loader.keys:
        await rederive(state, stage, moved)
    state.commit({}, Position(marker=loader.marker, changelog=end))
    seconds = time.monotonic() - started
    figures = {"records": loader.records, "keys": loader.keys, "end": end, "seconds": round(seconds, 3),
               "keys_per_s": round(loader.keys / seconds)}  # fmt: skip
    log.info("restored", topic=tp.topic, partition=tp.partition, source=loader.marker.source, **figures)
    return figures
