"""Poll, waiting polls, parking (timeline.md 5, 9.2, 9.3, 10).

    poll -> granted (something was available) | empty | waiter (nothing, and wait_ms > 0)
    waiter -> granted, at a record with something due | ended empty at `end` | withdrawn by unwait

A waiter is answered once. It is never granted anything at or after its end, nor while the clock is degraded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from headrace_core.timeline import keys, shape
from headrace_core.timeline.context import Answer, Context
from headrace_core.timeline.due import buckets_of, due_buckets, due_entries, stands_at
from headrace_core.timeline.holder import exhausted, granted, lease_document
from headrace_core.timeline.message import Message, Waiter
from headrace_core.timeline.refusals import Refused, bad_request
from headrace_core.timeline.settings import MAX_MS
from headrace_core.timeline.shape import Args

MAX_WAITERS = 10_000
WAITERS_A_PAGE = 64
MAX_BODIES = 900_000
"""Bytes of bodies in one poll answer (section 9.6)."""


@dataclass(frozen=True, slots=True)
class Served:
    """A waiting poll was answered: with grants, or empty at its end."""

    consumer: str
    answer: Answer
    reply: bytes


@dataclass(frozen=True, slots=True)
class Parked:
    """A message was parked: copied with body and reason to the parked topic (section 10)."""

    id: bytes
    message: Message
    body: bytes


@dataclass(frozen=True, slots=True)
class Plan:
    """What a poll meets on its way, before anything is written."""

    park: list[tuple[bytes, Message]]
    grant: list[tuple[bytes, Message]]
    stray: list[tuple[int, bytes]]
    has_more: bool


def poll(context: Context, args: Args) -> Answer:
    """Section 5 poll."""
    settings = context.settings
    consumer, limit = shape.text(args, "consumer"), shape.number(args, "limit", 1, settings.max_poll)
    expires_at = shape.instant(args, "expires_at", "lease_ms", context.now_ms)
    buckets = shape.buckets(args, settings.bucket_count)
    wait_ms = shape.optional_number(args, "wait_ms", 0, settings.max_wait_ms)
    if wait_ms is not None and args.get("lease_ms") is None:
        raise bad_request("wait_ms: only with lease_ms")
    context.no_buffer()
    context.open()
    context.sound()
    context.not_soon(expires_at)
    context.not_long(expires_at)
    plan = _plan(context, buckets, limit)
    waits = bool(wait_ms) and not plan.grant
    if waits and context.store.clock.waiting >= MAX_WAITERS:
        raise Refused("OVERLOADED", limit=MAX_WAITERS)
    answer = _grant(context, plan, consumer, expires_at)
    if waits and wait_ms:
        end_ms = min(context.now_ms + wait_ms, MAX_MS)
        waiter = Waiter(consumer, args["lease_ms"], limit, end_ms, buckets, args.get("request_id"), context.reply)
        answer["waiting"] = True
        answer["waiter"] = context.store.enqueue(waiter)
    return answer


def _plan(context: Context, buckets: list[int] | None, limit: int) -> Plan:
    """Messages on the way whose deliveries are used up are parked and do not count (section 9.2)."""
    park, grant = list[tuple[bytes, Message]](), list[tuple[bytes, Message]]()
    stray, has_more = list[tuple[int, bytes]](), False
    for timestamp, id_ in due_entries(context, buckets):
        message = context.store.message(id_)
        if message is None or not stands_at(message, timestamp):
            stray.append((timestamp, id_))
        elif len(grant) == limit:
            has_more = True
            break
        else:
            (park if exhausted(context, message) else grant).append((id_, message))
    return Plan(park, grant, stray, has_more)


def _grant(context: Context, plan: Plan, consumer: str, expires_at: int) -> Answer:
    for timestamp, id_ in plan.stray:
        context.store.remove_stray(buckets_of(context, None), timestamp, id_)
    for id_, message in plan.park:
        _park(context, id_, message)
    leases = []
    for id_, before in plan.grant:
        after = granted(before, consumer, expires_at)
        context.store.save(id_, before, after)
        leases.append(lease_document(id_.decode(), after))
    ids = [lease["id"] for lease in leases]
    return {"ok": True, "ids": ids, "has_more": plan.has_more, "waiting": False, "leases": leases}


def _park(context: Context, id_: bytes, before: Message) -> None:
    """Section 10: lock null, version + 1, out of the time index."""
    after = replace(
        before,
        lock=None,
        lease_version=0,
        due_at=0,
        version=before.version + 1,
        parked_at=context.now_ms,
        parking=context.store.next_sequence(),
    )
    context.store.save(id_, before, after)
    context.effects.append(Parked(id_, after, context.store.body(id_)))


def serve(context: Context) -> None:
    """Answer waiting polls, first come first served (section 9.3).

    O(1) without waiters; if nothing is due only those that ended are looked at, else all up to the one that takes the
    last due message. `last`: what came after it can only have ended.
    """
    clock = context.store.clock
    if not clock.waiting:
        return
    ended, last = _ended(context), 0
    if not clock.degraded and not clock.frozen and due_buckets(context, None):
        for sequence, waiter in _in_order(context):
            last = sequence
            _serve_one(context, sequence, waiter)
            if not due_buckets(context, None):
                break
    for sequence, waiter in ended:
        if sequence > last:
            answer_waiter(context, sequence, waiter, empty())


def _serve_one(context: Context, sequence: int, waiter: Waiter) -> None:
    """The end comes first: no grant at or after it, even if something is due."""
    expires_at = context.now_ms + waiter.lease_ms
    if waiter.end_ms <= context.now_ms:
        answer_waiter(context, sequence, waiter, empty())
    elif expires_at <= MAX_MS:
        answer = _grant(context, _plan(context, waiter.buckets, waiter.limit), waiter.consumer, expires_at)
        if answer["ids"]:
            answer_waiter(context, sequence, waiter, answer)


def _in_order(context: Context) -> Iterator[tuple[int, Waiter]]:
    """Waiters by sequence, in pages, so that they may be answered in between."""
    page = context.store.waiters(0, WAITERS_A_PAGE)
    while page:
        yield from page
        page = context.store.waiters(page[-1][0] + 1, WAITERS_A_PAGE)


def _ended(context: Context) -> list[tuple[int, Waiter]]:
    """Waiters at or past their end, in the order in which they came."""
    found = context.store.state.scan(b"v", keys.waiter_end_key(context.now_ms + 1))
    sequences = sorted(int.from_bytes(key[9:]) for key, _ in found)
    waiters = ((sequence, context.store.waiter(sequence)) for sequence in sequences)
    return [(sequence, waiter) for sequence, waiter in waiters if waiter is not None]


def empty() -> Answer:
    return {"ok": True, "ids": [], "has_more": False, "waiting": False, "leases": []}


def answer_waiter(context: Context, sequence: int, waiter: Waiter, answer: Answer) -> None:
    """The waiter goes, and its answer is what a repeat of its request gets (section 8.2)."""
    store = context.store
    store.dequeue(sequence, waiter)
    entry = None if waiter.request_id is None else store.remembered(b"", waiter.request_id)
    if entry is not None and waiter.request_id is not None:
        kept = replace(entry, answer=msgspec.msgpack.encode(answer), waiter=0)
        store.remember(b"", waiter.request_id, kept)
    context.effects.append(Served(waiter.consumer, answer, waiter.reply))


def unwait(context: Context, args: Args) -> Answer:
    """Withdraw a waiting poll by its number (`waiter` of its answer); one that was answered already is no error."""
    sequence = shape.number(args, "waiter", 1)
    waiter = context.store.waiter(sequence)
    if waiter is not None:
        answer_waiter(context, sequence, waiter, empty())
    return {"ok": True, "withdrawn": waiter is not None}


def gone(context: Context, id_: bytes) -> bool:
    message = context.store.message(id_)
    return message is None or message.deleted


def with_bodies(context: Context, answer: Answer) -> Answer:
    """The same answer with bodies, up to 900 KB of them; what is gone or too much is left out (section 9.6)."""
    left, leases = MAX_BODIES, []
    for lease in answer.get("leases", ()):
        id_ = lease["id"].encode()
        body = context.store.body(id_)
        if len(body) <= left and not (answer.get("replayed") and gone(context, id_)):
            left -= len(body)
            leases.append(lease | {"body": body})
        else:
            leases.append(lease | {"body_omitted": True})
    return answer | {"leases": leases}
