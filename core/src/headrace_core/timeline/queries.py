"""Reads (timeline.md 5, 7, 10). They are records of the log, so they see every earlier write, and change nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from headrace_core.timeline import keys, shape
from headrace_core.timeline.context import Answer, Context
from headrace_core.timeline.due import buckets_of, due_entries
from headrace_core.timeline.holder import lease_document
from headrace_core.timeline.load import LAST, MAX_SLOTS, tally
from headrace_core.timeline.message import AVAILABLE, PARKED, STATUSES, Message
from headrace_core.timeline.refusals import NOT_FOUND, Refused, bad_request
from headrace_core.timeline.settings import MAX_MS
from headrace_core.timeline.shape import Args

MAX_PAGE = 1_000
MAX_LOOKED_AT = 10_000
"""Index entries that one page of a list looks at; then it ends early, with a cursor."""


def get(context: Context, args: Args) -> Answer:
    """All fields without the body, status, leased. Its only check is: unknown."""
    id_ = _asked(args)
    return {"ok": True} | document(id_, context.live(id_), context.now_ms)


def _asked(args: Args) -> bytes:
    """`get` and `read_body` know no shape check (section 5): what cannot be an id is unknown."""
    try:
        return shape.identifier(args)
    except Refused:
        raise Refused(NOT_FOUND) from None


def document(id_: bytes, message: Message, now_ms: int) -> dict[str, Any]:
    """A live or parked message as people see it."""
    return {
        "id": id_.decode(),
        "timestamp": message.timestamp,
        "status": message.status(now_ms),
        "leased": message.leased(now_ms),
        "lock": message.lock,
        "group": message.group,
        "bucket": message.bucket,
        "version": message.version,
        "lease_version": message.lease_version,
        "due_at": message.due_at,
        "deliveries": message.deliveries,
        "created_at": message.created_at,
        "headers": message.headers or {},
    }


def read_body(context: Context, args: Args) -> Answer:
    """For the owner, and for the holder of an active lease (section 7)."""
    id_ = _asked(args)
    message = context.live(id_)
    holder = message.leased(context.now_ms) and message.lock == args.get("consumer")
    if message.group != args.get("group") and not holder:
        raise Refused("NOT_ALLOWED")
    return {"ok": True, "body": context.store.body(id_)}


def due(context: Context, args: Args) -> Answer:
    """Available messages in poll order."""
    buckets = shape.buckets(args, context.settings.bucket_count)
    return {"ok": True, "ids": [id_.decode() for _, id_ in due_entries(context, buckets)]}


def count(context: Context, args: Args) -> Answer:
    """Live messages with `from <= timestamp < to`; without status everything but parked."""
    from_ms = shape.optional_number(args, "from") or 0
    to_ms = shape.optional_number(args, "to")
    status = shape.choice(args, "status", STATUSES)
    end = LAST if to_ms is None else to_ms
    return {"ok": True, "total": sum(tally(context, from_ms, end, max(1, end - from_ms), status))}


def histogram(context: Context, args: Args) -> Answer:
    """One count per slot; the last slot is cut at `to`; at most 1,000 slots."""
    from_ms, to_ms, step_ms = shape.number(args, "from"), shape.number(args, "to"), shape.number(args, "step", 1)
    status = shape.choice(args, "status", STATUSES)
    if -(-(to_ms - from_ms) // step_ms) > MAX_SLOTS:
        raise bad_request(f"step: at most {MAX_SLOTS} slots")
    slots = tally(context, from_ms, to_ms, step_ms, status)
    return {"ok": True, "slots": slots, "total": sum(slots)}


def leases_of(context: Context, args: Args) -> Answer:
    """Active leases of a consumer by (expiry, id), without bodies; `lease_version` tells the grant."""
    consumer = shape.text(args, "consumer")
    start = keys.lease_key(consumer, context.now_ms + 1)
    found = context.store.state.scan(start, keys.lease_key(consumer, MAX_MS) + keys.END)
    ids = [key[len(start) :] for key, _ in found]
    messages = [(id_, message) for id_ in ids if (message := context.store.message(id_)) is not None]
    leases = [lease_document(id_.decode(), one) | {"lease_version": one.lease_version} for id_, one in messages]
    return {"ok": True, "ids": [lease["id"] for lease in leases], "leases": leases}


def owned_by(context: Context, args: Args) -> Answer:
    """Messages of a group by id, parked ones included."""
    start = keys.owner_key(shape.text(args, "group"))
    found = context.store.state.scan(start, start + keys.END)
    return {"ok": True, "ids": [key[len(start) :].decode() for key, _ in found]}


def parked(context: Context, args: Args) -> Answer:
    """Parked messages in the order of parking."""
    shape.optional_number(args, "limit", 1, MAX_PAGE)
    return {"ok": True, "ids": [key[17:].decode() for key, _ in context.store.state.scan(b"p", b"p" + keys.END)]}


def describe(context: Context, _args: Args) -> Answer:
    """Settings in force, and whether the partition is degraded or frozen (section 17, `GET /`)."""
    clock = context.store.clock
    settings = msgspec.to_builtins(context.settings)
    return {"ok": True, "settings": settings, "degraded": clock.degraded, "frozen": clock.frozen}


def list_(context: Context, args: Args) -> Answer:
    """A page of messages by group, status, from, to. Items that do not move between two pages appear exactly once.

    The order is that of the index: by id within a group; else by (bucket, timestamp, id); parked ones by parking.
    A cursor is the last index key that was looked at.
    """
    group, status = shape.optional_text(args, "group"), shape.choice(args, "status", STATUSES)
    from_ms, to_ms = shape.optional_number(args, "from") or 0, shape.optional_number(args, "to")
    limit = shape.optional_number(args, "limit", 1, MAX_PAGE) or 100
    end = LAST if to_ms is None else to_ms
    items, looked_at, last = list[dict[str, Any]](), 0, b""
    more = False
    for key, id_ in _index(context, group, status, from_ms, end, _cursor(args)):
        if len(items) == limit or looked_at == MAX_LOOKED_AT:
            more = True
            break
        last, looked_at = key, looked_at + 1
        message = context.store.message(id_)
        if message is not None and from_ms <= message.timestamp < end:
            state = message.status(context.now_ms)
            if state == status or (status is None and (group is not None or state != PARKED)):
                items.append(document(id_, message, context.now_ms))
    ids = [item["id"] for item in items]
    return {"ok": True, "ids": ids, "items": items, "next_cursor": last.hex() if more else None}


def _cursor(args: Args) -> bytes:
    """A bad cursor is BAD_REQUEST (section 17)."""
    cursor = shape.optional_text(args, "cursor")
    try:
        return b"" if cursor is None else bytes.fromhex(cursor)
    except ValueError:
        raise bad_request("cursor: not one of ours") from None


def _index(
    context: Context, group: str | None, status: str | None, from_ms: int, end: int, after: bytes
) -> Iterator[tuple[bytes, bytes]]:
    """Index keys after the cursor, with their ids."""
    state = context.store.state
    if group is not None or status == PARKED:
        prefix = b"p" if group is None else keys.owner_key(group)
        if after and not after.startswith(prefix):
            raise bad_request("cursor: of another list")
        skip = 17 if group is None else len(prefix)
        for key, _ in state.scan(max(prefix, after + b"\x00" if after else b""), prefix + keys.END):
            yield key, key[skip:]
        return
    if after and (after[:1] != b"t" or len(after) < 12):
        raise bad_request("cursor: of another list")
    until = min(end, context.now_ms + 1) if status == AVAILABLE else end
    for bucket in buckets_of(context, None):
        start, stop = keys.time_key(bucket, from_ms), keys.time_key(bucket, max(from_ms, until))
        if after < stop:
            for key, _ in state.scan(max(start, after + b"\x00" if after else b""), stop):
                yield key, keys.id_in_time_key(key)
