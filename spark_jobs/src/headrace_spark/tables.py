"""One micro-batch of PostgreSQL's direct path in the driver (spark-writer.md 7, option `path = "direct"`).

Theory: when the tasks have ended, all rows have their effect; they are made durable (`secure`), and the ledger row is
written last, in the state store. A repeat before that finds the outcomes of its requests in the store (`upserts.py`);
they go when the ledger row stands. Dead letters are acknowledged before it; a repeat writes the same bytes again.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Protocol

from headrace_spark import guilty
from headrace_spark.counts import Counts
from headrace_spark.exits import CorruptInput
from headrace_spark.faults import NO_FAULTS, Faults
from headrace_spark.guilty import Fetch
from headrace_spark.ledger import Ledger
from headrace_spark.outbox import Outbox
from headrace_spark.patience import Patience
from headrace_spark.plan import Sifted, breaks, corrupt, sift
from headrace_spark.settings import Settings
from headrace_spark.sinks.port import Batch
from headrace_spark.transforms.dead_letters import DeadLetter, Guilty, by_reason
from headrace_spark.upserts import Upserted


class Outcomes(Protocol):
    """What the sink keeps of a micro-batch. Calls raise `SinkDown`."""

    def secure(self, batch: Batch, requests: Collection[str]) -> None:
        """Make durable what these requests wrote. Raises `OutcomesLost`."""
        ...

    def forget(self, batch: Batch) -> None:
        """Drop it."""
        ...


class TableWriter:
    """The driver's part; as `BatchWriter`."""

    def __init__(
        self,
        settings: Settings,
        ledger: Ledger,
        outbox: Outbox,
        sink: Outcomes,
        patience: Patience,
        *,
        faults: Faults = NO_FAULTS,
    ) -> None:
        self._settings = settings
        self._ledger = ledger
        self._outbox = outbox
        self._sink = sink
        self._patience = patience
        self._faults = faults

    def done(self, batch: Batch) -> bool:
        """True if the ledger has this micro-batch; what a kill left in the sink goes."""
        if not self._patience.keep(lambda: self._ledger.done(batch)):
            return False
        self._patience.keep(lambda: self._sink.forget(batch))
        return True

    def write(self, batch: Batch, tasks: Sequence[Upserted], fetch: Fetch) -> Counts:
        """Commit what the tasks wrote. `fetch` brings records again, for dead letters. Raises `CorruptInput`,
        `OutcomesLost`, `SinkDown`, `StateDown` or `OutboxDown`; then it is not committed, and a repeat goes on where it
        ended."""
        settings, keep = self._settings, self._patience.keep
        reports = [one for task in tasks for one in task.reports]
        if corrupt(reports, settings.max_corrupt_share):
            raise CorruptInput(f"micro-batch {batch.batch_id}: too large a share of the rows is refused")
        self._faults.passed("sent", batch.batch_id)
        keep(lambda: self._sink.secure(batch, [name for task in tasks for name in task.written]))
        ids = {one.taken.id for one in reports if one.taken is not None}
        sifted = sift(reports, keep(lambda: self._ledger.seen(ids)), settings.job)
        refused = _refused(sifted, tasks)
        self._refuse_to_drain(batch, len(refused), sum(one.staged for one in sifted.fresh))
        letters = [*sifted.letters, *guilty.letters(refused, fetch, settings)]
        if letters:
            self._outbox.send(letters)
        counts = _counted(sifted, tasks, len(refused), letters)
        keep(lambda: self._ledger.commit(batch, counts, sifted.ids, time.time_ns() // 1_000_000))
        keep(lambda: self._sink.forget(batch))
        return counts

    def _refuse_to_drain(self, batch: Batch, refused: int, rows: int) -> None:
        """The circuit breaker of spark-writer.md 3 for what the table refuses: no dead letter has gone out. What was
        refused is asked again at the next start, when somebody has looked at the table."""
        if breaks(refused, rows, self._settings.max_corrupt_share):
            raise CorruptInput(f"micro-batch {batch.batch_id}: the table refuses {refused} of {rows} rows")


def _refused(sifted: Sifted, tasks: Sequence[Upserted]) -> list[Guilty]:
    """In order, without those of a document that has its effect from another place."""
    fresh = {one.place for one in sifted.fresh}
    found = [one for task in tasks for one in task.guilty if one.place in fresh]
    return sorted(found, key=lambda one: (one.place, one.metric, one.time_ms))


def _counted(sifted: Sifted, tasks: Sequence[Upserted], refused: int, letters: Sequence[DeadLetter]) -> Counts:
    counts = sifted.counts
    counts.rows = sum(one.staged for one in sifted.fresh)
    counts.inserted = sum(task.inserted for task in tasks)
    counts.replaced = sum(task.replaced for task in tasks)
    counts.rows_refused = refused
    counts.repeats = counts.rows - counts.inserted - counts.replaced - refused
    counts.requests = sum(task.requests for task in tasks)
    counts.retries = sum(task.tries - task.requests for task in tasks)
    counts.cost = sum(task.cost for task in tasks)
    counts.dead_letters = by_reason(letters)
    return counts
