"""`python -m headrace_spark.jobs.writer --config FILE.toml`: build the parts, run the query, end with an exit code.

Theory: Spark's thread brings one micro-batch after the other to `_Query.write`; the main thread only waits, for the
signal to stop, for a new value of `maxOffsetsPerTrigger`, or for the end of the query. A stop takes the turn that each
micro-batch takes, so it falls between two of them, or after `stop_timeout_ms` into one, which then stays uncommitted.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import structlog

from headrace_core.errors import HeadraceError
from headrace_spark import checkpoint, embedded, exits, kafka_clients, offsets
from headrace_spark.database import Database, StateDown
from headrace_spark.folders.port import Folder
from headrace_spark.jobs import source
from headrace_spark.jobs.folder import checkpoint_folder
from headrace_spark.jobs.lane_frames import shaped
from headrace_spark.jobs.listening import listen
from headrace_spark.jobs.paths import way
from headrace_spark.jobs.process import end, metrics_server, on_signals, options, run_job, session
from headrace_spark.jobs.supervise import tell_pid
from headrace_spark.ledger import Ledger
from headrace_spark.metrics import Progress, silence_ms
from headrace_spark.outbox import KafkaOutbox
from headrace_spark.patience import Patience
from headrace_spark.settings import Settings
from headrace_spark.sinks.port import Batch

_LOOK_S: Final = 0.05
_log = structlog.get_logger("headrace_spark")


class _Query:
    """One start of the streaming query and the micro-batches it brings."""

    def __init__(self, job: _Job, limit: int, partitions: int) -> None:
        self._job = job
        self._partitions = partitions
        self._drift = offsets.Drift(limit)
        self._started = threading.Event()
        self._id = ""
        self.failure: HeadraceError | None = None
        self.again = threading.Event()

    def named(self, query_id: str) -> None:
        """The query has its id now."""
        self._id = query_id
        self._started.set()

    def write(self, frame: Any, batch_id: int) -> None:
        """foreachBatch: give the micro-batch its effect; raising leaves it uncommitted."""
        self._started.wait()
        with self._turn():
            try:
                self._write(frame, Batch(self._id, batch_id))
            except HeadraceError as error:
                self.failure = error
                raise

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """The turn, unless told to stop: who stops the query has the turn, and waits for this very thread to end."""
        while not self._job.turn.acquire(timeout=_LOOK_S):
            self._refuse_if_told()
        try:
            self._refuse_if_told()
            yield
        finally:
            self._job.turn.release()

    def _refuse_if_told(self) -> None:
        if self._job.stop.is_set() or self.again.is_set():
            raise exits.Stopping("told to stop before this micro-batch")

    def _write(self, frame: Any, batch: Batch) -> None:
        job = self._job
        began = time.monotonic()
        job.progress.begin(batch.batch_id)
        hit = job.way.done(batch)
        if not hit:
            counts = job.way.write(frame, batch)
            hit = counts is None
            if counts is not None and counts.microbatches:  # without records there may be nothing to do
                _log.info("micro-batch", batch_id=batch.batch_id, **counts.items())
        job.progress.end(time.monotonic() - began, hit)
        with suppress(StateDown):  # the next micro-batch waits for it, and asks again
            self._derive(job.limit(self._partitions))

    def _derive(self, value: int) -> None:
        """The latest micro-batch gives this value; the query is started again if such values are too far off for too
        long (spark-writer.md 2)."""
        if self._drift.off(value):
            _log.info("max_offsets_per_trigger is off, so the query starts again", was=self._drift.in_force, now=value)
            self.again.set()


class _Job:
    """The parts of one process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.stop = threading.Event()
        self.turn = threading.Lock()
        self.ledger = Ledger(Database(settings.state_dsn), settings.job, settings.seen_retention_ms)
        self.progress = Progress(silence_ms(settings.trigger_ms))
        self.topics = source.Topics(settings)
        self.accepted = False
        """A loss of offsets was accepted for this start."""
        self.way = way(
            settings,
            self.ledger,
            KafkaOutbox(kafka_clients.client(settings.kafka, settings.kafka_options), settings.dead_letter_topic),
            Patience(settings.sink_down_max_ms, self.stop.is_set, self.stop.wait),
            self.progress.alive,
        )

    def limit(self, partitions: int) -> int:
        """`maxOffsetsPerTrigger` as of now."""
        settings = self.settings
        mean = self.ledger.mean_cost() or settings.expected_cost_per_record
        return offsets.per_trigger(settings.usable, settings.share, settings.trigger_ms, mean, partitions)


def run(settings: Settings, *, new_query: bool = False, new_checkpoint: bool = False, accept_loss: bool = False) -> int:
    """Run the job until it ends or is told to stop; returns the exit code."""
    with embedded.leases(settings) as found:
        return _run(found, new_query, new_checkpoint, accept_loss)


