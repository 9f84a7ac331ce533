"""The Spark side of decoding: a task turns Arrow batches of Kafka records into reports, one blob for each record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import pyarrow as pa

from headrace_spark.transforms.records import Record, Report, report

COLUMNS = ("topic", "partition", "offset", "timestamp_ms", "key", "value", "headers")


def reporter(max_bytes: int) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that tasks run; it knows nothing but the size limit."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        encode = msgspec.msgpack.Encoder().encode
        for batch in batches:
            blobs = [encode(report(_record(row), max_bytes)) for row in batch.to_pylist()]
            yield pa.RecordBatch.from_arrays([pa.array(blobs, type=pa.binary())], names=["report"])

    return run


def reports(frame: Any, max_bytes: int) -> list[Report]:
    """Run the tasks over a micro-batch of the Kafka source and bring their reports to the driver. The number of records
    is bounded by `maxOffsetsPerTrigger`."""
    chosen = frame.selectExpr(
        "topic", "partition", "offset", "unix_millis(timestamp) AS timestamp_ms", "key", "value", "headers"
    )
    blobs = chosen.mapInArrow(reporter(max_bytes), "report binary").toArrow()
    decode = msgspec.msgpack.Decoder(Report).decode
    return [decode(blob) for blob in blobs.column("report").to_pylist()]


def _record(row: dict[str, Any]) -> Record:
    headers = [(header["key"], header["value"]) for header in row["headers"] or []]
    return Record(row["topic"], row["partition"], row["offset"], row["timestamp_ms"], row["key"], row["value"], headers)
