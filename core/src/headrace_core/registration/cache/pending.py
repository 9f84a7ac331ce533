"""Early data (registration.md 6): a bounded ring of telemetry, bounded metadata, and an age limit, per root.

A pending entry exists exactly while something is kept for its entity: a cached message or a waiting registration.
`since` is the receipt of the first thing kept and never renewed. Telemetry above a bound pushes out the oldest;
metadata and registrations are never pushed out, what does not fit is refused.
"""

from __future__ import annotations

from msgspec.structs import replace

from headrace_core.registration.items import (
    METADATA,
    TELEMETRY,
    Cached,
    Pending,
    Waiting,
    key,
    name_of,
    number,
    parts,
    tally_key,
)
from headrace_core.registration.message import Definition, Message
from headrace_core.registration.reasons import Refusal
from headrace_core.registration.status import end_idle, set_idle, settle
from headrace_core.registration.store import Store
from headrace_core.registration.topics import Kind, Parsed
from headrace_core.registration.work import Work

CANCELLED = Refusal("cancelled")
EXPIRED = Refusal("expired", "the entity was pending for pending_ttl")
EVICTED = Refusal("evicted", "newer telemetry took its place")


def entry_of(work: Work, root: str, tid: str) -> Pending:
    """The pending entry of an entity; a new one starts now."""
    entry = work.store.pending(root, tid)
    if entry is None:
        end_idle(work, root, tid)
        work.store.tally(root, "pending")
        entry = Pending(work.now, work.store.sequence())
    work.touch(root, tid)
    return entry


def _save(work: Work, root: str, tid: str, entry: Pending) -> None:
    if not entry.empty:
        work.store.put(b"P" + name_of(root, tid), entry)
        return
    _end(work, root, tid)
    settle(work, root, tid)


def _end(work: Work, root: str, tid: str) -> None:
    work.store.delete(b"P" + name_of(root, tid))
    work.store.tally(root, "pending", -1)
    work.touch(root, tid)


def keep(work: Work, parsed: Parsed, message: Message) -> None:
    """Cache early data, or end it with the reason why it cannot be."""
    size = message.size
    try:
        if parsed.kind is Kind.TELEMETRY:
            if size > work.config.telemetry_cache_bytes:
                raise Refusal("too_large", "larger than telemetry_cache_bytes")
            _add(work, parsed, message, TELEMETRY, size)
            if _above_bounds(work, parsed.root) or work.config.telemetry_cache_per_entity is not None:
                _evict(work, parsed.root, parsed.topic_id)
        else:
            need_room(work, parsed.root, size)
            _add(work, parsed, message, METADATA, size)
    except Refusal as refusal:
        work.drop(message, parsed.root, refusal)


def need_room(work: Work, root: str, size: int, freed: int = 0) -> None:
    """Raises Refusal `metadata_full` if `size` more bytes do not fit once `freed` are gone (6.3)."""
    if work.store.total(root, "metadata_bytes") - freed + size > work.config.metadata_cache_bytes:
        raise Refusal("metadata_full", "metadata_cache_bytes is used up")


def _add(work: Work, parsed: Parsed, message: Message, kind: bytes, size: int) -> None:
    root, tid, store = parsed.root, parsed.topic_id, work.store
    entry, name = entry_of(work, root, tid), name_of(root, tid)
    suitable = parsed.registers and bool(message.payload)
    place = kind + number(store.sequence())
    store.replace(b"M" + name + place, None, Cached(parsed.channel, suitable, message))
    _account(store, root, kind, 1, size)
    known = None if entry.empty else entry
    store.replace(b"P" + name, known, _changed(entry, kind, 1, size, suitable))


def _account(store: Store, root: str, kind: bytes, count: int, size: int) -> None:
    """Count messages that come (`count`, `size` above 0) or go (below)."""
    if kind == TELEMETRY:
        store.tally(root, "telemetry", count)
        store.tally(root, "telemetry_bytes", size)
    else:
        store.tally(root, "metadata", count)
        store.tally(root, "metadata_bytes", size)
    store.count("pending", count)


def _changed(entry: Pending, kind: bytes, count: int, size: int, suitable: int) -> Pending:
    """The entry with `count` messages more, `suitable` of them suitable; built by place, as each message does it."""
    telemetry, telemetry_bytes = entry.telemetry, entry.telemetry_bytes
    metadata, metadata_bytes = entry.metadata, entry.metadata_bytes
    if kind == TELEMETRY:
        telemetry, telemetry_bytes = telemetry + count, telemetry_bytes + size
    else:
        metadata, metadata_bytes = metadata + count, metadata_bytes + size
    suitable += entry.suitable
    return Pending(
        entry.since, entry.seq, telemetry, telemetry_bytes, metadata, metadata_bytes, suitable, entry.waiting_bytes
    )


