"""The way of a write: a record to the log, its replies from `replies`, in a thread of its own.

Records of HTTP writes of entities go to `raw` (`ask`), commands of timelines to their own topics (`post`).

Every instance reads all of `replies`, from the ends that it finds at start, and knows its own by the correlation id,
which begins with a name made up at start. So any number of instances may write at once, and none keeps a position.

States: waiting (Kafka or `replies` is not there) -> open; `raw` may come later. Only when the places to read from are
known is anything sent, so no answer is missed. A producer that has failed for good leads back to waiting.
Requests whose fate is unknown wait for an answer until their time is over; those that Kafka refused fail at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from headrace_api.follower import (
    ASK_AGAIN_S,
    ASK_S,
    READING,
    NotThere,
    Unreachable,
    any_up,
    base,
    describe,
    warn,
    weigh,
)
from headrace_api.progress import STARTING
from headrace_api.timelines.desk import Letter
from headrace_api.writing import NoAnswer, NotSent, Reply, TooLarge
from headrace_core.partitioner import partition_of
from headrace_core.registration.message import read_json
from headrace_core.registration.reasons import Refusal
from headrace_core.registration.routes import ABSENT, Response

log = structlog.get_logger(__name__)

RAW = "raw"
GROUP = "streams"
"""Consumer group of the stream processor, without the prefix."""
POLL_S = 0.05
LOOK_AFTER_S = 10.0
MESSAGE_BYTES = 8 * 1024 * 1024
NO_CONTENT = 204
REFUSED = {
    KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION,
    KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.INVALID_MSG, KafkaError.INVALID_RECORD,
    KafkaError.POLICY_VIOLATION,
}  # fmt: skip
"""Errors after which a record is certainly not in the log."""


T = TypeVar("T")


class Box(Generic[T]):
    """Where the replies to one record arrive, read by `read`; for one event loop.

    `place`: the record's partition and, when Kafka has confirmed it, its offset.
    """

    def __init__(self, read: Callable[[Any], T], partition: int) -> None:
        self.place = [partition, -1]
        self._read = read
        self._loop = asyncio.get_running_loop()
        self._arrived: asyncio.Queue[T | Exception] = asyncio.Queue()

    async def next(self, seconds: float) -> T:
        """The next reply. Raises TimeoutError, NotSent, TooLarge."""
        found = await asyncio.wait_for(self._arrived.get(), seconds)
        if isinstance(found, Exception):
            raise found
        return found

    def take(self, message: Any) -> None:
        """A reply has come. From any thread."""
        try:
            found = self._read(message)
        except (ValueError, KeyError, TypeError) as error:
            log.error("a reply cannot be read", error=repr(error))
            return
        self.tell(found)

    def tell(self, found: T | Exception) -> None:
        """Hand over a reply, or why there is none. From any thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._arrived.put_nowait, found)


