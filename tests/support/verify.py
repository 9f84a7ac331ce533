"""What must be true of a stack after anything happened to it, told from its logs alone.

Theory: `raw` is the input. Pure stages over `raw` and `routed` say what must stand in `routed`, `batches` and the dead
letters; a slow reading of `batches` says which rows must be in the store. Records written twice by a process that was
killed count once, but only if they are byte-equal.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from headrace_core.batching.config import BatchingConfig
from headrace_core.batching.stage import BatchingStage
from headrace_core.registration.config import RegistrationConfig
from headrace_core.registration.stage import RegistrationStage
from headrace_core.stage import Emission, Record, Stage, header
from headrace_core.state import MemoryState

Log = dict[int, list[Record]]
Written = tuple[bytes | None, bytes | None]
"""(id, value) of one output."""
Rows = dict[tuple[str, str, int], float]
"""The store: (source, metric, event time in ms) -> value."""


def read_log(kafka: str, topic: str, partitions: int) -> Log:
    """Every record of a topic, per partition in order."""
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "verify", "enable.auto.commit": False})
    log: Log = {}
    for partition in range(partitions):
        place = TopicPartition(topic, partition, 0)
        _, end = consumer.get_watermark_offsets(place, timeout=240)
        consumer.assign([place])
        records = log.setdefault(partition, [])
        while (records[-1].offset + 1 if records else 0) < end:
            for m in consumer.consume(1000, timeout=0.2):
                assert m.error() is None, m.error()
                headers = tuple(m.headers() or [])
                records.append(Record(partition, m.offset(), m.timestamp()[1], m.key(), m.value(), headers))
    consumer.close()
    return log


def distinct(records: list[Record]) -> list[Written]:
    """Outputs in order without repeats; two records with one id must be byte-equal."""
    first: dict[bytes | None, bytes] = {}
    for record in records:
        value = record.value or b""
        assert first.setdefault(header(record.headers, "id"), value) == value, "a repeat is not byte-equal"
    return list(first.items())


@dataclass
class Pure:
    """A stage run over one partition of its input, with its state and all that it put out."""

    stage: Stage
    state: MemoryState
    emissions: list[Emission]

    @classmethod
    def run(cls, stage: Stage, records: list[Record]) -> Pure:
        one = cls(stage, MemoryState(), [])
        for record in records:
            stage.apply(one.state, record, one.emissions.append)
        return one

    def to(self, topic: str) -> list[Written]:
        """What went to one logical topic."""
        return [(header(e.headers, "id"), e.value or b"") for e in self.emissions if e.topic == topic]

    def gauges(self) -> dict[str, int]:
        return dict(self.stage.gauges(self.state))


def registration(raw: Log, config: RegistrationConfig) -> dict[int, Pure]:
    return {partition: Pure.run(RegistrationStage(config), records) for partition, records in raw.items()}


def batching(routed: Log, config: BatchingConfig) -> dict[int, Pure]:
    return {partition: Pure.run(BatchingStage(config), records) for partition, records in routed.items()}


def rows_of(documents: list[bytes]) -> Rows:
    """The rows that batch documents leave in a store: the highest (closed_at, id) wins for each row."""
    best: dict[tuple[str, str, int], tuple[tuple[int, str], float]] = {}
    for document in map(json.loads, documents):
        version = (document["closed_at"], document["id"])
        for member in document["members"]:
            for metric, value in leaves(member["type"], member["value"]):
                key = (document["source"], metric, member["time"])
                if key not in best or version > best[key][0]:
                    best[key] = (version, float(value))
    return {key: value for key, (_, value) in best.items()}


def leaves(path: str, value: Any) -> Iterator[tuple[str, float]]:
    """Numeric and boolean leaves with their metric."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for name, below in items:
            yield from leaves(f"{path}.{name}", below)
    elif not isinstance(value, str):
        yield path, value
