"""The status API without Kafka: its app over a replica that holds what messages have made; writes are applied at once.

`Fixture.feed` is what the stream processor and the followers do with more messages; `PostOffice` is the way of a write.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from starlette.types import ASGIApp

from headrace_api import app
from headrace_api.calls import Calls, Source
from headrace_api.capacity import CapacityHandler
from headrace_api.events import EventLog, Events, Told
from headrace_api.mailbox import read_reply
from headrace_api.metrics import Metrics
from headrace_api.progress import PartitionProgress, Progress
from headrace_api.reading import Reader
from headrace_api.replica import Replica
from headrace_api.situation import Situation
from headrace_api.timelines.handler import TimelineHandler
from headrace_api.wakeup import Wakeup
from headrace_api.writing import NoAnswer, NotSent, Reply, Writer
from headrace_core.capacity.memory_store import MemoryStore
from headrace_core.capacity.protocol import ResourceConfig
from headrace_core.partitioner import partition_of
from headrace_core.registration.config import RegistrationConfig
from headrace_core.stage import Emission, Record
from headrace_core.timeline.settings import Settings as TimelineSettings
from tests.support.changelog import Owner, changes, message
from tests.support.timeline_log import TimelineLog

PARTITIONS = 3
LONG_S = 10_000.0
"""Nothing runs here whose life could be told; so it lives long."""


@dataclass
class PostOffice:
    """writing.Mail. `closed` says why nothing is sent; `lost` answers never come; `sent` keeps what was written.
    `starts`: it is about to open."""

    given: Fixture
    closed: str = ""
    lost: bool = False
    starts: bool = False
    alive_at: float = 0.0
    number: int = 0

    def __post_init__(self) -> None:
        self.sent: list[bytes] = []
        self.alive_at = time.monotonic() + LONG_S

    def problem(self) -> str:
        return self.closed

    def starting(self) -> bool:
        return self.starts

    def correlation(self) -> str:
        self.number += 1
        return f"me-{self.number}"

    async def ask(self, root: str, correlation: str, value: bytes, seconds: float) -> Reply:
        assert seconds > 0
        if self.closed:
            raise NotSent(self.closed)
        self.sent.append(value)
        number = partition_of(root.encode(), PARTITIONS)
        if self.lost:
            raise NoAnswer(number, self.given.offset)
        record = Record(number, self.given.offset, self.given.now, None, value, (("kind", b"request"),))
        replies = [e for e in self.given.apply(number, record) if e.topic == "replies"]
        assert [e.key for e in replies] == [correlation.encode()]
        return read_reply(SimpleNamespace(value=lambda: replies[0].value, headers=lambda: replies[0].headers))


class Fixture:
    """`app` answers; `owners` have the pure states by partition; `progress` may be replaced."""

    def __init__(self, path: Path, config: RegistrationConfig) -> None:
        self.path, self.config = path, config
        self.owners = [Owner(config) for _ in range(PARTITIONS)]
        self.now = self.offset = 0
        self.moved, self.told = Wakeup(), Wakeup()
        nothing = (PartitionProgress(0, 0, 0, -1),) * PARTITIONS
        self.progress = Progress("", "log", nothing, kafka_up=True, alive_at=time.monotonic() + LONG_S)
        self.events_progress = self.progress
        self.mail = PostOffice(self)
        self.emitted: deque[Emission] = deque(maxlen=10_000)
        self.replica = Replica(path / "replica.db")
        self.replica.begin("log", PARTITIONS, max_offline_s=60)
        self.log = EventLog(path / "events.db")
        self.log.begin("registrations", PARTITIONS, max_offline_s=60)
        self.metrics = Metrics(lambda: self.progress, lambda: self.events_progress, lambda: not self.mail.problem())
        reader = Reader(path / "replica.db", config)
        writer = Writer(config, self.mail, lambda: self.progress, self.moved, self.metrics, seconds=10)
        source = Source(Events(path / "events.db"), self.told, lambda: self.events_progress)
        self.calls = Calls(config, reader, lambda: self.progress, self.moved, writer, source, self.metrics)
        situation = Situation(lambda: self.progress, lambda: self.events_progress, self.mail)
        self.leases = MemoryStore(lambda: self.now)
        self.leases.provision(ResourceConfig(resource="database", shared_capacity=500, factor=10))
        capacity = CapacityHandler(self.leases.status, self.metrics.registry)
        self.log_of_timelines = TimelineLog(jobs=TimelineSettings(partitions=2, bucket_count=8))
        self.timelines = TimelineHandler(self.log_of_timelines, self.metrics)
        handlers = app.Handlers(self.calls, reader, situation, capacity, self.timelines, self.metrics)
        self.app: ASGIApp = app.build(handlers, self.metrics)

    def feed(self, at: int, topic: str, payload: Any) -> None:
        """One MQTT message, received at `at` (ms)."""
        number = partition_of(topic.partition("/")[0].encode(), PARTITIONS)
        self.now = at
        self.apply(number, message(self.offset, at, topic, payload, number))

    def apply(self, number: int, record: Record) -> list[Emission]:
        """One record of `raw`, up to what replica and events have of it; returns what was put out."""
        emissions: list[Emission] = []
        group = self.owners[number].chunk([record], emissions.append)
        self.offset += 1
        part = self.progress.partitions[number]
        log = changes([group], part.offset)
        end = part.offset + len(group)
        self.replica.apply([(number, change) for change in log], [(number, end)])
        self._tell([e for e in emissions if e.topic == "registrations"])
        self.emitted.extend(emissions)
        parts = list(self.progress.partitions)
        parts[number] = PartitionProgress(end, end, part.target, record.offset)
        self.progress = replace(self.progress, partitions=tuple(parts))
        self.moved.notify()
        return emissions

    def _tell(self, emissions: list[Emission]) -> None:
        for emission in emissions:
            assert emission.key is not None
            number = partition_of(emission.key, PARTITIONS)
            place = self.log.partitions[number].position.offset
            self.log.apply([(number, Told(place, emission.key.decode(), emission.value))])
        self.told.notify()


def fixture(path: Path, messages: list[tuple[int, str, Any]], **config: Any) -> Fixture:
    """An API after `messages`: (time, MQTT topic, payload)."""
    found = Fixture(path, RegistrationConfig(**config))
    for at, topic, payload in messages:
        found.feed(at, topic, payload)
    return found
