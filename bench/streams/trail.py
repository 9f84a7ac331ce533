"""Where a batch's latency passes: its trail through the topics, by their append times.

A batch is put out by the record that moved the log's clock over its deadline. Its header `id` names that record of
`routed`, whose header `id` names the one of `raw`. So what a document is read later than `sent` + timeout is the sum of
five *legs*: the opening message on its way to `raw`; until `raw` gets a record at or after the deadline (or a tick);
registration, until that record is in `routed`; batching, until the document is in `batches`; its way to the reader.
The first two are no work of the worker's. Append times are the broker's, on the same machine as the reader's clock.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from confluent_kafka import Consumer

from bench.streams import traffic

LEGS = ("before_raw", "clock", "registration", "batching", "reading")
WORST = 0.01


class Seen(NamedTuple):
    """A batch document as it was read. Times are Unix ms."""

    partition: int
    id: bytes
    """Header `id`."""
    sent_ms: float
    """Of the member that was sent first."""
    opened_ms: int
    closed_ms: int
    appended_ms: int
    read_ms: float


class Closer(NamedTuple):
    """The record that closed a batch: when `raw` and `routed` got it, and its kind in `routed`."""

    raw_ms: int
    routed_ms: int
    kind: bytes


@dataclass(frozen=True)
class Trail:
    """A batch and its legs, in ms."""

    seen: Seen
    closer: Closer
    legs: tuple[float, ...]

    @property
    def beyond(self) -> float:
        """The sum of the legs: ms from the first member's sending to the reading, less the timeout."""
        return sum(self.legs)


def legs(seen: Seen, closer: Closer) -> tuple[float, ...]:
    """In the order of `LEGS`."""
    times = (seen.closed_ms, closer.raw_ms, closer.routed_ms, seen.appended_ms, seen.read_ms)
    return (seen.opened_ms - seen.sent_ms, *(after - before for before, after in itertools.pairwise(times)))


def trails(kafka: str, prefix: str, seen: Iterable[Seen]) -> list[Trail]:
    """The trails of these batches, in their order."""
    raw = {(m.partition(), m.offset()): m.timestamp()[1] for m in _all(kafka, prefix + "raw")}
    routed = {(m.partition(), m.offset()): m for m in _all(kafka, prefix + "routed")}
    found = []
    for one in seen:
        record = routed[place(one.id)]
        headers = dict(reversed(record.headers()))
        closer = Closer(raw[place(headers["id"])], record.timestamp()[1], headers["kind"])
        found.append(Trail(one, closer, legs(one, closer)))
    return found


def place(id_: bytes) -> tuple[int, int]:
    """Partition and offset of the record that an `id` names: `stage:partition:offset:index`."""
    _, partition, offset, _ = id_.split(b":")
    return int(partition), int(offset)


def shares(found: Sequence[Trail]) -> dict[str, float]:
    """p99 of each leg by itself, and the mean of each leg in the worst 1 % of the batches, in ms."""
    worst = sorted(found, key=lambda trail: trail.beyond)[-max(1, int(len(found) * WORST)) :]
    told: dict[str, float] = {"closed_by_tick": sum(trail.closer.kind == b"tick" for trail in found)}
    for number, leg in enumerate(LEGS):
        told[f"{leg}_p99_ms"] = round(statistics.quantiles((t.legs[number] for t in found), n=100)[98], 1)
        told[f"{leg}_of_the_worst_ms"] = round(statistics.fmean(t.legs[number] for t in worst), 1)
    return told


def _all(kafka: str, topic: str) -> Iterator[Any]:
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "trail", "enable.auto.commit": False})
    try:
        for at in traffic.partitions(topic):
            _, end = consumer.get_watermark_offsets(at, timeout=30)
            at.offset, reached = 0, 0
            consumer.assign([at])
            while reached < end:
                for message in consumer.consume(5_000, timeout=0.2):
                    if message.error() is None:
                        reached = message.offset() + 1
                        yield message
    finally:
        consumer.close()
