"""From measurements to requests, mode `keyed` (spark-writer.md 4 and 5).

Theory: a row is known by (source, metric, event time) and carries a version made of content only: (closed_at, batch id)
behind the event time, which is part of the id. Of the rows of a micro-batch with one id only the highest version goes
on; the others are repeats. The rest is cut, in order, into requests of at most `max` rows and `max_bytes` that also fit
the capacity.
A request's id is a hash of its rows. All of it depends on the rows alone, never on tasks, clock or chance, so a replay
gives the same requests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Final

import msgspec

from headrace_spark.transforms.measurements import MAX_KEY_BYTES, Measurement, Taken

_encode: Final = msgspec.msgpack.Encoder().encode
_named: Final = attrgetter("source", "metric", "time_ms", "closed_at", "batch")
_identity: Final = attrgetter("source", "metric", "time_ms")
MAX_ROW_BYTES: Final = MAX_KEY_BYTES + 32 + 25
"""Of the values of a row: source and metric, the id of its batch, numbers."""


class Row(msgspec.Struct, frozen=True, order=True, gc=False):
    """One row of the store. Times are ms; `batch` is the id of the batch document it came in."""

    source: str
    metric: str
    time_ms: int
    closed_at: int
    batch: str
    value: float
    boolean: bool

    @property
    def id(self) -> tuple[str, str, int]:
        """What the row is: a row with the same id replaces it only with a higher version."""
        return self.source, self.metric, self.time_ms

    @property
    def version(self) -> tuple[int, int, str]:
        """(event time, closed_at, batch id), spark-writer.md 4."""
        return self.time_ms, self.closed_at, self.batch

    @property
    def size(self) -> int:
        """Bytes of its values: texts in UTF-8, three numbers of eight bytes and a boolean."""
        return len(self.source.encode()) + len(self.metric.encode()) + len(self.batch.encode()) + 25


KEY_COLUMNS: Final = ("source", "metric", "time_ms", "closed_at", "batch")
VERSION_COLUMNS: Final = ("time_ms", "closed_at")


class Keying(msgspec.Struct, frozen=True):
    """What a row is: the values of the columns `key`. Which of two is newer: that with the higher value of `column`, or
    if none is given the higher version. All are names of `Row`."""

    key: tuple[str, ...] = ("source", "metric", "time_ms")
    column: str = ""

    def id(self, row: Row) -> tuple[str | int, ...]:
        """A row with the same id replaces it only with a higher version."""
        return tuple([getattr(row, name) for name in self.key])

    def version(self, row: Row) -> tuple[int | str, ...]:
        """Comparable with that of another row."""
        return (getattr(row, self.column),) if self.column else row.version


IDENTITY: Final = Keying()


Headers = dict[str, dict[str, str]]
"""Headers of Kafka records that go with the rows, by the ids of their documents (`Row.batch`)."""


class Request(msgspec.Struct, frozen=True):
    """Rows that go to the sink in one call, with at most one row for each id; `cost` is in capacity units. `headers` of
    the Kafka records, by the id of the document, if any are carried."""

    id: str
    rows: list[Row]
    cost: int
    headers: Headers = {}


def rows(taken: Taken) -> list[Row]:
    """The rows of one document."""
    return [row_of(taken.id, taken.source, taken.closed_at, one) for one in taken.measurements]


def row_of(batch: str, source: str, closed_at: int, one: Measurement) -> Row:
    """The row of one measurement."""
    return Row(source, one.metric, one.time_ms, closed_at, batch, one.value, one.boolean)


def highest(found: Iterable[Row], keying: Keying = IDENTITY) -> list[Row]:
    """One row for each id, the one with the highest version (the first of equals), in the order of the ids."""
    best: dict[tuple[str | int, ...], Row] = {}
    id_of = _identity if keying == IDENTITY else keying.id
    for row in found:
        name = id_of(row)
        rival = best.get(name)
        if rival is None or keying.version(row) > keying.version(rival):
            best[name] = row
    return [best[key] for key in sorted(best)]


class Bounds(msgspec.Struct, frozen=True):
    """Of one request: most rows, most bytes of their values, and most units."""

    rows: int
    size: int = 1 << 62
    capacity: int = 1 << 62


def requests(
    found: Sequence[Row], cost: Callable[[Sequence[Row]], int], bounds: Bounds, within: str = ""
) -> list[Request]:
    """Cut rows into requests within the bounds, in order. A single row is never too large. `within` tells these
    requests apart from others that may have the very same rows."""
    left, result = list(found), []
    while left:
        chunk = first(left, cost, bounds)
        left = left[len(chunk) :]
        result.append(Request(request_id(chunk, within), chunk, cost(chunk)))
    return result


def with_headers(request: Request, known: Headers) -> Request:
    """The request with the headers of its own documents."""
    own = {row.batch: known[row.batch] for row in request.rows if row.batch in known} if known else {}
    return msgspec.structs.replace(request, headers=own) if own else request


def first(found: Sequence[Row], cost: Callable[[Sequence[Row]], int], bounds: Bounds) -> list[Row]:
    """The rows of the first request: as many as rows and bytes allow, halved until their cost fits."""
    chunk = list(found[: bounds.rows])
    if len(chunk) * MAX_ROW_BYTES > bounds.size:
        chunk = _within(chunk, bounds.size)
    while len(chunk) > 1 and cost(chunk) > bounds.capacity:
        chunk = chunk[: len(chunk) // 2]
    return chunk


def _within(found: Sequence[Row], size: int) -> list[Row]:
    """The first rows that have so many bytes together; at least one."""
    chunk: list[Row] = []
    for row in found:
        size -= row.size
        if chunk and size < 0:
            break
        chunk.append(row)
    return chunk


def request_id(chunk: Sequence[Row], within: str = "") -> str:
    """The first 32 hex digits of the SHA-256 of the rows' ids and versions, and of `within` before them."""
    digest = hashlib.sha256(within.encode())
    whole = _encode(list(map(_named, chunk)))
    digest.update(memoryview(whole)[1 if len(chunk) < 16 else 3 if len(chunk) < 65536 else 5 :])
    return digest.hexdigest()[:32]
