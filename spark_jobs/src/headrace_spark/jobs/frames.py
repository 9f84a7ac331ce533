"""The Spark side of decoding: a task turns Arrow batches of Kafka records into reports, one blob for each record."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Final, TypeVar

import msgspec
import pyarrow as pa

from headrace_spark.pacing import Pacing
from headrace_spark.seen import Watched
from headrace_spark.sinks.staging import Connection, Stager, TaskReport, Work
from headrace_spark.transforms.costs import Dearest
from headrace_spark.transforms.records import Place, Record, Report, report

T = TypeVar("T")
_COLUMNS: Final = (
    "topic string, partition int, offset bigint, timestamp_ms bigint, key binary, value binary,"
    " headers array<struct<key:string,value:binary>>"
)


def reporter(
    max_bytes: int, dearest: Dearest | None, again: str = "", carried: Sequence[str] = ()
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that tasks run; it knows nothing but what limits a record and a row, and which topic brings records
    back, and which headers go with rows."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        encode = msgspec.msgpack.Encoder().encode
        for batch in batches:
            blobs = [encode(report(record_of(row), max_bytes, dearest, again, carried)) for row in batch.to_pylist()]
            yield told(blobs)

    return run


def reports(
    frame: Any, max_bytes: int, dearest: Dearest | None = None, again: str = "", carried: Sequence[str] = ()
) -> list[Report]:
    """Run the tasks over a micro-batch of the Kafka source and bring their reports to the driver. The number of records
    is bounded by `maxOffsetsPerTrigger`."""
    return collect(frame, reporter(max_bytes, dearest, again, carried), Report)


def stager(work: Work, pacing: Callable[[], Pacing]) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function of the tasks of the staged path: one report for each task. `pacing` makes what paces a Python
    worker."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        task = TaskContext.get()
        connection, pacer = _of_this_worker(work.dsn, pacing)
        attempt = f"{work.run}:{task.taskAttemptId()}"
        pacer.take()  # what an attempt that failed left
        one = Stager(work, task.partitionId(), task.attemptNumber(), attempt, connection, pacer)
        pacer.expect()
        try:
            for batch in batches:
                for row in batch.to_pylist():
                    one.add(report(record_of(row), work.max_document_bytes, work.dearest))
            done = one.finish()
        finally:
            pacer.rest()  # the task's end (spark-writer.md 6)
        blob = msgspec.msgpack.encode(msgspec.structs.replace(done, seen=pacer.take()))
        yield told([blob])

    return run


def stage(frame: Any, work: Work, pacing: Callable[[], Pacing]) -> list[TaskReport]:
    """Run the tasks of the staged path; the reports of the attempts that Spark accepted."""
    return collect(frame, stager(work, pacing), TaskReport)


def picker(places: Sequence[Place]) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function of tasks that let only the records at these places pass."""
    wanted = frozenset(places)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = zip(*(batch.column(name).to_pylist() for name in ("topic", "partition", "offset")), strict=True)
            yield batch.filter(pa.array([place in wanted for place in found], type=pa.bool_()))

    return run


def records(frame: Any, places: Sequence[Place]) -> list[Record]:
    """Read these records of the micro-batch again, however many they are."""
    rows = _chosen(frame).mapInArrow(picker(places), _COLUMNS).toArrow().to_pylist()
    return [record_of(row) for row in rows]


_WORKERS: dict[int, tuple[Connection, Watched]] = {}


def _of_this_worker(dsn: str, pacing: Callable[[], Pacing]) -> tuple[Connection, Watched]:
    """One connection and one pacer for each Python worker process, never made before a fork (spark-writer.md 6)."""
    pid = os.getpid()
    if pid not in _WORKERS:
        _WORKERS[pid] = Connection(dsn), Watched(pacing())
    return _WORKERS[pid]


def told(blobs: Sequence[bytes]) -> pa.RecordBatch:
    """Reports as a task returns them. `pyarrow.array` would import pandas, most of a second of CPU in every worker."""
    ends = pa.py_buffer(struct.pack(f"={len(blobs) + 1}i", *accumulate(map(len, blobs), initial=0)))
    column = pa.Array.from_buffers(pa.binary(), len(blobs), [None, ends, pa.py_buffer(b"".join(blobs))])
    return pa.RecordBatch.from_arrays([column], names=["report"])


def collect(frame: Any, function: Callable[..., Iterator[pa.RecordBatch]], kind: type[T]) -> list[T]:
    """Run tasks over a micro-batch of the Kafka source; what they report, one `kind` for each blob."""
    blobs = _chosen(frame).mapInArrow(function, "report binary").toArrow()
    decode = msgspec.msgpack.Decoder(kind).decode
    return [decode(blob) for blob in blobs.column("report").to_pylist()]


def _chosen(frame: Any) -> Any:
    return frame.selectExpr(
        "topic", "partition", "offset", "unix_millis(timestamp) AS timestamp_ms", "key", "value", "headers"
    )


def record_of(row: dict[str, Any]) -> Record:
    """A row of the micro-batch as a Kafka record."""
    headers = [(header["key"], header["value"]) for header in row["headers"] or []]
    return Record(row["topic"], row["partition"], row["offset"], row["timestamp_ms"], row["key"], row["value"], headers)