def _above_bounds(work: Work, root: str) -> bool:
    """Whether a root has more telemetry than its count or byte bound (6.2)."""
    number, config = work.store.number, work.config
    return (
        number(tally_key(root, "telemetry")) > config.telemetry_cache_size
        or number(tally_key(root, "telemetry_bytes")) > config.telemetry_cache_bytes
    )


def _evict(work: Work, root: str, tid: str) -> None:
    """Restore the bounds after adding telemetry of `tid` (6.2): first its own, then the oldest of all."""
    store, config = work.store, work.config
    own = config.telemetry_cache_per_entity
    entry = None if own is None else store.pending(root, tid)
    if own is not None and entry is not None and entry.telemetry > own:
        oldest_own = store.first_under(b"M" + name_of(root, tid) + TELEMETRY)
        assert oldest_own is not None
        _push_out(work, root, tid, oldest_own[0])
    while _above_bounds(work, root):
        first = store.first_under(key(b"O", root))
        if first is None:  # only after damage (section 10): nothing is cached whatever the counters say
            store.tally(root, "telemetry", -store.total(root, "telemetry"))
            store.tally(root, "telemetry_bytes", -store.total(root, "telemetry_bytes"))
            return
        index, name = first
        oldest = name.decode("utf-8", "surrogatepass")
        _push_out(work, root, oldest, b"M" + name_of(root, oldest) + TELEMETRY + index[-8:])


def _push_out(work: Work, root: str, tid: str, raw: bytes) -> None:
    cached, entry = work.store.get(raw, Cached), work.store.pending(root, tid)
    assert cached is not None
    work.store.delete(raw)
    size = cached.message.size
    _account(work.store, root, TELEMETRY, -1, -size)
    if entry is not None:
        _save(work, root, tid, _changed(entry, TELEMETRY, -1, -size, -cached.suitable))
    work.drop(cached.message, root, EVICTED)


def wait(work: Work, root: str, tid: str, definition: Definition, parent: str, message: Message) -> None:
    """Let a registration wait for `parent` (5.1, 5.2). Raises Refusal `metadata_full`, then nothing has changed."""
    store = work.store
    before = store.waiting(root, tid)
    need_room(work, root, message.size, 0 if before is None else before.message.size)
    entry = entry_of(work, root, tid)
    if before is not None:
        _drop_waiting(work, root, tid, before)
        store.count("replaced")
    order = before.order if before is not None and before.parent == parent else store.sequence()
    store.put(b"W" + name_of(root, tid), Waiting(order, parent, definition.type, message))
    store.tally(root, "metadata_bytes", message.size)
    store.count("pending")
    _save(work, root, tid, replace(entry, waiting_bytes=message.size))


def _drop_waiting(work: Work, root: str, tid: str, waiting: Waiting) -> None:
    work.store.delete(b"W" + name_of(root, tid))
    work.store.tally(root, "metadata_bytes", -waiting.message.size)
    work.store.count("pending", -1)


def end_waiting(work: Work, root: str, tid: str) -> Waiting | None:
    """Take the waiting registration of an entity out; what is cached stays, with its age."""
    waiting, entry = work.store.waiting(root, tid), work.store.pending(root, tid)
    if waiting is None or entry is None:
        return None
    _drop_waiting(work, root, tid, waiting)
    _save(work, root, tid, replace(entry, waiting_bytes=-1))
    return waiting


def take(work: Work, root: str, tid: str) -> list[Cached]:
    """End the pending entry of an entity and return its cached messages in replay order (6.5)."""
    store = work.store
    if store.pending(root, tid) is None:
        return []
    waiting = store.waiting(root, tid)
    if waiting is not None:
        _drop_waiting(work, root, tid, waiting)
    taken = []
    for kind in (METADATA, TELEMETRY):
        found = store.take_under(b"M" + name_of(root, tid) + kind, Cached)
        if found:
            _account(store, root, kind, -len(found), -sum([cached.message.size for cached in found]))
            taken += found
    _end(work, root, tid)
    return taken


def drop_all(work: Work, root: str, tid: str, refusal: Refusal) -> None:
    """End everything that is kept for an entity: its registration, metadata, telemetry."""
    waiting = work.store.waiting(root, tid)
    messages = [cached.message for cached in take(work, root, tid)]
    for message in ([waiting.message] if waiting is not None else []) + messages:
        work.drop(message, root, refusal)


def expire(work: Work) -> None:
    """Forget entities that were pending for `pending_ttl` (6.4); takes from the oldest end."""
    limit = work.now - work.config.pending_ttl
    while limit >= 0 and (first := work.store.first_due(b"X", limit)) is not None:
        root, tid = parts(b"X" + first[1], 2)[0]
        entry = work.store.pending(root, tid)
        assert entry is not None
        drop_all(work, root, tid, EXPIRED)
        ended = entry.since + work.config.pending_ttl
        set_idle(work, root, tid, "expired", ended, ended)
