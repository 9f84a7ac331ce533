"""Mode `lanes` in stream mode, the driver's side: what tasks packed, tasks send, each lane's requests in order."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

import msgspec
import structlog

from headrace_spark.counts import Counts, from_items
from headrace_spark.database import Database, Transaction
from headrace_spark.exits import CorruptInput
from headrace_spark.jobs.by_tasks import ByTasks, checked_effects
from headrace_spark.lane_stream import LaneStep, SeenDocuments
from headrace_spark.lanes import LaneWriter
from headrace_spark.plan import Sifted, breaks
from headrace_spark.sending import Packed
from headrace_spark.settings import Settings
from headrace_spark.sinks.port import Batch
from headrace_spark.transforms.rows import Request

_log = structlog.get_logger("headrace_spark")


class StreamLanes(ByTasks):
    """Implements `Way`: what comes is the steps of lanes, packed by tasks; a second stage sends the requests."""

    def make(self) -> None:
        """See `ByTasks`."""
        checked_effects(self.settings, "a request")
        self._seen = SeenDocuments(Database(self.settings.state_dsn), self.settings.seen_retention_ms)
        self._writer = LaneWriter(self.settings, self.ledger, self.outbox, self.courier, self.patience)
        self.pacer.beside = self._writer.numbers

    def prepare(self) -> None:
        self._seen.prepare()

    def done(self, batch: Batch) -> bool:  # noqa: ARG002
        """Never before its tasks have run: they must make the state that the next micro-batch begins with."""
        return False

    def write(self, frame: Any, batch: Batch) -> Counts | None:
        """Run the tasks that pack, then those that send. The frame must run exactly once in a micro-batch."""
        self.courier.on(frame)
        decode = msgspec.msgpack.Decoder(LaneStep).decode
        steps = sorted(
            map(decode, frame.toArrow().column("step").to_pylist()), key=lambda one: (one.topic, one.partition)
        )
        if self._writer.done(batch):
            _log.info("the ledger has this micro-batch", batch_id=batch.batch_id)
            return None
        self.faults.passed("begun", batch.batch_id)
        if breaks(sum(one.refused for one in steps), sum(one.judged for one in steps), self.settings.max_corrupt_share):
            raise CorruptInput(f"micro-batch {batch.batch_id}: too large a share of the rows is refused")
        if not any(one.counts.records or one.packets for one in steps):
            return Counts()  # no lane has records or anything due: nothing to remember
        self.pacer.skew = skew(steps) or self.pacer.skew
        counts = self._deliver(batch, steps)
        self.faults.passed("written", batch.batch_id)
        _log.info("lanes", batch_id=batch.batch_id, **summed(steps))
        return counts

    def _deliver(self, batch: Batch, steps: Collection[LaneStep]) -> Counts:
        ids = {each for one in steps for each in one.ids}
        now_ms = max(one.now_ms for one in steps)

        def beside(at: Transaction) -> None:
            self._seen.record(at, batch.query_id, batch.batch_id, ids, now_ms)

        letters = [letter for one in steps for letter in one.letters]
        sifted = Sifted([], letters, ids, together(steps))
        counts = self._writer.deliver(batch, sifted, list(requests(steps, self.settings)), (), beside)
        for one in steps:
            self._tell(one)
        return counts

    def _tell(self, one: LaneStep) -> None:
        """The lane's metrics."""
        place, numbers = (one.topic, one.partition), self._writer.numbers
        told = {name: getattr(one, name) for name in ("late", "cut", "unsplittable", "untimed")}
        numbers.add(place, {**told, "closing_seconds": one.closing_ms / 1000})
        numbers.wait(place, one.waiting)


def skew(steps: Collection[LaneStep]) -> float:
    """The largest part of the rows that came now that one key (source) has; a source has one lane. 0 without rows."""
    taken = sum(one.taken for one in steps)
    return max(one.largest for one in steps) / taken if taken else 0.0


def requests(steps: Iterable[LaneStep], settings: Settings) -> Iterator[Packed]:
    """The requests of all lanes, each lane's in the order of sending."""
    for one in steps:
        for packet in one.packets:
            request = Request(packet.id, packet.rows, settings.cost_of.of(packet.rows), packet.headers)
            yield Packed(one.topic, one.partition, one.first, request)


def together(steps: Iterable[LaneStep]) -> Counts:
    """The counts of a micro-batch from those of its lanes."""
    total: dict[str, int] = {}
    for one in steps:
        for name, number in one.counts.items().items():
            total[name] = total.get(name, 0) + number
    return from_items({**total, "microbatches": 1})


def summed(steps: Collection[LaneStep]) -> dict[str, int]:
    """The numbers of packing.md 7 over all lanes of a micro-batch."""
    names = ("waiting", "late", "cut", "unsplittable", "untimed")
    return {name: sum(getattr(one, name) for one in steps) for name in names}
