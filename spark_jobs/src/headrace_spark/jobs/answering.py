"""The way of a micro-batch to a sink that answers for each row: HTTP bulk, and functions in mode `keyed`.

Tasks decode, the driver plans, tasks send (`couriers.py`); a record is read again if something of it was not written.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import structlog
from confluent_kafka.admin import AdminClient

from headrace_core.errors import ConfigError
from headrace_spark import capacity, faults, kafka_clients, senders
from headrace_spark.counts import Counts
from headrace_spark.jobs import couriers
from headrace_spark.jobs.frames import records, reports
from headrace_spark.keyed import KeyedWriter
from headrace_spark.ledger import Ledger
from headrace_spark.outbox import KafkaOutbox, Outbox
from headrace_spark.patience import Patience
from headrace_spark.seen import WatchedAnswers, skew
from headrace_spark.settings import Settings
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
        self._ledger, self._run = ledger, uuid.uuid4().hex
        effects = senders.check(settings)
        pacing = capacity.in_every_process(settings)
        self.pacer = WatchedAnswers(pacing())
        self._courier = couriers.SparkCourier(settings, ledger, self._run, pacing, self.pacer, self._faults, advanced)
        self._client = kafka_clients.client(settings.kafka, settings.kafka_options)
        retries = KafkaOutbox(
            self._client, settings.delayed_topic, max_bytes=settings.max_document_bytes + _HEADERS_BYTES
        )
        self._writer = KeyedWriter(settings, ledger, self._courier, outbox, retries, patience, faults=self._faults)
        if effects == "at_least_once":
            structlog.get_logger("headrace_spark").warning("the sink is not idempotent: it may get a row twice")

    def prepare(self) -> None:
        """Raises `ConfigError` if a topic of the delayed retries is not there."""
        wanted = [topic for topic in (self._settings.delayed_topic, self._settings.again_topic) if topic]
        if wanted:
            there = AdminClient(self._client).list_topics(timeout=_TIMEOUT_S).topics
            missing = [topic for topic in wanted if topic not in there]
            if missing:
                raise ConfigError("retry_topic", f"not there: {', '.join(missing)}")

    def begin(self, query_id: str) -> None:  # noqa: ARG002
        """Nothing to clear away, as a repeat goes on where it ended; but only tasks of this start send now."""
        self._ledger.claim(self._run)

    def done(self, batch: Batch) -> bool:
        return self._writer.done(batch)

    def write(self, frame: Any, batch: Batch) -> Counts:
        settings = self._settings
        self._faults.passed("begun", batch.batch_id)
        self._courier.on(frame)
        found = reports(frame, settings.max_document_bytes, settings.dearest, settings.again_topic, settings.carried)
        self.pacer.skew = skew(found)
        counts = self._writer.write(batch, found, partial(records, frame))
        self._faults.passed("written", batch.batch_id)
        return counts

    def stop(self) -> None:
        """The driver's leases go back; those of a Python worker end with it."""
        self.pacer.stop()
