"""What is measured with: 150-byte measurements, 50 a record (spark-writer.md 13), all rows different."""

from __future__ import annotations

import json

from confluent_kafka import Producer

MEASUREMENTS, BYTES, SOURCES = 50, 150, 200


def document(number: int, members: int = MEASUREMENTS) -> bytes:
    """A batch document; each member is a measurement with one number and a text leaf that fills it up."""
    source = f"te/device/d{number % SOURCES:04d}//"
    base = {"id": f"{number:032x}", "source": source, "time": 1, "opened_at": 2, "closed_at": 3, "close": "timeout"}
    found = [_member(number * members + index) for index in range(members)]
    return json.dumps({**base, "members": found}, separators=(",", ":")).encode()


def _member(number: int) -> dict[str, object]:
    at = 1_700_000_000_000 + number
    plain = {"type": "env", "time": at, "received": at, "value": {"temperature": number % 997 / 10, "site": ""}}
    missing = BYTES - len(json.dumps(plain, separators=(",", ":")))
    return plain | {"value": {"temperature": number % 997 / 10, "site": "x" * missing}}


def send(kafka: str, topic: str, values: list[bytes], partition_of: list[int]) -> None:
    """All of them, each to its partition of `partition_of` in turn."""
    producer = Producer({"bootstrap.servers": kafka, "linger.ms": 20, "queue.buffering.max.kbytes": 262144})
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=partition_of[number % len(partition_of)])
        producer.poll(0)
    assert producer.flush(120) == 0
