"""Replay audit (spark-writer.md 11): what the batcher should have put out, by its own engine, beside what it did.

Theory: the engine is a pure function of its log, so the same log gives the same batches. What is unknown is the state
with which the range begins. A warm-up before the range makes it: 2 x (timeout + horizon), after which everything that
could still be open or remembered came from the warm-up itself. Batches opened in it may lack members, and batches that
are open at the end are not out yet; neither is judged.

    read from             judged from                   end
       |---- warm-up ----------|-------- range ----------|
       opened here: unjudged     opened and closed: judged; still open: unjudged

The ids of the open batches are asked of the engine by a flush over a state that is thrown away. A batch of the topic
that the engine does not know is judged by its `opened_at`: it is extra if that is inside the range.

A log that begins at offset 0 has no past, and needs no warm-up. One that was cut inside the warm-up is judged only once
its clock has gone on by the length of the warm-up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Final, Literal

import msgspec

from headrace_core.batching.config import BatchingConfig
from headrace_core.batching.stage import BatchingStage
from headrace_core.errors import ConfigError
from headrace_core.stage import Emission, Record, header
from headrace_core.state import MemoryState, Overlay
from headrace_spark.ranges import Range

FIELD: Final = "audit.batching"
Side = Literal["expected", "unjudged", "actual", "outside"]


class Audit(Range, frozen=True, kw_only=True):
    """The table `[audit]` of the job file. `routed` is the topic that the batcher reads, `<prefix>routed` if empty;
    `batches` the one it writes. `batching` are its settings at that time, those of batching.md 3 by name."""

    routed: str = ""
    batches: str = ""
    batching: dict[str, int] = msgspec.field(default_factory=dict)

    @property
    def config(self) -> BatchingConfig:
        """Raises `ConfigError`."""
        known = set(BatchingConfig.__dataclass_fields__)
        for name in self.batching:
            if name not in known:
                raise ConfigError(f"{FIELD}.{name}", "is not a setting of the batcher")
        try:
            return BatchingConfig(**self.batching)
        except ConfigError as error:
            raise ConfigError(FIELD, str(error)) from None


def warm_up_ms(config: BatchingConfig) -> int:
    """How long the log must be read before the range."""
    return 2 * (config.timeout + config.horizon)


class Plan(msgspec.Struct, frozen=True):
    """One partition: judged from offset `first`, and if `cut` (the log begins inside the warm-up) not before its clock
    has gone on by `warm_up_ms` from its first record."""

    partition: int
    first: int
    cut: bool
    warm_up_ms: int


class Line(msgspec.Struct, frozen=True):
    """One batch on one side of the comparison. `digest` is of its bytes."""

    partition: int
    id: str
    source: str
    side: Side
    digest: str


class Edge(msgspec.Struct, frozen=True):
    """Where judging began and ended in a partition: the clock before its first record and after its last one, the
    offset after the last. `records` were read, `judged` of them after the warm-up; none: nothing could be judged."""

    partition: int
    from_ms: int
    to_ms: int
    next: int
    records: int
    judged: int


class Replay:
    """One partition's log through the engine, chunk by chunk."""

    def __init__(self, config: BatchingConfig, plan: Plan) -> None:
        self._stage = BatchingStage(config)
        self._state = MemoryState()
        self._plan = plan
        self._settled_ms: int | None = None
        self._warm: set[str] | None = None
        """Open when judging began; None: it has not begun."""
        self._from_ms = self._next = -1
        self._records = self._judged = 0

    def feed(self, records: Sequence[Record]) -> Iterator[Line]:
        """The batches that these records put out, in order."""
        start = 0
        if self._warm is None:
            start = next((at for at, one in enumerate(records) if self._settled(one)), len(records))
            yield from self._lines(self._apply(records[:start]), "unjudged")
            if start < len(records):
                self._from_ms = self._clock() if self._records else -1
                self._warm = {one.id for one in self._open()}
        if start < len(records):
            rest = records[start:]
            yield from self._lines(self._apply(rest), "expected")
            self._judged += len(rest)

    def finish(self) -> tuple[list[Line], Edge]:
        """After the last record: what is open, and where judging began and ended."""
        still = [Line(self._plan.partition, one.id, one.source, "unjudged", "") for one in self._open()]
        edge = Edge(self._plan.partition, self._from_ms, self._clock(), self._next, self._records, self._judged)
        return still, edge

    def _settled(self, record: Record) -> bool:
        """Whether judging begins with this record."""
        if self._plan.cut and self._settled_ms is None:
            self._settled_ms = receipt_ms(record) + self._plan.warm_up_ms
        past = self._settled_ms is None or receipt_ms(record) >= self._settled_ms
        return past and record.offset >= self._plan.first

    def _apply(self, records: Sequence[Record]) -> list[Emission]:
        out: list[Emission] = []
        overlay, apply, emit = Overlay(self._state), self._stage.apply, out.append
        for record in records:
            apply(overlay, record, emit)
        self._state.commit(overlay.mutations)
        self._records += len(records)
        if records:
            self._next = records[-1].offset + 1
        return out

    def _lines(self, out: Sequence[Emission], side: Side) -> Iterator[Line]:
        for one in out:
            if one.topic == "batches" and one.value is not None:
                name = named(one.value)
                known = side if self._warm is None or name.id not in self._warm else "unjudged"
                yield Line(self._plan.partition, name.id, name.source, known, digest(one.value))

    def _open(self) -> list[Name]:
        """The batches that are open now. The flush is applied to an overlay that nobody keeps."""
        out: list[Emission] = []
        flush = Record(self._plan.partition, self._next, 0, None, b"", (("kind", b"flush"),))
        self._stage.apply(Overlay(self._state), flush, out.append)
        self._stage.forget()
        return [named(one.value) for one in out if one.topic == "batches" and one.value is not None]

    def _clock(self) -> int:
        return self._stage.gauges(self._state)["clock"]


