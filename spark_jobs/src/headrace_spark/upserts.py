"""The task's side of PostgreSQL's direct path (spark-writer.md 7, option `path = "direct"`).

Theory: a task has Kafka partitions, whole: what the micro-batch has of one is in one task, in order of offset. Each is
cut into requests by itself, so requests and their ids depend on the partition's records alone, whatever the number of
tasks and whatever else they do. Of the rows of a cut with one key only the highest version goes out; rows of one key in
two cuts meet in the table, where the version decides.

The transaction that writes a request records its outcome in the store itself (`hr_request`). A task that is repeated,
or a driver that starts again, finds it there: nothing is written twice, no capacity is spent twice, and the counts stay
exact. A document that an earlier micro-batch wrote, or that comes twice in a partition, has no effect.

A request that a constraint of the table refuses left nothing; it is cut in halves, each a request of its own with its
own outcome, until the guilty rows stand alone. They are told, the others written; an older row of the same key and cut
goes out in the place of a guilty one. The cuts are a function of the request and of what is refused, so a repeat makes
the same ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import msgspec
import psycopg

from headrace_spark.ledger import Ledger
from headrace_spark.pacing import Pacing
from headrace_spark.patience import Patience
from headrace_spark.seen import Seen
from headrace_spark.sending import raise_failure
from headrace_spark.settings import Settings
from headrace_spark.sinks.port import Batch, Outcome, Sink
from headrace_spark.transforms.dead_letters import Guilty
from headrace_spark.transforms.records import Place, Report, light
from headrace_spark.transforms.rows import Request, Row, highest, request_id, requests, rows

_Refused = (psycopg.IntegrityError, psycopg.DataError)


class Upserted(msgspec.Struct, array_like=True):
    """What one task attempt did: what it found in each record, without the measurements; requests, tries of all their
    parts and what they cost; the ids of the parts that are written; rows by what became of them, those refused with
    what the table says. `failure`: the pickled error that ended it. `seen`: what was seen on the way."""

    reports: list[Report] = []
    written: list[str] = []
    requests: int = 0
    tries: int = 0
    cost: int = 0
    inserted: int = 0
    replaced: int = 0
    guilty: list[Guilty] = []
    failure: bytes | None = None
    seen: Seen = msgspec.field(default_factory=Seen)

    def check(self) -> None:
        """Raise the failure."""
        raise_failure(self.failure)


class _Waiting:
    """What is left of one Kafka partition: rows, and where each of its documents stands."""

    def __init__(self, partition: tuple[str, int]) -> None:
        self.name = "{}-{}".format(*partition)
        self.rows: list[Row] = []
        self.places: dict[str, Place] = {}


class Upserter:
    """One task attempt; one request at a time, on the sink's one connection. `passed` is called after each request.
    Both calls raise `SinkDown`, `StateDown`, `Superseded`, `Stalled`."""

    def __init__(
        self,
        settings: Settings,
        batch: Batch,
        ledger: Ledger,
        sink: Sink,
        pacer: Pacing,
        patience: Patience,
        passed: Callable[[], None] = lambda: None,
    ) -> None:
        self._cost, self._bounds = settings.cost_of, settings.bounds
        self._batch = batch
        self._ledger = ledger
        self._sink = sink
        self._pacer = pacer
        self._patience = patience
        self._passed = passed
        self._waiting: dict[tuple[str, int], _Waiting] = {}
        self._known: dict[str, Outcome] | None = None
        self._done = Upserted([], [], guilty=[])

    def add(self, found: Sequence[Report]) -> None:
        """Write the rows of records that come next, as far as they fill requests."""
        ids = [one.taken.id for one in found if one.taken is not None]
        seen = self._patience.keep(lambda: self._ledger.seen(ids))
        for one in found:
            self._done.reports.append(light(one))
            if one.taken is not None and one.taken.id not in seen:
                self._take(one, one.taken.id)

    def finish(self) -> Upserted:
        """Write what is left; returns what was done."""
        for waiting in self._waiting.values():
            if waiting.rows:
                self._flush(waiting)
        return self._done

    def _take(self, one: Report, document: str) -> None:
        assert one.taken is not None
        partition = one.topic, one.partition
        waiting = self._waiting.get(partition) or self._waiting.setdefault(partition, _Waiting(partition))
        if document in waiting.places:
            return
        waiting.places[document] = one.place
        waiting.rows += rows(one.taken)
        while len(waiting.rows) > self._bounds.rows:
            self._flush(waiting)

    def _flush(self, waiting: _Waiting) -> None:
        size = self._bounds.rows
        cut, waiting.rows = waiting.rows[:size], waiting.rows[size:]
        for request in requests(highest(cut), self._cost.of, self._bounds, waiting.name):
            self._done.requests += 1
            self._send(request, cut, waiting)
            self._passed()

    def _send(self, request: Request, cut: Sequence[Row], waiting: _Waiting) -> None:
        """Until each of its rows is written or refused. What a dead attempt wrote costs nothing now, but counts."""
        done, parts = self._done, deque([request])
        while parts:
            part = parts.popleft()
            done.tries, done.cost = done.tries + 1, done.cost + part.cost
            try:
                outcome = self._write(part)
            except _Refused as error:
                if len(part.rows) > 1:
                    parts.extendleft(reversed(list(self._halves(part, waiting))))
                    continue
                row, says = part.rows[0], error.diag.message_primary or str(error)
                done.guilty.append(Guilty(waiting.places[row.batch], row.metric, row.time_ms, says))
                older = [one for one in cut if one.id == row.id and one.version < row.version]
                if older:
                    parts.appendleft(self._request([max(older, key=lambda one: one.version)], waiting))
            else:
                done.written.append(part.id)
                done.inserted += outcome.inserted
                done.replaced += outcome.replaced

    def _halves(self, part: Request, waiting: _Waiting) -> Iterator[Request]:
        middle = len(part.rows) // 2
        for half in (part.rows[:middle], part.rows[middle:]):
            yield self._request(half, waiting)

    def _request(self, found: list[Row], waiting: _Waiting) -> Request:
        return Request(request_id(found, waiting.name), found, self._cost.of(found))

    def _write(self, request: Request) -> Outcome:
        if self._known is None:
            self._known = self._patience.keep(lambda: self._sink.outcomes(self._batch))
        known = self._known.get(request.id)
        if known is not None:
            return known

        def attempt(at_ns: int) -> Outcome:
            self._ledger.dispatch(at_ns, request.cost, len(request.rows))
            return self._sink.write(self._batch, request)

        return self._patience.keep(lambda: self._pacer.run(request.cost, attempt))
