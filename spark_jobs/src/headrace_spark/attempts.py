"""One request of mode `keyed`, tried until each of its rows has an end (spark-writer.md 7 and 8).

Theory: a try sends rows and gets a verdict for each. What is done or rejected has its end; the rest goes again, alone,
after a pause of the batcher, until `max_attempts` tries are over; then it is late. A request that is too large is cut
in halves, which are tried instead of it with the tries that are left; a single row that is too large is rejected. So
rows only ever leave: for `done`, `rejected` or `late`, each once.

A store that cannot be reached at all is no try: the job waits for it (`patience.py`).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

import msgspec
import structlog

from headrace_core.capacity.learned import LearnedCost
from headrace_spark.ledger import Ledger
from headrace_spark.pacing import PausingPacing
from headrace_spark.patience import Patience
from headrace_spark.settings import Settings
from headrace_spark.sinks.answers import AGAIN, Answer, Destination, Verdict
from headrace_spark.sinks.callables import Context
from headrace_spark.sinks.port import Batch, Outcome
from headrace_spark.transforms.rows import Request, Row, request_id

_log = structlog.get_logger("headrace_spark")


class Ended(msgspec.Struct, frozen=True):
    """What became of a request, kept in the state store until the micro-batch is committed. `rejected` and `late` by
    the index of the row, with a detail; `reasons` of what is rejected, `tries` of all its parts, and what they cost."""

    inserted: int = 0
    replaced: int = 0
    repeats: int = 0
    rejected: dict[int, str] = {}
    reasons: dict[int, str] = {}
    late: dict[int, str] = {}
    tries: int = 0
    cost: int = 0
    charged: int = 0

    @property
    def outcome(self) -> Outcome:
        """What had an effect, or was there."""
        return Outcome(self.inserted, self.replaced, self.repeats)


class _Part(msgspec.Struct, frozen=True):
    """Rows, by their index in the request, that go out together; `attempt` counts from 1."""

    indexes: list[int]
    attempt: int


class _Tally:
    """Collects the ends of the rows."""

    def __init__(self) -> None:
        self.done = {"inserted": 0, "replaced": 0, "repeat": 0}
        self.rejected: dict[int, str] = {}
        self.reasons: dict[int, str] = {}
        self.late: dict[int, str] = {}
        self.tries = self.cost = self.charged = 0

    def reject(self, index: int, reason: str, detail: str) -> None:
        self.rejected[index], self.reasons[index] = detail, reason

    def ended(self) -> Ended:
        return Ended(
            self.done["inserted"], self.done["replaced"], self.done["repeat"],
            self.rejected, self.reasons, self.late, self.tries, self.cost, self.charged,
        )  # fmt: skip


class Attempts:
    """Sends requests, of several threads at a time. `learned` is what the process knows of charges, if costs are
    learned; `cancelled` tells a destination that nobody waits any more."""

    def __init__(
        self,
        settings: Settings,
        ledger: Ledger,
        destination: Destination,
        pacer: PausingPacing,
        patience: Patience,
        learned: LearnedCost | None = None,
        cancelled: threading.Event | None = None,
    ) -> None:
        self._settings = settings
        self._ledger = ledger
        self._destination = destination
        self._pacer = pacer
        self._patience = patience
        self._learned = learned
        self.cancelled = cancelled or threading.Event()

    def send(self, batch: Batch, request: Request) -> Ended:
        """Try until every row has its end. Raises `SinkDown`, `StateDown`, `ConfigError`, and what a function
        raises."""
        tally = _Tally()
        parts = deque([_Part(list(range(len(request.rows))), 1)])
        while parts:
            part = parts.popleft()
            answer = self._try(batch, request, [request.rows[index] for index in part.indexes], part.attempt, tally)
            parts.extendleft(reversed(self._next(part, answer, tally)))
        return tally.ended()

    def _next(self, part: _Part, answer: Answer, tally: _Tally) -> list[_Part]:
        """Note the ends; returns what goes out again."""
        if answer.too_large:
            return _halves(part, tally)
        again: dict[int, Verdict] = {}
        for index, verdict in zip(part.indexes, answer.verdicts, strict=True):
            if verdict.became in AGAIN:
                again[index] = verdict
            elif verdict.became == "rejected":
                tally.reject(index, "sink_rejected", verdict.detail)
            else:
                tally.done[verdict.became] += 1
        if not again:
            return []
        detail = next(iter(again.values())).detail
        _log.warning("rows not taken", rows=len(again), detail=detail, attempt=part.attempt)
        self._pacer.pause(answer.retry_after_ms, "resource" if answer.busy else "instance")
        if part.attempt < self._settings.max_attempts:
            return [_Part(list(again), part.attempt + 1)]
        tally.late.update({index: verdict.detail for index, verdict in again.items()})
        return []

    def _try(self, batch: Batch, request: Request, rows: Sequence[Row], attempt: int, tally: _Tally) -> Answer:
        cost, name = self._cost(rows), request_id(rows)

        def call(at_ns: int) -> Answer:
            self._ledger.dispatch(at_ns, cost, len(rows))
            tally.tries += 1
            tally.cost += cost
            deadline_ns = at_ns + self._settings.request_timeout_ms * 1_000_000
            context = Context(
                batch.query_id, batch.batch_id, -1, attempt, name, deadline_ns, self.cancelled, request.headers
            )
            return self._destination.send(rows, context)

        charge: Callable[[Answer], int | None] = lambda answer: answer.charge  # noqa: E731
        answer = self._patience.keep(lambda: self._pacer.settled(cost, call, charge))
        tally.charged += answer.charge or 0
        if self._learned is not None and answer.charge is not None and not answer.too_large:
            self._learned.learn(rows, answer.charge)
        self._pacer.answered(well=not any(verdict.became in AGAIN for verdict in answer.verdicts))
        return answer

    def _cost(self, rows: Sequence[Row]) -> int:
        """Units of one try, fixed when it is enqueued. What is learned may be above the capacity; it goes out alone."""
        if self._learned is None:
            return self._settings.cost_of.of(rows)
        estimate = self._learned(rows)
        assert isinstance(estimate, int), "a charge has one dimension"
        return min(estimate, self._settings.request_capacity)


def learning(settings: Settings) -> LearnedCost | None:
    """What a process learns of charges, if the job's costs are learned."""
    return LearnedCost(settings.cost_of.of, len) if settings.cost_of.learned else None


def _halves(part: _Part, tally: _Tally) -> list[_Part]:
    if len(part.indexes) == 1:
        tally.reject(part.indexes[0], "too_large", "the destination does not take a request with this row alone")
        return []
    middle = len(part.indexes) // 2
    return [_Part(half, part.attempt) for half in (part.indexes[:middle], part.indexes[middle:])]