class Mailbox:
    """`run` in a thread until `stop`; `ask` on any event loop."""

    def __init__(self, kafka: str, prefix: str, count: Callable[[str], None]) -> None:
        """`count` is told of each reply: `own`, `late` (nobody waits any more) or `other` (of another instance)."""
        self.alive_at = time.monotonic()
        self._replies = prefix + "replies"
        self._base = base(kafka)
        self._count = count
        self._prefix = prefix
        self.name = uuid.uuid4().hex
        self._numbers = itertools.count(1)
        self._boxes: dict[str, Box[Any]] = {}
        self._counts: dict[str, int] = {}
        self._looked_at = 0.0
        self._admin: AdminClient | None = None
        self._producer: Producer | None = None
        self._partitions = 0
        self._no_raw = ""
        self._up = False
        self._fatal = False
        self._reason = STARTING
        self._stopping = threading.Event()

    def problem(self) -> str:
        """See writing.Mail."""
        reason = self._away() or self._no_raw
        return reason and f"writes are not possible: {reason}"

    def away(self) -> str:
        """See timelines.desk.Mail."""
        return self._away()

    def _away(self) -> str:
        if self._producer is None:
            return self._reason
        return "" if self._up else "Kafka does not answer"

    def starting(self) -> bool:
        """See writing.Mail."""
        return self._producer is None and self._reason == STARTING

    def correlation(self) -> str:
        """See writing.Mail."""
        return f"{self.name}-{next(self._numbers)}"

    async def ask(self, root: str, correlation: str, value: bytes, seconds: float) -> Reply:
        """See writing.Mail."""
        if self._no_raw:
            raise NotSent(self.problem())
        letter = Letter(RAW, partition_of(root.encode(), self._partitions or 1), None, value, [("kind", b"request")])
        with self._posted(letter, correlation, read_reply) as box:
            try:
                return await box.next(seconds)
            except TimeoutError as error:
                raise NoAnswer(*box.place) from error
            except TooLarge as error:
                raise Refusal("too_large", str(error)) from error

    def post(self, letter: Letter, correlation: str, read: Callable[[bytes], T]) -> AbstractContextManager[Box[T]]:
        """See timelines.desk.Mail."""
        return self._posted(letter, correlation, lambda message: read(message.value() or b""))

    @contextlib.contextmanager
    def _posted(self, letter: Letter, correlation: str, read: Callable[[Any], T]) -> Iterator[Box[T]]:
        """Write a record, and take in its replies inside the context. Raises NotSent."""
        producer = self._producer
        if producer is None:
            raise NotSent(self._away() or self._reason)
        box = Box(read, letter.partition)
        self._boxes[correlation] = box
        try:
            producer.produce(
                self._prefix + letter.topic, letter.value, letter.key, letter.partition,
                headers=list[tuple[str, str | bytes | None]](letter.headers),
                on_delivery=lambda error, message: self._delivered(box, error, message),
            )  # fmt: skip
            yield box
        except (BufferError, KafkaException) as error:
            raise NotSent(f"Kafka does not take it: {error}") from error
        finally:
            del self._boxes[correlation]

    async def partitions(self, topic: str) -> int:
        """See timelines.desk.Mail. What is there is remembered; what is not, is looked for once a second at most."""
        if topic not in self._counts and time.monotonic() > self._looked_at + ASK_AGAIN_S:
            self._looked_at = time.monotonic()
            await asyncio.to_thread(self._look)
        return self._counts.get(topic, 0)

    async def owners(self, topic: str) -> dict[int, str]:
        """See timelines.desk.Mail."""
        return await asyncio.to_thread(self._owners, self._prefix + topic)

    def _owners(self, topic: str) -> dict[int, str]:
        group, found = self._prefix + GROUP, dict[int, str]()
        with contextlib.suppress(KafkaException):  # then nobody knows who it is
            told = self._asker().describe_consumer_groups([group], request_timeout=ASK_S)[group].result()
            for member in told.members:
                name = f"{member.group_instance_id or member.member_id}@{member.host.removeprefix('/')}"
                places = member.assignment.topic_partitions if member.assignment else ()
                found |= {place.partition: name for place in places if place.topic == topic}
        return found

    def _look(self) -> None:
        with contextlib.suppress(KafkaException):  # then it is not known to be there; `away` says more
            topics = self._asker().list_topics(timeout=ASK_S).topics
            self._counts = {
                name.removeprefix(self._prefix): len(topic.partitions)
                for name, topic in topics.items()
                if name.startswith(self._prefix) and topic.error is None
            }

    def _asker(self) -> AdminClient:
        """One for all questions (see `describe`), from any thread."""
        self._admin = self._admin or AdminClient(self._base)
        return self._admin

    def stop(self) -> None:
        """Make `run` return soon."""
        self._stopping.set()

    def run(self) -> None:
        """Send and receive until `stop`. Raises what ends the process."""
        while not self._stopping.is_set():
            try:
                self._session()
            except (NotThere, KafkaException) as error:
                self.alive_at = time.monotonic()
                if str(error) != self._reason:
                    log.warning("no writes", error=str(error))
                self._reason = str(error)
                self._stopping.wait(ASK_AGAIN_S)

    def _session(self) -> None:
        admin = self._asker()
        identity, count = describe(admin, self._replies)
        self._look_for_raw(admin)
        consumer, producer = Consumer(self._reading()), Producer(self._writing())
        self._fatal = False
        try:
            places = [TopicPartition(self._replies, number) for number in range(count)]
            for place in places:
                _, place.offset = consumer.get_watermark_offsets(place, timeout=ASK_S)
            consumer.assign(places)
            self._producer, self._up = producer, True
            log.info("writes are possible", raw=not self._no_raw, replies=self._replies)
            self._turn(consumer, producer, admin, identity)
        finally:
            self._producer = None
            producer.flush(2)
            consumer.close()

    def _turn(self, consumer: Consumer, producer: Producer, admin: AdminClient, identity: str) -> None:
        look_at = time.monotonic() + LOOK_AFTER_S
        raw_at = time.monotonic() + ASK_AGAIN_S
        while not self._stopping.is_set():
            message = consumer.poll(POLL_S)
            producer.poll(0)
            self.alive_at = now = time.monotonic()
            if message is not None and (error := message.error()) is not None:
                weigh(error)
            elif message is not None:
                self._arrived(message)
            if self._fatal:
                raise NotThere("the producer has failed for good")
            if self._no_raw and now > raw_at:
                self._look_for_raw(admin)
                raw_at = time.monotonic() + ASK_AGAIN_S
            if now > look_at and not self._boxes:
                self._look_after(admin, identity)
                look_at = time.monotonic() + LOOK_AFTER_S

    def _arrived(self, message: Any) -> None:
        correlation = (message.key() or b"").decode(errors="replace")
        if not correlation.startswith(self.name):
            self._count("other")
            return
        box = self._boxes.get(correlation)
        self._count("late" if box is None else "own")
        if box is not None:
            box.take(message)

    def _look_for_raw(self, admin: AdminClient) -> None:
        """A worker of timelines alone makes no `raw`; then there is nothing to register either."""
        try:
            _, self._partitions = describe(admin, self._prefix + RAW)
            self._no_raw = ""
        except NotThere as error:
            self._no_raw = str(error)

    def _look_after(self, admin: AdminClient, identity: str) -> None:
        """Is it still the same topic? Raises NotThere."""
        try:
            found, _ = describe(admin, self._replies)
        except Unreachable:
            return  # the clients go on when the broker is back
        if found != identity:
            raise NotThere(f"{self._replies} was made anew")

    def _delivered(self, box: Box[Any], error: KafkaError | None, message: Any) -> None:
        """In our thread."""
        if error is None:
            box.place[1] = message.offset()
        elif error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            box.tell(TooLarge("the record is larger than the topic allows"))
        elif error.code() in REFUSED:
            self._counts = {}
            box.tell(NotSent(f"Kafka does not take it: {error}"))
        else:
            log.warning("a write is not confirmed", error=str(error))

    def _reading(self) -> dict[str, Any]:
        more = {"queued.max.messages.kbytes": 16 * 1024, "stats_cb": self._statistics, "error_cb": warn}
        return self._base | READING | more

    def _writing(self) -> dict[str, Any]:
        return self._base | {
            "acks": "all", "enable.idempotence": True, "linger.ms": 0, "message.timeout.ms": 9_000,
            "message.max.bytes": MESSAGE_BYTES, "queue.buffering.max.kbytes": 64 * 1024, "error_cb": self._failed,
        }  # fmt: skip

    def _statistics(self, text: str) -> None:
        self._up = any_up(text)

    def _failed(self, error: KafkaError) -> None:
        warn(error)
        self._fatal = self._fatal or error.fatal()


def read_reply(message: Any) -> Reply:
    """A record of `replies`. Raises ValueError, KeyError or TypeError if it is not as it must be."""
    value = read_json(message.value() or b"")
    headers = {str(name): str(text) for name, text in value["headers"].items()}
    status = int(value["status"])
    body = ABSENT if status == NO_CONTENT else value["body"]
    ident = dict(message.headers() or ())["id"].decode()
    _, partition, offset, _ = ident.split(":")
    return Reply(int(partition), int(offset), Response(status, headers, body))
