"""Upserts by tasks (spark-writer.md 7, PostgreSQL, option `path = "direct"`): one request, one bounded transaction.

Theory: the transaction that writes a request records its outcome in the store itself (`hr_request`). A task that is
repeated, or a driver that starts again, finds it there: nothing is written twice, no capacity is spent twice, and the
counts stay exact, whatever died between the store's commit and the record in the state store (`sending.py`).

A request that a constraint of the table refuses left nothing; it is cut in halves, each a request of its own with its
own outcome, until the guilty rows stand alone. They are rejected, the others written. The cuts are a function of the
request and of what is refused, so a repeat makes the same ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import psycopg

from headrace_spark.attempts import Ended
from headrace_spark.counts import Counts
from headrace_spark.faults import NO_FAULTS, Faults
from headrace_spark.keyed import Fetch, KeyedWriter
from headrace_spark.ledger import Ledger
from headrace_spark.outbox import Outbox
from headrace_spark.pacing import Pacing
from headrace_spark.patience import Patience
from headrace_spark.sending import Courier, Packed
from headrace_spark.settings import Settings
from headrace_spark.sinks.port import Batch, Outcome, Sink
from headrace_spark.transforms.records import Report
from headrace_spark.transforms.rows import Request, request_id

REJECTED: Final = "sink_rejected"
_Refused = (psycopg.IntegrityError, psycopg.DataError)


class TableSender:
    """Implements `Sender` for one task and one micro-batch; one request at a time, on the sink's one connection. Sends
    raise `SinkDown`, `StateDown`, `Superseded`, `Stalled`."""

    remembered = True

    def __init__(self, settings: Settings, ledger: Ledger, sink: Sink, pacer: Pacing, patience: Patience) -> None:
        self._settings = settings
        self._ledger = ledger
        self._sink = sink
        self._pacer = pacer
        self._patience = patience
        self._written: dict[str, Outcome] | None = None

    def stands(self, end: str) -> bool:  # noqa: ARG002
        """Every end is one."""
        return True

    def send(self, batch: Batch, one: Packed) -> tuple[str, int]:
        """The end is an `Ended`, which has all tries. What a dead attempt wrote costs nothing now, but counts."""
        rows, whole = one.request.rows, Outcome()
        rejected: dict[int, str] = {}
        tries = cost = 0
        parts = deque([(0, len(rows))])
        while parts:
            low, high = parts.popleft()
            request = one.request if high - low == len(rows) else self._part(one.request, low, high)
            tries, cost = tries + 1, cost + request.cost
            try:
                whole += self._write(batch, request)
            except _Refused as error:
                if high - low == 1:
                    rejected[low] = error.diag.message_primary or str(error)
                else:
                    middle = (low + high) // 2
                    parts.extendleft([(middle, high), (low, middle)])
        reasons = dict.fromkeys(rejected, REJECTED)
        ended = Ended(whole.inserted, whole.replaced, whole.repeats, rejected, reasons, tries=tries, cost=cost)
        return msgspec.json.encode(ended).decode(), 0

    def _part(self, request: Request, low: int, high: int) -> Request:
        rows = request.rows[low:high]
        return Request(request_id(rows), rows, self._settings.cost_of.of(rows))

    def _write(self, batch: Batch, request: Request) -> Outcome:
        if self._written is None:
            self._written = self._patience.keep(lambda: self._sink.outcomes(batch))
        known = self._written.get(request.id)
        if known is not None:
            return known

        def attempt(at_ns: int) -> Outcome:
            self._ledger.dispatch(at_ns, request.cost, len(request.rows))
            return self._sink.write(batch, request)

        return self._patience.keep(lambda: self._pacer.run(request.cost, attempt))


class TableWriter(KeyedWriter):
    """The driver's part: a `KeyedWriter` whose sink keeps outcomes until the ledger row stands. `forget` drops them."""

    def __init__(
        self,
        settings: Settings,
        ledger: Ledger,
        courier: Courier,
        outbox: Outbox,
        forget: Callable[[Batch], None],
        patience: Patience,
        *,
        faults: Faults = NO_FAULTS,
    ) -> None:
        super().__init__(settings, ledger, courier, outbox, outbox, patience, faults=faults)
        self._forget = forget

    def done(self, batch: Batch) -> bool:
        """True if the ledger has this micro-batch; what a kill left in the sink goes."""
        if not super().done(batch):
            return False
        self._patience.keep(lambda: self._forget(batch))
        return True

    def write(self, batch: Batch, reports: Sequence[Report], fetch: Fetch) -> Counts:
        """See `KeyedWriter`; no row is ever late."""
        counts = super().write(batch, reports, fetch)
        self._patience.keep(lambda: self._forget(batch))
        return counts
