"""One micro-batch of mode `keyed` for a destination that answers for each row (spark-writer.md 7 and 8).

Theory: the plan is that of the direct path. Tasks try each request until all its rows have an end, and record its
`Ended` (`sending.py`), so a repeat after a kill goes on where it was. Of a row that the destination rejects, the next
older one of the same key and micro-batch is sent then. What was not written is told when
all requests have ended: a dead letter for each member that was rejected, or is late for the last time; the record
again, with its members that are late, to the delayed retry topic. Both are acknowledged before the commit.

The id of a document of which something is late is not remembered as seen: it comes again and must have its effect then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterator, Sequence

import msgspec

from headrace_core.errors import HeadraceError
from headrace_spark.attempts import Attempts, Ended
from headrace_spark.counts import Counts
from headrace_spark.exits import CorruptInput
from headrace_spark.faults import NO_FAULTS, Faults
from headrace_spark.ledger import Ledger
from headrace_spark.outbox import Outbox
from headrace_spark.patience import Patience
from headrace_spark.plan import Plan, breaks, corrupt, headers, older, plan
from headrace_spark.sending import Carried, Courier, Packed
from headrace_spark.settings import Settings
from headrace_spark.sinks.port import Batch, Outcome
from headrace_spark.transforms.dead_letters import DeadLetter, by_reason, letter
from headrace_spark.transforms.records import Place, Record, Report, elements, origin, returned
from headrace_spark.transforms.retries import Delayed, delayed
from headrace_spark.transforms.rows import Headers, Request, Row, highest, requests, with_headers

Fetch = Callable[[Sequence[Place]], Sequence[Record]]
_decode = msgspec.json.Decoder(Ended).decode
WAVES = 8
"""Rows of one key that are sent one after the other in a micro-batch, for each is a stage of tasks."""


class Exhausted(HeadraceError):
    """Rows were not taken by any try, and the job is to fail then (`on_exhausted = "fail"`)."""

    code = "retries_exhausted"
    retry = True


class _Left(msgspec.Struct, frozen=True):
    """A row that was not written; `reason` is empty for one that is late."""

    row: Row
    reason: str
    detail: str


class KeyedSender:
    """Implements `Sender`: tries a request until all its rows have an end. Raises `Exhausted` besides what `Attempts`
    raises."""

    def __init__(self, settings: Settings, attempts: Attempts) -> None:
        self._settings = settings
        self._attempts = attempts

    def stands(self, end: str) -> bool:
        """See `stands`."""
        return stands(self._settings, end)

    def send(self, batch: Batch, one: Packed) -> tuple[str, int]:
        """The end is an `Ended`, which has all tries."""
        end = self._attempts.send(batch, one.request)
        if end.late and self._settings.on_exhausted == "fail":
            detail = next(iter(end.late.values()))
            raise Exhausted(f"{len(end.late)} rows of request {one.request.id} were not taken: {detail}")
        return msgspec.json.encode(end).decode(), 0


def stands(settings: Settings, end: str) -> bool:
    """Whether a recorded end is one for this job: what is late is none for a strict job."""
    return settings.on_exhausted != "fail" or not _decode(end).late


class KeyedWriter:
    """The driver's part; as `BatchWriter`. `retries` is where delayed records go; `now_ms` the wall clock."""

    def __init__(
        self,
        settings: Settings,
        ledger: Ledger,
        courier: Courier,
        outbox: Outbox,
        retries: Outbox,
        patience: Patience,
        *,
        faults: Faults = NO_FAULTS,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._settings = settings
        self._ledger = ledger
        self._courier = courier
        self._outbox = outbox
        self._retries = retries
        self._patience = patience
        self._faults = faults
        self._now_ms = now_ms

    def done(self, batch: Batch) -> bool:
        """True if the ledger has this micro-batch."""
        return self._patience.keep(lambda: self._ledger.done(batch))

    def write(self, batch: Batch, reports: Sequence[Report], fetch: Fetch) -> Counts:
        """Give the micro-batch its effect. `fetch` brings records again. Raises `CorruptInput`, `Exhausted`,
        `SinkDown`, `StateDown`, `OutboxDown` or `ConfigError`; then it is not committed, and a repeat goes on where it
        ended."""
        if corrupt(reports, self._settings.max_corrupt_share):
            raise CorruptInput(f"micro-batch {batch.batch_id}: too large a share of the rows is refused")
        keep, ids = self._patience.keep, {one.taken.id for one in reports if one.taken is not None}
        seen = keep(lambda: self._ledger.seen(ids))
        settings = self._settings
        planned = plan(reports, seen, settings.job, settings.cost_of, settings.bounds, settings.keying)
        ended, behind = self._ended(batch, planned, headers(reports))
        self._faults.passed("sent", batch.batch_id)
        left = [*(one for request, end in ended for one in _left(request, end)), *behind]
        letters, records, late = self._told(left, reports, fetch)
        letters = [*planned.letters, *letters]
        if letters:
            self._outbox.send(letters)
        if records:
            self._retries.send(records)
        counts = _counted(planned, [end for _, end in ended], letters)
        counts.records_postponed = len(records)
        counts.rows_postponed = sum(one.row.batch in late for one in left if not one.reason)
        counts.rows_refused = len(left) - counts.rows_postponed
        keep(lambda: self._ledger.commit(batch, counts, planned.ids - late, self._now_ms()))
        return counts

    def _ended(self, batch: Batch, planned: Plan, known: Headers) -> tuple[list[tuple[Request, Ended]], list[_Left]]:
        """What became of all requests, and of the rows behind those that were not written. Of a key whose newest row
        is rejected the next one goes out, `WAVES` times at most; what is behind a late row is late with it, as that one
        may be rejected when it comes back."""
        settings, keying, counts = self._settings, self._settings.keying, planned.counts
        wave, behind, ended, left = planned.requests, planned.behind, list[tuple[Request, Ended]](), list[_Left]()
        for turn in range(WAVES if wave else 0):
            if turn:
                going = highest(behind, keying)
                cut = requests(going, settings.cost_of.of, settings.bounds)
                wave, gone = [with_headers(one, known) for one in cut], set(map(id, going))
                behind = [row for row in behind if id(row) not in gone]
                counts.requests += len(wave)
                counts.repeats -= len(going)
            answered = self._send(batch, wave)
            if not turn:
                self._refuse_to_drain(batch, answered)
            ended += answered
            late = [request.rows[index] for request, end in answered for index in end.late]
            left += [_Left(row, "", "a newer row of its key was not taken") for row in older(late, behind, keying)]
            refused = [request.rows[index] for request, end in answered for index in end.rejected]
            behind = older(refused, behind, keying)
            if not behind:
                break
        unsent = f"not sent: {WAVES} newer rows of its key were rejected"
        left += [_Left(row, "sink_rejected", unsent) for row in behind]
        counts.repeats -= len(left)
        return ended, left

    def _send(self, batch: Batch, wave: Sequence[Request]) -> list[tuple[Request, Ended]]:
        """What became of each request; what is recorded does not go out again."""
        known = self._patience.keep(lambda: self._ledger.sent(batch))
        stays = {name for name, text in known.items() if stands(self._settings, text)}
        queues = [[Packed("", -1, 0, one)] for one in wave if one.id not in stays]
        carried = self._courier.carry(batch, queues) if queues else Carried()
        ends = {**known, **carried.ends}
        return [(one, _decode(ends[one.id])) for one in wave]

    def _refuse_to_drain(self, batch: Batch, ended: Sequence[tuple[Request, Ended]]) -> None:
        """The circuit breaker of spark-writer.md 3 for what the sink refuses: no dead letter has gone out. What was
        refused is asked again at the next start, when somebody has looked at the sink."""
        guilty, rows = sum(len(end.rejected) for _, end in ended), sum(len(one.rows) for one, _ in ended)
        if breaks(guilty, rows, self._settings.max_corrupt_share):
            names = [one.id for one, end in ended if end.rejected]
            self._patience.keep(lambda: self._ledger.forget_sent(batch, names))
            raise CorruptInput(f"micro-batch {batch.batch_id}: the sink refuses {guilty} of {rows} rows")

    def _told(
        self, left: Sequence[_Left], reports: Sequence[Report], fetch: Fetch
    ) -> tuple[list[DeadLetter], list[Delayed], set[str]]:
        """Dead letters, records for the retry topic, and the ids of their documents."""
        documents: dict[str, list[_Left]] = {}
        for one in left:
            documents.setdefault(one.row.batch, []).append(one)
        places = _places(reports, documents.keys())
        records = {(one.topic, one.partition, one.offset): one for one in fetch(list(places.values()))} if left else {}
        letters: list[DeadLetter] = []
        again: list[Delayed] = []
        late: set[str] = set()
        for name, place in sorted(places.items(), key=lambda one: one[1]):
            found, postponed = self._document(name, records[place], documents[name])
            letters += found
            if postponed is not None:
                again.append(postponed)
                late.add(name)
        return letters, again, late

    def _document(self, name: str, record: Record, left: Sequence[_Left]) -> tuple[list[DeadLetter], Delayed | None]:
        """What is told of a document of which not everything was written."""
        settings, topic = self._settings, self._settings.again_topic
        past, _ = returned(record, topic)
        known = origin(record, topic)
        element = elements(record, settings.max_document_bytes, settings.dearest, topic)
        last = past >= settings.max_rounds
        refused: dict[int, list[_Left]] = {}
        late: set[int] = set()
        for one in left:
            number = element[one.row.metric, one.row.time_ms]
            if one.reason or last:
                refused.setdefault(number, []).append(one)
            else:
                late.add(number)
        letters = []
        for number, rows in sorted(refused.items()):
            reason = max(one.reason or "retries_exhausted" for one in rows)  # what is for good comes later in the ABC
            details = "; ".join(f"{one.row.metric}: {one.detail}" for one in rows)
            letters.append(letter(known, settings.job, reason, details, number, _tries(settings, past, reason)))
        return letters, delayed(known, name, late, self._now_ms(), past) if late else None


def _tries(settings: Settings, past: int, reason: str) -> int:
    """How often the member was sent: all tries of all rounds before, and of this one, if they are over."""
    return (past + 1) * settings.max_attempts if reason == "retries_exhausted" else past * settings.max_attempts + 1


def _places(reports: Sequence[Report], wanted: Container[str]) -> dict[str, Place]:
    """Where each document that had its effect here stands: the first place, as in `sift`."""
    found: dict[str, Place] = {}
    for one in sorted(reports, key=lambda report: report.place):
        if one.taken is not None and one.taken.id in wanted:
            found.setdefault(one.taken.id, one.place)
    return found


def _left(request: Request, end: Ended) -> Iterator[_Left]:
    for index, detail in sorted({**end.rejected, **end.late}.items()):
        yield _Left(request.rows[index], end.reasons.get(index, ""), detail)


def _counted(planned: Plan, ended: Sequence[Ended], letters: Sequence[DeadLetter]) -> Counts:
    counts, total = planned.counts, sum((end.outcome for end in ended), Outcome())
    counts.inserted, counts.replaced = total.inserted, total.replaced
    counts.repeats += total.repeats
    counts.retries = sum(end.tries for end in ended) - len(ended)
    counts.cost = sum(end.cost for end in ended)
    counts.charged = sum(end.charged for end in ended)
    counts.dead_letters = by_reason(letters)
    return counts
