"""Dead letters to Kafka, acknowledged by all in-sync replicas before the micro-batch is committed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from confluent_kafka import KafkaError, Message, Producer

from headrace_core.errors import HeadraceError
from headrace_spark.transforms.dead_letters import DeadLetter


class OutboxDown(HeadraceError):
    """Kafka did not acknowledge a dead letter in time; the micro-batch must not be committed."""

    code = "outbox_down"
    retry = True


class Outbox(Protocol):
    """Where dead letters go."""

    def send(self, letters: Sequence[DeadLetter]) -> None:
        """Returns when all are acknowledged; raises `OutboxDown` if one is not."""
        ...


class KafkaOutbox:
    """`client` is how a client connects, `topic` gets the letters; `timeout_s` bounds the wait for the acknowledgements
    of one call."""

    def __init__(self, client: Mapping[str, str], topic: str, timeout_s: float = 60.0) -> None:
        self._topic = topic
        self._timeout_s = timeout_s
        self._producer = Producer(
            {
                **client,
                "acks": "all",
                "enable.idempotence": True,
                "partitioner": "murmur2_random",
                "message.timeout.ms": int(timeout_s * 1000),
                "message.max.bytes": 4 * 1024 * 1024,
            }
        )

    def send(self, letters: Sequence[DeadLetter]) -> None:
        failures: list[str] = []

        def answered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failures.append(str(error))

        for one in letters:
            self._put(one, answered)
        left = self._producer.flush(self._timeout_s)
        if failures or left:
            raise OutboxDown(f"{len(failures) + left} dead letters were not acknowledged: {failures[:1]}")

    def _put(self, one: DeadLetter, answered: object) -> None:
        while True:
            try:
                self._producer.produce(
                    self._topic, key=one.key, value=one.value, headers=list(one.headers), on_delivery=answered
                )
            except BufferError:
                self._producer.poll(0.1)
            else:
                self._producer.poll(0)
                return
