"""What the broker knows of a range, and Spark's batch reader of it (spark-writer.md 11)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

from confluent_kafka import Consumer, TopicPartition

from headrace_core.errors import ConfigError
from headrace_core.stage import Record
from headrace_spark import kafka_clients
from headrace_spark.losses import Gap
from headrace_spark.losses import check as check_losses
from headrace_spark.ranges import Range, Span, ms_of, place_of
from headrace_spark.settings import Settings

_TIMEOUT_S: Final = 30
Place = tuple[str, int]


class Log:
    """A reader of topics in the driver. Raises `KafkaException` if the broker does not answer."""

    def __init__(self, settings: Settings) -> None:
        client = kafka_clients.client(settings.kafka, settings.kafka_options)
        group = {"group.id": f"headrace-{settings.job}", "enable.auto.commit": False, "fetch.queue.backoff.ms": 10}
        self._reader = Consumer({**client, **group, "isolation.level": "read_committed"})

    def partitions(self, topic: str, field: str) -> list[int]:
        """Raises `ConfigError` that names `field` if the topic is not there."""
        found = self._reader.list_topics(topic, timeout=_TIMEOUT_S).topics[topic]
        if found.error is not None:
            raise ConfigError(field, f"{topic} is not there")
        return sorted(found.partitions)

    def bounds(self, place: Place) -> tuple[int, int]:
        """The first offset of a partition and the next one."""
        low, high = self._reader.get_watermark_offsets(TopicPartition(*place), timeout=_TIMEOUT_S)
        return int(low), int(high)

    def at(self, place: Place, time_ms: int) -> int:
        """The offset of the first record of that time or later; the end if there is none."""
        found = self._reader.offsets_for_times([TopicPartition(*place, time_ms)], timeout=_TIMEOUT_S)[0]
        return int(found.offset) if found.offset >= 0 else self.bounds(place)[1]

    def first(self, place: Place, offset: int) -> Record | None:
        """The first record at or after the offset; None if the topic ends before."""
        end = self.bounds(place)[1]
        self._reader.assign([TopicPartition(*place, offset)])
        try:
            while self._position(place, offset) < end:
                got = self._reader.poll(1.0)
                if got is not None and got.error() is None:
                    return Record(place[1], got.offset(), got.timestamp()[1], got.key(), got.value(), _headers(got))
            return None
        finally:
            self._reader.unassign()

    def close(self) -> None:
        self._reader.close()

    def _position(self, place: Place, offset: int) -> int:
        found = self._reader.position([TopicPartition(*place)])[0].offset
        return int(found) if found >= 0 else offset

    def spans(self, chosen: Range, topics: Sequence[str], field: str) -> list[Span]:
        """The range in every partition. Raises `ConfigError` for a topic that is not there or ends before the range,
        `DataLost` if offsets that are asked for are gone."""
        places = [(topic, number) for topic in topics for number in self.partitions(topic, "topics")]
        for side in ("from", "to"):
            for name in getattr(chosen, f"{side}_offsets"):
                if place_of(name, field) not in places:
                    raise ConfigError(f"{field}.{side}_offsets", f"there is no partition {name}")
        return [self._span(chosen, place, field) for place in places]

    def _span(self, chosen: Range, place: Place, field: str) -> Span:
        low, high = self.bounds(place)
        first = self._edge(place, chosen.from_time, chosen.from_offsets, low)
        end = self._edge(place, chosen.to_time, chosen.to_offsets, high)
        if first < low:
            check_losses([Gap(*place, first, low - 1)], [], accept=False)
        if end > high:
            raise ConfigError(f"{field}.to_offsets", f"{place[0]}-{place[1]} ends at {high}, before {end}")
        return Span(*place, first, max(first, end))

    def _edge(self, place: Place, time: datetime | None, offsets: dict[str, int], default: int) -> int:
        if time is not None:
            return self.at(place, ms_of(time))
        return offsets.get(f"{place[0]}-{place[1]}", default)


def _headers(got: Any) -> tuple[tuple[str, bytes], ...]:
    return tuple((name, value if value is not None else b"") for name, value in got.headers() or [])


def batch_frame(spark: Any, settings: Settings, spans: Sequence[Span]) -> Any:
    """The records of the spans, one task for each partition, in order of offset."""
    starts, ends = _by_topic(spans, lambda one: one.first), _by_topic(spans, lambda one: one.next)
    options = {
        "kafka.bootstrap.servers": settings.kafka,
        "assign": json.dumps({topic: sorted(map(int, parts)) for topic, parts in starts.items()}),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
        "failOnDataLoss": "true",
        "includeHeaders": "true",
        "groupIdPrefix": f"headrace-{settings.job}",
        "kafka.isolation.level": "read_committed",
    }
    own = {f"kafka.{name}": value for name, value in kafka_clients.plain(settings.kafka_options).items()}
    return spark.read.format("kafka").options(**{**own, **options}).load()


def _by_topic(spans: Sequence[Span], side: Callable[[Span], int]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for one in spans:
        found.setdefault(one.topic, {})[str(one.partition)] = side(one)
    return found
