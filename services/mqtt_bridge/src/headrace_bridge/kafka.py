"""The Kafka side: a producer that gives every record one final answer, and what is read from the cluster at start.

Order (bridge.md 1.2, 1.3): the producer is idempotent and a record's time in it is unlimited, so while Kafka is away
librdkafka keeps the records and sends them in order when it is back; each try to deliver lasts 30 s at most. An error
that is reported all the same is either permanent for that record (the caller makes a dead letter) or repeated here
after a pause for as long as the bridge runs. A fatal error of the producer ends the process: nothing was acknowledged,
so the MQTT broker sends it all again.

Time (bridge.md 8): what the loop has produced is sent when it asks for the reports (`flush`), one request a read, not
when a linger ends. With a linger of 3 ms librdkafka's thread spins through the linger's last millisecond, once a
request: on a loaded machine that cost more CPU than all else together.
"""

from __future__ import annotations

import heapq
import itertools
import json
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConfigResource

from headrace_bridge.record import Headers, Record
from headrace_core.errors import ConfigError, HeadraceError

log = structlog.get_logger(__name__)

TRY_MS = 30_000
AGAIN_S = 1.0
BATCH_BYTES = 1_000_000
STATISTICS_MS = 2000
LINGER_MS = 20
"""Of a record that `poll` did not send: it came back too early, or nobody calls it."""
PERMANENT = {
    KafkaError.MSG_SIZE_TOO_LARGE: "too_large",
    KafkaError.INVALID_MSG_SIZE: "too_large",
    KafkaError.UNKNOWN_TOPIC_OR_PART: "unknown_topic",
    KafkaError._UNKNOWN_TOPIC: "unknown_topic",
    KafkaError._UNKNOWN_PARTITION: "unknown_topic",
    KafkaError.TOPIC_EXCEPTION: "unknown_topic",
    KafkaError.INVALID_MSG: "invalid_record",
    KafkaError.INVALID_RECORD: "invalid_record",
    KafkaError._INVALID_ARG: "invalid_record",
}

Report = Callable[[Any, Any], None]  # KafkaError or None, Message or None
Done = Callable[[str | None, str], None]  # permanent reason or None = delivered; detail


class KafkaFailed(HeadraceError):
    """The producer cannot go on; start anew."""

    code = "kafka_failed"
    retry = True


class KafkaNotReady(HeadraceError):
    """The cluster does not answer, or a topic is missing."""

    code = "kafka_not_ready"
    retry = True


