"""Lanes in stream mode, the Spark side (spark-writer.md 4): the query packs, in tasks, with Spark's state store; the
micro-batch that comes to the driver is what each lane has to send.

A lane is a Kafka partition, so its records are brought together by topic and partition, and put in order of offset. A
lane is stepped when it has records, or when the clock of the micro-batches passes the time at which something that
waits is due (the state's timeout). What a task reads of the state store is what earlier micro-batches committed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import pyarrow as pa

from headrace_spark.database import Database
from headrace_spark.jobs.frames import reporter
from headrace_spark.lane_stream import LaneWork, Memory, SeenDocuments, step
from headrace_spark.settings import Settings
from headrace_spark.transforms.records import Report

_DATABASES: dict[int, Database] = {}


def shaped(records: Any, settings: Settings) -> Any:
    """The stream as the way of the job takes it: records of Kafka, or in stream mode the steps of lanes."""
    if not settings.lanes_stream:
        return records
    chosen = records.selectExpr(
        "topic", "partition", "offset", "unix_millis(timestamp) AS timestamp_ms", "key", "value", "headers"
    )
    decode = reporter(settings.max_document_bytes, settings.dearest, carried=settings.carried)
    decoded = chosen.mapInArrow(_placed(decode), "topic string, partition int, report binary")
    work = LaneWork(
        job=settings.job,
        state_dsn=settings.state_dsn,
        max=settings.max,
        lateness_ms=settings.lateness_ms,
        linger_ms=settings.linger_ms,
        seen_retention_ms=settings.seen_retention_ms,
    )
    return decoded.groupBy("topic", "partition").applyInPandasWithState(
        stepper(work), "step binary", "memory binary", "append", "ProcessingTimeTimeout"
    )


def _placed(
    report: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]],
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Reports with their lane beside them."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            (made,) = report([batch])
            columns = [batch.column("topic"), batch.column("partition"), made.column("report")]
            yield pa.RecordBatch.from_arrays(columns, names=["topic", "partition", "report"])

    return run


def stepper(work: LaneWork) -> Callable[[Any, Iterator[Any], Any], Iterator[Any]]:
    """The function that tasks run for each lane; `state` is the lane's place in Spark's state store."""

    def run(key: tuple[str, int], frames: Iterator[Any], state: Any) -> Iterator[Any]:
        import pandas as pd
        from pyspark import TaskContext

        task = TaskContext.get()
        now_ms = int(state.getCurrentProcessingTimeMs())
        decode = msgspec.msgpack.Decoder(Report).decode
        reports = [decode(bytes(blob)) for frame in frames for blob in frame["report"]]
        memory = msgspec.msgpack.decode(bytes(state.get[0]), type=Memory) if state.exists else Memory()
        seen = SeenDocuments(_of_this_worker(work.state_dsn), work.seen_retention_ms).before(
            task.getLocalProperty("sql.streaming.queryId"),
            int(task.getLocalProperty("streaming.sql.batchId")),
            {one.taken.id for one in reports if one.taken is not None},
            now_ms,
        )
        stepped = step(work, (str(key[0]), int(key[1])), memory, reports, seen, now_ms)
        state.update((msgspec.msgpack.encode(stepped.memory),))
        if stepped.due_ms is not None:
            state.setTimeoutDuration(max(1, stepped.due_ms - now_ms))
        yield pd.DataFrame({"step": [msgspec.msgpack.encode(stepped.step)]})

    return run


def _of_this_worker(dsn: str) -> Database:
    """One connection for each Python worker process, never made before a fork."""
    return _DATABASES.setdefault(os.getpid(), Database(dsn))
