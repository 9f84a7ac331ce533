"""One micro-batch, from the tasks' reports to the ledger row (spark-writer.md 1 and 7, path `direct`).

Theory: ledger check, plan, dead letters, paced writes, ledger row, in this order, and each step may be repeated after a
kill: the plan is the same again, dead letters have the same ids, a written request answers with its recorded outcome
and costs no capacity, the ledger row is written once together with all counts. Spark is not known here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import structlog

from headrace_spark.counts import Counts
from headrace_spark.exits import CorruptInput
from headrace_spark.ledger import Ledger
from headrace_spark.outbox import Outbox
from headrace_spark.pacing import Pacing
from headrace_spark.plan import Plan, corrupt, plan
from headrace_spark.settings import Settings
from headrace_spark.sinks.port import Batch, Outcome, Sink, SinkDown
from headrace_spark.transforms.records import Report
from headrace_spark.transforms.rows import Request

_log = structlog.get_logger("headrace_spark")
T = TypeVar("T")
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 30.0


class BatchWriter:
    """`stopping` says whether the job was told to stop; a wait for a sink that is down then ends. `advanced` is
    called after each request."""

    def __init__(
        self,
        settings: Settings,
        ledger: Ledger,
        sink: Sink,
        outbox: Outbox,
        pacer: Pacing,
        *,
        stopping: Callable[[], bool] = lambda: False,
        advanced: Callable[[], None] = lambda: None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._settings = settings
        self._ledger = ledger
        self._sink = sink
        self._outbox = outbox
        self._pacer = pacer
        self._stopping = stopping
        self._advanced = advanced
        self._sleep = sleep

    def done(self, batch: Batch) -> bool:
        """True if the ledger has this micro-batch; then no task needs to run, and what a kill left in the sink goes."""
        if not self._ledger.done(batch):
            return False
        self._sink.forget(batch)
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
        self._ledger.commit(batch, counts, planned.ids, time.time_ns() // 1_000_000)
        self._sink.forget(batch)
        return counts

    def _plan(self, reports: Sequence[Report]) -> Plan:
        ids = {one.taken.id for one in reports if one.taken is not None}
        settings = self._settings
        return plan(reports, self._ledger.seen(ids), settings.job, settings.cost_of, settings.request_rows)

    def _send(self, batch: Batch, planned: Plan) -> Outcome:
        if not planned.requests:
            return Outcome()
        written = self._patiently(lambda: self._sink.outcomes(batch))
        total = Outcome()
        for request in planned.requests:
            total += written.get(request.id) or self._paced(batch, request)
            self._advanced()
        return total

    def _paced(self, batch: Batch, request: Request) -> Outcome:
        def attempt(at_ns: int) -> Outcome:
            self._ledger.dispatch(at_ns, request.cost, len(request.rows))
            return self._sink.write(batch, request)

        return self._patiently(lambda: self._pacer.run(request.cost, attempt))

    def _patiently(self, work: Callable[[], T]) -> T:
        wait, waited = _FIRST_WAIT_S, 0.0
        while True:
            try:
                return work()
            except SinkDown as error:
                if self._stopping() or waited * 1000 >= self._settings.sink_down_max_ms:
                    raise
                _log.warning("sink down", error=str(error), waited_s=waited)
                self._sleep(wait)
                waited += wait
                wait = min(wait * 2, _LONGEST_WAIT_S)
