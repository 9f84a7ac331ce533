"""Time buffer between two topics (timeline.md 11).

    source record -> message of group `buffer`, due at its time -> emitted, tombstone
    the same record again: a duplicate while the message lives or its tombstone exists -> ignored

Messages leave in (due time, source partition, source offset) order, at most 1,000 a record, and never twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from headrace_core.timeline import keys
from headrace_core.timeline.context import Answer, Context
from headrace_core.timeline.message import Message
from headrace_core.timeline.owner import soft_delete
from headrace_core.timeline.settings import MAX_MS
from headrace_core.timeline.shape import Args

GROUP = "buffer"
EMIT_LIMIT = 1_000


class SourceRecord(msgspec.Struct, frozen=True, array_like=True):
    """What a buffer message has as its body."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]] = []


@dataclass(frozen=True, slots=True)
class Emitted:
    """A buffered record leaves for the target topic."""

    id: str
    record: SourceRecord


def buffer_in(context: Context, args: Args) -> Answer:
    """A source record arrives; not refused for any reason. Times beyond int64 are cut to it."""
    partition, offset = args["partition"], args["offset"]
    name = f"{args['topic']}-{partition}-{offset}"
    id_ = name.encode()
    store = context.store
    store.clock = msgspec.structs.replace(store.clock, buffers=True)
    if store.message(id_) is not None:
        return {"ok": True, "id": name, "duplicate": True}
    at = args.get("deliver_at")
    due_ms = args["record_timestamp"] + args["delay_ms"] if at is None else at
    record = SourceRecord(_raw(args.get("key")), _raw(args.get("value")), args.get("headers") or [])
    bucket = partition % context.settings.bucket_count
    message = Message(min(max(due_ms, 0), MAX_MS), GROUP, bucket, context.now_ms, source=(partition, offset))
    store.save(id_, None, message)
    store.state.put(keys.body_key(id_), msgspec.msgpack.encode(record))
    return {"ok": True, "id": name, "duplicate": False}


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
        record = msgspec.msgpack.decode(store.body(id_), type=SourceRecord)
        soft_delete(context, id_, context.live(id_), by=GROUP, completed=False)
        context.effects.append(Emitted(id_.decode(), record))
        emitted.append(id_.decode())
    return emitted
