"""One micro-batch, from the tasks' reports to the ledger row (spark-writer.md 1 and 7, path `direct`).

Theory: ledger check, plan, dead letters, paced writes, ledger row, in this order, and each step may be repeated after a
kill: the plan is the same again, dead letters have the same ids, a written request answers with its recorded outcome
and costs no capacity, the ledger row is written once together with all counts. Spark is not known here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from headrace_spark.counts import Counts
from headrace_spark.exits import CorruptInput
from headrace_spark.ledger import Ledger
from headrace_spark.outbox import Outbox
from headrace_spark.pacing import Pacing
from headrace_spark.patience import Patience
from headrace_spark.plan import Plan, corrupt, plan
from headrace_spark.settings import Settings
from headrace_spark.sinks.port import Batch, Outcome, Sink
from headrace_spark.transforms.records import Report
from headrace_spark.transforms.rows import Request


class BatchWriter:
    """`patience` waits for a sink that is down. `advanced` is called after each request."""

    def __init__(
        self,
        settings: Settings,
        ledger: Ledger,
        sink: Sink,
        outbox: Outbox,
        pacer: Pacing,
        patience: Patience,
        *,
        advanced: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._ledger = ledger
        self._sink = sink
        self._outbox = outbox
        self._pacer = pacer
        self._patience = patience
        self._advanced = advanced

    def done(self, batch: Batch) -> bool:
        """True if the ledger has this micro-batch; then no task needs to run, and what a kill left in the sink goes."""
        if not self._patience.keep(lambda: self._ledger.done(batch)):
            return False
        self._patience.keep(lambda: self._sink.forget(batch))
        return True

    def write(self, batch: Batch, reports: Sequence[Report]) -> Counts:
        """Give the micro-batch its effect, once. Raises `CorruptInput`, `SinkDown`, `StateDown` or `OutboxDown`; then
        it is not committed and can be repeated."""
        if corrupt(reports, self._settings.max_corrupt_share):
            raise CorruptInput(f"micro-batch {batch.batch_id}: too large a share of the rows is refused")
        planned = self._plan(reports)
        if planned.letters:
            self._outbox.send(planned.letters)
        outcome = self._send(batch, planned)
        counts = planned.counts
        counts.inserted, counts.replaced = outcome.inserted, outcome.replaced
        counts.repeats += outcome.repeats
        keep = self._patience.keep
        keep(lambda: self._ledger.commit(batch, counts, planned.ids, time.time_ns() // 1_000_000))
        keep(lambda: self._sink.forget(batch))
        return counts

    def _plan(self, reports: Sequence[Report]) -> Plan:
        ids = {one.taken.id for one in reports if one.taken is not None}
        settings = self._settings
        seen = self._patience.keep(lambda: self._ledger.seen(ids))
        return plan(reports, seen, settings.job, settings.cost_of, settings.bounds)

    def _send(self, batch: Batch, planned: Plan) -> Outcome:
        if not planned.requests:
            return Outcome()
        written = self._patience.keep(lambda: self._sink.outcomes(batch))
        total = Outcome()
        for request in planned.requests:
            total += written.get(request.id) or self._paced(batch, request)
            self._advanced()
        return total

    def _paced(self, batch: Batch, request: Request) -> Outcome:
        def attempt(at_ns: int) -> Outcome:
            self._ledger.dispatch(at_ns, request.cost, len(request.rows))
            return self._sink.write(batch, request)

        return self._patience.keep(lambda: self._pacer.run(request.cost, attempt))
