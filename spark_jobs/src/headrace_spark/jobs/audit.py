"""`python -m headrace_spark.jobs.audit --config FILE.toml`: recompute batches and compare (spark-writer.md 11).

Reads the range `[audit]` of the job file; writes a report into the state store and a summary to stdout. Exit code 0 if
every batch that is judged is equal, 1 for any difference or failure, 2 for a wrong job file, 4 if offsets of the range
are gone. No capacity and no sink is used. The batcher must have caught up with the end of the range.
"""

from __future__ import annotations

import argparse
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import structlog

from headrace_spark import audit_report, exits
from headrace_spark.audit import Edge, Plan, receipt_ms, warm_up_ms
from headrace_spark.audit_report import MOST_DIFFERENCES, VERDICTS, Run
from headrace_spark.database import Database
from headrace_spark.jobs import audit_frames
from headrace_spark.jobs.process import end, run_job, session
from headrace_spark.jobs.spans import Log, batch_frame
from headrace_spark.ranges import Span
from headrace_spark.settings import Settings

_log = structlog.get_logger("headrace_spark")


def run(settings: Settings) -> int:
    """Run the audit; returns the exit code."""
    started_at = time.time_ns() // 1_000_000
    log = Log(settings)
    try:
        spans, plans = _with_warm_up(log, settings)
        stands = _batches(log, settings, spans, plans)
    finally:
        log.close()
    spark = session(settings)
    try:
        return _compare(spark, settings, started_at, spans, stands, plans)
    finally:
        end(spark)


def _with_warm_up(log: Log, settings: Settings) -> tuple[list[Span], dict[int, Plan]]:
    """The spans to read of the routed topic, and what is judged of each."""
    warm_ms = warm_up_ms(settings.audit.config)
    spans: list[Span] = []
    plans: dict[int, Plan] = {}
    for one in log.spans(settings.audit, [settings.routed_topic], "audit"):
        begin, (low, _) = log.first((one.topic, one.partition), one.first), log.bounds((one.topic, one.partition))
        if begin is None or begin.offset >= one.next:
            continue
        start = min(one.first, log.at((one.topic, one.partition), max(0, receipt_ms(begin) - warm_ms)))
        plans[one.partition] = Plan(one.partition, one.first, start == low > 0, warm_ms)
        spans.append(Span(one.topic, one.partition, start, one.next))
    return spans, plans


def _batches(log: Log, settings: Settings, spans: list[Span], plans: Mapping[int, Plan]) -> list[Span]:
    """What to read of the batched topic: from the time at which the range begins, as nothing is put out before it was
    received, to the end, as a crash of the batcher may have repeated a batch at any time."""
    topic, found = settings.batches_topic, []
    there = log.partitions(topic, "audit.batches")
    for one in spans:
        begin = log.first((one.topic, one.partition), plans[one.partition].first)
        if one.partition in there and begin is not None:
            place = (topic, one.partition)
            found.append(Span(*place, log.at(place, receipt_ms(begin)), log.bounds(place)[1]))
    return [one for one in found if len(one) > 0]


def _compare(
    spark: Any, settings: Settings, started_at: int, spans: list[Span], stands: list[Span], plans: Mapping[int, Plan]
) -> int:
    from pyspark import StorageLevel

    edges: dict[int, Edge] = {}
    verdicts = None
    if spans:
        task = audit_frames.replayer(settings.audit.config, plans)
        expected = audit_frames.lines(batch_frame(spark, settings, spans), task).persist(StorageLevel.DISK_ONLY)
        edges = audit_frames.edges(expected)
        there = None
        if stands:
            there = audit_frames.lines(batch_frame(spark, settings, stands), audit_frames.comparer(edges))
        verdicts = audit_frames.verdicts(expected, there).persist(StorageLevel.DISK_ONLY)
    for edge in edges.values():
        _log.info("partition", **msgspec.structs.asdict(edge))
    if not any(edge.judged for edge in edges.values()):
        _log.warning("nothing is judged: the range is empty, or the log begins inside the warm-up and ends in it")
    one = Run(uuid.uuid4().hex, settings.job, started_at, *_texts(settings, edges))
    totals = audit_report.write(Database(settings.state_dsn), one, _sources(verdicts), _differences(verdicts))
    print(f"run {one.run}: " + ", ".join(f"{number} {name}" for name, number in totals.items()))
    return exits.FAILURE if sum(totals.values()) > totals["equal"] else exits.DONE


def _texts(settings: Settings, edges: Mapping[int, Edge]) -> tuple[str, str]:
    encode = msgspec.json.encode
    return encode(settings.audit).decode(), encode([edges[number] for number in sorted(edges)]).decode()


def _sources(verdicts: Any | None) -> Iterator[tuple[str, dict[str, int]]]:
    if verdicts is None:
        return
    counts = [f"count_if(verdict = '{name}') AS {name}" for name in VERDICTS]
    from pyspark.sql import functions as f

    for row in verdicts.groupBy("source").agg(*map(f.expr, counts)).toLocalIterator():
        yield row["source"], {name: row[name] for name in VERDICTS}


def _differences(verdicts: Any | None) -> Iterator[audit_report.Difference]:
    """Also told on stdout."""
    if verdicts is None:
        return
    for row in verdicts.where("verdict <> 'equal'").orderBy("partition", "id").limit(MOST_DIFFERENCES).collect():
        print(f"{row['verdict']}: batch {row['id']} of {row['source']}, partition {row['partition']}")
        yield row["partition"], row["id"], row["source"], row["verdict"]


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="headrace audit", description="Recompute batches and compare.")
    parser.add_argument("--config", type=Path, required=True, help="the job file (TOML)")
    given = parser.parse_args(arguments)
    return run_job(given.config, run)


if __name__ == "__main__":
    sys.exit(main())
