"""Records to Kafka, dead letters and others, acknowledged by all in-sync replicas before the micro-batch is
committed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from confluent_kafka import KafkaError, Message, Producer

from headrace_core.errors import HeadraceError


class OutboxDown(HeadraceError):
    """Kafka did not acknowledge a record in time; the micro-batch must not be committed."""

    code = "outbox_down"
    retry = True


class Letter(Protocol):
    """A record to send, such as a dead letter."""

    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]: ...


class Outbox(Protocol):
    """Where records of one kind go."""

    def send(self, letters: Sequence[Letter]) -> None:
        """Returns when all are acknowledged; raises `OutboxDown` if one is not."""
        ...


class KafkaOutbox:
    """`client` is how a client connects, `topic` gets the letters; `timeout_s` bounds the wait for the acknowledgements
    of one call, `max_bytes` one record."""

    def __init__(
        self, client: Mapping[str, str], topic: str, timeout_s: float = 60.0, max_bytes: int = 4 * 1024 * 1024
    ) -> None:
        self._topic = topic
        self._timeout_s = timeout_s
        self._producer = Producer(
            {
                **client,
                "acks": "all",
                "enable.idempotence": True,
                "partitioner": "murmur2_random",
                "message.timeout.ms": int(timeout_s * 1000),
                "message.max.bytes": max_bytes,
            }
        )

    def send(self, letters: Sequence[Letter]) -> None:
        failures: list[str] = []

        def answered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failures.append(str(error))

        for one in letters:
            self._put(one, answered)
        left = self._producer.flush(self._timeout_s)
        if failures or left:
            raise OutboxDown(f"{len(failures) + left} records for {self._topic} were not acknowledged: {failures[:1]}")

    def _put(self, one: Letter, answered: object) -> None:
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
