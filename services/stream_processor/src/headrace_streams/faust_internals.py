"""Everything that overrides Faust 0.15.3, and nothing else (`streams.md` 1).

`tests/unit/streams/test_faust_internals.py` fails if what is overridden, wrapped or relied on is not what was read.

What is overridden, and where it is in Faust:
- `faust/transport/consumer.py` `Consumer.getmany` (one message a record) -> one message a partition and fetch, from
  partitions that are restored and have room only, so that a slow partition holds up no other.
- `Consumer._add_gap`, `Consumer._read_offset` (gap trees, silently dropped messages) -> nothing: the runner judges
  offsets by the marker.
- `Consumer._new_offset` (acknowledged messages) -> the runner's marker + 1, once something was acknowledged.
- `Consumer.getmany` too: a fetch that outlasts a rebalance can bring records after the seek of the new assignment. They
  are of no generation and dropped, but the position is behind them: without another record nobody would see the gap,
  and the partition would stand still with lag. So they are read again from the marker.
- `Consumer.perform_seek` (to the committed offsets) -> then to the markers.
- `faust/transport/drivers/aiokafka.py` `AIOKafkaConsumerThread._create_worker_consumer` (long poll 1500 ms: the
  aiokafka fetcher has one fetch a broker in flight and leaves out partitions whose records are still buffered, so the
  long poll for the drained ones holds up the others) -> long poll of 25 ms. The fetcher also asks for nothing at all
  for 100 ms while records of any partition are buffered, so one without room held up all -> for 10 ms, which is longer
  than those with room usually need to be consumed, so that they are asked for again together. And responses of 8 MiB
  instead of 50, which are there three times while they are being unpacked.
- `faust/transport/drivers/aiokafka.py` `Consumer._new_consumer_thread` -> our thread, with the last and these:
- `AIOKafkaConsumerThread.on_start`: notes when the group coordinator last answered a heartbeat; `on_thread_stop`: a
  static member leaves the group too when it is told to stop, so that others take over at once.
- Setting `stream_wait_empty` off: a revocation would wait for all chunks handed over. Closing a runner waits for the
  one under way and drops the others, in `on_partitions_revoked`, which the rebalance waits for.
- `aiokafka/consumer/fetcher.py` `PartitionRecords._consumer_record` (a data class of eleven members for each record,
  from which another is made), `__iter__` -> the records that stages take, at once; and, unless only what is committed
  is to be read, in slices instead of one by one (`_unpack_records`).
- `aiokafka/consumer/fetcher.py` `MemoryRecords` -> `lenient.py`: a header name that is not UTF-8 ends no worker.
- `faust/serializers/schemas.py` `Schema.compile` (serializers, models) -> the message's value as it is.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, Protocol, cast

import faust
from aiokafka.consumer.fetcher import READ_COMMITTED, FetchResult, PartitionRecords
from aiokafka.errors import CorruptRecordException, IllegalStateError
from faust.serializers.schemas import Schema
from faust.transport.drivers import aiokafka as driver
from faust.types import TP, ConsumerMessage

from headrace_core.stage import Record
from headrace_streams import budget, lenient

LONG_POLL_MS = 25
FETCHED_S = 0.01
POLL_S = 0.05
SOME_CLOSED_S = 0.01
NO_ROOM_S = 0.005
FETCH_BYTES = 4 * 1024 * 1024
RESPONSE_BYTES = 8 * 1024 * 1024
LOG_APPEND_TIME = 1
SLICE_RECORDS = 500
_new = tuple.__new__
"""`_new(Record, members)` is `Record(*members)` without the call of Python code behind that name."""


class Markers(Protocol):
    """What the consumer asks of the runners."""

    def next_offset(self, topic: str, partition: int) -> int | None:
        """Marker + 1 of a restored partition, else None."""


class _Nothing(dict[TP, int | None]):
    """Read offsets that are never known, so that Faust drops no message and sees no gap."""

    def __getitem__(self, key: TP) -> int | None:
        return None


class ChunkRecords(PartitionRecords):
    """Fetched record batches that are unpacked into the records that stages take."""

    next_fetch_offset: int

    def __iter__(self) -> Any:
        return self._records_iterator

    def _consumer_record(self, tp: Any, raw: Any) -> Record:
        return _new(Record, (tp.partition, raw.offset, raw.timestamp, raw.key, raw.value, tuple(raw.headers)))

    def unpack_in_slices(self) -> None:
        """Of a fetch that nobody has taken from yet. What was aborted is left out by aiokafka's own loop only."""
        if self._isolation_level != READ_COMMITTED:
            self._records_iterator = self._slices()

    def _slices(self) -> Iterator[Record]:
        """As `_unpack_records`: `next_fetch_offset` is right behind the record that was taken last, or its batch."""
        partition = self._tp.partition
        while self._records.has_next():
            batch = self._records.next_batch()
            if self._check_crcs and not batch.validate_crc():
                raise CorruptRecordException(f"Invalid CRC - {self._tp}")
            for record in () if batch.is_control_batch else _records_of(batch, partition):
                offset = record[1]
                if offset >= self.next_fetch_offset:
                    self.next_fetch_offset = offset + 1
                    yield record
            self.next_fetch_offset = batch.next_offset


