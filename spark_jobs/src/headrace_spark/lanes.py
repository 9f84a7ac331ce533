"""Mode `lanes`: a destination that needs time order (spark-writer.md 4, packing.md 6 and 7).

Theory: a lane is a Kafka partition. In backlog mode each micro-batch is packed alone, with everything in it, as a pure
function of its records, so a repeat has the same requests under the same ids (stream mode: `lane_stream.py`). A lane
sends one request at a time; the next one goes only after the success of this one is recorded in `hr_sent`. A repeat
skips what is recorded, so at most the one request whose outcome is unknown goes twice. The record goes away with the
commit of the micro-batch. Tasks send, a lane is a queue of its own (`sending.py`).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, Protocol

import structlog

from headrace_core.packing.ids import batch_id
from headrace_core.packing.lane import Counts as Packing
from headrace_core.packing.lane import Lane, LaneState
from headrace_core.packing.settings import PackingSettings
from headrace_spark.counts import Counts
from headrace_spark.database import Transaction
from headrace_spark.exits import CorruptInput, Rejection
from headrace_spark.lane_numbers import LaneNumbers, Place
from headrace_spark.ledger import Ledger
from headrace_spark.outbox import Outbox
from headrace_spark.pacing import PausingPacing
from headrace_spark.patience import Patience
from headrace_spark.plan import Sifted, corrupt, headers, sift
from headrace_spark.sending import Carried, Courier, Packed
from headrace_spark.settings import Settings
from headrace_spark.sinks.callables import Context, Result
from headrace_spark.sinks.port import Batch, SinkDown
from headrace_spark.transforms.dead_letters import TRACED, DeadLetter, by_reason, fitted
from headrace_spark.transforms.records import Report
from headrace_spark.transforms.rows import Request, Row, rows, with_headers

_FIRST_WAIT_S: Final = 0.5
_LONGEST_WAIT_S: Final = 30.0
_log = structlog.get_logger("headrace_spark")


def pack(
    reports: Sequence[Report],
    fresh: Sequence[Report],
    settings: Settings,
    told: Callable[[Place, Packing], object] = lambda *_: None,
) -> list[Packed]:
    """The requests of every lane, each lane's in the order of sending. `reports` are all records of the micro-batch,
    `fresh` those with an effect; `told` gets the packer's counts of each lane."""
    lane = Lane(PackingSettings(max=settings.max, mode="backlog"))
    spans: dict[tuple[str, int], list[int]] = {}
    for one in reports:
        spans.setdefault((one.topic, one.partition), []).append(one.offset)
    return [
        found
        for place, offsets in sorted(spans.items())
        for found in _lane(lane, place, (min(offsets), max(offsets)), fresh, settings, told)
    ]


def _lane(
    lane: Lane,
    place: Place,
    span: tuple[int, int],
    fresh: Sequence[Report],
    settings: Settings,
    told: Callable[[Place, Packing], object],
) -> Iterator[Packed]:
    inside = [one for one in fresh if (one.topic, one.partition) == place and one.taken is not None]
    found, known = [row for one in inside if one.taken is not None for row in rows(one.taken)], headers(inside)
    numbers = [number.to_bytes(8, "big") for number in range(len(found))]
    ids = [f"{row.source}${row.metric}" for row in found]
    step = lane.step(LaneState(), ids, [row.time_ms for row in found], numbers, now_ms=0, end=True)
    told(place, step.counts)
    for index, batch in enumerate(step.batches):
        chunk = [found[int.from_bytes(value, "big")] for value in batch.values]
        name = batch_id(f"{place[0]}-{place[1]}", *span, index)
        request = with_headers(Request(name, chunk, settings.cost_of.of(chunk)), known)
        yield Packed(*place, span[0], request)