class Name(msgspec.Struct, frozen=True):
    """What the audit reads of a batch document."""

    id: str
    source: str
    opened_at: int


named = msgspec.json.Decoder(Name).decode


def digest(value: bytes) -> str:
    """Of a document's bytes."""
    return hashlib.blake2b(value, digest_size=16).hexdigest()


def actual(record: Record, edge: Edge | None) -> Line:
    """A record of the batched topic. `edge` of its partition; None: nothing of it is judged."""
    value = record.value or b""
    emitted = _emitted_by(record)
    try:
        name = named(value)
        inside = edge is not None and _inside(name.opened_at, emitted, edge)
    except msgspec.DecodeError:
        name = Name(f"unreadable at offset {record.offset}", (record.key or b"").decode(errors="replace"), 0)
        inside = edge is not None and (emitted is None or emitted < edge.next)
    return Line(record.partition, name.id, name.source, "actual" if inside else "outside", digest(value))


def receipt_ms(record: Record) -> int:
    """The receipt time that the batcher sees, near enough to find the warm-up (batching.md 4.2)."""
    carried = header(record.headers, "receipt_time")
    return int(carried) if carried is not None and carried.isdigit() and len(carried) <= 18 else record.append_ms


def _inside(opened_ms: int, emitted: int | None, edge: Edge) -> bool:
    """Whether a batch that the engine did not make belongs into the range. At the very last millisecond it may have
    been opened by a record after the range, which the offset in its id tells."""
    if opened_ms == edge.to_ms:
        return emitted is not None and emitted < edge.next
    return edge.from_ms < opened_ms < edge.to_ms


def _emitted_by(record: Record) -> int | None:
    """The offset of the routed record that put the batch out, by the header `id` (`stage:partition:offset:index`)."""
    first = record.headers[0] if record.headers else ("", b"")
    parts = (first[1] if first[0] == "id" else header(record.headers, "id") or b"").split(b":")
    return int(parts[2]) if len(parts) == 4 and parts[2].isdigit() else None