def _records_of(batch: Any, partition: int) -> Iterator[Record]:
    """A slice at a time, as nobody knows how many records a compressed batch holds."""
    raws = chain(batch)  # a batch is no iterator that could be asked again: it begins anew
    while found := [
        _new(Record, (partition, raw.offset, raw.timestamp, raw.key, raw.value, tuple(raw.headers)))
        for raw in islice(raws, SLICE_RECORDS)
    ]:
        yield from found


class Fetched(dict[Any, Any]):
    """What an aiokafka fetcher has fetched, by partition; whatever is put in gives `ChunkRecords`."""

    def __setitem__(self, tp: Any, result: Any) -> None:
        if isinstance(result, FetchResult):
            result._partition_records.__class__ = ChunkRecords
            result._partition_records.unpack_in_slices()
        super().__setitem__(tp, result)


def unpack_at_once(consumer: Any) -> None:
    """Let a started aiokafka consumer hand over `Record`s."""
    fetcher = consumer._fetcher
    fetcher._records = Fetched(fetcher._records)


class ChunkThread(driver.AIOKafkaConsumerThread):
    """The consumer's thread: short long polls, and the time of the last good heartbeat (monotonic s)."""

    last_heartbeat: float = 0.0

    def _create_worker_consumer(self, transport: Any) -> Any:
        consumer = super()._create_worker_consumer(transport)
        consumer._fetch_max_wait_ms = LONG_POLL_MS
        consumer._fetch_max_bytes = RESPONSE_BYTES
        return consumer

    def _fetch_on(self) -> None:
        """What is fetched and not consumed keeps the fetcher from asking for the others for so long."""
        self._ensure_consumer()._fetcher._prefetch_backoff = FETCHED_S

    async def on_start(self) -> None:
        await super().on_start()
        unpack_at_once(self._ensure_consumer())
        self._fetch_on()
        coordinator = self._ensure_consumer()._coordinator
        heartbeat, rejoin = coordinator._do_heartbeat, coordinator._do_rejoin_group

        async def noted_heartbeat() -> Any:
            sent = time.monotonic()
            good = await heartbeat()
            if good:
                self.last_heartbeat = sent
            return good

        async def noted_rejoin(subscription: Any) -> Any:
            joined = await rejoin(subscription)
            if joined:
                self.last_heartbeat = time.monotonic()
            return joined

        coordinator._do_heartbeat, coordinator._do_rejoin_group = noted_heartbeat, noted_rejoin

    async def on_thread_stop(self) -> None:
        if self._consumer is not None:
            self._consumer._coordinator._group_instance_id = None
        await super().on_thread_stop()