class Outlet:
    """The bridge's producer; `limits`: max.message.bytes of the topics it writes.

    One thread uses it; callbacks run inside `poll` or `send`.
    """

    def __init__(self, base: Mapping[str, str], *, limits: Mapping[str, int], max_held_bytes: int) -> None:
        largest, smallest = max(limits.values()), min(limits.values())
        self._producer = Producer(
            {
                **base, "acks": "all", "enable.idempotence": True, "partitioner": "murmur2_random",
                "linger.ms": LINGER_MS, "message.timeout.ms": 0, "request.timeout.ms": TRY_MS,
                "message.max.bytes": largest, "batch.size": min(BATCH_BYTES, smallest),
                "queue.buffering.max.messages": 1_000_000,
                "queue.buffering.max.kbytes": 2 * (max_held_bytes + largest) // 1024,
                "allow.auto.create.topics": False,
                "statistics.interval.ms": STATISTICS_MS, "stats_cb": self._statistics, "error_cb": self._error,
                "log_level": 2,
            }
        )  # fmt: skip
        self._produce = self._producer.produce
        self._again: list[tuple[float, int, Callable[[], None]]] = []
        self._ticket = itertools.count()
        self._fatal: KafkaError | None = None
        self.up = True
        self.produced = 0
        self.retries = 0

    @property
    def queued(self) -> int:
        """Records not answered by Kafka yet."""
        return len(self._producer) + len(self._again)

    def produce(self, topic: str, value: bytes, key: bytes | None, report: Report, headers: Headers) -> None:
        """Produce. `report` gets Kafka's answer, or the error that there is at once; see `fatal`, `PERMANENT`, `later`.

        It counts what was delivered in `produced` itself.
        """
        try:
            self._produce(topic, value, key, -1, report, None, 0, headers)  # by place: keywords cost as much again
        except BufferError:
            self.later(partial(self.produce, topic, value, key, report, headers), "the queue is full")
        except KafkaException as error:
            report(error.args[0], None)

    def send(self, record: Record, done: Done, *, surely: bool = False) -> None:
        """Produce. `done` is called once: with None when all in-sync replicas have it, or with a permanent reason.

        `surely`: no error is permanent (dead letters).
        """

        def answered(error: KafkaError | None, _: object) -> None:
            if error is None:
                self.produced += 1
                done(None, "")
            elif self.fatal(error):
                return
            elif not surely and (reason := PERMANENT.get(error.code())):
                done(reason, error.str())
            else:
                self.later(partial(self.send, record, done, surely=surely), error.str())

        self.produce(record.topic, record.value, record.key, answered, record.headers)

    def fatal(self, error: KafkaError) -> bool:
        """Whether the producer cannot go on; then `poll` raises."""
        if error.fatal():
            self._fatal = error
            return True
        return False

    def later(self, again: Callable[[], None], why: str) -> None:
        """Call `again` after a pause."""
        log.warning("produced again", error=why)
        self.retries += 1
        heapq.heappush(self._again, (time.monotonic() + AGAIN_S, next(self._ticket), again))

    def poll(self, seconds: float) -> None:
        """Send what was produced and serve reports, until all are there but so long at most. Raises KafkaFailed."""
        (self._producer.flush if len(self._producer) else self._producer.poll)(seconds)
        while self._again and self._again[0][0] <= time.monotonic():
            heapq.heappop(self._again)[2]()
        if self._fatal is not None:
            raise KafkaFailed(f"the producer cannot go on: {self._fatal}")

    def _error(self, error: KafkaError) -> None:
        if error.fatal():
            self._fatal = error
        log.warning("kafka", error=str(error))

    def _statistics(self, text: str) -> None:
        brokers = json.loads(text)["brokers"].values()
        self.up = any(broker["state"] == "UP" for broker in brokers)


class Topics:
    """Asks the cluster for what holds of topics. Raises ConfigError for an option that librdkafka does not take.

    One client asks again and again: a new one would connect anew each time, and never get there on a busy machine.
    """

    def __init__(self, base: Mapping[str, str]) -> None:
        self._said: list[str] = []
        self._kafka = base["bootstrap.servers"]
        own = {"log_level": 0, "error_cb": lambda error: self._said.append(error.str())}
        try:
            self._admin = AdminClient({**base, **own})
        except KafkaException as error:
            raise ConfigError("kafka_options", error.args[0].str()) from error

    def limits(self, topics: list[str], timeout_s: float = 5.0) -> dict[str, int]:
        """max.message.bytes of topics (bridge.md 2). Raises KafkaNotReady with a line that names what is wrong."""
        self._said.clear()
        try:
            known = self._admin.list_topics(timeout=timeout_s).topics
            missing = [topic for topic in topics if topic not in known]
            if missing:
                raise KafkaNotReady(f"missing topics: {', '.join(missing)}")
            wanted = [ConfigResource("topic", topic) for topic in topics]
            asked = self._admin.describe_configs(wanted, request_timeout=timeout_s)
            answers: dict[str, Any] = {resource.name: future.result(timeout_s) for resource, future in asked.items()}
        except KafkaException as error:
            self._admin.poll(0)  # why a connection fails is told there alone
            why = ". ".join([error.args[0].str(), *dict.fromkeys(self._said[-2:])])
            raise KafkaNotReady(f"{self._kafka}: {why}") from error
        except TimeoutError as error:
            raise KafkaNotReady(f"{self._kafka}: no answer in {timeout_s} s") from error
        return {topic: int(answers[topic]["max.message.bytes"].value) for topic in topics}