class LaneWriter:
    """The driver's part; as `BatchWriter`. `courier` sends the requests of each lane in order."""

    def __init__(
        self, settings: Settings, ledger: Ledger, outbox: Outbox, courier: Courier, patience: Patience
    ) -> None:
        self._settings = settings
        self._ledger = ledger
        self._outbox = outbox
        self._courier = courier
        self._patience = patience
        self.numbers = LaneNumbers(settings.max)

    def done(self, batch: Batch) -> bool:
        """True if the ledger has this micro-batch."""
        return self._patience.keep(lambda: self._ledger.done(batch))

    def write(self, batch: Batch, reports: Sequence[Report]) -> Counts:
        """Send every lane's requests in order. Raises `CorruptInput`, `SinkDown`, `Rejection`, `StateDown` or
        `OutboxDown`; then it is not committed, and a repeat goes on where it ended."""
        if corrupt(reports, self._settings.max_corrupt_share):
            raise CorruptInput(f"micro-batch {batch.batch_id}: too large a share of the rows is refused")
        keep, ids = self._patience.keep, {one.taken.id for one in reports if one.taken is not None}
        sifted = sift(reports, keep(lambda: self._ledger.seen(ids)), self._settings.job)
        packings: dict[Place, Packing] = {}
        packed = pack(reports, sifted.fresh, self._settings, packings.__setitem__)
        counts = self.deliver(batch, sifted, packed, sifted.ids)
        for place, found in packings.items():
            told = {"late": found.late, "cut": found.cut, "unsplittable": found.unsplittable, "untimed": found.untimed}
            self.numbers.add(place, told)
        return counts

    def deliver(
        self,
        batch: Batch,
        sifted: Sifted,
        packed: Sequence[Packed],
        ids: Collection[str],
        beside: Callable[[Transaction], None] = lambda _: None,
    ) -> Counts:
        """Send what is packed, in order, and commit the micro-batch, with the document ids and what `beside` writes.
        Raises as `write`."""
        keep = self._patience.keep
        if sifted.letters:
            self._outbox.send(sifted.letters)
        sent = keep(lambda: self._ledger.sent(batch))
        lanes: dict[tuple[str, int], list[Packed]] = {}
        for one in packed:
            if one.request.id not in sent:
                lanes.setdefault((one.topic, one.partition), []).append(one)
        carried = self._courier.carry(batch, list(lanes.values())) if lanes else Carried()
        ends = {**sent, **carried.ends}
        refused = [one for one in packed if ends[one.request.id]]
        counts = self._counted(sifted, packed, refused)
        counts.retries = sum(carried.retries.values())
        keep(lambda: self._ledger.commit(batch, counts, ids, time.time_ns() // 1_000_000, beside))
        for one in packed:
            name = one.request.id
            told = {"skipped": name in sent, "rejected": bool(ends[name]), "retries": carried.retries.get(name, 0)}
            self.numbers.add((one.topic, one.partition), {"requests": 1, "rows": len(one.request.rows), **told})
        return counts

    def _counted(self, sifted: Sifted, packed: Sequence[Packed], refused: Sequence[Packed]) -> Counts:
        counts = sifted.counts
        counts.rows = sum(len(one.request.rows) for one in packed)
        counts.rows_refused = sum(len(one.request.rows) for one in refused)
        counts.inserted = counts.rows - counts.rows_refused
        counts.requests = len(packed)
        counts.cost = sum(one.request.cost for one in packed)
        counts.dead_letters = by_reason(sifted.letters)
        if refused:
            counts.dead_letters["sink_rejected"] = len(refused)
        return counts


class LaneSink(Protocol):
    """A destination that takes a request whole or not at all."""

    def write(self, rows: Sequence[Row], context: Context) -> Result:
        """One request. Raises `SinkDown` if its outcome is unknown, `ConfigError` if none can ever be taken."""
        ...


class LaneSender:
    """Implements `Sender`. `cancelled` tells a function that nobody waits any more."""

    def __init__(
        self,
        settings: Settings,
        ledger: Ledger,
        sink: LaneSink,
        outbox: Outbox,
        pacer: PausingPacing,
        patience: Patience,
        cancelled: threading.Event | None = None,
    ) -> None:
        self._settings = settings
        self._ledger = ledger
        self._sink = sink
        self._outbox = outbox
        self._pacer = pacer
        self._patience = patience
        self._cancelled = cancelled or threading.Event()

    def stands(self, end: str) -> bool:  # noqa: ARG002
        """Whatever is recorded."""
        return True

    def send(self, batch: Batch, one: Packed) -> tuple[str, int]:
        """Until the destination has answered for good; the end is why it refused the content, else an empty text.
        Raises `SinkDown`, `Rejection`, `StateDown` and `OutboxDown`."""
        began_ns, wait, attempt = 0, _FIRST_WAIT_S, 1
        while True:
            result, sent_ns = self._attempt(batch, one, attempt)
            if result.outcome != "retry":
                break
            began_ns = began_ns or sent_ns  # waiting for capacity is no try
            waited_ms = (time.monotonic_ns() - began_ns) // 1_000_000
            if waited_ms >= self._settings.max_send_ms or self._patience.stopping():
                raise SinkDown(f"request {one.request.id} was not taken: {result.detail}")
            _log.warning("request not taken", request=one.request.id, detail=result.detail, attempt=attempt)
            if result.busy or result.retry_after_ms > 0:
                self._pacer.pause(result.retry_after_ms or None, "resource")
            self._patience.sleep(max(wait, result.retry_after_ms / 1000))
            wait, attempt = min(wait * 2, _LONGEST_WAIT_S), attempt + 1
        detail = (result.detail or "refused") if result.outcome == "reject" else ""
        if detail:
            self._refuse(one, detail, attempt)
        return detail, attempt - 1

    def _attempt(self, batch: Batch, one: Packed, attempt: int) -> tuple[Result, int]:
        """What became of one try, and when it went out."""
        request, sent_ns = one.request, 0

        def call(at_ns: int) -> Result:
            nonlocal sent_ns
            sent_ns = time.monotonic_ns()
            self._ledger.dispatch(at_ns, request.cost, len(request.rows))
            deadline_ns = at_ns + self._settings.max_send_ms * 1_000_000
            context = Context(
                batch.query_id, batch.batch_id, one.partition, attempt, request.id, deadline_ns, self._cancelled,
                request.headers,
            )  # fmt: skip
            return self._sink.write(request.rows, context)

        try:
            result = self._pacer.settled(request.cost, call, lambda answer: answer.charge)
        except SinkDown as error:
            result = Result("retry", str(error))
        self._pacer.answered(well=result.outcome != "retry")
        return result, sent_ns

    def _refuse(self, one: Packed, detail: str, attempts: int) -> None:
        if self._settings.on_reject == "stop":
            raise Rejection(f"request {one.request.id} was refused: {detail}")
        self._outbox.send([parked(one, detail, attempts, self._settings.job)])


def parked(one: Packed, detail: str, attempts: int, job: str) -> DeadLetter:
    """The dead letter of a request whose content was refused. Its times are of its content, not of a clock."""
    closed_at, shared = max(row.closed_at for row in one.request.rows), common(one.request)
    document = {
        "reason": "sink_rejected",
        "detail": detail,
        "root": one.request.rows[0].source.split("/")[0],
        "topic": one.topic,
        "receipt_time": closed_at,
        "lost_at": closed_at,
        "partition": one.partition,
        "offset": one.first,
        "key": None,
        "headers": shared,
        "job": job,
        "attempts": attempts,
    }
    payload = json.dumps([_plain(row) for row in one.request.rows], separators=(",", ":")).encode()
    traced = [(name, value.encode()) for name, value in shared.items() if name in TRACED]
    return fitted(None, document, payload, f"{job}:{one.request.id}", traced)


def common(request: Request) -> dict[str, str]:
    """The carried headers that all documents of a request have alike."""
    each = [request.headers.get(name, {}) for name in dict.fromkeys(row.batch for row in request.rows)]
    return {name: value for name, value in each[0].items() if all(one.get(name) == value for one in each)}


def _plain(row: Row) -> dict[str, object]:
    return {name: getattr(row, name) for name in row.__struct_fields__}
