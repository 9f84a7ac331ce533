"""The query's Kafka source, and what is checked of its topics at a start (spark-writer.md 2; 10, cases 8 and 9)."""

from __future__ import annotations

import time
from typing import Any, Final

import structlog
from confluent_kafka import Consumer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from headrace_core.errors import ConfigError
from headrace_spark import checkpoint, destinations, kafka_clients, losses
from headrace_spark.folders.port import Folder
from headrace_spark.ledger import Ledger
from headrace_spark.settings import Settings

_TIMEOUT_S: Final = 30
_log = structlog.get_logger("headrace_spark")


class Topics:
    """The topics of the job, as the broker knows them. Raises `KafkaException` if it does not answer."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._client = kafka_clients.client(settings.kafka, settings.kafka_options)
        self._admin = AdminClient(self._client)

    @property
    def names(self) -> list[str]:
        """As the job file has them."""
        return self._settings.subscribed

    def partitions(self) -> int:
        """How many there are in all. Raises `ConfigError` for a topic that is not there."""
        there = self._partitions()
        missing = [name for name in self._settings.subscribed if name not in there]
        if missing:
            raise ConfigError("topics", f"not there: {', '.join(missing)}")
        return sum(there.values())

    def bounds(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Of each partition the first offset and the next one."""
        reader = Consumer({**self._client, "group.id": f"headrace-{self._settings.job}", "enable.auto.commit": False})
        try:
            return {
                (topic, number): reader.get_watermark_offsets(TopicPartition(topic, number), timeout=_TIMEOUT_S)
                for topic, count in self._partitions().items()
                for number in range(count)
            }
        finally:
            reader.close()

    def ids(self) -> dict[str, str]:
        """The id of each topic that is there; a topic made again has another one."""
        names = list(self._partitions())
        found = self._admin.describe_topics(TopicCollection(names), request_timeout=_TIMEOUT_S) if names else {}
        return {name: str(future.result().topic_id) for name, future in found.items()}

    def _partitions(self) -> dict[str, int]:
        topics = self._admin.list_topics(timeout=_TIMEOUT_S).topics
        return {name: len(topics[name].partitions) for name in self._settings.subscribed if name in topics}


def check(topics: Topics, ledger: Ledger, folder: Folder, *, accept: bool) -> bool:
    """Raise `DataLost` if offsets that are still needed are gone. True if some are, and that was accepted: the gaps are
    recorded then. Raises `ConfigError` for a job that reads a topic no more."""
    query = checkpoint.query_id(folder)
    wanted = losses.needed(folder, ledger.newest(query) if query else None)
    missing, added = losses.renamed(wanted, topics.names)
    if missing:
        raise ConfigError(
            "topics",
            f"{', '.join(missing)} is in the checkpoint, but the job reads it no more, which Spark takes for a loss: "
            "name it again, or start anew with another checkpoint folder and --new-checkpoint",
        )
    if added:
        _log.info("topics added to the checkpoint, read from their earliest offsets", topics=added)
    ids, bounds = topics.ids(), topics.bounds()
    begins, ends = ({place: both[side] for place, both in bounds.items()} for side in (0, 1))
    others = losses.replaced(wanted, ends, ledger.topics(), ids) if wanted else []
    lost = losses.gaps(wanted, begins)
    losses.check(lost, others, accept=accept)
    ledger.remember_topics(ids)
    for one in lost:
        _log.error("data lost", gap=str(one), accepted=True)
        ledger.accept(one.topic, one.partition, one.first, one.last, time.time_ns() // 1_000_000)
    return bool(lost)


def stream(spark: Any, settings: Settings, limit: int, partitions: int, *, accepted: bool) -> Any:
    """The stream of Kafka records. `accepted`: a loss was accepted for this start."""
    options = {
        "kafka.bootstrap.servers": settings.kafka,
        "subscribe": ",".join(settings.subscribed),
        "startingOffsets": "earliest",
        "failOnDataLoss": "false" if accepted else "true",
        "includeHeaders": "true",
        "groupIdPrefix": f"headrace-{settings.job}",
        "kafka.isolation.level": "read_committed",
        "maxOffsetsPerTrigger": str(limit),
    }
    if settings.min_offsets_per_trigger:
        options["minOffsetsPerTrigger"] = str(min(settings.min_offsets_per_trigger, limit))
    if settings.max_trigger_delay_ms:
        options["maxTriggerDelay"] = f"{settings.max_trigger_delay_ms}ms"
    if settings.mode == "keyed" and not destinations.upserts(settings):  # else a partition must not be torn apart
        options["minPartitions"] = str(max(partitions, spark.sparkContext.defaultParallelism))
    own = {f"kafka.{name}": value for name, value in kafka_clients.plain(settings.kafka_options).items()}
    return spark.readStream.format("kafka").options(**{**own, **options}).load()
