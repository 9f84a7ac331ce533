"""The way of a micro-batch to a sink that answers for each row: HTTP bulk, and functions in mode `keyed`.

Tasks decode, the driver plans, tasks send (`couriers.py`); a record is read again if something of it was not written.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from confluent_kafka.admin import AdminClient

from headrace_core.errors import ConfigError
from headrace_spark import kafka_clients
from headrace_spark.counts import Counts
from headrace_spark.jobs.by_tasks import Planned, checked_effects
from headrace_spark.jobs.frames import records
from headrace_spark.keyed import KeyedWriter
from headrace_spark.outbox import KafkaOutbox
from headrace_spark.sinks.port import Batch
from headrace_spark.transforms.records import Report

_HEADERS_BYTES: Final = 1024 * 1024
_TIMEOUT_S: Final = 30


class Answering(Planned):
    """Implements `Way`."""

    def make(self) -> None:
        """See `ByTasks`."""
        settings = self.settings
        checked_effects(settings, "a row")
        self._client = kafka_clients.client(settings.kafka, settings.kafka_options)
        retries = KafkaOutbox(
            self._client, settings.delayed_topic, max_bytes=settings.max_document_bytes + _HEADERS_BYTES
        )
        self._writer = KeyedWriter(
            settings, self.ledger, self.courier, self.outbox, retries, self.patience, faults=self.faults
        )

    def prepare(self) -> None:
        """Raises `ConfigError` if a topic of the delayed retries is not there."""
        wanted = [topic for topic in (self.settings.delayed_topic, self.settings.again_topic) if topic]
        if wanted:
            there = AdminClient(self._client).list_topics(timeout=_TIMEOUT_S).topics
            missing = [topic for topic in wanted if topic not in there]
            if missing:
                raise ConfigError("retry_topic", f"not there: {', '.join(missing)}")

    def done(self, batch: Batch) -> bool:
        return self._writer.done(batch)

    def effect(self, frame: Any, batch: Batch, found: Sequence[Report]) -> Counts:
        """See `Planned`."""
        return self._writer.write(batch, found, partial(records, frame))
