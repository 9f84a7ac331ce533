"""The bytes of a COPY (PostgreSQL's binary format), without a step in Python for each value: into the staging table,
and into the table of measurements itself.

Theory: the columns stand in an order in which what many rows share comes first: whose chunk it is, then where the
record stood and what its document says. These bytes are made once for a chunk and once for a record; only the
measurement itself is packed row by row. In the binary format a row is the number of its columns, then each value with
its length in front, all big-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from headrace_spark.sinks.port import Batch
from headrace_spark.transforms.records import Place
from headrace_spark.transforms.rows import Row

MEASURED: Final = ("source", "closed_at", "batch", "metric", "time_ms", "value", "boolean")
COLUMNS: Final = (
    "query_id", "batch_id", "part", "attempt", "chunk", "topic", "kafka_partition", "kafka_offset", *MEASURED,
)  # fmt: skip
_BEGIN: Final = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
_END: Final = b"\xff\xff"
_LENGTH: Final = struct.Struct(">i").pack
_WHOSE: Final = struct.Struct(">iqii").pack
_CHUNK: Final = struct.Struct(">ii").pack
_AT: Final = struct.Struct(">iiiq").pack
_CLOSED: Final = struct.Struct(">iq").pack
_MEASURED: Final = struct.Struct(">iqidi?").pack


def copied(batch: Batch, part: int, attempt: str, chunk: int, rows: Iterable[tuple[Place, Row]]) -> bytes:
    """What COPY is to read for these rows of a chunk, in the order of `COLUMNS`."""
    whose = _text(batch.query_id) + _WHOSE(8, batch.batch_id, 4, part) + _text(attempt) + _CHUNK(4, chunk)
    return b"".join([_BEGIN, *_rows(_count(COLUMNS) + whose, rows), _END])


def measured(rows: Iterable[Row]) -> bytes:
    """What COPY is to read for these rows, in the order of `MEASURED`."""
    return b"".join([_BEGIN, *_rows(_count(MEASURED), ((None, row) for row in rows)), _END])


def _rows(whose: bytes, rows: Iterable[tuple[Place | None, Row]]) -> Iterator[bytes]:
    at: tuple[Place | None, str, int, str] | None = None
    shared = b""
    for place, row in rows:
        here = place, row.source, row.closed_at, row.batch
        if here != at:
            at, shared = here, whose + _record(place, row)
        metric = row.metric.encode()
        yield shared + _LENGTH(len(metric)) + metric + _MEASURED(8, row.time_ms, 8, row.value, 1, row.boolean)


def _record(place: Place | None, row: Row) -> bytes:
    where = _text(place[0]) + _AT(4, place[1], 8, place[2]) if place else b""
    return where + _text(row.source) + _CLOSED(8, row.closed_at) + _text(row.batch)


def _count(columns: Sequence[str]) -> bytes:
    return len(columns).to_bytes(2, "big")


def _text(value: str) -> bytes:
    found = value.encode()
    return _LENGTH(len(found)) + found
