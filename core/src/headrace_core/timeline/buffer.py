"""Time buffer between two topics (timeline.md 11).

    source record -> message of group `buffer`, due at its time -> emitted, tombstone
    the same record again: a duplicate while the message lives or its tombstone exists -> ignored

Messages leave in (due time, source partition, source offset) order, at most 1,000 a record, and never twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from headrace_core.timeline import keys, shape
from headrace_core.timeline.context import Answer, Context
from headrace_core.timeline.due import stands_at
from headrace_core.timeline.message import Message
from headrace_core.timeline.owner import soft_delete
from headrace_core.timeline.settings import MAX_MS
from headrace_core.timeline.shape import Args

GROUP = "buffer"
EMIT_LIMIT = 1_000


class SourceRecord(msgspec.Struct, frozen=True, array_like=True):
    """What a buffer message has as its body. Kafka knows headers without a value, too."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] = []


@dataclass(frozen=True, slots=True)
class Emitted:
    """A buffered record leaves for the target topic."""

    id: str
    record: SourceRecord


def buffer_in(context: Context, args: Args) -> Answer:
    """A source record arrives; refused only for a name that cannot be. Times beyond int64 are cut to it."""
    partition, offset = shape.number(args, "partition"), shape.number(args, "offset")
    name = f"{shape.text(args, 'topic')}-{partition}-{offset}"
    id_ = name.encode()
    store = context.store
    store.clock = msgspec.structs.replace(store.clock, buffers=True)
    if store.message(id_) is not None:
        return {"ok": True, "id": name, "duplicate": True}
    due_ms = _due_ms(context, args)
    record = SourceRecord(_raw(args.get("key")), _raw(args.get("value")), args.get("headers") or [])
    bucket = partition % context.settings.bucket_count
    message = Message(min(max(due_ms, 0), MAX_MS), GROUP, bucket, context.now_ms, source=(partition, offset))
    store.save(id_, None, message)
    store.state.put(keys.body_key(id_), msgspec.msgpack.encode(record))
    return {"ok": True, "id": name, "duplicate": False}


def _due_ms(context: Context, args: Args) -> int:
    """Header `deliver-at`, else record timestamp + delay; what is no number counts as 0."""
    if type(args.get("deliver_at")) is int:
        return int(args["deliver_at"])
    configured = context.settings.buffer.delay_ms if context.settings.buffer else 0
    parts = (args.get("record_timestamp"), args.get("delay_ms", configured))
    return sum(part for part in parts if type(part) is int)


def _raw(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def emit_due(context: Context) -> list[str]:
    """Due work: what is due leaves, and is soft-deleted at once. O(1) without buffered messages."""
    store = context.store
    if not store.clock.buffered or store.clock.frozen:
        return []
    emitted = []
    for key in store.scan(b"q", b"q" + (context.now_ms + 1).to_bytes(8), EMIT_LIMIT):
        id_ = key[25:]
        message = store.message(id_)
        if message is None or not stands_at(message, int.from_bytes(key[1:9])):
            store.state.delete(key)
            continue
        record = msgspec.msgpack.decode(store.body(id_), type=SourceRecord)
        soft_delete(context, id_, message, by=GROUP, completed=False)
        context.effects.append(Emitted(id_.decode(), record))
        emitted.append(id_.decode())
    return emitted
