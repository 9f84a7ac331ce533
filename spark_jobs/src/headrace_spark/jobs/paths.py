"""The ways of a micro-batch into the sink (spark-writer.md 7); more of them in `answering.py` and `upserting.py`."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from headrace_spark import capacity, destinations, faults
from headrace_spark.counts import Counts
from headrace_spark.database import Database, sqlite_path
from headrace_spark.jobs.answering import Answering
from headrace_spark.jobs.by_tasks import Planned, checked_effects
from headrace_spark.jobs.frames import records, reports, stage
from headrace_spark.jobs.stream_lanes import StreamLanes
from headrace_spark.jobs.upserting import Upserting
from headrace_spark.jobs.watching import watching
from headrace_spark.lanes import LaneWriter
from headrace_spark.ledger import Ledger
from headrace_spark.outbox import Outbox
from headrace_spark.pacing import SECOND_NS
from headrace_spark.patience import Patience
from headrace_spark.seen import Seen, Watched, skew
from headrace_spark.settings import Settings
from headrace_spark.sinks import staging
from headrace_spark.sinks.port import Batch, Sink
from headrace_spark.sinks.postgres import PostgresSink
from headrace_spark.sinks.sqlite import SqliteSink
from headrace_spark.staged import StagedWriter
from headrace_spark.transforms.records import Report
from headrace_spark.writing import BatchWriter


class Way(Protocol):
    """What the query does with a micro-batch. `pacer` paces the driver."""

    @property
    def pacer(self) -> Watched: ...

    def prepare(self) -> None:
        """Create what is missing in the sink. Raises `SinkDown`."""
        ...

    def begin(self, query_id: str) -> None:
        """The query has its id; no micro-batch has come yet."""
        ...

    def done(self, batch: Batch) -> bool:
        """True if the micro-batch was committed."""
        ...

    def write(self, frame: Any, batch: Batch) -> Counts | None:
        """Give the micro-batch its effect, once. None: it was committed, which is known only now."""
        ...

    def stop(self) -> None:
        """Nothing goes out any more."""
        ...


class Direct:
    """Implements `Way`: tasks decode, the driver writes (SQLite, Delta Lake)."""

    def __init__(self, settings: Settings, ledger: Ledger, outbox: Outbox, patience: Patience, advanced: Advanced):
        self._settings = settings
        self._faults = faults.from_environment()
        self._sink = _sink(settings)
        self.pacer = Watched(capacity.in_driver(settings))
        self._writer = _kind(settings)(settings, ledger, self._sink, outbox, self.pacer, patience, advanced=advanced)

    def prepare(self) -> None:
        self._sink.prepare()

    def begin(self, query_id: str) -> None:
        """The direct path leaves nothing that a start must clear away."""

    def done(self, batch: Batch) -> bool:
        return self._writer.done(batch)

    def write(self, frame: Any, batch: Batch) -> Counts:
        self._faults.passed("begun", batch.batch_id)
        found = reports(frame, self._settings.max_document_bytes, self._settings.dearest)
        self.pacer.skew = skew(found)
        counts = self._writer.write(batch, found)
        self._faults.passed("written", batch.batch_id)
        return counts

    def stop(self) -> None:
        self.pacer.stop()


class Staged:
    """Implements `Way`: tasks copy rows into a staging table, the driver merges them."""

    def __init__(self, settings: Settings, ledger: Ledger, outbox: Outbox, patience: Patience, advanced: Advanced):
        self._settings = settings
        self._faults = faults.from_environment()
        self._pacing = capacity.in_every_process(settings)
        self.pacer = Watched(self._pacing())
        self._run = uuid.uuid4().hex
        self._sink = PostgresSink(settings.sink, settings.table, append=settings.append)
        self._database, self._advanced = Database(settings.sink), advanced
        self._writer = StagedWriter(
            settings, ledger, outbox, self.pacer, patience,
            faults=self._faults, advanced=advanced, merged=self.pacer.rest,
        )  # fmt: skip

    def prepare(self) -> None:
        self._sink.prepare()
        self._sink.close()
        staging.prepare(self._settings.sink, self._settings.table)

    def begin(self, query_id: str) -> None:
        self._writer.begin(query_id)

    def done(self, batch: Batch) -> bool:
        return self._writer.done(batch)

    def write(self, frame: Any, batch: Batch) -> Counts:
        self._faults.passed("begun", batch.batch_id)
        self._hand_over()
        began_ns = time.monotonic_ns()
        with watching(lambda: staging.staged_ever(self._database, self._settings.table), self._advanced):
            tasks = stage(frame, self._work(batch), self._pacing)
        self.pacer.tasks(sum(task.cost for task in tasks), time.monotonic_ns() - began_ns)
        self._hand_over()
        for task in tasks:
            self.pacer.add(task.seen or Seen())
        self.pacer.skew = skew(one for task in tasks for one in task.reports)
        self.pacer.staged_rows = sum(task.rows for task in tasks)
        self.pacer.expect()
        try:
            counts = self._writer.write(batch, tasks, partial(records, frame))
        finally:
            self.pacer.rest()
        self.pacer.staged_rows = 0
        return counts

    def _hand_over(self) -> None:
        """Tasks and driver may each take all of the job's share, so what one sent must be a second old when the other
        begins. Without `max_share` the store's leases see to that."""
        if self._settings.shares:
            time.sleep(SECOND_NS / 1e9)

    def stop(self) -> None:
        """The driver's leases go back; those of a Python worker end with it."""
        self.pacer.stop()

    def _work(self, batch: Batch) -> staging.Work:
        settings = self._settings
        return staging.Work(
            dsn=settings.sink,
            table=settings.table,
            batch=batch,
            run=self._run,
            bounds=settings.chunk_bounds,
            cost=settings.stage_cost_of,
            max_document_bytes=settings.max_document_bytes,
            down_max_ms=settings.sink_down_max_ms // settings.task_tries,
            dearest=settings.dearest,
            faults=self._faults,
        )


