"""The launcher's Kafka is a real one: what it acknowledged is there after a crash."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.kafka import KafkaServer

pytestmark = pytest.mark.kafka


def produce(bootstrap: str, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(240) == 0


def consume(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "launcher", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes] = []
    while len(values) < count:
        messages = consumer.consume(count, timeout=20)
        assert messages, f"only {len(values)} of {count} came"
        values += [message.value() or b"" for message in messages if not message.error()]
    consumer.close()
    return values


def test_messages_survive_a_kill_of_the_broker(tmp_path: Path) -> None:
    server = KafkaServer(tmp_path / "kafka").start()
    try:
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        admin.create_topics([NewTopic("t", 1, 1, config={"message.timestamp.type": "LogAppendTime"})])["t"].result(240)
        produce(server.bootstrap, "t", [b"1", b"2"])
        server.kill()
        server.start()
        produce(server.bootstrap, "t", [b"3"])
        assert consume(server.bootstrap, "t", 3) == [b"1", b"2", b"3"]
    finally:
        server.stop()
