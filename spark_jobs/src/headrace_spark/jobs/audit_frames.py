"""The Spark side of the replay audit: one task for each partition of each topic, then one comparison by batch id."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa

from headrace_core.batching.config import BatchingConfig
from headrace_core.stage import Headers, Record
from headrace_spark.audit import Edge, Line, Plan, Replay, actual

SCHEMA: Final = (
    "partition int, id string, source string, side string, digest string,"
    " from_ms bigint, to_ms bigint, next bigint, records bigint, judged bigint"
)
_ARROW: Final = pa.schema([
    ("partition", pa.int32()), ("id", pa.string()), ("source", pa.string()), ("side", pa.string()),
    ("digest", pa.string()), ("from_ms", pa.int64()), ("to_ms", pa.int64()), ("next", pa.int64()),
    ("records", pa.int64()), ("judged", pa.int64()),
])  # fmt: skip
_NO_EDGE: Final = (None,) * 5
_YOUNG: Final = 100_000
_EDGE: Final = ("partition", "from_ms", "to_ms", "next", "records", "judged")
EDGE: Final = "edge"
Batches = Iterable[pa.RecordBatch]
Task = Callable[[Batches], Iterator[pa.RecordBatch]]


def replayer(config: BatchingConfig, plans: Mapping[int, Plan]) -> Task:
    """The task of a partition of the routed topic: the engine over its records."""

    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        _calm()
        replay: Replay | None = None
        for batch in batches:
            records = records_of(batch)
            if records and replay is None:
                replay = Replay(config, plans[records[0].partition])
            if replay is not None:
                yield _table(replay.feed(records))
        if replay is not None:
            still, edge = replay.finish()
            yield _table(still, [edge])

    return run


def comparer(edges: Mapping[int, Edge]) -> Task:
    """The task of a partition of the batched topic: what stands there."""

    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        _calm()
        for batch in batches:
            yield _table(actual(one, edges.get(one.partition)) for one in records_of(batch))

    return run


def lines(frame: Any, task: Task) -> Any:
    """Run the tasks over records of Kafka."""
    chosen = frame.selectExpr("partition", "offset", "unix_millis(timestamp) AS append_ms", "key", "value", "headers")
    return chosen.mapInArrow(task, SCHEMA)


def edges(found: Any) -> dict[int, Edge]:
    """The edges among the lines of the routed topic."""
    return {row["partition"]: Edge(*(row[name] for name in _EDGE)) for row in found.where(f"side = '{EDGE}'").collect()}


def verdicts(expected: Any, stands: Any | None) -> Any:
    """Per batch id of a partition: source and `equal`, `missing`, `extra` or `different`; what is not judged is left
    out. Repeats of an id with the same bytes count once."""
    both = expected.where(f"side <> '{EDGE}'")
    both = both if stands is None else both.unionByName(stands)
    by_id = both.groupBy("partition", "id").agg(*_sums())
    return by_id.selectExpr("partition", "id", "source", _VERDICT).where("verdict IS NOT NULL")


def _sums() -> Sequence[Any]:
    from pyspark.sql import functions as f

    return [
        f.expr("coalesce(max(source) FILTER (WHERE side IN ('expected', 'unjudged')), max(source)) AS source"),
        f.expr("count_if(side = 'unjudged') AS unjudged"),
        f.expr("max(digest) FILTER (WHERE side = 'expected') AS expected"),
        f.expr("count_if(side = 'actual') AS inside"),
        f.expr("min(digest) FILTER (WHERE side IN ('actual', 'outside')) AS lowest"),
        f.expr("max(digest) FILTER (WHERE side IN ('actual', 'outside')) AS highest"),
    ]


_VERDICT: Final = """
CASE WHEN unjudged > 0 THEN NULL
     WHEN expected IS NULL THEN CASE WHEN inside > 0 THEN 'extra' END
     WHEN lowest IS NULL THEN 'missing'
     WHEN lowest = expected AND highest = expected THEN 'equal'
     ELSE 'different' END AS verdict"""


def records_of(batch: pa.RecordBatch) -> list[Record]:
    """The records of an Arrow batch. Headers are taken as two flat columns, not as an object each."""
    column = batch.column("headers")
    flat = column.flatten()
    values = [b"" if value is None else value for value in flat.field(1).to_pylist()]
    pairs = list(zip(flat.field(0).to_pylist(), values, strict=True))
    at = [0, *_counts(column)]
    headers: list[Headers] = [tuple(pairs[start:end]) for start, end in pairwise(at)]
    columns = [batch.column(name).to_pylist() for name in ("partition", "offset", "append_ms", "key", "value")]
    return list(map(Record, *columns, headers))


def _counts(column: Any) -> Iterator[int]:
    """Where the headers of each record end among all of the batch."""
    end = 0
    for length in column.value_lengths().to_pylist():
        end += length or 0
        yield end


def _table(found: Iterable[Line], ends: Iterable[Edge] = ()) -> pa.RecordBatch:
    rows = [(one.partition, one.id, one.source, one.side, one.digest, *_NO_EDGE) for one in found]
    rows += [(one.partition, None, None, EDGE, None, *(getattr(one, name) for name in _EDGE[1:])) for one in ends]
    columns = zip(*rows, strict=True) if rows else [()] * len(_ARROW)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, _ARROW, strict=True)], schema=_ARROW
    )


def _calm() -> None:
    """Records hold no cycles, so walking over those of a batch again and again frees nothing: a quarter of the CPU time
    of the engine. Once for each Python worker."""
    if gc.get_threshold()[0] != _YOUNG:
        gc.freeze()
        gc.set_threshold(_YOUNG, 20, 50)
