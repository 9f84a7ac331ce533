"""What a consumer does with one message: lease, extend, release, complete, give_back (timeline.md 5, 6).

A lease is the exclusive right of one consumer on `[grant, timestamp)`: at NOW = timestamp it is over. The version of
the grant is the fencing token; holder calls take every version since then and none before (6.5).
"""

from __future__ import annotations

from msgspec.structs import replace

from headrace_core.timeline import shape
from headrace_core.timeline.context import Answer, Context, same_version
from headrace_core.timeline.message import AVAILABLE, Message
from headrace_core.timeline.owner import soft_delete
from headrace_core.timeline.refusals import Refused
from headrace_core.timeline.shape import Args


def lease(context: Context, args: Args) -> Answer:
    """Section 5 lease: one message by its id."""
    id_, consumer = shape.identifier(args), shape.text(args, "consumer")
    expires_at = shape.instant(args, "expires_at", "lease_ms", context.now_ms)
    version = shape.version(args)
    context.no_buffer()
    context.open()
    context.sound()
    before = context.live(id_)
    same_version(before, version)
    status = before.status(context.now_ms)
    if status != AVAILABLE:
        raise Refused("NOT_AVAILABLE", status=status, timestamp=before.timestamp)
    if exhausted(context, before):
        raise Refused("DELIVERIES_EXHAUSTED", limit=context.settings.max_deliveries)
    context.not_soon(expires_at)
    context.not_long(expires_at)
    after = granted(before, consumer, expires_at)
    context.store.save(id_, before, after)
    return {"ok": True} | lease_document(args["id"], after)


def exhausted(context: Context, message: Message) -> bool:
    return message.deliveries >= context.settings.max_deliveries > 0


def granted(message: Message, consumer: str, expires_at: int) -> Message:
    """The effect of a grant, by lease or by poll."""
    return replace(
        message,
        lock=consumer,
        timestamp=expires_at,
        due_at=message.timestamp,
        version=message.version + 1,
        lease_version=message.version + 1,
        deliveries=message.deliveries + 1,
    )


def lease_document(id_: str, message: Message) -> Answer:
    """What the consumer is shown of its grant; without the body."""
    return {
        "id": id_,
        "version": message.version,
        "expires_at": message.timestamp,
        "due_at": message.due_at,
        "deliveries": message.deliveries,
        "headers": message.headers or {},
    }


def extend(context: Context, args: Args) -> Answer:
    """Section 5 extend: a new expiry, later or earlier; before the old one only."""
    id_, consumer = shape.identifier(args), shape.text(args, "consumer")
    expires_at = shape.instant(args, "expires_at", "lease_ms", context.now_ms)
    version = shape.version(args)
    context.open()
    context.sound()
    before = _held(context, id_, consumer, version)
    context.not_soon(expires_at)
    context.not_long(expires_at)
    after = replace(before, timestamp=expires_at, version=before.version + 1)
    context.store.save(id_, before, after)
    return {"ok": True, "version": after.version, "expires_at": expires_at}


def release(context: Context, args: Args) -> Answer:
    """Section 5 release: back into the future, for anyone."""
    id_, consumer = shape.identifier(args), shape.text(args, "consumer")
    timestamp = shape.instant(args, "timestamp", "delay_ms", context.now_ms)
    version = shape.version(args)
    context.open()
    before = _held(context, id_, consumer, version)
    context.not_soon(timestamp)
    context.not_far(timestamp)
    return _put_back(context, id_, before, replace(before, timestamp=timestamp))


def give_back(context: Context, args: Args) -> Answer:
    """Section 5 give_back: undo a grant that no consumer has seen; only with its exact version."""
    id_, consumer = shape.identifier(args), shape.text(args, "consumer")
    version = shape.number(args, "version", 1)
    context.open()
    before = _held(context, id_, consumer, None)
    same_version(before, version)
    undone = replace(before, timestamp=before.due_at, deliveries=before.deliveries - 1)
    return _put_back(context, id_, before, undone)


def _put_back(context: Context, id_: bytes, before: Message, moved: Message) -> Answer:
    after = replace(moved, lock=None, lease_version=0, due_at=0, version=before.version + 1)
    context.store.save(id_, before, after)
    status = after.status(context.now_ms)
    return {"ok": True, "version": after.version, "timestamp": after.timestamp, "status": status}


def complete(context: Context, args: Args) -> Answer:
    """Section 5 complete; by the consumer that completed it a noop while the tombstone exists (section 8.5)."""
    id_, consumer, version = shape.identifier(args), shape.text(args, "consumer"), shape.version(args)
    context.open()
    found = context.store.message(id_)
    if found is not None and found.deleted and found.completed and found.deleted_by == consumer:
        return {"ok": True, "noop": True}
    before = _held(context, id_, consumer, version, found)
    soft_delete(context, id_, before, by=consumer, completed=True)
    return {"ok": True, "noop": False}


def _held(context: Context, id_: bytes, consumer: str, version: int | None, found: Message | None = None) -> Message:
    """Unknown, holder, expiry, version of the present lease: in this order (section 6.5)."""
    message = found if found is not None and not found.deleted else context.live(id_)
    if message.lock != consumer:
        raise Refused("NOT_LEASE_HOLDER")
    if message.timestamp <= context.now_ms:
        raise Refused("LEASE_EXPIRED")
    if version is not None and not message.lease_version <= version <= message.version:
        raise Refused("VERSION_MISMATCH", version=message.version)
    return message
