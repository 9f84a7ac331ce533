"""The status API without Kafka: its app over a replica that holds what messages have made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp

from headrace_api import app
from headrace_api.metrics import Metrics
from headrace_api.progress import PartitionProgress, Progress
from headrace_api.reading import Reader
from headrace_api.replica import Replica
from headrace_core.partitioner import partition_of
from headrace_core.registration.config import RegistrationConfig
from tests.support.changelog import Owner, changes, message

PARTITIONS = 3


@dataclass
class Fixture:
    """`app` answers; `states` are the pure states by partition; `progress` may be replaced."""

    config: RegistrationConfig
    owners: list[Owner]
    progress: Progress
    app: ASGIApp = None  # type: ignore[assignment]


def fixture(path: Path, messages: list[tuple[int, str, Any]], **config: Any) -> Fixture:
    """An API after `messages`: (time, MQTT topic, payload)."""
    settings = RegistrationConfig(**config)
    owners = [Owner(settings) for _ in range(PARTITIONS)]
    replica = Replica(path / "replica.db")
    replica.begin("log", PARTITIONS, max_offline_s=60)
    logs: list[list[Any]] = [[] for _ in owners]
    for offset, (at, topic, payload) in enumerate(messages):
        number = partition_of(topic.partition("/")[0].encode(), PARTITIONS)
        logs[number].append(owners[number].chunk([message(offset, at, topic, payload, number)]))
    for number, groups in enumerate(logs):
        log = changes(groups)
        replica.apply([(number, change) for change in log], [(number, len(log))])
    ends = [part.position for part in replica.partitions.values()]
    parts = tuple(PartitionProgress(p.offset, p.offset, p.offset, p.source) for p in ends)
    replica.close()
    found = Fixture(settings, owners, Progress("", "log", parts, True))
    metrics = Metrics(lambda: found.progress)
    handlers = app.Handlers(Reader(path / "replica.db", settings), lambda: found.progress, metrics)
    found.app = app.build(handlers, metrics)
    return found
