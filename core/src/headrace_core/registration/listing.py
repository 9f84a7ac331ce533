"""The order of the entity list, and pages of it that miss nothing and repeat nothing (registration.md 12).

The list is sorted by depth, then by the path of topic ids from the top; a page begins behind the *place* of the last
one. A changed `@parent` moves an entity and all below it to another place, so places alone would lose or repeat it. So
a listing keeps the order that its first page saw: every change of a parent is remembered with a sequence number and
the path before it (family `H`, the last KEPT of a root), a cursor carries the sequence number of its first page, and
places are those of that moment. A cursor from before the oldest move that is remembered is refused.

Nobody is scanned twice: a page seeks its place and reads from there. Only what has moved since the first page is put
in order anew.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence

import msgspec

from headrace_core.registration.items import after, key, number, parts
from headrace_core.registration.store import Store

KEPT = 1000
"""Moves remembered for each root."""
SEQUENCE = b"csequence"
FORGOTTEN = "moves_forgotten"
Path = list[str]
Children = Callable[[Sequence[str], str], Iterator[str]]
"""Children of the last of a path (of nobody: the tops) from a topic id on, sorted."""


class Moved(msgspec.Struct, frozen=True, array_like=True):
    """Before this the entity had this path, from the top of its root to itself."""

    path: list[str]


def path_of(store: Store, root: str, tid: str) -> Path:
    """Topic ids from the top down to a registered entity."""
    path = [tid]
    entity = store.entity(root, tid)
    while entity is not None and entity.parent is not None:
        path.append(entity.parent)
        entity = store.entity(root, entity.parent)
    return path[::-1]


def remember(store: Store, root: str, tid: str) -> None:
    """Note the path of an entity whose parent is about to change."""
    prefix = key(b"H", root)
    store.put(prefix + number(store.sequence()), Moved(path_of(store, root, tid)))
    if store.tally(root, "moves") > KEPT:
        oldest, _ = next(iter(store.under(prefix)))
        store.delete(oldest)
        store.tally(root, "moves", -1)
        forgotten = int.from_bytes(oldest[len(prefix) :], "big")
        store.tally(root, FORGOTTEN, forgotten - store.total(root, FORGOTTEN))


def now(store: Store) -> int:
    """The moment that a listing which begins now keeps to."""
    return store.number(SEQUENCE)


def is_known(store: Store, root: str, since: int) -> bool:
    """Whether all moves after `since` are remembered, and `since` is not in the future."""
    return store.total(root, FORGOTTEN) <= since <= now(store)


def entities(store: Store, root: str, top: str | None, since: int, last: Path) -> Iterator[tuple[Path, str]]:
    """Paths at the moment `since` and topic ids behind `last` (empty: all), of the whole root or of the tree of `top`.

    Paths begin at `top`. What has come into its tree by a move since then is left out.
    """
    moves = _moves(store, root, since)
    here = _children(store, root, top, frozenset(moves))
    stayed = ((path, path[-1]) for path in walk(here, last))
    if not moves:
        return stayed
    moved = _moved(store, root, top, moves)
    return heapq.merge(stayed, [item for item in moved if not last or place(item[0]) > place(last)], key=_place_of)


def place(path: Path) -> tuple[int, Path]:
    """What the list is sorted by."""
    return len(path), path


def _place_of(item: tuple[Path, str]) -> tuple[int, Path]:
    return place(item[0])


def walk(children: Children, last: Path) -> Iterator[Path]:
    """All paths behind `last`, by depth, then by path."""
    depth = len(last) or 1
    yield from _level(children, depth, last)
    level: Iterator[Path] = _level(children, depth, [])
    while True:
        below: list[Path] = []
        for path in level:
            for child in children(path, ""):
                below.append([*path, child])
                yield below[-1]
        if not below:
            return
        level = iter(below)


def _level(children: Children, depth: int, last: Path) -> Iterator[Path]:
    """All paths of this depth behind `last`, sorted. Goes down along `last`, then on to the right."""
    path: Path = []
    along = bool(last)
    open_: list[Iterator[str]] = [children(path, last[0] if along else "")]
    while open_:
        child = next(open_[-1], None)
        if child is None:
            open_.pop()
            del path[-1:]
            along = False
            continue
        at = len(path)
        same = along and child == last[at]
        if at + 1 == depth:
            if not same:
                yield [*path, child]
            continue
        along = same
        path.append(child)
        open_.append(children(path, last[at + 1] if along else ""))


def _children(store: Store, root: str, top: str | None, left_out: frozenset[str]) -> Children:
    def children(path: Sequence[str], start: str) -> Iterator[str]:
        if not path and top is not None:
            found = iter([top] if store.entity(root, top) is not None and top >= start else [])
        else:
            found = children_from(store, root, path[-1] if path else None, start)
        return (child for child in found if child not in left_out or child == top)

    return children


def children_from(store: Store, root: str, parent: str | None, start: str) -> Iterator[str]:
    """Registered children (None: those without parent) from a topic id on, sorted, lazily."""
    prefix = key(b"K", root, parent or "")
    first = prefix + start.encode("utf-8", "surrogatepass")
    return (parts(raw, 3)[0][2] for raw, _ in store.span(first, after(prefix)))


Moves = dict[str, list[tuple[int, Path]]]


def _moves(store: Store, root: str, since: int) -> Moves:
    """What has moved after `since`: by topic id, sequence numbers and the paths before, oldest first."""
    prefix = key(b"H", root)
    found: Moves = {}
    for raw, value in store.span(prefix + number(since + 1), after(prefix)):
        path = msgspec.msgpack.decode(value, type=Moved).path
        found.setdefault(path[-1], []).append((int.from_bytes(raw[len(prefix) :], "big"), path))
    return found


def _moved(store: Store, root: str, top: str | None, moves: Moves) -> list[tuple[Path, str]]:
    """All entities that have moved or have come along with one, with their paths from `top` at the moment, sorted."""
    found: dict[str, Path] = {}
    for tid in moves:
        path = path_of(store, root, tid)
        known = store.entity(root, tid) is not None and (top is None or top in path[:-1])
        paths = [path] if known else []
        while paths:
            path = paths.pop()
            if path[-1] in found:
                continue
            found[path[-1]] = path
            paths += [[*path, child] for child in children_from(store, root, path[-1], "")]
    items = []
    for tid, path in found.items():
        before = path_before(path, moves)
        if top is None:
            items.append((before, tid))
        elif top in before:
            items.append((before[before.index(top) :], tid))
    return sorted(items, key=_place_of)


def path_before(path: Path, moves: Moves) -> Path:
    """The path of an entity before all these moves.

    From the bottom up: whoever moved since then stood, before its first move, where that move says; those above it
    stood there at that time, so only their moves before it count.
    """
    found: Path = []
    until: int | None = None
    while path:
        tid = path[-1]
        first = next(((seq, before) for seq, before in moves.get(tid, ()) if until is None or seq < until), None)
        if first is not None:
            until, path = first
        found.append(tid)
        path = path[:-1]
    return found[::-1]
