"""Records of the system (timeline.md 5, 9.5, 12.3, 16): clock, purge, configure, freeze, unfreeze, drop, subscriptions.

open -> freeze (no lease active) -> frozen: every change answers FROZEN -> unfreeze -> open | drop -> empty, open
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
from msgspec.structs import replace

from headrace_core.timeline import keys, shape
from headrace_core.timeline.clock_quality import median
from headrace_core.timeline.context import Answer, Context
from headrace_core.timeline.message import Clock, Remembered
from headrace_core.timeline.polls import answer_waiter, empty
from headrace_core.timeline.refusals import Refused, bad_request
from headrace_core.timeline.requests import alive
from headrace_core.timeline.settings import encode_settings
from headrace_core.timeline.shape import Args
from headrace_core.timeline.store import DERIVED

PURGE_LIMIT = 1_000
KEEP_ALIVE_MS = 30_000


def tick(_context: Context, _args: Args) -> Answer:
    """Only the due work, which came before."""
    return {"ok": True}


def clock(context: Context, args: Args) -> Answer:
    """Set or clear degraded by the median of the instances' offsets (section 12.3)."""
    offsets = args.get("offsets")
    if not isinstance(offsets, list) or not offsets or not all(_is_number(value) for value in offsets):
        raise bad_request("offsets: a list of numbers that is not empty")
    middle = median(offsets)
    degraded = abs(middle) >= context.settings.degrade_offset_ms
    context.store.clock = replace(context.store.clock, degraded=degraded)
    return {"ok": True, "median_ms": middle, "degraded": degraded}


def _is_number(value: Any) -> bool:
    return type(value) is int or (type(value) is float and math.isfinite(value))


def purge(context: Context, _args: Args) -> Answer:
    """Remove what has passed its window, `time + window <= NOW`, oldest first, at most 1,000 of each kind (section 16).

    `purged`: ids of tombstones, by id. Parked messages and remembered requests are counted beside.
    """
    purged = sorted(_purge_tombstones(context))
    answer = {"ok": True, "purged": [id_.decode() for id_ in purged]}
    return answer | {"parked": _purge_parked(context), "requests": _purge_requests(context)}


def _purge_tombstones(context: Context) -> list[bytes]:
    last = context.now_ms - context.settings.dedup_window_ms
    found = [] if last < 0 else context.store.scan(b"x", keys.tombstone_key(last + 1), PURGE_LIMIT)
    for key in found:
        context.store.save(key[9:], context.store.message(key[9:]), None)
    return [key[9:] for key in found]


def _purge_parked(context: Context) -> int:
    """0 ms of retention: for ever."""
    last = context.now_ms - context.settings.parked_retention_ms
    if not context.settings.parked_retention_ms or last < 0:
        return 0
    found = context.store.scan(b"p", b"p" + (last + 1).to_bytes(8), PURGE_LIMIT)
    for key in found:
        context.store.save(key[17:], context.store.message(key[17:]), None)
        context.store.state.delete(keys.body_key(key[17:]))
    return len(found)


def _purge_requests(context: Context) -> int:
    """A poll that still waits is kept (requests.py)."""
    last = context.now_ms - context.settings.dedup_window_ms
    found = [] if last < 0 else context.store.scan(b"e", keys.request_age_key(last + 1), PURGE_LIMIT)
    gone = 0
    for key in found:
        raw = context.store.state.get(b"r" + key[9:])
        entry = None if raw is None else msgspec.msgpack.decode(raw, type=Remembered)
        if entry is None or not alive(entry, context.settings.dedup_window_ms, context.now_ms):
            context.store.state.delete(b"r" + key[9:])
            context.store.state.delete(key)
            gone += 1
    return gone


def next_purge(context: Context) -> int | None:
    """NOW at which a `purge` removes something; None: nothing waits for one. O(log n)."""
    settings, times = context.settings, []
    windows = [(b"x", settings.dedup_window_ms), (b"e", settings.dedup_window_ms)]
    windows += [(b"p", settings.parked_retention_ms)] if settings.parked_retention_ms else []
    for family, window_ms in windows:
        times += [int.from_bytes(key[1:9]) + window_ms for key in context.store.scan(family, family + keys.END, 1)]
    return min(times, default=None)


