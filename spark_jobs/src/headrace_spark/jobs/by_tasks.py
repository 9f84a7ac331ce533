"""What the ways have in common whose tasks send what the driver planned (`couriers.py`): sinks that answer for each
row, and lanes."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import structlog

from headrace_spark import capacity, faults, senders
from headrace_spark.counts import Counts
from headrace_spark.jobs import couriers
from headrace_spark.jobs.frames import reports
from headrace_spark.ledger import Ledger
from headrace_spark.outbox import Outbox
from headrace_spark.patience import Patience
from headrace_spark.seen import WatchedAnswers, skew
from headrace_spark.settings import Settings
from headrace_spark.sinks.port import Batch
from headrace_spark.transforms.records import Report


class ByTasks(ABC):
    """The part of a `Way` that does not depend on the sink."""

    def __init__(
        self, settings: Settings, ledger: Ledger, outbox: Outbox, patience: Patience, advanced: Callable[[], None]
    ) -> None:
        self.settings = settings
        self.ledger = ledger
        self.outbox = outbox
        self.patience = patience
        self.faults = faults.from_environment()
        self._run = uuid.uuid4().hex
        pacing = capacity.in_every_process(settings)
        self.pacer = WatchedAnswers(pacing())
        self.courier = couriers.SparkCourier(settings, ledger, self._run, pacing, self.pacer, self.faults, advanced)
        self.make()

    @abstractmethod
    def make(self) -> None:
        """Make the writer."""

    def begin(self, query_id: str) -> None:  # noqa: ARG002
        """Nothing to clear away, as a repeat goes on where it ended; but only tasks of this start send now."""
        self.ledger.claim(self._run)

    def stop(self) -> None:
        """The driver's leases go back; those of a Python worker end with it."""
        self.pacer.stop()


class Planned(ByTasks):
    """Of these, the ways whose tasks decode a micro-batch first; `effect` is what follows."""

    def write(self, frame: Any, batch: Batch) -> Counts:
        """See `Way`."""
        settings = self.settings
        self.faults.passed("begun", batch.batch_id)
        self.courier.on(frame)
        found = reports(frame, settings.max_document_bytes, settings.dearest, settings.again_topic, settings.carried)
        self.pacer.skew = skew(found)
        counts = self.effect(frame, batch, found)
        self.faults.passed("written", batch.batch_id)
        return counts

    @abstractmethod
    def effect(self, frame: Any, batch: Batch, found: Sequence[Report]) -> Counts:
        """Plan, send, and commit."""


def checked_effects(settings: Settings, what: str) -> None:
    """Raise `ConfigError` for a destination that cannot be; warn if it may get `what` twice."""
    if senders.check(settings) == "at_least_once":
        structlog.get_logger("headrace_spark").warning(f"the sink is not idempotent: it may get {what} twice")
