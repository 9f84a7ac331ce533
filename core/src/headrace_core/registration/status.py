"""States of ids and their last refusals (registration.md 13).

An id is registered (an entity item), pending (a pending item), idle (`removed`, `expired`, or `unknown` with a
last error) or nothing at all; never two of these. Idle statuses are bounded in time and number: the oldest go first.

The last refusal is that of a registration or removal. Data that is refused says nothing of the id's registration and
may come at any rate; it is counted and has its dead letter (11).
"""

from __future__ import annotations

from typing import Any

from headrace_core.registration.effects import StatusChanged
from headrace_core.registration.items import Entity, Idle, LastError, Pending, Waiting, key, name_of, parts
from headrace_core.registration.reasons import Refusal
from headrace_core.registration.store import Store
from headrace_core.registration.work import Work, document


def set_idle(work: Work, root: str, tid: str, state: str, since: int | None, at: int) -> None:
    """Give an id that is neither registered nor pending its status, and keep the bound on their number."""
    store = work.store
    if store.idle(root, tid) is None:
        store.tally(root, "idle")
    store.put(b"Z" + name_of(root, tid), Idle(state, since, at, store.sequence()))
    work.touch(root, tid)
    while store.total(root, "idle") > work.config.status_history:
        oldest = store.first_under(key(b"B", root))
        assert oldest is not None
        forget(work, root, oldest[1].decode("utf-8", "surrogatepass"))


def forget(work: Work, root: str, tid: str) -> None:
    """An idle id becomes unknown, its last error goes too."""
    end_idle(work, root, tid)
    work.store.delete(b"L" + name_of(root, tid))


def end_idle(work: Work, root: str, tid: str) -> None:
    if work.store.idle(root, tid) is not None:
        work.store.delete(b"Z" + name_of(root, tid))
        work.store.tally(root, "idle", -1)
        work.touch(root, tid)


def set_error(work: Work, root: str, tid: str, refusal: Refusal) -> None:
    """Keep the last refusal of an id; an id with nothing else becomes `unknown` with it."""
    store = work.store
    store.put(b"L" + name_of(root, tid), LastError(refusal.reason, work.now, refusal.detail))
    work.touch(root, tid)
    if store.entity(root, tid) is None and store.pending(root, tid) is None:
        idle = store.idle(root, tid)
        if idle is None or idle.since is None:
            set_idle(work, root, tid, "unknown", None, work.now)


def clear_error(work: Work, root: str, tid: str) -> None:
    """Accepted or removed: the last refusal is gone."""
    if work.store.error(root, tid) is not None:
        work.store.delete(b"L" + name_of(root, tid))
        work.touch(root, tid)


def settle(work: Work, root: str, tid: str) -> None:
    """An id that has just stopped being pending, without more: unknown, with its last error if there is one."""
    work.touch(root, tid)
    error = work.store.error(root, tid)
    if error is not None:
        set_idle(work, root, tid, "unknown", None, error.receipt_ms)


def expire_idle(work: Work) -> None:
    """Forget idle ids whose retention is over; takes from the oldest end."""
    limit = work.now - work.config.status_retention
    while limit >= 0:
        first = work.store.first_due(b"A", limit)
        if first is None:
            return
        root, tid = parts(b"A" + first[1], 2)[0]
        forget(work, root, tid)


def changed(work: Work, root: str, tid: str) -> StatusChanged:
    """The status as an effect."""
    error = work.store.error(root, tid)
    document = _document(work.store, work.config.pending_ttl, root, tid, error)
    known = error is not None or document["state"] != "unknown"
    return StatusChanged(root, tid, document if known else None, error.detail if error is not None else "")


def status_document(store: Store, ttl: int, root: str, tid: str) -> dict[str, Any]:
    """The status of section 13 without what depends on other entities or on the clock."""
    return _document(store, ttl, root, tid, store.error(root, tid))


def _document(store: Store, ttl: int, root: str, tid: str, error: LastError | None) -> dict[str, Any]:
    name = name_of(root, tid)
    entity = store.get(b"E" + name, Entity)
    if entity is not None:
        shown = {"@topic-id": tid, "root": root, "state": "registered", "since": entity.since}
        shown |= document(tid, entity)
        shown["automatic"] = entity.automatic
    elif (entry := store.get(b"P" + name, Pending)) is not None:
        waiting = store.get(b"W" + name, Waiting) if entry.waiting else None
        shown = _pending_document(root, tid, entry, waiting, entry.since + ttl)
    else:
        idle = store.idle(root, tid)
        state, since = ("unknown", None) if idle is None else (idle.state, idle.since)
        shown = {"@topic-id": tid, "root": root, "state": state, "since": since}
    if error is not None:
        shown["last_error"] = {"reason": error.reason, "receipt_time": error.receipt_ms}
    return shown


def _pending_document(root: str, tid: str, entry: Pending, waiting: Waiting | None, expires_at: int) -> dict[str, Any]:
    size = entry.telemetry_bytes + entry.metadata_bytes + max(entry.waiting_bytes, 0)
    shown = {
        "@topic-id": tid,
        "root": root,
        "state": "pending",
        "since": entry.since,
        "expires_at": expires_at,
        "registration": waiting is not None,
        "waiting_for": None if waiting is None else waiting.parent,
        "cached": {"telemetry": entry.telemetry, "metadata": entry.metadata, "bytes": size},
    }
    if waiting is not None:
        shown["@type"] = waiting.type
    return shown


def missing_ancestors(store: Store, root: str, tid: str) -> tuple[list[str], bool]:
    """Unregistered ancestors, nearest first, as far as waiting registrations tell, and whether they form a cycle."""
    missing: dict[str, None] = {}
    waiting = store.waiting(root, tid)
    while waiting is not None and store.entity(root, waiting.parent) is None:
        if waiting.parent == tid or waiting.parent in missing:
            return list(missing), True
        missing[waiting.parent] = None
        waiting = store.waiting(root, waiting.parent)
    return list(missing), False
