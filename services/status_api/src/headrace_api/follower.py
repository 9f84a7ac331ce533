"""Following a changelog: records of all its partitions from Kafka into the replica, in a thread of its own.

States: waiting (Kafka or the topic is not there) -> catching up -> live. Whatever makes a session impossible (the
topic was made anew, the log ends before our position) leads back to waiting and, if the replica does not belong to the
log any more, to an empty replica. Errors of the database end the process; the next start decides.

No consumer group: positions are in the replica, every instance reads all partitions.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import structlog
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from headrace_api.progress import STARTING, PartitionProgress, Progress
from headrace_api.replica import Change, Counts, Position
from headrace_core.changelog import SOURCE_HEADER

log = structlog.get_logger(__name__)

TAKE = 5_000
POLL_S = 0.05
ASK_AGAIN_S = 1.0
ASK_S = 5.0
LOOK_AFTER_S = 5.0
MAX_OFFLINE_S = 24 * 60 * 60
"""Well below the topic's delete.retention.ms (7 days): after it a replica might miss tombstones."""
LOST = {
    KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION,
}  # fmt: skip


READING = {
    "group.id": "headrace-api", "enable.auto.commit": False, "enable.auto.offset.store": False,
    "isolation.level": "read_committed", "auto.offset.reset": "error", "fetch.queue.backoff.ms": 10,
    "fetch.wait.max.ms": 100, "statistics.interval.ms": 1_000,
}  # fmt: skip
"""Settings of every consumer: no group keeps a position here."""


class NotThere(Exception):
    """Kafka, the topic or the place in it is not there (any more); ask again later."""


class Unreachable(NotThere):
    """No broker answers; whether the topic is there is not known."""


C = TypeVar("C", contravariant=True)


class Placed(Protocol):
    """Where a partition stands; a Partition of a Replica."""

    @property
    def position(self) -> Position: ...


class Sink(Protocol[C]):
    """What a topic is followed into: a Replica, or what keeps places as it does."""

    path: Path
    counts: Counts

    @property
    def partitions(self) -> Mapping[int, Placed]: ...

    def begin(self, identity: str, partitions: int, *, max_offline_s: int) -> bool: ...

    def apply(self, records: Iterable[tuple[int, C]], ends: Iterable[tuple[int, int]] = ()) -> None: ...

    def forget(self) -> None: ...

    def synced(self) -> None: ...

    def close(self) -> None: ...


