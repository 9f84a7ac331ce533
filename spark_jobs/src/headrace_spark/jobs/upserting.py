"""The way of a micro-batch into PostgreSQL, path `direct`: tasks decode, the driver plans, tasks upsert, the driver
writes the ledger row last (spark-writer.md 7). A record is read again if the table refuses a row of it."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

from headrace_spark import capacity, faults
from headrace_spark.counts import Counts
from headrace_spark.jobs import couriers
from headrace_spark.jobs.frames import records, reports
from headrace_spark.ledger import Ledger
from headrace_spark.outbox import Outbox
from headrace_spark.patience import Patience
from headrace_spark.seen import WatchedAnswers, skew
from headrace_spark.settings import Settings
from headrace_spark.sinks.port import Batch
from headrace_spark.sinks.postgres import PostgresSink
from headrace_spark.tables import TableWriter


class Upserting:
    """Implements `Way`."""

    def __init__(
        self, settings: Settings, ledger: Ledger, outbox: Outbox, patience: Patience, advanced: Callable[[], None]
    ) -> None:
        self._settings = settings
        self._faults = faults.from_environment()
        self._ledger, self._run = ledger, uuid.uuid4().hex
        self._sink = PostgresSink(settings.sink, settings.table)
        pacing = capacity.in_every_process(settings)
        self.pacer = WatchedAnswers(pacing())
        courier = couriers.SparkCourier(settings, ledger, self._run, pacing, self.pacer, self._faults, advanced)
        self._courier = courier
        self._writer = TableWriter(settings, ledger, courier, outbox, self._sink.forget, patience, faults=self._faults)

    def prepare(self) -> None:
        self._sink.prepare()

    def begin(self, query_id: str) -> None:  # noqa: ARG002
        """Nothing to clear away, as a repeat goes on where it ended; but only tasks of this start send now."""
        self._ledger.claim(self._run)

    def done(self, batch: Batch) -> bool:
        return self._writer.done(batch)

    def write(self, frame: Any, batch: Batch) -> Counts:
        settings = self._settings
        self._faults.passed("begun", batch.batch_id)
        self._courier.on(frame)
        found = reports(frame, settings.max_document_bytes, settings.dearest)
        self.pacer.skew = skew(found)
        counts = self._writer.write(batch, found, partial(records, frame))
        self._faults.passed("written", batch.batch_id)
        return counts

    def stop(self) -> None:
        """The driver's leases go back; those of a Python worker end with it."""
        self.pacer.stop()
