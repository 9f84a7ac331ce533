"""Running one stage over one partition, chunk by chunk, in the order of `streams.md` 2.

States: restoring -> ready (seek to marker + 1) -> a chunk at a time -> closed. The *marker* in the database is the only
truth about what has been applied; group commits follow it and are never believed. So whatever the consumer hands over
is judged by its offsets: at or below the marker it is skipped, right behind it it is applied, and behind a gap it is
refused and read again, unless the log itself has that gap. A worker that may have lost its partition drops the chunk
and starts over with restoring. Any other error ends the process; the next start repeats the chunk.

What can never happen: a chunk applied twice or out of order to one database, a marker without its mutations.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from headrace_core.changelog import Marker
from headrace_core.stage import Emission, JudgesClocks, Record, RepeatsReplies, Stage
from headrace_core.state import Overlay
from headrace_streams import again, chunks, restore
from headrace_streams.atomic import Atomic, Fenced
from headrace_streams.chunks import Chunk
from headrace_streams.faults import INSIDE_TRANSACTION, Faults
from headrace_streams.producer import Outlet, durable, fits
from headrace_streams.reads import Reads
from headrace_streams.senders import Senders
from headrace_streams.sizes import REPLIES, Bounded, Outgoing
from headrace_streams.stages import StageSpec
from headrace_streams.store import Position, RocksState
from headrace_streams.turns import Turns

log = structlog.get_logger(__name__)

MAX_RESEEKS = 20
OWNER_POLL_S = 0.2
BROKER_AWAY_S = 0.5


class Dropped(Exception):
    """Ownership of the partition is in doubt: nothing of the chunk was made durable by step 5."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all partitions of a worker share."""

    bootstrap: str
    prefix: str
    data_dir: Path
    outlet: Outlet
    faults: Faults
    owns: Callable[[], bool]
    epoch: Callable[[], int]
    seek: Callable[[str, int, int], Awaitable[None]]
    fatal: Callable[[BaseException, str], None]
    chunk_records: int = 5000