def _run(settings: Settings, new_query: bool, new_checkpoint: bool, accept_loss: bool) -> int:
    job = _Job(settings)
    for one in settings.cautions:
        _log.warning(one)
    try:
        job.ledger.prepare()
        folder, known = checkpoint_folder(settings.checkpoint, options(settings)), job.ledger.query()
        with checkpoint.usable(folder, known):
            checkpoint.check(known, folder, new_query=new_query, new_checkpoint=new_checkpoint)
            found = checkpoint.query_id(folder)
            checkpoint.whole(folder, job.ledger.newest(found) if found else None)
            checkpoint.probe(folder)
            job.accepted = source.check(job.topics, job.ledger, folder, accept=accept_loss)
        job.way.prepare()
        on_signals(job.stop)
        return _run_checked(job, folder, accept_loss)
    finally:
        job.way.stop()


def _run_checked(job: _Job, folder: Folder, accept_loss: bool) -> int:
    """Where Spark fails, a loss of offsets explains more than what Spark says."""
    try:
        return _run_observed(job, folder)
    except HeadraceError:
        raise
    except Exception:
        with suppress(OSError):  # a folder that cannot be read now must not hide why
            source.check(job.topics, job.ledger, folder, accept=accept_loss)
        raise


def _run_observed(job: _Job, folder: Folder) -> int:
    if job.settings.metrics_port is None:
        return _run_spark(job, folder)
    server = metrics_server(job.settings, job.ledger, job.progress, job.way.pacer)
    server.start()
    _log.info("metrics", port=server.port)
    try:
        return _run_spark(job, folder)
    finally:
        server.stop()


def _run_spark(job: _Job, folder: Folder) -> int:
    spark = session(job.settings)
    try:
        listen(spark, job.progress.observe, job.progress.alive)
        again = True
        while again and not job.stop.is_set():
            again = _run_query(job, spark, folder)
            job.progress.restarts += again
        return exits.DONE
    finally:
        job.progress.stop()
        end(spark)


def _run_query(job: _Job, spark: Any, folder: Folder) -> bool:
    """One start of the query. True if it wants to be started again with another limit."""
    partitions = job.topics.partitions()
    limit = job.limit(partitions)
    work = _Query(job, limit, partitions)
    records = source.stream(spark, job.settings, limit, partitions, accepted=job.accepted)
    writer = shaped(records, job.settings).writeStream.foreachBatch(work.write)
    trigger = (
        {"availableNow": True}
        if job.settings.available_now
        else {"processingTime": f"{job.settings.trigger_ms} milliseconds"}
    )
    if job.settings.lanes_stream:  # its waiting rows are due by the clock, not by what comes
        checkpoint.awaken(folder, time.time_ns() // 1_000_000)
    query = writer.option("checkpointLocation", folder.uri).trigger(**trigger).start()
    job.ledger.remember(query.id, str(folder))
    job.way.begin(query.id)
    work.named(query.id)
    job.progress.max_offsets = limit
    job.progress.start()
    _log.info("started", query_id=query.id, max_offsets_per_trigger=limit, topics=job.settings.subscribed)
    return _ended(job, query, work)


def _ended(job: _Job, query: Any, work: _Query) -> bool:
    """Wait for the end of one start of the query. True if it ends to be started again; raises what else ended it.

    A micro-batch that comes after the word to stop or to start again is refused and fails the query by itself, maybe
    before anybody has stopped it: that is an end as wanted, not a failure.
    """
    while query.isActive and not job.stop.is_set() and not work.again.is_set():
        job.stop.wait(0.1)
    if job.stop.is_set() or work.again.is_set():
        _stop(job, query)
        return work.again.is_set()
    if work.failure is not None:
        raise work.failure
    error = query.exception()
    if error is not None:
        raise error
    return False


def _stop(job: _Job, query: Any) -> None:
    """Between two micro-batches, or after `stop_timeout_ms` into one."""
    own = job.turn.acquire(timeout=job.settings.stop_timeout_ms / 1000)
    if not own and job.stop.is_set():
        job.way.stop()  # what waits for capacity or in a pause ends; the micro-batch stays uncommitted
    try:
        query.stop()
    finally:
        if own:
            job.turn.release()


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the exit code of spark-writer.md 10."""
    parser = argparse.ArgumentParser(prog="headrace_spark.jobs.writer", description="Write batches into a datastore.")
    parser.add_argument("--config", type=Path, required=True, help="the job file (TOML)")
    parser.add_argument("--new-query", action="store_true", help="accept a query id that this job did not write with")
    parser.add_argument("--new-checkpoint", action="store_true", help="accept another checkpoint folder")
    parser.add_argument("--accept-loss", action="store_true", help="go on without offsets that are gone, this time")
    given = parser.parse_args(arguments)
    tell_pid()

    def job(settings: Settings) -> int:
        return run(
            settings,
            new_query=given.new_query,
            new_checkpoint=given.new_checkpoint,
            accept_loss=given.accept_loss,
        )

    return run_job(given.config, job)


if __name__ == "__main__":
    code = main()
    sys.exit(code)
