"""`python -m headrace_spark.jobs.backfill --config FILE.toml`: write a fixed range again (spark-writer.md 11).

The range is `[backfill]` of the job file. It can be stopped at any time, also by kill -9, and started again; it goes on
with the first chunk that is not done. SIGTERM ends it after the chunk under way. Exit codes as of the writer: 0 all
chunks are done, or told to stop; 2 for a wrong job file; 4 if offsets of the range are gone.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from headrace_core.errors import ConfigError
from headrace_spark import exits, kafka_clients, offsets
from headrace_spark.backfill import Cut, Cuts
from headrace_spark.checks import check
from headrace_spark.counts import Counts
from headrace_spark.database import Database
from headrace_spark.jobs.paths import Way, way
from headrace_spark.jobs.process import end, metrics_server, on_signals, run_job, session
from headrace_spark.jobs.spans import Log, batch_frame
from headrace_spark.ledger import Ledger
from headrace_spark.losses import Gap
from headrace_spark.losses import check as check_losses
from headrace_spark.metrics import MetricsServer, Progress
from headrace_spark.outbox import KafkaOutbox
from headrace_spark.patience import Patience
from headrace_spark.ranges import Span, chunks
from headrace_spark.settings import Settings
from headrace_spark.sinks.port import Batch
from headrace_spark.values import EMBEDDED

CHUNK_MS: Final = 20_000
"""A chunk is what the capacity takes in so long: the least that is advised for a micro-batch bound by it."""
_log = structlog.get_logger("headrace_spark")


def own_settings(settings: Settings) -> Settings:
    """The settings of the backfill as a job of its own. Raises `ConfigError`."""
    backfill = settings.backfill
    backfill.check_to_run(settings.lease_store)
    if settings.lease_store == EMBEDDED:
        raise ConfigError("lease_store", "must be one that the live jobs reach too; embedded is one driver's own")
    found = msgspec.structs.replace(
        settings,
        job=f"{settings.job}.{backfill.name}",
        resource=settings.resource or settings.job,
        weight=backfill.weight,
        max_share=backfill.max_share,
        topics=settings.topics or [f"{settings.prefix}batches"],
        lane_mode="backlog",
        on_exhausted="fail",
    )
    check(found)
    return found


class Run:
    """One start: the parts of the process, and the chunks one after the other."""

    def __init__(self, settings: Settings, live_job: str) -> None:
        self.settings = settings
        self.stop = threading.Event()
        self.id = settings.backfill.run_id(live_job)
        database = Database(settings.state_dsn)
        self.ledger = Ledger(database, settings.job, settings.seen_retention_ms)
        self.cuts = Cuts(database, settings.job)
        self.progress = Progress(settings.sink_down_max_ms)
        self.way: Way = way(
            settings,
            self.ledger,
            KafkaOutbox(kafka_clients.client(settings.kafka, settings.kafka_options), settings.dead_letter_topic),
            Patience(settings.sink_down_max_ms, self.stop.is_set, self.stop.wait),
            self.progress.alive,
        )

    def cut(self, log: Log) -> Cut:
        """The recorded cut; at the first start the range as the broker knows it now."""
        found = self.cuts.recorded(self.id)
        if found is not None:
            return found
        settings = self.settings
        spans = [one for one in log.spans(settings.backfill, settings.subscribed, "backfill") if len(one) > 0]
        step = settings.backfill.chunk_records or offsets.per_trigger(
            settings.usable, 1.0, CHUNK_MS, settings.expected_cost_per_record, max(1, len(spans))
        )
        return self.cuts.record(self.id, Cut(spans, step), time.time_ns() // 1_000_000)

    def left(self, cut: Cut) -> list[tuple[Batch, list[Span]]]:
        """The chunks that are not done."""
        every = ((Batch(self.id, number), part) for number, part in enumerate(chunks(cut.spans, cut.step)))
        return [(batch, part) for batch, part in every if not self.way.done(batch)]

    def write(self, spark: Any, left: Sequence[tuple[Batch, list[Span]]]) -> None:
        """Give each chunk its effect, in order, until told to stop. Others that write into the same table sweep what is
        staged for a query that no job has, so this one is remembered first."""
        self.ledger.remember(self.id, "backfill")
        self.way.begin(self.id)
        self.progress.start()
        for batch, part in left:
            if self.stop.is_set():
                return
            began = time.monotonic()
            self.progress.begin(batch.batch_id)
            counts = self.way.write(batch_frame(spark, self.settings, part), batch) or Counts()
            self.progress.end(time.monotonic() - began, hit=False)
            _log.info("chunk", number=batch.batch_id, **counts.items())


def run(given: Settings) -> int:
    """Run the backfill until it is done or told to stop; returns the exit code."""
    settings = own_settings(given)
    one = Run(settings, given.job)
    log = Log(settings)
    try:
        one.ledger.prepare()
        one.way.prepare()
        cut = one.cut(log)
        left = one.left(cut)
        _check(log, [span for _, part in left for span in part])
        _log.info("started", run=one.id, offsets=sum(map(len, cut.spans)), chunks_left=len(left))
        on_signals(one.stop)
        return _write(one, left) if left else exits.DONE
    finally:
        log.close()
        one.way.stop()


def _check(log: Log, wanted: Sequence[Span]) -> None:
    """Raise `DataLost` if retention took offsets that are still wanted."""
    begins = {place: log.bounds(place)[0] for place in {(one.topic, one.partition) for one in wanted}}
    lost = [
        Gap(one.topic, one.partition, one.first, min(one.next, begin) - 1)
        for one in wanted
        if one.first < (begin := begins[one.topic, one.partition])
    ]
    check_losses(lost, [], accept=False)


def _write(one: Run, left: Sequence[tuple[Batch, list[Span]]]) -> int:
    settings = one.settings
    server: MetricsServer | None = None
    if settings.metrics_port is not None:
        server = metrics_server(settings, one.ledger, one.progress, one.way.pacer)
        server.start()
    spark = session(settings)
    try:
        one.write(spark, left)
        return exits.DONE
    finally:
        one.progress.stop()
        end(spark)
        if server is not None:
            server.stop()


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="headrace backfill", description="Write a fixed range of the topics again.")
    parser.add_argument("--config", type=Path, required=True, help="the job file (TOML)")
    given = parser.parse_args(arguments)
    return run_job(given.config, run)


if __name__ == "__main__":
    sys.exit(main())