def configure(context: Context, args: Args) -> Answer:
    """Change settings from this record on (section 2). `created`: until now the log had none of its own."""
    settings = context.settings.changed(args.get("settings"))
    created = {} if context.store.state.get(keys.SETTINGS) is not None else {"created": True}
    context.store.state.put(keys.SETTINGS, encode_settings(settings))
    return {"ok": True, "settings": msgspec.to_builtins(settings), **created}


def freeze(context: Context, _args: Args) -> Answer:
    """Refused while a lease is active; afterwards every change answers FROZEN."""
    active = _active_leases(context)
    if active:
        raise Refused("LEASE_ACTIVE", ids=active)
    context.store.clock = replace(context.store.clock, frozen=True)
    return {"ok": True}


def unfreeze(context: Context, _args: Args) -> Answer:
    context.store.clock = replace(context.store.clock, frozen=False)
    return {"ok": True}


def drop(context: Context, _args: Args) -> Answer:
    """Remove everything but NOW and the settings; refused while a lease is active. Waiting polls are answered empty."""
    active = _active_leases(context)
    if active:
        raise Refused("LEASE_ACTIVE", ids=active)
    store = context.store
    for sequence, waiter in store.waiters():
        answer_waiter(context, sequence, waiter, empty())
    store.flush()
    for family in b"mbrw" + DERIVED:
        start = bytes([family])
        for key in [key for key, _ in store.state.scan(start, start + keys.END)]:
            store.state.delete(key)
    for key in [key for key, _ in store.state.scan(b"ssub", b"ssub" + keys.END)]:
        store.state.delete(key)
    store.heads.clear()
    before = store.clock
    store.clock = Clock(before.now_ms, before.degraded, sequence=before.sequence)
    return {"ok": True}


def _active_leases(context: Context) -> list[str]:
    """Ids under an active lease, in byte order."""
    found = []
    for key, _ in context.store.state.scan(b"l", b"l" + keys.END):
        at = key.index(keys.NUL) + 1
        if int.from_bytes(key[at : at + 8]) > context.now_ms:
            found.append(key[at + 8 :])
    return [id_.decode() for id_ in sorted(found)]


# subscriptions (section 9.5): consumer -> token and last keep-alive


def _subscription_key(consumer: str) -> bytes:
    return b"ssub" + consumer.encode()


def _subscribed(context: Context) -> dict[bytes, tuple[str, int]]:
    """Live subscriptions in the byte order of the consumer; one ends 30 s after its last keep-alive."""
    found = {}
    for key, raw in context.store.state.scan(b"ssub", b"ssub" + keys.END):
        token, at_ms = msgspec.msgpack.decode(raw)
        if context.now_ms < at_ms + KEEP_ALIVE_MS:
            found[key[4:]] = (token, at_ms)
    return found


def subscribe(context: Context, args: Args) -> Answer:
    """Subscribe, or keep alive with the token. Consumer i of n is dealt floor(i*B/n) to floor((i+1)*B/n) - 1."""
    consumer, token = shape.text(args, "consumer"), shape.optional_text(args, "token")
    held = _subscribed(context).get(consumer.encode())
    if held is not None and held[0] != token:
        raise Refused("ALREADY_SUBSCRIBED")
    kept = held[0] if held is not None else str(context.store.next_sequence())
    context.store.state.put(_subscription_key(consumer), msgspec.msgpack.encode((kept, context.now_ms)))
    consumers = list(_subscribed(context))
    i, n, b = consumers.index(consumer.encode()), len(consumers), context.settings.bucket_count
    return {"ok": True, "token": kept, "buckets": list(range(i * b // n, (i + 1) * b // n))}


def unsubscribe(context: Context, args: Args) -> Answer:
    consumer = shape.text(args, "consumer")
    if consumer.encode() not in _subscribed(context):
        raise Refused("NOT_SUBSCRIBED")
    context.store.state.delete(_subscription_key(consumer))
    return {"ok": True}
