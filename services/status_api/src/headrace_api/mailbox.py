"""The way of a write: a request record to `raw`, its reply from `replies`, in a thread of its own.

Every instance reads all of `replies`, from the ends that it finds at start, and knows its own by the correlation id,
which begins with a name made up at start. So any number of instances may write at once, and none keeps a position.

States: waiting (Kafka or a topic is not there) -> open. Only when the places to read from are known is anything sent,
so no answer is missed. A producer that has failed for good leads back to waiting. Requests whose fate is unknown wait
for an answer until their time is over; those that Kafka refused fail at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

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
from headrace_api.writing import NoAnswer, NotSent, Reply
from headrace_core.partitioner import partition_of
from headrace_core.registration.message import read_json
from headrace_core.registration.reasons import Refusal
from headrace_core.registration.routes import ABSENT, Response

log = structlog.get_logger(__name__)

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


class Waiting(NamedTuple):
    """A request that was sent; `place` gets its partition and, when Kafka has confirmed it, its offset."""

    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Reply]
    place: list[int]


class Mailbox:
    """`run` in a thread until `stop`; `ask` on any event loop."""

    def __init__(self, kafka: str, prefix: str, count: Callable[[str], None]) -> None:
        """`count` is told of each reply: `own`, `late` (nobody waits any more) or `other` (of another instance)."""
        self.alive_at = time.monotonic()
        self._raw, self._replies = prefix + "raw", prefix + "replies"
        self._base = base(kafka)
        self._count = count
        self._name = uuid.uuid4().hex
        self._numbers = itertools.count(1)
        self._waiting: dict[str, Waiting] = {}
        self._producer: Producer | None = None
        self._partitions = 0
        self._up = False
        self._fatal = False
        self._reason = STARTING
        self._stopping = threading.Event()

    def problem(self) -> str:
        """See writing.Mail."""
        if self._producer is None:
            return f"writes are not possible: {self._reason}"
        return "" if self._up else "writes are not possible: Kafka does not answer"

    def starting(self) -> bool:
        """See writing.Mail."""
        return self._producer is None and self._reason == STARTING

    def correlation(self) -> str:
        """See writing.Mail."""
        return f"{self._name}-{next(self._numbers)}"

    async def ask(self, root: str, correlation: str, value: bytes, seconds: float) -> Reply:
        """See writing.Mail."""
        producer, loop = self._producer, asyncio.get_running_loop()
        if producer is None:
            raise NotSent(self.problem())
        partition = partition_of(root.encode(), self._partitions)
        waiting = Waiting(loop, loop.create_future(), [partition, -1])
        self._waiting[correlation] = waiting
        try:
            producer.produce(
                self._raw, value, partition=partition, headers=[("kind", b"request")],
                on_delivery=lambda error, message: self._delivered(waiting, error, message),
            )  # fmt: skip
            return await asyncio.wait_for(waiting.answer, seconds)
        except TimeoutError as error:
            raise NoAnswer(*waiting.place) from error
        except (BufferError, KafkaException) as error:
            raise NotSent(f"Kafka does not take it: {error}") from error
        finally:
            del self._waiting[correlation]

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
        admin = AdminClient(self._base)
        _, self._partitions = describe(admin, self._raw)
        identity, count = describe(admin, self._replies)
        consumer, producer = Consumer(self._reading()), Producer(self._writing())
        self._fatal = False
        try:
            places = [TopicPartition(self._replies, number) for number in range(count)]
            for place in places:
                _, place.offset = consumer.get_watermark_offsets(place, timeout=ASK_S)
            consumer.assign(places)
            self._producer, self._up = producer, True
            log.info("writes are possible", raw=self._raw, replies=self._replies)
            self._turn(consumer, producer, admin, identity)
        finally:
            self._producer = None
            producer.flush(2)
            consumer.close()

    def _turn(self, consumer: Consumer, producer: Producer, admin: AdminClient, identity: str) -> None:
        look_at = time.monotonic() + LOOK_AFTER_S
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
            if now > look_at and not self._waiting:
                self._look_after(admin, identity)
                look_at = time.monotonic() + LOOK_AFTER_S

    def _arrived(self, message: Any) -> None:
        correlation = (message.key() or b"").decode(errors="replace")
        if not correlation.startswith(self._name):
            self._count("other")
            return
        waiting = self._waiting.get(correlation)
        if waiting is None:
            self._count("late")
            return
        self._count("own")
        try:
            reply = read_reply(message)
        except (ValueError, KeyError, TypeError) as error:
            log.error("a reply cannot be read", error=repr(error))
            return
        _tell(waiting, reply)

    def _look_after(self, admin: AdminClient, identity: str) -> None:
        """Is it still the same topic? Raises NotThere."""
        try:
            found, _ = describe(admin, self._replies)
        except Unreachable:
            return  # the clients go on when the broker is back
        if found != identity:
            raise NotThere(f"{self._replies} was made anew")

    def _delivered(self, waiting: Waiting, error: KafkaError | None, message: Any) -> None:
        """In our thread."""
        if error is None:
            waiting.place[1] = message.offset()
        elif error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            _tell(waiting, Refusal("too_large", "the record is larger than the topic allows"))
        elif error.code() in REFUSED:
            _tell(waiting, NotSent(f"Kafka does not take it: {error}"))
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


def _tell(waiting: Waiting, answer: Reply | Exception) -> None:
    def tell() -> None:
        if waiting.answer.done():
            return
        if isinstance(answer, Exception):
            waiting.answer.set_exception(answer)
        else:
            waiting.answer.set_result(answer)

    with contextlib.suppress(RuntimeError):  # the loop has ended
        waiting.loop.call_soon_threadsafe(tell)
