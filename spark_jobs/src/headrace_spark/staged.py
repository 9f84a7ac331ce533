"""One micro-batch of the staged path in the driver (spark-writer.md 7, PostgreSQL, steps 1 and 3 to 5).

Theory: ledger row, document ids, totals and merged rows are one transaction in one database, so the micro-batch is
either not done, or done and counted. The ledger row comes first: a second driver waits for the first one's end there,
and then finds the batch done. Dead letters are acknowledged before the commit; a repeat writes the same bytes again.
A connection that is lost at the commit leaves open what happened; the next try sees it by the ledger row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import structlog

from headrace_spark import guilty
from headrace_spark.counts import Counts
from headrace_spark.database import Database, StateDown, Transaction
from headrace_spark.exits import CorruptInput
from headrace_spark.faults import NO_FAULTS, Faults
from headrace_spark.guilty import Fetch
from headrace_spark.ledger import Ledger
from headrace_spark.outbox import Outbox
from headrace_spark.pacing import Pacing
from headrace_spark.patience import Patience
from headrace_spark.plan import Sifted, breaks, corrupt, sift
from headrace_spark.settings import Settings
from headrace_spark.sinks.merging import Append, Merge, sweep, tidy
from headrace_spark.sinks.port import Batch, Outcome, SinkDown
from headrace_spark.sinks.staging import TaskReport
from headrace_spark.transforms.dead_letters import DeadLetter, by_reason

SWEEP_EVERY: Final = 100
TIDY_ROWS: Final = 50_000
_log = structlog.get_logger("headrace_spark")


class StagedWriter:
    """The driver's part; as `BatchWriter`, for a sink and a state that are one PostgreSQL database."""

    def __init__(
        self,
        settings: Settings,
        ledger: Ledger,
        outbox: Outbox,
        pacer: Pacing,
        patience: Patience,
        *,
        faults: Faults = NO_FAULTS,
        advanced: Callable[[], None] = lambda: None,
        merged: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._ledger = ledger
        self._database = Database(settings.sink)
        self._outbox = outbox
        self._pacer = pacer
        self._patience = patience
        self._faults = faults
        self._advanced = advanced
        self._merged = merged
        """Told when nothing more of a micro-batch goes out: its capacity need not wait for the commit."""
        self._spent = self._tries = 0
        """Of this micro-batch: units of its slices, and how often its transaction was begun."""
        self._dead_rows = 0
        """Deleted from the staging table, which still takes their room."""

    def begin(self, query_id: str) -> None:
        """At the start of the query: nothing that is staged for it is of use."""
        swept = self._patience.keep(lambda: self._sweep(query_id))
        if swept:
            _log.info("staging swept", rows=swept)

    def done(self, batch: Batch) -> bool:
        """True if the ledger has this micro-batch; then no task needs to run."""
        if batch.batch_id % SWEEP_EVERY == 0:
            self._patience.keep(lambda: self._sweep(batch.query_id, batch.batch_id))
        return self._patience.keep(lambda: self._done(batch))

    def _done(self, batch: Batch) -> bool:
        try:
            return self._ledger.done(batch)
        except StateDown as error:  # one database is sink and state
            raise SinkDown(str(error)) from error

    def _sweep(self, query_id: str, before: int | None = None) -> int:
        try:
            with self._database.transaction() as at:
                return sweep(at, self._settings.table, query_id, before)
        except StateDown as error:
            raise SinkDown(str(error)) from error

    def write(self, batch: Batch, tasks: Sequence[TaskReport], fetch: Fetch) -> Counts:
        """Give the micro-batch its effect, once. `fetch` brings records again, for dead letters. Raises `CorruptInput`,
        `SinkDown`, `StagingLost` or `OutboxDown`; then it is not committed and can be repeated."""
        if corrupt((one for task in tasks for one in task.reports), self._settings.max_corrupt_share):
            raise CorruptInput(f"micro-batch {batch.batch_id}: too large a share of the rows is refused")
        self._faults.passed("staged", batch.batch_id)
        self._spent = self._tries = 0
        counts = self._patience.keep(lambda: self._try(batch, tasks, fetch))
        self._faults.passed("written", batch.batch_id)
        self._tidy()
        return counts

    def _tidy(self) -> None:
        """Now and then; the micro-batch is committed, so what fails here is tried after another one."""
        if self._dead_rows >= TIDY_ROWS:
            with suppress(StateDown):
                tidy(self._database, self._settings.table)
                self._dead_rows = 0

    def _try(self, batch: Batch, tasks: Sequence[TaskReport], fetch: Fetch) -> Counts:
        self._tries += 1
        try:
            with self._database.transaction() as at:
                if not self._ledger.enter(at, batch):
                    return Counts()
                return self._inside(at, batch, tasks, fetch)
        except StateDown as error:
            raise SinkDown(str(error)) from error

    def _inside(self, at: Transaction, batch: Batch, tasks: Sequence[TaskReport], fetch: Fetch) -> Counts:
        """The transaction waits for capacity between slices, so it must not be ended for idling."""
        at.run("SET LOCAL idle_in_transaction_session_timeout = 0")
        at.run("SET CONSTRAINTS ALL IMMEDIATE")
        settings = self._settings
        kind = Append if settings.append else Merge
        merge = kind(at, settings.table, batch, settings.cost_of, settings.bounds, self._operation)
        attempts = [task.attempt for task in tasks]
        merge.check(attempts, sum(task.rows for task in tasks))
        reports = [one for task in tasks for one in task.reports]
        ids = {one.taken.id for one in reports if one.taken is not None}
        sifted = sift(reports, self._ledger.seen_in(at, ids), self._settings.job)
        outcome = Outcome()
        if sifted.ids:
            outcome = merge.merge(merge.choose(attempts, sifted.fresh))
        self._merged()
        self._refuse_to_drain(batch, len(merge.guilty), sum(one.staged for one in sifted.fresh))
        letters = [*sifted.letters, *guilty.letters(merge.guilty, fetch, settings)]
        if letters:
            self._outbox.send(letters)
        counts = self._counted(sifted, letters, tasks, merge, outcome)
        self._dead_rows += merge.clean()
        self._ledger.finish(at, batch, counts, sifted.ids, time.time_ns() // 1_000_000)
        self._faults.passed("merging", batch.batch_id)
        return counts

    def _refuse_to_drain(self, batch: Batch, guilty: int, rows: int) -> None:
        """The circuit breaker of spark-writer.md 3 for what the table refuses: a table of another shape must not drain
        a topic either. The transaction is undone, and no dead letter has gone out."""
        if breaks(guilty, rows, self._settings.max_corrupt_share):
            raise CorruptInput(f"micro-batch {batch.batch_id}: the table refuses {guilty} of {rows} rows")

    def _counted(
        self, sifted: Sifted, letters: Sequence[DeadLetter], tasks: Sequence[TaskReport], merge: Merge, done: Outcome
    ) -> Counts:
        counts = sifted.counts
        counts.rows = sum(one.staged for one in sifted.fresh)
        counts.inserted, counts.replaced, counts.rows_refused = done.inserted, done.replaced, len(merge.guilty)
        counts.repeats = counts.rows - counts.inserted - counts.replaced - counts.rows_refused
        counts.dead_letters = by_reason(letters)
        counts.requests = sum(task.requests for task in tasks) + merge.slices
        counts.retries = sum(task.retries for task in tasks) + self._tries - 1
        counts.cost = sum(task.cost for task in tasks) + self._spent
        return counts

    def _operation(self, cost: int, rows: int, work: Callable[[], Outcome]) -> Outcome:
        """One slice: paced, and recorded before it goes out."""

        def attempt(at_ns: int) -> Outcome:
            self._ledger.dispatch(at_ns, cost, rows)
            self._spent += cost
            return work()

        outcome = self._pacer.run(cost, attempt)
        self._advanced()
        return outcome
