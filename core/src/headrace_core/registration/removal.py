"""Removal (registration.md 9): an entity with all its descendants, leaves first; a pending one is cancelled."""

from __future__ import annotations

from typing import Any

from headrace_core.registration import status
from headrace_core.registration.cache import pending
from headrace_core.registration.config import MAIN
from headrace_core.registration.effects import Cleared, Published, Removed
from headrace_core.registration.items import name_of
from headrace_core.registration.reasons import Refusal
from headrace_core.registration.store import Store
from headrace_core.registration.work import Work, document


def remove(work: Work, root: str, tid: str) -> list[dict[str, Any]] | None:
    """Remove what is known of an id.

    Returns the documents of all removed entities, depth first from the top; [] if it was only pending; None if there
    was nothing. Raises Refusal `main_protected`.
    """
    if tid == MAIN:
        raise Refusal("main_protected", "the main device cannot be removed")
    if work.store.entity(root, tid) is None:
        if work.store.pending(root, tid) is None:
            return None
        pending.drop_all(work, root, tid, pending.CANCELLED)
        work.store.delete(b"L" + name_of(root, tid))
        status.set_idle(work, root, tid, "removed", work.now, work.now)
        return []
    documents = []
    order = subtree(work.store, root, tid)
    for name in order:
        entity = work.store.entity(root, name)
        assert entity is not None
        documents.append(document(name, entity))
    for name in reversed(order):
        _remove_one(work, root, name)
    return documents


def subtree(store: Store, root: str, tid: str) -> list[str]:
    """An entity and its descendants, depth first, siblings by topic id."""
    order, stack = [], [tid]
    while stack:
        name = stack.pop()
        order.append(name)
        stack.extend(reversed(store.children(root, name)))
    return order


def _remove_one(work: Work, root: str, tid: str) -> None:
    store = work.store
    entity = store.entity(root, tid)
    assert entity is not None
    prefix = b"V" + name_of(root, tid)
    for raw, _ in list(store.under(prefix)):
        work.emit(Cleared(root, raw[len(prefix) :].decode()))
        store.delete(raw)
    for raw, _ in list(store.under(b"T" + name_of(root, tid))):
        store.delete(raw)
    store.delete(b"G" + name_of(root, tid))
    store.delete(b"E" + name_of(root, tid))
    store.tally(root, f"entities.{entity.type}", -1)
    store.tally(root, "automatic", -int(entity.automatic))
    store.delete(b"L" + name_of(root, tid))
    work.emit(Removed(root, tid))
    spelled = b"R" + name_of(root, tid)
    for raw, _ in list(store.under(spelled)):
        work.emit(Published(raw[len(spelled) :].decode(), b""))
        store.delete(raw)
    status.set_idle(work, root, tid, "removed", work.now, work.now)