class Lanes(Planned):
    """Implements `Way`: tasks decode, the driver packs, tasks send each lane's requests in order."""

    def make(self) -> None:
        """See `ByTasks`."""
        checked_effects(self.settings, "a request")
        self._writer = LaneWriter(self.settings, self.ledger, self.outbox, self.courier, self.patience)
        self.pacer.beside = self._writer.numbers

    def prepare(self) -> None:
        """The destination needs nothing."""

    def done(self, batch: Batch) -> bool:
        return self._writer.done(batch)

    def effect(self, frame: Any, batch: Batch, found: Sequence[Report]) -> Counts:  # noqa: ARG002
        """See `Planned`."""
        return self._writer.write(batch, found)


Advanced = Callable[[], None]


def way(settings: Settings, ledger: Ledger, outbox: Outbox, patience: Patience, advanced: Advanced) -> Way:
    """The one that the job file names."""
    if destinations.upserts(settings):
        return Upserting(settings, ledger, outbox, patience, advanced)
    if destinations.answers(settings):
        return Answering(settings, ledger, outbox, patience, advanced)
    if settings.lanes_stream:
        return StreamLanes(settings, ledger, outbox, patience, advanced)
    kind: type[Lanes | Staged | Direct]
    kind = Lanes if settings.mode == "lanes" else Staged if settings.path == "staged" else Direct
    return kind(settings, ledger, outbox, patience, advanced)


def _kind(settings: Settings) -> type[BatchWriter]:
    if destinations.is_delta(settings.sink):
        from headrace_spark.delta_writing import DeltaWriter  # a packed environment may be without deltalake

        return DeltaWriter
    return BatchWriter


def _sink(settings: Settings) -> Sink:
    if destinations.is_delta(settings.sink):
        from headrace_spark.sinks.delta import DeltaSink

        return DeltaSink(settings.sink.removeprefix(destinations.DELTA))
    return SqliteSink(sqlite_path(settings.sink), settings.table)
