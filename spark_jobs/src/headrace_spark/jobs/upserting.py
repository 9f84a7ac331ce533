"""The way of a micro-batch into PostgreSQL, path `direct`: tasks decode, the driver plans, tasks upsert, the driver
writes the ledger row last (spark-writer.md 7). A record is read again if the table refuses a row of it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from headrace_spark.counts import Counts
from headrace_spark.jobs.by_tasks import Planned
from headrace_spark.jobs.frames import records
from headrace_spark.sinks.port import Batch
from headrace_spark.sinks.postgres import PostgresSink
from headrace_spark.tables import TableWriter
from headrace_spark.transforms.records import Report


class Upserting(Planned):
    """Implements `Way`."""

    def make(self) -> None:
        """See `ByTasks`."""
        self._sink = PostgresSink(self.settings.sink, self.settings.table)
        self._writer = TableWriter(
            self.settings, self.ledger, self.courier, self.outbox, self._sink.forget, self.patience, faults=self.faults
        )

    def prepare(self) -> None:
        self._sink.prepare()

    def done(self, batch: Batch) -> bool:
        return self._writer.done(batch)

    def effect(self, frame: Any, batch: Batch, found: Sequence[Report]) -> Counts:
        """See `Planned`."""
        return self._writer.write(batch, found, partial(records, frame))