class PartitionRunner:
    """One stage on one partition. `start`, `submit` chunks, `close`."""

    def __init__(self, spec: StageSpec, partition: int, around: Surroundings) -> None:
        self.spec = spec
        self.partition = partition
        self.stage: Stage = spec.make()
        self.state: RocksState | None = None
        self.reads: Reads | None = None
        """What whoever asks the stage about the state reads: a scan of the state walks over keys that are deleted."""
        self.ready = False
        self.busy = False
        self.moved_at = time.monotonic()
        self.step = "restoring"
        self.progress_at = self.moved_at
        self.senders = Senders()
        self.log_start = 0
        """First offset of the input that was there when the state was restored, or when records were missing."""
        self._around = around
        self._atomic: Atomic | None = None
        if spec.transaction:
            self._atomic = Atomic(around.outlet, around.bootstrap, around.prefix, spec.changelog, partition)
        self._waiting: deque[Chunk] = deque()
        self._wake = asyncio.Event()
        self._closing = False
        self._reseeks = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def topic(self) -> str:
        """Input topic."""
        return self._around.prefix + self.spec.input

    @property
    def next_offset(self) -> int | None:
        """Offset of the first record that is not applied yet; None before the state is restored."""
        return self.state.position.marker.source + 1 if self.ready and self.state else None

    @property
    def idle(self) -> bool:
        """Ready, with nothing handed over and nothing under way."""
        return self.ready and not self.busy and not self._waiting

    @property
    def starting(self) -> bool:
        """Being restored, or sent to the place where to go on: how much lag there is is not known yet."""
        return self.step in ("restoring", "seek")

    @property
    def waiting(self) -> int:
        """Chunks handed over and not begun."""
        return len(self._waiting)

    def _reached(self, step: str) -> None:
        """Note the step of `streams.md` 2 that begins now. Getting there is progress, staying there is none."""
        self.step = step
        self.progress_at = time.monotonic()

    def start(self) -> None:
        """Begin restoring; chunks are taken when that is done."""
        self._task = asyncio.create_task(self._run(), name=f"{self.spec.name}-{self.partition}")

    def submit(self, chunk: Chunk) -> None:
        """Hand over the next chunk of the partition. The consumer bounds how many are under way."""
        if self._closing:
            chunk.ack()
        else:
            if isinstance(self.stage, JudgesClocks):
                self.senders.seen(chunk.records)
            self._waiting.append(chunk)
            self._wake.set()

    async def close(self) -> None:
        """Finish the chunk under way, drop the others, close the database."""
        self._closing = True
        if self._task:
            if self.ready:
                self._wake.set()
            else:
                self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self.ready = False
        self._drop_waiting()
        if self._atomic:
            await self._atomic.close()
        if self.state:
            self.state.close()
            self.state = self.reads = None

    async def _run(self) -> None:
        try:
            while not self._closing:
                await self._restore()
                await self._work()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._around.fatal(error, f"{self.spec.name}-{self.partition}")

    async def _restore(self) -> None:
        self._reached("restoring")
        while not self._around.owns():
            await asyncio.sleep(OWNER_POLL_S)
        if self.state is None:
            self.state = RocksState(self._around.data_dir / self.spec.name / str(self.partition))
        self.stage.forget()
        self.reads = Reads(self.state)
        while not await self._caught_up(self.state):
            await asyncio.sleep(BROKER_AWAY_S)
        self.ready = True
        self.moved_at = time.monotonic()
        self._reached("seek")
        await self._seek()
        self._reached("idle")

    async def _caught_up(self, state: RocksState) -> bool:
        """Whether the state is at the end of the changelog; not, if the broker was away meanwhile."""
        changelog = TopicPartition(self._around.prefix + self.spec.changelog, self.partition)
        try:
            if self._atomic:
                await self._atomic.open()
            moved = functools.partial(self._reached, "restoring")
            await restore.restore(self._around.bootstrap, changelog, state, self.stage, moved)
            async with restore.reading(self._around.bootstrap, TopicPartition(self.topic, self.partition)) as log_:
                self._begins(await log_.first())
            end = state.position.marker.source + 1
            if isinstance(self.stage, RepeatsReplies) and end:
                place = TopicPartition(self.topic, self.partition)
                await again.send(self._around.outlet, self._around.bootstrap, place, self.stage, state, end,
                                 self._around.chunk_records)  # fmt: skip
        except KafkaError as error:
            if not error.retriable:
                raise
            log.warning("restoring once more", topic=changelog.topic, partition=self.partition, error=repr(error))
            return False
        return True

    def _begins(self, first: int) -> None:
        """The input's first offset is known. What retention has taken before it was applied is lost: say so."""
        expected = self._position().marker.source + 1
        if first > max(expected, self.log_start) and expected:
            log.error("records were deleted from the log before they were applied", topic=self.topic,
                      partition=self.partition, expected=expected, first=first, lost=first - expected)  # fmt: skip
        self.log_start = first

    def _lost(self, record: Record) -> int:
        """How many of the records between the marker and the one applied next retention has taken.

        Counted in the marker that goes beyond them, so the count is exact after any crash. What is missing at or above
        the log's first offset was never a record: a transaction's end. Neither is what a new state has not seen lost.
        """
        expected = self._position().marker.source + 1
        return max(0, min(record.offset, self.log_start) - expected) if expected else 0

    async def _seek(self) -> None:
        if (offset := self.next_offset) is not None and not self._closing:
            await self._around.seek(self.topic, self.partition, offset)

    async def _work(self) -> None:
        while (chunk := await self._next()) is not None:
            self.busy = True
            try:
                await self._take(chunk)
            except (Dropped, Fenced):
                log.warning("chunk dropped: ownership in doubt", stage=self.spec.name, partition=self.partition)
                self.ready = False
                self._drop_waiting()
                return
            finally:
                self.busy = False
                chunk.ack()
                self.step = "idle"
            self._around.faults.passed(6)

    async def _next(self) -> Chunk | None:
        """What waits, when there is something; None: closing."""
        while not self._waiting and not self._closing:
            self._wake.clear()
            await self._wake.wait()
        return None if self._closing else chunks.take(self._waiting, self._around.chunk_records)

    def _drop_waiting(self) -> None:
        while self._waiting:
            self._waiting.popleft().ack()

    async def _take(self, chunk: Chunk) -> None:
        """Step 1, and what is to be done if the chunk does not begin right behind the marker."""
        done = self._position().marker.source
        fresh = [record for record in chunk.records if record.offset > done]
        if not fresh:
            return
        self.step = "1 skip"
        if fresh[0].offset > done + 1 and not await self._gap_is_in_the_log(done + 1, fresh[0].offset):
            self._reseeks += 1
            log.warning("gap, reading again", stage=self.spec.name, partition=self.partition, marker=done,
                        got=fresh[0].offset)  # fmt: skip
            if self._reseeks > MAX_RESEEKS:
                raise RuntimeError(f"{self.topic}-{self.partition}: records {done + 1}.. are passed over")
            await self._seek()
            return
        self._reseeks = 0
        await self._apply_chunk(fresh)

    async def _gap_is_in_the_log(self, expected: int, got: int) -> bool:
        while True:
            try:
                return await self._next_in_the_log(expected) >= got
            except KafkaError as error:
                if not error.retriable:
                    raise
                log.warning("looking at a gap once more", topic=self.topic, partition=self.partition, error=repr(error))
            await asyncio.sleep(BROKER_AWAY_S)

    async def _next_in_the_log(self, expected: int) -> int:
        """The offset of the first record from `expected` on."""
        tp = TopicPartition(self.topic, self.partition)
        reader = AIOKafkaConsumer(
            bootstrap_servers=self._around.bootstrap, enable_auto_commit=False, auto_offset_reset="earliest"
        )
        try:
            await reader.start()
            reader.assign([tp])
            first = int((await reader.beginning_offsets([tp]))[tp])
            self._begins(first)
            reader.seek(tp, max(expected, first))
            return int((await reader.getone(tp)).offset)
        finally:
            await reader.stop()

    def _position(self) -> Position:
        assert self.state is not None
        return self.state.position

    async def _apply_chunk(self, records: Sequence[Record]) -> None:
        """Steps 2 to 6; a chunk whose mutations do not fit one record batch is halved before step 3.

        A single record whose mutations do not fit goes on: step 4 is then a transaction. A record with a mutation that
        is too large by itself is refused (`sizes.py`), and is a chunk of its own.
        """
        parts = [records]
        while parts:
            parts += reversed(await self._apply_part(parts.pop()))

    async def _apply_part(self, records: Sequence[Record]) -> list[Sequence[Record]]:
        """Apply all, or nothing: then what it has to be cut into, in order, is returned."""
        overlay = self._overlay()
        try:
            return await self._apply_over(overlay, records)
        finally:
            overlay.release()

    async def _apply_over(self, overlay: Bounded, records: Sequence[Record]) -> list[Sequence[Record]]:
        outgoing, applied = await self._engine(overlay, records)
        if overlay.too_large and len(records) > 1:
            self.stage.forget()
            return _around(records, applied) if applied < len(records) else _halves(records)
        if overlay.too_large:
            self.stage.forget()
            overlay, outgoing = self._refused(records[0], overlay.too_large)
        primary = {k: v for k, v in overlay.mutations.items() if k[0] in self.stage.primary}
        if len(records) > 1 and not fits(self._around.outlet, self.spec.changelog, primary):
            self.stage.forget()
            return _halves(records)
        self._around.faults.passed(2)
        await self._make_durable(records, overlay, primary, outgoing)
        return []

    def _overlay(self) -> Bounded:
        assert self.reads is not None
        return Bounded(self.reads.begin(), self.stage.primary, self._around.outlet.limits.room(self.spec.changelog))

    def _refused(self, record: Record, size: int) -> tuple[Bounded, Outgoing]:
        log.warning("record refused: too large for the changelog", stage=self.spec.name, partition=self.partition,
                    offset=record.offset, size=size)  # fmt: skip
        outgoing = Outgoing(self.stage.name, self._around.outlet.limits)
        outgoing.refuse(record, size)
        return self._overlay(), outgoing

    async def _engine(self, overlay: Bounded, records: Sequence[Record]) -> tuple[Outgoing, int]:
        """Step 2, up to a record that is to be refused; how many are before it. The engine only sees the overlay.

        What a stage holds back until the end of a chunk can be too large, too; then all are "before it". The loop gets
        its turn in between.
        """
        outgoing = Outgoing(self.stage.name, self._around.outlet.limits)
        turns = Turns()
        self._reached("2 engine")
        for applied, record in enumerate(records):
            before = len(outgoing.emissions)
            self.stage.apply(overlay, record, outgoing.emissions.append)
            if overlay.too_large:
                return outgoing, applied
            outgoing.check(record, before)
            if turns.over():
                await turns.give()
                self._reached("2 engine")
        overlay.settle()
        return outgoing, len(records)

    async def _make_durable(
        self,
        records: Sequence[Record],
        overlay: Overlay,
        primary: dict[bytes, bytes | None],
        outgoing: Outgoing,
    ) -> None:
        assert self.state is not None
        assert self.reads is not None
        around = self._around
        before = self.state.position.marker
        clock = max(before.clock, max(record.append_ms for record in records))
        too_large, emissions = before.too_large + outgoing.too_large, outgoing.emissions
        marker = Marker(records[-1].offset, clock, around.epoch(), too_large, before.retention + self._lost(records[0]))
        self._check_owner()
        self._reached("3 emissions")
        inside = functools.partial(around.faults.passed, INSIDE_TRANSACTION)
        if self._atomic:
            end, replies = await self._atomic.write(emissions, primary, marker, inside), list[Emission]()
        else:
            replies = [e for e in emissions if e.topic == REPLIES]
            outputs = [e for e in emissions if e.topic != REPLIES] if replies else emissions
            await around.outlet.emit(outputs, self.partition)
            around.faults.passed(3)
            self._check_owner()
            self._reached("4 changelog")
            end = await durable(around.outlet, self.spec.changelog, self.partition, primary, marker, inside)
        around.faults.passed(4)
        self.state.commit(overlay.mutations, Position(marker=marker, changelog=end))
        self.reads.committed(overlay.mutations)
        self.moved_at = time.monotonic()
        around.faults.passed(5)
        self._reached("6 replies")
        await around.outlet.emit(replies, self.partition)

    def _check_owner(self) -> None:
        if not self._around.owns():
            self.stage.forget()
            raise Dropped


def _around(records: Sequence[Record], at: int) -> list[Sequence[Record]]:
    """Those before a record, it alone, those after it."""
    return [part for part in (records[:at], records[at : at + 1], records[at + 1 :]) if part]


def _halves(records: Sequence[Record]) -> list[Sequence[Record]]:
    middle = len(records) // 2
    return [records[:middle], records[middle:]]
