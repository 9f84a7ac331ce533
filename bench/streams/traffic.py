"""The messages: telemetry of registered devices, as records of `raw` and, by the real engine, of `routed`.

One root (gateway) a partition, 250 devices each, four measurement types. A device sends its four types of one moment
close together, so a batch has four members. Log time goes on at 4,000 messages/s, whatever the speed of the test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace_core.partitioner import partition_of
from headrace_core.registration.config import RegistrationConfig
from headrace_core.registration.stage import RegistrationStage
from headrace_core.stage import Emission, Headers, Record
from headrace_core.state import MemoryState, Overlay

PARTITIONS = 4
TYPES = (b"temperature", b"humidity", b"pressure", b"voltage")
START_MS = 1_800_000_000_000
RATE = 4_000
CHUNK = 5_000


def roots() -> dict[str, str]:
    """A root for each partition, in their order, with the external ids of their main devices."""
    found: dict[int, str] = {}
    for number in range(1000):
        found.setdefault(partition_of(b"g%d" % number, PARTITIONS), f"g{number}")
    return {found[partition]: f"main-{found[partition]}" for partition in range(PARTITIONS)}


def devices(entities: int) -> list[tuple[int, bytes, bytes]]:
    """(partition, root, topic id with root) of so many devices, the roots in turn."""
    names = [root.encode() for root in roots()]
    return [(n % PARTITIONS, names[n % PARTITIONS], b"%s/device/d%07d//" % (names[n % PARTITIONS], n))
            for n in range(entities)]  # fmt: skip


def raw(partition: int, root: bytes, topic: bytes, value: bytes, at_ms: int, *, retain: bool = False) -> Record:
    """An MQTT message as the bridge writes it; its offset is not known yet."""
    headers = (
        ("topic", topic), ("qos", b"1"), ("retain", b"1" if retain else b"0"), ("dup", b"0"),
        ("received", b"%d" % at_ms),
    )  # fmt: skip
    return Record(partition, -1, at_ms, root, value, headers)


def registrations(entities: int) -> Iterator[Record]:
    """Explicit registrations of so many child devices."""
    for number, (partition, root, entity) in enumerate(devices(entities)):
        value = b'{"@type":"child-device","@parent":"device/main//","name":"d%d"}' % number
        yield raw(partition, root, entity, value, START_MS, retain=True)


def telemetry(first: int, count: int, entities: int) -> Iterator[Record]:
    """`count` messages, from the one with number `first` on."""
    known, kinds, text, last = devices(entities), len(TYPES), b"", -1
    for number in range(first, first + count):
        partition, root, entity = known[number // kinds % entities]
        at_ms = START_MS + number * 1000 // RATE
        if at_ms != last:
            text = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").encode()
            last = at_ms
        value = b'{"time":"%s","value":%.2f}' % (text, 20 + number % 997 / 100)
        yield raw(partition, root, b"%s/m/%s" % (entity, TYPES[number % kinds]), value, at_ms)


@dataclass
class Registered:
    """The registration stage over a store in memory: what it writes to `routed` for records of `raw`."""

    entities: int

    def __post_init__(self) -> None:
        self._stage = RegistrationStage(RegistrationConfig(roots=roots()))
        self._states = [MemoryState() for _ in range(PARTITIONS)]
        self._offsets = [0] * PARTITIONS
        for _ in self.routed(registrations(self.entities)):
            pass

    def routed(self, records: Iterable[Record]) -> Iterator[Record]:
        """The routed records, partition by partition within a chunk."""
        chunks: list[list[Record]] = [[] for _ in range(PARTITIONS)]
        for record in records:
            chunk = chunks[record.partition]
            chunk.append(record)
            if len(chunk) == CHUNK:
                yield from self._apply(chunk)
                chunk.clear()
        for chunk in chunks:
            yield from self._apply(chunk)

    def _apply(self, chunk: list[Record]) -> list[Record]:
        if not chunk:
            return []
        partition = chunk[0].partition
        overlay, emissions = Overlay(self._states[partition]), list[Emission]()
        for record in chunk:
            self._stage.apply(overlay, record._replace(offset=self._offsets[partition]), emissions.append)
            self._offsets[partition] += 1
        self._states[partition].commit(overlay.mutations)
        self._stage.forget()
        return [Record(partition, -1, 0, e.key, e.value, e.headers) for e in emissions if e.topic == "routed"]


def create(kafka: str, topics: Iterable[str], config: dict[str, str] | None = None) -> None:
    """Create topics and wait until they are there."""
    settings = {"message.timestamp.type": "LogAppendTime", **(config or {})}
    admin = AdminClient({"bootstrap.servers": kafka})
    made = admin.create_topics([NewTopic(topic, PARTITIONS, 1, config=settings) for topic in topics])
    for future in made.values():
        future.result(30)


def prefill(kafka: str, topic: str, records: Iterable[Record], more: Callable[[], Headers] | None = None) -> int:
    """Write records and wait until all are there. Returns how many. `more` gives further headers for each."""
    failed: list[str] = []
    producer = Producer({
        "bootstrap.servers": kafka, "acks": "all", "enable.idempotence": True, "linger.ms": 20,
        "batch.size": 500_000, "queue.buffering.max.messages": 200_000, "compression.type": "none",
        "log_level": 2,
    })  # fmt: skip
    count = 0
    for record in records:
        headers = list(record.headers if more is None else (*record.headers, *more()))
        while True:
            try:
                producer.produce(topic, record.value, record.key, partition=record.partition, headers=headers,
                                 on_delivery=lambda error, _: failed.append(str(error)) if error else None)  # fmt: skip
                break
            except BufferError:
                producer.poll(0.05)
        count += 1
        if not count % 1000:
            producer.poll(0)
    if producer.flush(60) or failed:
        raise RuntimeError(f"{topic} could not be filled: {failed[:3]}")
    return count


def partitions(topic: str) -> list[TopicPartition]:
    """All partitions of a topic."""
    return [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
