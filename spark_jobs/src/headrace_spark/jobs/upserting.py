"""The way of a micro-batch into PostgreSQL, path `direct`: tasks decode, cut and upsert what they read, the driver
writes the ledger row last (spark-writer.md 7). No row passes the driver; a record of which the table refuses a row is
read again.

A task must have each of its Kafka partitions whole (`upserts.py`), so the source has no `minPartitions` here.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final

import msgspec
import pyarrow as pa
import structlog

from headrace_core.errors import HeadraceError
from headrace_spark import capacity, faults
from headrace_spark.counts import Counts
from headrace_spark.database import Database
from headrace_spark.faults import Faults
from headrace_spark.jobs import logs
from headrace_spark.jobs.frames import collect, record_of, records, told
from headrace_spark.jobs.watching import watching
from headrace_spark.ledger import Ledger
from headrace_spark.outbox import Outbox
from headrace_spark.pacing import Pacing
from headrace_spark.patience import Patience
from headrace_spark.seen import Watched, skew
from headrace_spark.sending import failure_of
from headrace_spark.settings import Settings
from headrace_spark.sinks.port import Batch
from headrace_spark.sinks.postgres import OutcomesLost, PostgresSink
from headrace_spark.tables import TableWriter
from headrace_spark.transforms.records import report
from headrace_spark.upserts import Upserted, Upserter

_RECORDS: Final = 100
"""Decoded at a time; in Python they take several times the room that they have in Arrow."""
_CRASHES: Final = 3
"""Of the store in one micro-batch, after which the job fails."""
_log = structlog.get_logger("headrace_spark")


class UpsertWork(msgspec.Struct, frozen=True):
    """What a task must know. `run` is the start of the job, `pacing` makes what paces a Python worker, `driver` is the
    driver's pid."""

    settings: Settings
    batch: Batch
    run: str
    pacing: Callable[[], Pacing]
    faults: Faults
    driver: int


class Upserting:
    """Implements `Way`."""

    def __init__(
        self, settings: Settings, ledger: Ledger, outbox: Outbox, patience: Patience, advanced: Callable[[], None]
    ) -> None:
        self._settings = settings
        self._ledger = ledger
        self._advanced = advanced
        self._faults = faults.from_environment()
        self._run = uuid.uuid4().hex
        self._pacing = capacity.in_every_process(settings)
        self.pacer = Watched(self._pacing())
        self._sink = PostgresSink(settings.sink, settings.table)
        self._writer = TableWriter(settings, ledger, outbox, self._sink, patience, faults=self._faults)

    def prepare(self) -> None:
        self._sink.prepare()

    def begin(self, query_id: str) -> None:  # noqa: ARG002
        """Nothing to clear away, as a repeat goes on where it ended; but only tasks of this start send now."""
        self._ledger.claim(self._run)

    def done(self, batch: Batch) -> bool:
        return self._writer.done(batch)

    def write(self, frame: Any, batch: Batch) -> Counts:
        """See `Way`. Raises what a task reported, what Spark raises for one that failed again and again, and
        `OutcomesLost` if the store crashes time and again before the commit."""
        self._faults.passed("begun", batch.batch_id)
        left = _CRASHES
        while True:
            tasks = self._stage(frame, batch)
            try:
                counts = self._writer.write(batch, tasks, partial(records, frame))
            except OutcomesLost as error:
                left -= 1
                if not left:
                    raise
                _log.warning("the tasks run again", error=str(error))
            else:
                self._faults.passed("written", batch.batch_id)
                return counts

    def _stage(self, frame: Any, batch: Batch) -> list[Upserted]:
        work = UpsertWork(self._settings, batch, self._run, self._pacing, self._faults, os.getpid())
        began_ns = time.monotonic_ns()
        with watching(lambda: len(self._sink.outcomes(batch)), self._advanced):
            tasks = collect(frame, upserter(work), Upserted)
        self.pacer.tasks(sum(task.seen.estimated for task in tasks), time.monotonic_ns() - began_ns)
        for task in tasks:
            self.pacer.add(task.seen)
        for task in tasks:
            task.check()
        self.pacer.skew = skew(one for task in tasks for one in task.reports)
        return tasks

    def stop(self) -> None:
        """The driver's leases go back; those of a Python worker end with it."""
        self.pacer.stop()


def upserter(work: UpsertWork) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function of the tasks: one report for each. An error that repeating the task would not change comes back in
    it; anything else fails the attempt, and Spark repeats it."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        task = TaskContext.get()
        assert task is not None
        try:
            done = _upserted(work, batches, task.partitionId(), task.attemptNumber())
        except HeadraceError as error:
            done = Upserted(failure=failure_of(error))
        yield told([msgspec.msgpack.encode(done)])

    return run


def _upserted(work: UpsertWork, batches: Iterable[pa.RecordBatch], part: int, attempt: int) -> Upserted:
    settings, tools = work.settings, _of_this_worker(work)
    tools.pacer.take()  # what an attempt that failed left
    tools.pacer.expect()
    halt = threading.Event()
    passed = partial(work.faults.passed, "task", work.batch.batch_id, part, attempt)
    patience = Patience(settings.sink_down_max_ms, halt.is_set, halt.wait)
    most, dearest = settings.max_document_bytes, settings.dearest
    one = Upserter(settings, work.batch, tools.ledger, tools.sink, tools.pacer, patience, passed)
    try:
        for batch in batches:
            for first in range(0, batch.num_rows, _RECORDS):
                found = batch.slice(first, _RECORDS).to_pylist()
                one.add([report(record_of(row), most, dearest) for row in found])
        done = one.finish()
    except HeadraceError as error:
        done = Upserted(failure=failure_of(error))
    finally:
        tools.pacer.rest()  # the task's end (spark-writer.md 6)
    done.seen = tools.pacer.take()
    return done


class _Tools:
    """Of one Python worker: made at first use, and never before a fork (spark-writer.md 6)."""

    def __init__(self, work: UpsertWork) -> None:
        settings = work.settings
        self.ledger = Ledger(Database(settings.state_dsn), settings.job, settings.seen_retention_ms, work.run)
        self.sink = PostgresSink(settings.sink, settings.table)
        self.pacer = Watched(work.pacing())


_WORKERS: dict[tuple[int, str], _Tools] = {}


def _of_this_worker(work: UpsertWork) -> _Tools:
    key = (os.getpid(), work.run)
    if key not in _WORKERS:
        if os.getpid() != work.driver:
            logs.to_stderr()
        _WORKERS[key] = _Tools(work)
    return _WORKERS[key]
