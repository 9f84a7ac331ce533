"""What the owner does: create, move, cancel (timeline.md 5, 7). Nothing here touches a message under a lease."""

from __future__ import annotations

from msgspec.structs import replace

from headrace_core.partitioner import partition_of
from headrace_core.timeline import keys, shape
from headrace_core.timeline.context import Answer, Context, same_version
from headrace_core.timeline.message import NEVER, Message
from headrace_core.timeline.refusals import Refused
from headrace_core.timeline.shape import Args


def create(context: Context, args: Args) -> Answer:
    """Section 5 create. An id made by the API comes as `id` like any other (section 8.4)."""
    id_, group = shape.identifier(args), shape.text(args, "group")
    timestamp = shape.instant(args, "timestamp", "delay_ms", context.now_ms)
    body, headers = shape.body(args), shape.headers(args)
    context.open()
    if len(body) > context.settings.max_body_bytes:
        raise Refused("BODY_TOO_LARGE", limit=context.settings.max_body_bytes)
    context.not_far(timestamp)
    before = context.store.message(id_)
    if before is not None and taken(context, before):
        raise Refused("ALREADY_EXISTS", deleted=before.deleted, same_owner=before.group == group)
    bucket = partition_of(id_, context.settings.bucket_count)
    message = Message(timestamp, group, bucket, context.now_ms, headers=headers)
    context.store.save(id_, before, message)
    if body:
        context.store.state.put(keys.body_key(id_), body)
    return {
        "ok": True,
        "id": args["id"],
        "version": 1,
        "timestamp": timestamp,
        "bucket": bucket,
        "status": message.status(context.now_ms),
    }


def taken(context: Context, message: Message) -> bool:
    """A deleted id is free at the end of dedup_window_ms, purged or not (section 8.3)."""
    return not message.deleted or message.deleted_at + context.settings.dedup_window_ms > context.now_ms


def move(context: Context, args: Args) -> Answer:
    """Section 5 move: any time within the limit; lock and lease_version go; parked messages come back."""
    id_, group = shape.identifier(args), shape.text(args, "group")
    timestamp = shape.instant(args, "timestamp", "delay_ms", context.now_ms)
    version = shape.version(args)
    context.open()
    before = _owned(context, context.live(id_), group, version)
    context.not_far(timestamp)
    after = replace(
        before,
        timestamp=timestamp,
        lock=None,
        lease_version=0,
        due_at=0,
        version=before.version + 1,
        deliveries=0 if before.parked else before.deliveries,
        parked_at=NEVER,
        parking=0,
    )
    context.store.save(id_, before, after)
    return {"ok": True, "version": after.version, "timestamp": timestamp, "status": after.status(context.now_ms)}


def cancel(context: Context, args: Args) -> Answer:
    """Section 5 cancel; by the same group it is a noop while the tombstone exists (section 8.5)."""
    id_, group, version = shape.identifier(args), shape.text(args, "group"), shape.version(args)
    context.open()
    found = context.store.message(id_)
    if found is not None and found.deleted and found.group == group:
        return {"ok": True, "noop": True}
    before = _owned(context, context.live(id_), group, version)
    soft_delete(context, id_, before, by=group, completed=False)
    return {"ok": True, "noop": False}


def _owned(context: Context, message: Message, group: str, version: int | None) -> Message:
    """Other group, active lease, version: in this order."""
    if message.group != group:
        raise Refused("NOT_OWNER")
    if message.leased(context.now_ms):
        raise Refused("LEASE_ACTIVE")
    same_version(message, version)
    return message


def soft_delete(context: Context, id_: bytes, before: Message, *, by: str, completed: bool) -> None:
    """The message leaves every read and its body goes at once; the tombstone stays until purge (section 16)."""
    after = Message(
        before.timestamp,
        before.group,
        before.bucket,
        before.created_at,
        version=before.version + 1,
        deliveries=before.deliveries,
        deleted_at=context.now_ms,
        deleted_by=by,
        completed=completed,
        source=before.source,
    )
    context.store.save(id_, before, after)
    context.store.state.delete(keys.body_key(id_))
