"""The way of a micro-batch to a sink that answers for each row: HTTP bulk, and functions in mode `keyed`.

Tasks decode; the driver sends, and reads a record again if something of it was not written.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import structlog
from confluent_kafka.admin import AdminClient

from headrace_core.errors import ConfigError
from headrace_spark import capacity, faults, kafka_clients
from headrace_spark.attempts import Attempts
from headrace_spark.counts import Counts
from headrace_spark.destinations import HTTP
from headrace_spark.jobs.frames import records, reports
from headrace_spark.keyed import KeyedWriter
from headrace_spark.ledger import Ledger
from headrace_spark.outbox import KafkaOutbox, Outbox
from headrace_spark.patience import Patience
from headrace_spark.seen import WatchedAnswers
from headrace_spark.settings import Settings
from headrace_spark.sinks.answers import Destination
from headrace_spark.sinks.called import CalledSink
from headrace_spark.sinks.port import Batch

_HEADERS_BYTES: Final = 1024 * 1024
_TIMEOUT_S: Final = 30


class Answering:
    """Implements `Way`."""

    def __init__(
        self, settings: Settings, ledger: Ledger, outbox: Outbox, patience: Patience, advanced: Callable[[], None]
    ) -> None:
        self._settings = settings
        self._faults = faults.from_environment()
        self._destination = _destination(settings)
        self.pacer = WatchedAnswers(capacity.in_driver(settings))
        self._attempts = Attempts(settings, ledger, self._destination, self.pacer, patience)
        self._client = kafka_clients.client(settings.kafka, settings.kafka_options)
        retries = KafkaOutbox(
            self._client, settings.delayed_topic, max_bytes=settings.max_document_bytes + _HEADERS_BYTES
        )
        self._writer = KeyedWriter(
            settings, ledger, self._attempts, outbox, retries, patience, faults=self._faults, advanced=advanced
        )
        if self._destination.effects == "at_least_once":
            structlog.get_logger("headrace_spark").warning("the sink is not idempotent: it may get a row twice")

    def prepare(self) -> None:
        """Raises `ConfigError` if a topic of the delayed retries is not there."""
        wanted = [topic for topic in (self._settings.delayed_topic, self._settings.again_topic) if topic]
        if wanted:
            there = AdminClient(self._client).list_topics(timeout=_TIMEOUT_S).topics
            missing = [topic for topic in wanted if topic not in there]
            if missing:
                raise ConfigError("retry_topic", f"not there: {', '.join(missing)}")

    def begin(self, query_id: str) -> None:
        """Nothing to clear away: a repeat goes on where it ended."""

    def done(self, batch: Batch) -> bool:
        return self._writer.done(batch)

    def write(self, frame: Any, batch: Batch) -> Counts:
        settings = self._settings
        self._faults.passed("begun", batch.batch_id)
        found = reports(frame, settings.max_document_bytes, settings.dearest, settings.again_topic)
        counts = self._writer.write(batch, found, partial(records, frame))
        self._faults.passed("written", batch.batch_id)
        return counts

    def stop(self) -> None:
        self._attempts.cancelled.set()
        self.pacer.stop()
        self._destination.close()


def _destination(settings: Settings) -> Destination:
    if settings.sink.startswith(HTTP):
        from headrace_spark.sinks.http import BulkSink  # a packed environment may be without httpx

        return BulkSink(
            settings.sink,
            timeout_ms=settings.request_timeout_ms,
            charge_header=settings.charge_header,
            authorization_file=settings.authorization_file,
        )
    return CalledSink(settings.sink)
