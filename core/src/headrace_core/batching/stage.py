"""Batching as a stage: routed records in, batch documents and dead letters out (batching.md 9, architecture.md).

Records of kind `data` with the channel `m/<type>` are measurements; ticks and flushes are what they are; all other
records are counted as not a measurement. A crash of the stage before may write the same records again: their ids rise
in each partition, so whatever is not above the highest one seen is a repeat, counted and without any effect.

Counters are part of the state: `in` = not_measurement + repeat + accepted + invalid + duplicate + future + late.

The batcher, the counters and the highest ids live as long as a chunk and are written at its end (`Run.settle`).
"""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from headrace_core.batching import keys
from headrace_core.batching.ahead import NEVER, Ahead
from headrace_core.batching.config import BatchingConfig
from headrace_core.batching.engine import Batcher, derive
from headrace_core.batching.keys import Clock
from headrace_core.batching.messages import Batch, Cause, Close, Reason, Rejected
from headrace_core.batching.payload import readable
from headrace_core.stage import Emission, Headers, Record, header
from headrace_core.state import State, hold

SEEN = b"r"
COUNT = b"n"
CUT_BYTES = 65536
encode = msgspec.json.Encoder().encode
RESULTS = ("not_measurement", "repeat", "accepted", "invalid", "duplicate", "future", "late")
OPENED = {cause: f"opened.{cause}" for cause in Cause}
CLOSED = {close: f"closed.{close}" for close in Close}
BESIDE = ("raised", "ahead", "ticks")
"""Receipt times below the clock, accepted messages with `t > clock`, ticks read (batching.md 9)."""
COUNTERS = ("in", *RESULTS, *OPENED.values(), *CLOSED.values(), "members", "forgotten", *BESIDE)

Emit = Callable[[Emission], None]
Fields = tuple[bytes | None, bytes | None, bytes | None, bytes | None, bytes | None]
"""The headers kind, receipt_time, entity, channel and id."""


def fields_of(headers: Headers) -> Fields:
    """None for a header that is not there; of two with one name the first counts.

    Data comes with these six, in the order in which registration writes them, so they are taken by their places.
    """
    if len(headers) == 6:
        (a, kind), (b, receipt), (c, entity), (d, _), (e, channel), (f, ident) = headers
        if a == "kind" and b == "receipt_time" and c == "entity" and d == "topic" and e == "channel" and f == "id":
            return kind, receipt, entity, channel, ident
    found = dict(reversed(headers)).get
    return found("kind"), found("receipt_time"), found("entity"), found("channel"), found("id")


class Run:
    """What one chunk's records share: the batcher over `state`, the counts so far, the highest ids seen."""

    def __init__(self, state: State, config: BatchingConfig) -> None:
        self.state = state
        self.batcher = Batcher(state, config)
        self.counts: defaultdict[str, int] = defaultdict(int)
        self._seen: dict[bytes, tuple[int, int]] = {}
        self.held = hold(state, self.settle)

    def is_repeat(self, ident: bytes | None) -> bool:
        """Whether the id of the stage before, `stage:partition:offset:index`, is not above the highest seen."""
        if ident is None:
            return False
        front, _, index = ident.rpartition(b":")
        key, _, offset = front.rpartition(b":")
        if not (index.isdigit() and offset.isdigit() and len(index) <= 18 and len(offset) <= 18):
            return False
        if key.count(b":") != 1:
            return False
        place = int(offset), int(index)
        if place <= (self._seen.get(key) or self._read_seen(key)):
            return True
        self._seen[key] = place
        return False

    def _read_seen(self, key: bytes) -> tuple[int, int]:
        raw = self.state.get(SEEN + key)
        return (-1, -1) if raw is None else (keys.number_of(raw[:8]), keys.number_of(raw[8:]))

    def settle(self) -> None:
        """Write counts and ids; again without effect until more is counted."""
        batcher = self.batcher
        for cause, count in batcher.opened.items():
            self.counts[OPENED[cause]] += count
        batcher.opened = dict.fromkeys(Cause, 0)
        for name in ("forgotten", "raised", "ahead"):
            self.counts[name] += getattr(batcher, name)
            setattr(batcher, name, 0)
        for name, count in self.counts.items():
            if count:
                key = COUNT + name.encode()
                self.state.put(key, (int.from_bytes(self.state.get(key) or b"") + count).to_bytes(8))
        self.counts.clear()
        for key, (offset, index) in self._seen.items():
            self.state.put(SEEN + key, keys.rising(offset) + keys.rising(index))
        self._seen.clear()