class Follower(Generic[C]):
    """`run` in a thread until `stop`. `progress` may be read by any thread."""

    def __init__(
        self, replica: Sink[C], kafka: str, topic: str, read: Callable[[Any], C], *,
        moved: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """`read` makes what `replica` takes from a Kafka message; `moved` is told of every new `progress`."""
        self.progress = Progress(topic=topic)
        self._read = read
        self._moved = moved
        self._replica = replica
        self._topic = topic
        self._base = base(kafka)
        self._stopping = threading.Event()
        self._admin: AdminClient | None = None
        self._up = False
        self._reason = STARTING
        self._moved_at = time.monotonic()
        self._targets: dict[int, int] = {}
        self._ends: dict[int, int] = {}

    def stop(self) -> None:
        """Make `run` return soon."""
        self._stopping.set()

    def run(self) -> None:
        """Follow until `stop`. Raises what ends the process."""
        while not self._stopping.is_set():
            try:
                self._session()
            except (NotThere, KafkaException) as error:
                if str(error) != self._reason:
                    log.warning("waiting for Kafka", topic=self._topic, error=str(error))
                self._targets, self._up, self._reason = {}, False, str(error)
                self._tell()
                self._stopping.wait(ASK_AGAIN_S)
        self._replica.close()

    def _session(self) -> None:
        self._admin = admin = self._admin or AdminClient(self._base)  # kept: see `describe`
        identity, partitions = describe(admin, self._topic)
        if self._replica.begin(identity, partitions, max_offline_s=MAX_OFFLINE_S):
            log.info("replica is built from the start", topic=self._topic, partitions=partitions)
        consumer = Consumer(self._settings())
        try:
            self._assign(consumer)
            self._follow(consumer, admin, identity)
        finally:
            consumer.close()

    def _settings(self) -> dict[str, Any]:
        return self._base | READING | {
            "enable.partition.eof": True, "max.partition.fetch.bytes": 8 * 1024 * 1024,
            "fetch.max.bytes": 64 * 1024 * 1024, "queued.max.messages.kbytes": 64 * 1024,
            "stats_cb": self._statistics, "error_cb": warn,
        }  # fmt: skip

    def _assign(self, consumer: Consumer) -> None:
        """Start where the replica is. Raises NotThere after emptying a replica that does not fit the log."""
        places = []
        for number, part in self._replica.partitions.items():
            place = TopicPartition(self._topic, number)
            low, high = consumer.get_watermark_offsets(place, timeout=ASK_S)
            offset = part.position.offset
            if offset > high or 0 < offset < low:
                self._replica.forget()
                raise NotThere(f"{self._topic}-{number}: position {offset} is not in {low} to {high}; built anew")
            self._targets[number] = self._ends[number] = high
            places.append(TopicPartition(self._topic, number, max(offset, low)))
        consumer.assign(places)
        self._reason, self._moved_at, self._up = "", time.monotonic(), True
        self._tell()
        log.info("following", topic=self._topic, targets=self._targets)

    def _follow(self, consumer: Consumer, admin: AdminClient, identity: str) -> None:
        look_at = time.monotonic() + LOOK_AFTER_S
        was_ready = False
        while not self._stopping.is_set():
            self._take(consumer)
            self._tell()
            if self.progress.ready and not was_ready:
                was_ready = True
                self._replica.synced()
                log.info("caught up", topic=self._topic)
            if time.monotonic() > look_at:
                self._look_after(admin, identity)
                look_at = time.monotonic() + LOOK_AFTER_S

    def _take(self, consumer: Consumer) -> None:
        """One poll and one transaction."""
        records: list[tuple[int, C]] = []
        ends: dict[int, int] = {}
        for message in consumer.consume(TAKE, timeout=POLL_S):
            number, error = message.partition(), message.error()
            if error is None:
                ends.pop(number, None)
                records.append((number, self._read(message)))
            elif error.code() == KafkaError._PARTITION_EOF:
                ends[number] = message.offset()
            else:
                weigh(error)
        if records or ends:
            self._replica.apply(records, ends.items())
            self._moved_at = time.monotonic()
        for number in self._ends:
            _, high = consumer.get_watermark_offsets(TopicPartition(self._topic, number), cached=True)
            self._ends[number] = max(self._ends[number], high if high != OFFSET_INVALID else 0)

    def _look_after(self, admin: AdminClient, identity: str) -> None:
        """Is it still the same topic, is the file still there? Raises NotThere, FileNotFoundError."""
        self._replica.path.stat()
        try:
            found, _ = describe(admin, self._topic)
        except Unreachable:
            return  # the consumer goes on when the broker is back
        if found != identity:
            raise NotThere(f"{self._topic} was made anew")
        if not any(p.lag for p in self.progress.partitions):
            self._replica.synced()

    def _tell(self) -> None:
        parts = self._replica.partitions if self._targets else {}
        shown = tuple(
            PartitionProgress(p.position.offset, self._ends[n], self._targets[n], p.position.source)
            for n, p in sorted(parts.items())
        )
        names = (f.name for f in fields(Counts))
        counts = tuple(zip(names, astuple(self._replica.counts), strict=True))
        now, before = time.monotonic(), self.progress.partitions
        self.progress = Progress(self._reason, self._topic, shown, self._up, now, self._moved_at, counts)
        if shown != before:
            self._moved()

    def _statistics(self, text: str) -> None:
        up = any_up(text)
        if up and not self._up:
            self._moved_at = time.monotonic()
        self._up, self._reason = up, "" if up else "Kafka does not answer"


def base(kafka: str) -> dict[str, Any]:
    """Settings of every client."""
    return {
        "bootstrap.servers": kafka,
        "log_level": 0,
        "topic.metadata.refresh.interval.ms": 30_000,
        "reconnect.backoff.max.ms": 2_000,
    }


def weigh(error: KafkaError) -> None:
    """What an error in the place of a message means. Raises NotThere, KafkaException if it is for good."""
    if error.code() in LOST:
        raise NotThere(str(error))
    if error.fatal():
        raise KafkaException(error)
    warn(error)


def warn(error: KafkaError) -> None:
    """The client goes on by itself."""
    log.warning("kafka", error=str(error))


def any_up(statistics: str) -> bool:
    """Whether any broker is connected, from a client's statistics."""
    return any(broker["state"] == "UP" for broker in json.loads(statistics)["brokers"].values())


def change(message: Any) -> Change:
    """A changelog record as it came. One without source offset counts as of offset -1, contained in everything."""
    headers = dict(message.headers() or ())
    raw = headers.get(SOURCE_HEADER)
    source = -1 if raw is None else int.from_bytes(raw, "big", signed=True)
    return Change(message.offset(), message.key() or b"", message.value(), source)


def describe(admin: AdminClient, topic: str) -> tuple[str, int]:
    """What tells a topic from another of its name, and its number of partitions. Raises NotThere.

    Who asks again takes the same client: a new one has to connect within `ASK_S`, too long for a busy machine.
    """
    try:
        listed = admin.list_topics(timeout=ASK_S)
        if topic not in listed.topics or listed.topics[topic].error is not None:
            raise NotThere(f"there is no topic {topic} yet")
        answer = admin.describe_topics(TopicCollection([topic]), request_timeout=ASK_S)[topic].result(2 * ASK_S)
    except KafkaException as error:
        raise Unreachable(f"Kafka does not answer: {error.args[0]}") from error
    except TimeoutError as error:
        raise Unreachable("Kafka does not answer") from error
    return f"{listed.cluster_id} {topic} {answer.topic_id}", len(answer.partitions)


class Runs(Protocol):
    """What runs in a thread of its own."""

    def run(self) -> None: ...

    def stop(self) -> None: ...


def start(follower: Runs, failed: Callable[[BaseException], None]) -> threading.Thread:
    """Run in a thread; `failed` is told what ended it."""

    def body() -> None:
        try:
            follower.run()
        except BaseException as error:
            failed(error)

    thread = threading.Thread(target=body, name="follower", daemon=True)
    thread.start()
    return thread
