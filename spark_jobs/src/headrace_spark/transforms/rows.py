"""From measurements to requests, mode `keyed` (spark-writer.md 4 and 5).

Theory: a row is known by (source, metric, event time) and carries a version made of content only: (closed_at, batch id)
behind the event time, which is part of the id. Of the rows of a micro-batch with one id only the highest version goes
on; the others are repeats. The rest is cut, in order, into requests of at most `max` rows that also fit the capacity.
A request's id is a hash of its rows. All of it depends on the rows alone, never on tasks, clock or chance, so a replay
gives the same requests.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

import msgspec

from headrace_core.errors import ConfigError
from headrace_spark.transforms.measurements import Taken

_COST: Final = re.compile(r"(per_row|per_request)\(([1-9][0-9]{0,8})\)")


class Row(msgspec.Struct, frozen=True, order=True):
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


class Request(msgspec.Struct, frozen=True):
    """Rows that go to the sink in one call, with at most one row for each id; `cost` is in capacity units."""

    id: str
    rows: list[Row]
    cost: int


class Cost(msgspec.Struct, frozen=True):
    """`per_row(n)` or `per_request(n)`: what a request costs, in capacity units."""

    per_row: int = 0
    per_request: int = 0

    def __call__(self, rows: int) -> int:
        return self.per_row * rows + self.per_request

    def largest(self, capacity: int) -> int:
        """Most rows of one request within `capacity`; 0 if not even one row fits, -1 if any number does."""
        if self.per_row:
            return capacity // self.per_row
        return -1 if self.per_request <= capacity else 0


def cost(text: str, field: str = "cost") -> Cost:
    """Read a setting like `cost`. Raises `ConfigError`."""
    found = _COST.fullmatch(text.replace(" ", ""))
    if not found:
        raise ConfigError(field, f"must be per_row(n) or per_request(n) with n of at least 1, not {text!r}")
    return Cost(**{found[1]: int(found[2])})


def rows(taken: Taken) -> list[Row]:
    """The rows of one document."""
    return [
        Row(taken.source, m.metric, m.time_ms, taken.closed_at, taken.id, m.value, m.boolean)
        for m in taken.measurements
    ]


def highest(found: Iterable[Row]) -> list[Row]:
    """One row for each id, the one with the highest version (the first of equals), in the order of the ids."""
    best: dict[tuple[str, str, int], Row] = {}
    for row in found:
        rival = best.get(row.id)
        if rival is None or row.version > rival.version:
            best[row.id] = row
    return [best[key] for key in sorted(best)]


def requests(found: Sequence[Row], cost: Cost, size: int) -> list[Request]:
    """Cut rows into requests of at most `size` rows, in order."""
    chunks = iter(found)
    result = []
    while chunk := list(islice(chunks, size)):
        result.append(Request(request_id(chunk), chunk, cost(len(chunk))))
    return result


def request_id(chunk: Sequence[Row]) -> str:
    """The first 32 hex digits of the SHA-256 of the rows' ids and versions."""
    digest = hashlib.sha256()
    for row in chunk:
        digest.update(msgspec.msgpack.encode((row.source, row.metric, row.time_ms, row.closed_at, row.batch)))
    return digest.hexdigest()[:32]