class BatchingStage:
    """Runs a `Batcher` for each partition's state."""

    name = "batching"
    primary = keys.PRIMARY + SEEN + COUNT

    def __init__(self, config: BatchingConfig) -> None:
        self._config = config
        self._run: Run | None = None

    def apply(self, state: State, record: Record, emit: Emit) -> None:
        """Apply one routed record."""
        run = self._run
        if run is None or run.state is not state or not run.held:
            run = self._run = Run(state, self._config)
        outputs = self._outputs(run, record)
        if outputs:
            _put_out(run, record, outputs, emit)
        if not run.held:
            run.settle()

    def derive(self, state: State, key: bytes, value: bytes) -> None:
        """Write the derived keys of one primary item."""
        derive(state, key, value)

    def next_due(self, state: State) -> int | None:
        """The earliest deadline of an open batch."""
        due = Ahead(state, keys.DUE).next_ms
        return None if due == NEVER else due

    def follows_clock(self, state: State) -> bool:
        """Ticks come at every interval while a batch is open (4.5)."""
        return self.next_due(state) is not None

    def ages(self, state: State) -> Mapping[str, int]:
        """Age of the oldest open batch (9): the one with the earliest deadline, all of one timeout being equal."""
        return {"oldest_open": Batcher(state, self._config).oldest_age()}

    def gauges(self, state: State) -> Mapping[str, int]:
        """The counters, and how much is open and remembered."""
        counted = dict.fromkeys(COUNTERS, 0)
        counted.update({key[1:].decode(): int.from_bytes(value) for key, value in state.scan(COUNT, b"o")})
        clock = state.get(keys.CLOCK)
        counted["clock"] = msgspec.msgpack.decode(clock, type=Clock).now_ms if clock else 0
        counted["open_batches"] = sum(map(counted.__getitem__, OPENED.values()))
        counted["open_batches"] -= sum(map(counted.__getitem__, CLOSED.values()))
        counted["open_members"] = counted["accepted"] - counted["members"]
        counted["history"] = counted["members"] - counted.pop("forgotten")
        return counted

    def forget(self) -> None:
        """Empty the cache: a chunk that is given up leaves nothing behind."""
        self._run = None

    def _outputs(self, run: Run, record: Record) -> list[Batch | Rejected]:
        kind, receipt, entity, channel, ident = fields_of(record.headers)
        receipt_ms, counts = _receipt_ms(record, receipt), run.counts
        if kind == b"tick":
            counts["ticks"] += 1
            return run.batcher.tick(receipt_ms)
        if kind == b"flush":  # what was opened after the first one must not be flushed by its repeat
            return run.batcher.tick(receipt_ms) if run.is_repeat(ident) else run.batcher.flush(receipt_ms)
        counts["in"] += 1
        if run.is_repeat(ident):
            counts["repeat"] += 1
            return run.batcher.tick(receipt_ms)
        if kind != b"data" or channel is None or channel[:2] != b"m/" or channel.count(b"/") > 1:
            counts["not_measurement"] += 1
            return run.batcher.tick(receipt_ms)
        message = readable(record.value or b"", entity or b"", channel[2:], receipt_ms)
        if message is None:
            return run.batcher.unreadable(receipt_ms)
        outputs = run.batcher.message(message, receipt_ms)
        if not outputs or not isinstance(outputs[-1], Rejected):
            counts["accepted"] += 1
        return outputs


def _put_out(run: Run, record: Record, outputs: list[Batch | Rejected], emit: Emit) -> None:
    place = b"batching:%d:%d:" % (record.partition, record.offset)
    for index, output in enumerate(outputs):
        headers = (("id", b"%b%d" % (place, index)),)
        if isinstance(output, Batch):
            run.counts[CLOSED[output.close]] += 1
            run.counts["members"] += len(output.members)
            emit(Emission("batches", output.source.encode(), document(output), headers, record.partition))
        else:
            run.counts[output.reason.value] += 1
            if output.reason is not Reason.DUPLICATE:
                emit(Emission("dead-letter", record.key, letter(record, output), (*headers, ("stage", b"batching"))))


class MemberDocument(msgspec.Struct, frozen=True, gc=False):
    """A member in the batch document."""

    type: str
    time: int
    received: int
    value: msgspec.Raw


class BatchDocument(msgspec.Struct, frozen=True):
    """The batch document of batching.md 9: members in the order shown."""

    id: str
    source: str
    time: int
    opened_at: int
    closed_at: int
    close: str
    members: list[MemberDocument]


def document(batch: Batch) -> bytes:
    """The batch document of batching.md 9 as compact JSON."""
    members = [MemberDocument(m.type, m.event_ms, m.received_ms, msgspec.Raw(m.value)) for m in batch.members]
    close = batch.close.value
    return encode(
        BatchDocument(batch.id, batch.source, batch.from_ms, batch.opened_ms, batch.closed_ms, close, members)
    )


def letter(record: Record, rejected: Rejected) -> bytes:
    """The dead letter of a rejected message (registration.md 11): text if it is text, else Base64, cut at 64 KiB."""
    payload = (record.value or b"")[:CUT_BYTES]
    topic = header(record.headers, "topic")
    letter: dict[str, Any] = {
        "reason": str(rejected.reason),
        "detail": "",
        "root": record.key.decode(errors="replace") if record.key is not None else None,
        "topic": topic.decode(errors="replace") if topic is not None else None,
    }
    try:
        (record.value or b"").decode()  # the whole: it may be cut within a character
        letter["payload"] = payload.decode(errors="ignore")
    except UnicodeDecodeError:
        letter["payload_base64"] = base64.b64encode(payload).decode()
    letter["receipt_time"] = letter["lost_at"] = _receipt_ms(record, header(record.headers, "receipt_time"))
    if len(record.value or b"") > CUT_BYTES:
        letter["truncated"] = True
    return encode(letter)


def _receipt_ms(record: Record, carried: bytes | None) -> int:
    """4.2: the append time of the first topic, in the header `receipt_time`, before that of this one."""
    if carried is not None and carried.isdigit() and len(carried) <= 18:
        return int(carried)
    return record.append_ms
