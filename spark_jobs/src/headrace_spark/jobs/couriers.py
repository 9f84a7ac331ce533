"""Sending by tasks, the Spark side (spark-writer.md 6 and 7): a stage whose tasks send what the driver planned.

Each task has some of the queues (`sending.py`) and keeps several of them at work (`max_concurrent_batches`). It returns
what became of the requests, and what it saw; only reports of attempts that Spark accepted come back. An error that
repeating the task would not change comes back in the report too; anything else fails the attempt, and Spark repeats it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from headrace_core.errors import HeadraceError
from headrace_spark.faults import Faults
from headrace_spark.jobs import logs
from headrace_spark.jobs.watching import watching
from headrace_spark.ledger import Ledger
from headrace_spark.pacing import PausingPacing
from headrace_spark.patience import Patience
from headrace_spark.seen import Watched
from headrace_spark.senders import Tools
from headrace_spark.sending import Carried, Carrier, Packed, Queue, failed, shares
from headrace_spark.settings import Settings
from headrace_spark.sinks.port import Batch


class SendWork(msgspec.Struct, frozen=True):
    """What a task must know. `run` is the start of the job, `pacing` makes what paces a Python worker, `driver` is the
    driver's pid."""

    settings: Settings
    batch: Batch
    run: str
    pacing: Callable[[], PausingPacing]
    faults: Faults
    driver: int


class SparkCourier:
    """Implements `Courier`. `pacer` gets what accepted tasks saw; `advanced` is called while requests end."""

    def __init__(
        self,
        settings: Settings,
        ledger: Ledger,
        run: str,
        pacing: Callable[[], PausingPacing],
        pacer: Watched,
        faults: Faults,
        advanced: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._ledger = ledger
        self._run = run
        self._pacing = pacing
        self._pacer = pacer
        self._faults = faults
        self._advanced = advanced
        self._context: Any = None

    def on(self, frame: Any) -> None:
        """The micro-batch that comes next is this one."""
        self._context = frame.sparkSession.sparkContext

    def carry(self, batch: Batch, queues: Sequence[Queue]) -> Carried:
        """See `Courier`. Raises what a task reported, and what Spark raises for one that failed again and again."""
        work = SendWork(self._settings, batch, self._run, self._pacing, self._faults, os.getpid())
        blobs = [msgspec.msgpack.encode(part) for part in shares(queues, self._settings.tasks_at_once)]
        began_ns = time.monotonic_ns()
        with watching(lambda: len(self._ledger.sent(batch)), self._advanced):
            found = self._context.parallelize(blobs, len(blobs)).mapPartitionsWithIndex(deliverer(work)).collect()
        whole, reports = Carried({}, {}), [msgspec.msgpack.decode(blob, type=Carried) for blob in found]
        for one in reports:
            self._pacer.add(one.seen)
            whole.ends.update(one.ends)
            whole.retries.update(one.retries)
        self._pacer.tasks(sum(one.seen.estimated for one in reports), time.monotonic_ns() - began_ns)
        for one in reports:
            one.check()
        return whole


def deliverer(work: SendWork) -> Callable[[int, Iterable[bytes]], Iterator[bytes]]:
    """The function of the tasks: one report for each."""

    def run(part: int, blobs: Iterable[bytes]) -> Iterator[bytes]:
        from pyspark import TaskContext

        task = TaskContext.get()
        assert task is not None
        queues = [queue for blob in blobs for queue in msgspec.msgpack.decode(blob, type=list[list[Packed]])]
        yield msgspec.msgpack.encode(_report(work, queues, part, task.attemptNumber()))

    return run


def _report(work: SendWork, queues: Sequence[Queue], part: int, attempt: int) -> Carried:
    try:
        tools = _of_this_worker(work)
    except HeadraceError as error:
        return failed(error)
    tools.pacer.take()  # what an attempt that failed left
    tools.pacer.expect()
    halt = threading.Event()
    patience = Patience(work.settings.sink_down_max_ms, halt.is_set, halt.wait)
    carrier = Carrier(
        tools.sender(patience, halt),
        tools.ledger,
        patience,
        work.settings.max_concurrent_batches,
        halt,
        lambda: work.faults.passed("task", work.batch.batch_id, part, attempt),
    )
    try:
        found = carrier.carry(work.batch, queues)
    except HeadraceError as error:
        found = failed(error)
    finally:
        tools.pacer.rest()  # the task's end (spark-writer.md 6)
    found.seen = tools.pacer.take()
    return found


_WORKERS: dict[tuple[int, str], Tools] = {}


def _of_this_worker(work: SendWork) -> Tools:
    key = (os.getpid(), work.run)
    if key not in _WORKERS:
        if os.getpid() != work.driver:
            logs.to_stderr()
        _WORKERS[key] = Tools(work.settings, work.run, work.pacing)
    return _WORKERS[key]