class ChunkConsumer(driver.Consumer):
    """Hands over chunks: `message.value` is the list of records, `message.offset` that of the last one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._read_offset = _Nothing()
        self._passed_over: set[TP] = set()

    def _new_consumer_thread(self) -> ChunkThread:
        return ChunkThread(self, loop=self.loop, beacon=self.beacon)

    @property
    def _markers(self) -> Markers:
        return cast(Markers, self.app.headrace)

    @property
    def last_heartbeat(self) -> float:
        """Monotonic seconds when the last heartbeat that was answered well had been sent."""
        return float(cast(ChunkThread, self._thread).last_heartbeat)

    @property
    def fetching(self) -> bool:
        """Whether aiokafka's fetcher runs. It ends by an unexpected error, which it logs and nobody else hears of."""
        consumer = self._thread._consumer
        return consumer is None or consumer._fetcher is None or not consumer._fetcher._fetch_task.done()

    def describe(self, tp: TP) -> dict[str, Any]:
        """Where the consumer is with a partition, for the log."""
        consumer = self._thread._ensure_consumer()
        subscription = consumer._subscription.subscription
        assigned = subscription and subscription.assignment
        state = assigned and assigned._tp_state.get(tp)
        return {
            "position": state and state._position, "highwater": state and state.highwater,
            "fetched": tp in consumer._fetcher._records, "unacked": sum(one == tp for one, _ in self._under_way()),
            "open": tp in self._active_partitions, "paused": tp in self._paused_partitions,
            "buffered": tp in self._buffered_partitions, "flow_active": self.flow_active,
        }  # fmt: skip

    async def getmany(self, timeout: float) -> AsyncIterator[tuple[TP, Any]]:
        if not self.flow_active:
            await self.wait(self.can_resume_flow)
        await self._read_passed_over()
        active = self._restored()
        room = budget.room(self._under_way(), active, self.app.conf.broker_max_poll_records)
        if not room.partitions:
            await self.sleep(NO_ROOM_S)
            return
        generation = self.app.consumer_generation_id
        self._thread._ensure_consumer()._max_poll_records = room.records
        some_closed = len(room.partitions) < len(active)
        fetched = await self._getmany(room.partitions, min(timeout, SOME_CLOSED_S if some_closed else POLL_S))
        for tp, records in (fetched or {}).items():
            if self.should_stop or not self.flow_active or self.app.consumer_generation_id != generation:
                self._passed_over.update(TP(tp.topic, tp.partition) for tp in fetched)
                return
            if records:
                yield tp, self._chunk_message(TP(tp.topic, tp.partition), records)

    async def _read_passed_over(self) -> None:
        """Back to the markers of partitions whose records were fetched and handed to nobody."""
        while self._passed_over:
            tp = self._passed_over.pop()
            if (offset := self._markers.next_offset(tp.topic, tp.partition)) is not None:
                await self.go_to(tp, offset)

    async def go_to(self, tp: TP, offset: int) -> None:
        """Read a partition from `offset` on, if it is assigned (still)."""
        if tp in self.assignment():
            with contextlib.suppress(IllegalStateError):
                await self.seek_wait({tp: offset})

    def _restored(self) -> set[TP]:
        return {
            tp for tp in self._get_active_partitions() if self._markers.next_offset(tp.topic, tp.partition) is not None
        }

    def _under_way(self) -> list[tuple[TP, int]]:
        """Partition and weight of the chunks that are not acknowledged."""
        return [(message.tp, message.serialized_value_size) for message in list(self._unacked_messages)
                if not message.acked]  # fmt: skip

    def _chunk_message(self, tp: TP, records: Sequence[Record]) -> ConsumerMessage:
        last = records[-1]
        return ConsumerMessage(
            tp.topic, tp.partition, last.offset, last.append_ms / 1000, LOG_APPEND_TIME, (), None, records, None, 0,
            budget.weight(records), tp, generation_id=self.app.consumer_generation_id,
        )  # fmt: skip

    async def _add_gap(self, *_: Any) -> None:
        return

    def _new_offset(self, tp: TP) -> int | None:
        acked = self._acked[tp]
        if not acked:
            return None
        acked.clear()
        self._acked_index[tp].clear()
        return self._markers.next_offset(tp.topic, tp.partition)

    async def perform_seek(self) -> None:
        await super().perform_seek()
        for tp in self.assignment():
            if (offset := self._markers.next_offset(tp.topic, tp.partition)) is not None:
                await self.go_to(tp, offset)


class ChunkTransport(driver.Transport):
    """Faust's aiokafka transport with our consumer."""

    Consumer = ChunkConsumer


class ChunkSchema(Schema):
    """The value of the event is the value of the message."""

    def compile(self, app: Any, **_: Any) -> Callable[..., Any]:
        async def decode(message: Any, **_: Any) -> Any:
            return app.create_event(None, message.value, message.headers, message)

        return decode


def make_app(
    *,
    group: str,
    bootstrap: str,
    data_dir: Path,
    markers: Markers,
    chunk_records: int,
    session_timeout_s: float,
    instance: str = "",
) -> Any:
    """A Faust app with the chunk consumer. Faust brings the group, the assignment and the worker's life cycle.

    With an `instance` the member is static: a restart takes the place of the member that was killed at once. Whoever
    uses an instance must be sure that the last one is dead; the lock on the databases of its directory makes it so.
    """
    app = faust.App(
        group,
        broker=";".join(f"kafka://{server.strip()}" for server in bootstrap.split(",")),
        datadir=str(data_dir / "faust"),
        store="memory://",
        web_enabled=False,
        topic_allow_declare=False,
        topic_disable_leader=True,
        stream_buffer_maxsize=16,
        stream_wait_empty=False,
        stream_recovery_delay=0.0,
        broker_commit_interval=1.0,
        broker_max_poll_records=chunk_records,
        broker_session_timeout=session_timeout_s,
        broker_heartbeat_interval=session_timeout_s / 4,
        consumer_max_fetch_size=FETCH_BYTES,
        consumer_auto_offset_reset="earliest",
        consumer_group_instance_id=instance or None,
    )
    lenient.install()
    app.headrace = markers
    app.finalize()
    app.transport = ChunkTransport(app.conf.broker_consumer, app)
    return app


def add_agent(app: Any, topic: str, submit: Callable[[Any], None]) -> None:
    """Run `submit(event)` for every chunk of `topic`; who takes it acknowledges it."""

    async def take(stream: Any) -> None:
        async for event in stream.noack().events():
            submit(event)

    app.agent(app.topic(topic, schema=ChunkSchema()), name=f"chunks-of-{topic}")(take)
