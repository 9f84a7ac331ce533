"""Which QoS 2 messages of a killed process did Kafka take? It is asked itself (bridge.md 1.2, `ledger.py`).

A record of the bridge tells which message it is: topic and payload, and the time of arrival, which a dead letter has in
its document. Both are known of a message in doubt, so it is found exactly, twins included: of several messages with the
same content and millisecond, as many are there as there are records.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping

import msgspec
import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from headrace_bridge.kafka import KafkaNotReady
from headrace_bridge.ledger import Kept, Ledger, identity_of

log = structlog.get_logger(__name__)

Sign = tuple[bytes, int]  # identity, arrival in ms
EARLIER_MS = 3_600_000
"""So far the clocks of bridge and Kafka may differ; older records are not read if the file knows no offset near."""
ANSWER_S = 10.0
"""Of each question; while records are read, without a record."""
READ = 10_000


def resolve(ledger: Ledger, base: Mapping[str, str], dead_letters: str, stopping: threading.Event) -> None:
    """Settle what is in doubt. `dead_letters`: full name of that topic.

    Raises KafkaNotReady, also as soon as `stopping` is set: then the doubts are as they were.
    """
    doubts = ledger.in_doubt
    if not doubts:
        return
    consumer = Consumer(
        {**base, "group.id": "headrace-bridge-doubts", "enable.auto.commit": False, "enable.partition.eof": True,
         "enable.auto.offset.store": False, "fetch.queue.backoff.ms": 10, "allow.auto.create.topics": False,
         "log_level": 2}
    )  # fmt: skip
    try:
        found, offsets = _look(consumer, ledger, doubts, dead_letters, stopping)
    except KafkaException as error:
        raise KafkaNotReady(f"QoS 2 messages in doubt: {error.args[0]}") from error
    finally:
        consumer.close()
    there = chosen(doubts, found)
    log.info("messages in doubt after a kill", count=len(doubts), found=len(there))
    ledger.settle(there, offsets)


def chosen(doubts: Mapping[int, Kept], found: Counter[Sign]) -> list[int]:
    """The packet ids of the messages that were found."""
    left = Counter(found)
    there = []
    for packet_id, kept in doubts.items():
        sign = kept.identity, kept.received_ms
        if left[sign] > 0:
            left[sign] -= 1
            there.append(packet_id)
    return there


def _look(
    consumer: Consumer, ledger: Ledger, doubts: Mapping[int, Kept], dead_letters: str, stopping: threading.Event
) -> tuple[Counter[Sign], dict[tuple[str, int], int]]:  # fmt: skip
    since = min(kept.received_ms for kept in doubts.values()) - EARLIER_MS
    found: Counter[Sign] = Counter()
    offsets: dict[tuple[str, int], int] = {}
    for topic in sorted({kept.topic for kept in doubts.values()} | {dead_letters}):
        described = consumer.list_topics(topic, timeout=ANSWER_S).topics[topic]
        asked = [TopicPartition(topic, partition, since) for partition in described.partitions]
        for place in consumer.offsets_for_times(asked, timeout=ANSWER_S):
            _, end = consumer.get_watermark_offsets(place, timeout=ANSWER_S)
            by_time = place.offset if place.offset >= 0 else end
            first = max(by_time, ledger.offsets.get((topic, place.partition), 0))
            found += read_signs(consumer, TopicPartition(topic, place.partition, first), end, stopping)
            offsets[topic, place.partition] = end
    return found, offsets


def read_signs(consumer: Consumer, place: TopicPartition, end: int, stopping: threading.Event) -> Counter[Sign]:
    """Which messages a partition has, from a place to its end. Raises KafkaNotReady, KafkaException."""
    found: Counter[Sign] = Counter()
    if place.offset >= end:
        return found
    consumer.assign([place])
    reading, heard_at = True, time.monotonic()
    while reading:
        read = consumer.consume(READ, 1.0)
        if stopping.is_set():
            raise KafkaNotReady("QoS 2 messages in doubt: told to stop before all was read")
        if read:
            heard_at = time.monotonic()
        elif time.monotonic() - heard_at >= ANSWER_S:
            raise KafkaNotReady(f"QoS 2 messages in doubt: {place.topic}-{place.partition} gives nothing")
        for message in read:
            if error := message.error():
                if error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                reading = False
            elif (sign := sign_of(message)) is not None:
                found[sign] += 1
    consumer.unassign()
    return found


def sign_of(message: Message) -> Sign | None:
    """Which message this record is of; None if it is none of the bridge."""
    headers = {name: value for name, value in message.headers() or [] if isinstance(value, bytes)}
    value = message.value()
    payload = value.encode() if isinstance(value, str) else value or b""
    try:
        if headers.get("stage") == b"bridge":
            arrived = msgspec.json.decode(payload)["receipt_time"]
            return bytes.fromhex(headers["id"].decode().removeprefix("bridge:"))[:16], int(arrived)
        return identity_of(headers["topic"], payload), int(headers["received"])
    except (KeyError, ValueError, TypeError):
        return None
