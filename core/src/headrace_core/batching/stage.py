"""Batching as a stage: routed records in, batch documents and dead letters out (batching.md 9, architecture.md).

Records of kind `data` with the channel `m/<type>` are measurements; ticks and flushes are what they are; all other
records are counted as not a measurement. A crash of the stage before may write the same records again: their ids rise
in each partition, so whatever is not above the highest one seen is a repeat, counted and without any effect.

Counters are part of the state: `in` = not_measurement + repeat + accepted + invalid + duplicate + future + late.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import msgspec

from headrace_core.batching import keys
from headrace_core.batching.config import BatchingConfig
from headrace_core.batching.engine import Batcher, derive
from headrace_core.batching.event_time import event_ms
from headrace_core.batching.keys import Clock
from headrace_core.batching.messages import Batch, Cause, Close, Message, Reason, Rejected
from headrace_core.stage import Emission, Record, header
from headrace_core.state import State

SEEN = b"r"
COUNT = b"n"
CUT_BYTES = 65536
PAYLOAD = msgspec.json.Decoder(dict[str, msgspec.Raw])
TIME = msgspec.json.Decoder(float_hook=Decimal)
encode = msgspec.json.Encoder().encode
RESULTS = ("not_measurement", "repeat", "accepted", "invalid", "duplicate", "future", "late")
OPENED = tuple(f"opened.{cause}" for cause in Cause)
CLOSED = tuple(f"closed.{close}" for close in Close)
COUNTERS = ("in", *RESULTS, *OPENED, *CLOSED, "members", "forgotten")

Emit = Callable[[Emission], None]


class BatchingStage:
    """Runs a `Batcher` for each partition's state."""

    name = "batching"
    primary = keys.PRIMARY + SEEN + COUNT

    def __init__(self, config: BatchingConfig) -> None:
        self._config = config

    def apply(self, state: State, record: Record, emit: Emit) -> None:
        """Apply one routed record."""
        kind = header(record.headers, "kind")
        batcher, receipt_ms = Batcher(state, self._config), _receipt_ms(record)
        if kind == b"tick":
            outputs = batcher.tick(receipt_ms)
        elif kind == b"flush":
            again = _is_repeat(state, record)  # what was opened after the first one must not be flushed by its repeat
            outputs = batcher.tick(receipt_ms) if again else batcher.flush(receipt_ms)
        else:
            outputs = self._data(state, batcher, record, receipt_ms)
        _count(state, "forgotten", batcher.forgotten)
        for cause in batcher.opened:
            _count(state, f"opened.{cause}")
        for index, output in enumerate(outputs):
            id_ = f"{self.name}:{record.partition}:{record.offset}:{index}".encode()
            self._put_out(state, record, output, id_, emit)

    def derive(self, state: State, key: bytes, value: bytes) -> None:
        """Write the derived keys of one primary item."""
        derive(state, key, value)

    def next_due(self, state: State) -> int | None:
        """The earliest deadline of an open batch."""
        return Batcher(state, self._config).next_due()

    def gauges(self, state: State) -> Mapping[str, int]:
        """The counters, and how much is open and remembered."""
        counted = dict.fromkeys(COUNTERS, 0)
        counted.update({key[1:].decode(): int.from_bytes(value) for key, value in state.scan(COUNT, b"o")})
        clock = state.get(keys.CLOCK)
        counted["clock"] = msgspec.msgpack.decode(clock, type=Clock).now_ms if clock else 0
        counted["open_batches"] = sum(counted[name] for name in OPENED) - sum(counted[name] for name in CLOSED)
        counted["open_members"] = counted["accepted"] - counted["members"]
        counted["history"] = counted["members"] - counted.pop("forgotten")
        return counted

    def forget(self) -> None:
        """There are no caches."""

    def _data(self, state: State, batcher: Batcher, record: Record, receipt_ms: int) -> list[Batch | Rejected]:
        _count(state, "in")
        if _is_repeat(state, record):
            _count(state, "repeat")
            return list(batcher.tick(receipt_ms))
        channel = header(record.headers, "channel") or b""
        if header(record.headers, "kind") != b"data" or channel[:2] != b"m/" or b"/" in channel[2:]:
            _count(state, "not_measurement")
            return list(batcher.tick(receipt_ms))
        message = readable(record, channel[2:], receipt_ms)
        if message is None:
            return batcher.unreadable(receipt_ms)
        outputs = batcher.message(message, receipt_ms)
        if not any(isinstance(output, Rejected) for output in outputs):
            _count(state, "accepted")
        return outputs

    def _put_out(self, state: State, record: Record, output: Batch | Rejected, id_: bytes, emit: Emit) -> None:
        if isinstance(output, Batch):
            _count(state, f"closed.{output.close}")
            _count(state, "members", len(output.members))
            emit(Emission("batches", output.source.encode(), document(output), (("id", id_),), record.partition))
            return
        _count(state, str(output.reason))
        if output.reason is not Reason.DUPLICATE:
            emit(Emission("dead-letter", record.key, letter(record, output), (("id", id_), ("stage", b"batching"))))


def readable(record: Record, type_: bytes, receipt_ms: int) -> Message | None:
    """The measurement in a data record, or None if source, type, payload or event time cannot be read (6.3)."""
    try:
        source = (header(record.headers, "entity") or b"").decode()
        text = (record.value or b"").decode()  # raw values are passed on, so their UTF-8 is checked here
        payload = PAYLOAD.decode(text)
        time = payload.pop("time", None)
        at_ms = receipt_ms if time is None else event_ms(TIME.decode(time))
        if not source or at_ms is None:
            return None
        return Message(source, type_.decode(), at_ms, encode(payload))
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError, ArithmeticError):
        return None


def document(batch: Batch) -> bytes:
    """The batch document of batching.md 9: compact JSON, members in the order shown."""
    members: list[dict[str, Any]] = [
        {"type": m.type, "time": m.event_ms, "received": m.received_ms, "value": msgspec.Raw(m.value)}
        for m in batch.members
    ]
    return encode(
        {
            "id": batch.id,
            "source": batch.source,
            "time": batch.from_ms,
            "opened_at": batch.opened_ms,
            "closed_at": batch.closed_ms,
            "close": str(batch.close),
            "members": members,
        }
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
        letter["payload"] = payload.decode()
    except UnicodeDecodeError:
        letter["payload_base64"] = base64.b64encode(payload).decode()
    letter["receipt_time"] = letter["lost_at"] = _receipt_ms(record)
    if len(record.value or b"") > CUT_BYTES:
        letter["truncated"] = True
    return encode(letter)


def _receipt_ms(record: Record) -> int:
    """4.2: the append time of the first topic, in the header `receipt_time`, before that of this one."""
    carried = header(record.headers, "receipt_time")
    if carried is not None and carried.isdigit() and len(carried) <= 18:
        return int(carried)
    return record.append_ms


def _is_repeat(state: State, record: Record) -> bool:
    """Whether the id of the stage before, `stage:partition:offset:index`, is not above the highest seen."""
    parts = (header(record.headers, "id") or b"").split(b":")
    if len(parts) != 4 or not (parts[2].isdigit() and parts[3].isdigit()):
        return False
    place, key = keys.rising(int(parts[2])) + keys.rising(int(parts[3])), SEEN + parts[0] + b":" + parts[1]
    if place <= (state.get(key) or b""):
        return True
    state.put(key, place)
    return False


def _count(state: State, name: str, more: int = 1) -> None:
    if more:
        key = COUNT + name.encode()
        state.put(key, (int.from_bytes(state.get(key) or b"") + more).to_bytes(8))
