"""The port to a datastore (spark-writer.md 7).

Theory: a sink writes one request in one transaction. The same transaction records the request's outcome under (query
id, batch id, request id), so a request whose answer was lost is asked again and answers with the recorded outcome: one
effect, and numbers that stay exact over kill -9. `forget` drops the records once the ledger row of the batch stands.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from headrace_core.errors import HeadraceError
from headrace_spark.transforms.rows import Request


class Batch(msgspec.Struct, frozen=True):
    """A micro-batch: Spark's query id and batch id."""

    query_id: str
    batch_id: int


class Outcome(msgspec.Struct, frozen=True):
    """What a request did; the three numbers add up to its rows. `repeats` had no effect: the store had their version
    or a higher one."""

    inserted: int = 0
    replaced: int = 0
    repeats: int = 0

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(self.inserted + other.inserted, self.replaced + other.replaced, self.repeats + other.repeats)


class SinkDown(HeadraceError):
    """The store cannot be reached or refuses work for now; the same request can work later."""

    code = "sink_down"
    retry = True


class Sink(Protocol):
    """One implementation for each kind of store. Every call may raise `SinkDown`; then nothing, or all of it, holds."""

    def prepare(self) -> None:
        """Create what is missing; harmless when repeated."""
        ...

    def outcomes(self, batch: Batch) -> dict[str, Outcome]:
        """The recorded outcomes of this micro-batch by request id."""
        ...

    def write(self, batch: Batch, request: Request) -> Outcome:
        """Write the rows, one effect for each request id; returns the outcome, the recorded one if it was written."""
        ...

    def forget(self, batch: Batch) -> None:
        """Drop the recorded outcomes of this micro-batch."""
        ...

    def close(self) -> None:
        """Give the connection back."""
        ...
