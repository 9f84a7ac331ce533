"""HTTP reads (registration.md 12, 13) as pure functions of a State; any instance that has the state can answer.

Lists are paged by a cursor that holds the place of the last item and a digest of path and filters; a page seeks that
place (for the entity list see `listing`).
"""

from __future__ import annotations

import base64
import heapq
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from headrace_core.registration import listing, topics
from headrace_core.registration.config import RegistrationConfig
from headrace_core.registration.items import after, key, name_of, parts
from headrace_core.registration.message import TYPES, read_json, write_json
from headrace_core.registration.reasons import Refusal
from headrace_core.registration.routes import Request, Response, Route, etag, matches, problem, query, route
from headrace_core.registration.status import missing_ancestors, status_document
from headrace_core.registration.store import Store
from headrace_core.registration.work import Work, document, open_root
from headrace_core.state import Overlay, State

T = TypeVar("T")
FAMILIES = {"unknown": b"Z", "pending": b"P", "registered": b"E", "expired": b"Z", "removed": b"Z"}
"""Where the ids in a state are; ids that nothing at all is known of are nowhere."""
STATES = tuple(FAMILIES)


def answer(state: State, config: RegistrationConfig, request: Request) -> Response:
    """Answer a GET from the state as it is. Never writes to `state`."""
    work = Work(Store(Overlay(state)), config)
    try:
        found = route(config, request)
        if request.method != "GET" or found.resource not in _READS:
            raise Refusal("invalid_payload", "writes go through the log, and events are a stream")
        if found.root:
            open_root(work, found.root)
        return _READS[found.resource](work, request, found)
    except Refusal as refusal:
        return problem(refusal, request.path)


def _single(request: Request, value: Any, tag: str) -> Response:
    """A single document with its tag; 304 if the caller has it."""
    condition = request.header("if-none-match")
    if condition is not None and matches(condition, tag, strong=False):
        return Response(304, {"ETag": tag})
    return Response(200, {"ETag": tag}, value)


def _entity(work: Work, request: Request, found: Route) -> Response:
    tid = found.topic_id
    entity = work.store.entity(found.root, tid)
    if entity is None:
        raise Refusal("not_found", f"{tid} is not registered")
    value = document(tid, entity)
    return _single(request, value, etag(value))


def twin_values(store: Store, root: str, tid: str) -> dict[str, Any]:
    """All twin data of an entity, in key order."""
    prefix = b"T" + name_of(root, tid)
    return {raw[len(prefix) :].decode(): read_json(value) for raw, value in store.under(prefix)}


def _twin(work: Work, request: Request, found: Route) -> Response:
    tid = found.topic_id
    if found.resource == "twin-key":
        topics.check_twin_key(found.key)
    if work.store.entity(found.root, tid) is None:
        raise Refusal("not_found", f"{tid} is not registered")
    if found.resource == "twin":
        values = twin_values(work.store, found.root, tid)
        return _single(request, values, etag(values))
    raw = work.store.raw(b"T" + name_of(found.root, tid) + found.key.encode())
    if raw is None:
        raise Refusal("not_found", f"no twin data {found.key!r}")
    return _single(request, read_json(raw), etag(read_json(raw)))


def _config(work: Work, request: Request, found: Route) -> Response:
    tid = found.topic_id
    raw = work.store.raw(b"G" + name_of(found.root, tid))
    if work.store.entity(found.root, tid) is None or raw is None:
        raise Refusal("not_found", "no configuration published")
    value = read_json(raw)
    if found.resource == "config-key":
        if not isinstance(value, dict) or found.key not in value:
            raise Refusal("not_found", f"no member {found.key!r}")
        value = value[found.key]
    return _single(request, value, etag(value))


def _limit(parameters: dict[str, str]) -> int:
    text = parameters.get("limit", "1000")
    if not (text.isascii() and text.isdigit() and len(text) <= 9) or not 1 <= int(text) <= 1000:
        raise Refusal("invalid_query", "limit is 1 to 1000")
    return int(text)


def _digest(request: Request, parameters: dict[str, str]) -> str:
    """What a cursor is valid for: path and filters."""
    filters = {k: v for k, v in sorted(parameters.items()) if k not in ("limit", "cursor")}
    return etag([request.path.partition("?")[0], filters]).strip('"')


class Place(NamedTuple):
    """Where a page begins: behind `last` (a path of topic ids; empty: at the start) in the order of moment `since`."""

    since: int
    last: list[str]


def _page(items: Iterator[T], limit: int) -> tuple[list[T], bool]:
    """One page, and whether there is more."""
    page = list(islice(items, limit))
    return page, next(items, None) is not None


def _write_cursor(digest: str, place: Place) -> str:
    return base64.urlsafe_b64encode(write_json([digest, *place])).decode().rstrip("=")


def _read_cursor(text: str, digest: str) -> Place:
    """Raises Refusal `invalid_cursor`."""
    try:
        padded = text + "=" * (-len(text) % 4)
        match read_json(base64.b64decode(padded, altchars=b"-_", validate=True)):
            case [str() as made_for, int() as since, [*last]] if made_for == digest and last:
                if since >= 0 and all(isinstance(name, str) for name in last):
                    return Place(since, last)
    except ValueError:
        pass
    raise Refusal("invalid_cursor", "unknown, or of another query")


def _entities(work: Work, request: Request, found: Route) -> Response:
    """The entity list: by depth, then by the path of topic ids from the top."""
    parameters = query(request, ("root", "parent", "type", "limit", "cursor"))
    if "root" in parameters and "parent" in parameters:
        raise Refusal("invalid_query", "root and parent exclude each other")
    kind, limit, digest = _check_type(parameters), _limit(parameters), _digest(request, parameters)
    store, root = work.store, found.root
    at = _read_cursor(parameters["cursor"], digest) if "cursor" in parameters else Place(listing.now(store), [])
    if not listing.is_known(store, root, at.since):
        raise Refusal("invalid_cursor", "of a listing that began too long ago")
    found_items = (
        (path, document(tid, entity))
        for path, tid in _listed(store, root, parameters, at)
        if (entity := store.entity(root, tid)) is not None and kind in (None, entity.type)
    )
    page, more = _page(found_items, limit)
    headers = {}
    if more:
        headers["Link"] = _next_link(request, _write_cursor(digest, Place(at.since, page[-1][0])))
    return Response(200, headers, [value for _, value in page])


def _listed(store: Store, root: str, parameters: dict[str, str], at: Place) -> Iterator[tuple[list[str], str]]:
    """Places and topic ids of the entities asked for, in order. Raises Refusal."""
    if "parent" in parameters:
        parent = topics.topic_id(parameters["parent"])
        start = at.last[-1] if at.last else ""
        children = listing.children_from(store, root, parent, start)
        return (([child], child) for child in children if [child] != at.last)
    top = topics.topic_id(parameters["root"]) if "root" in parameters else None
    return listing.entities(store, root, top, at.since, at.last)


def _check_type(parameters: dict[str, str]) -> str | None:
    kind = parameters.get("type")
    if kind is not None and kind not in TYPES:
        raise Refusal("invalid_query", f"type is one of {', '.join(TYPES)}")
    return kind


def _next_link(request: Request, cursor: str) -> str:
    path, _, text = request.path.partition("?")
    kept = [p for p in text.split("&") if p and not p.startswith("cursor=")]
    return f'<{path}?{"&".join([*kept, f"cursor={cursor}"])}>; rel="next"'


def show_status(work: Work, root: str, tid: str) -> dict[str, Any]:
    """The whole status document of section 13 at the clock of the state."""
    shown = status_document(work.store, work.config.pending_ttl, root, tid)
    if shown["state"] == "pending":
        shown["age_ms"] = work.store.clock - shown["since"]
        shown["missing"], shown["cycle"] = missing_ancestors(work.store, root, tid)
    return shown


def _registration(work: Work, request: Request, found: Route) -> Response:
    query(request, ("wait",))
    shown = show_status(work, found.root, found.topic_id)
    stable = {k: v for k, v in shown.items() if k != "age_ms"}
    return _single(request, shown, etag(stable, weak=True))


def _states(parameters: dict[str, str], default: tuple[str, ...]) -> list[str]:
    """The comma list `state`. Raises Refusal `invalid_query`."""
    wanted = parameters["state"].split(",") if "state" in parameters else list(default)
    if any(state not in STATES for state in wanted):
        raise Refusal("invalid_query", f"state is a list of {', '.join(STATES)}")
    return wanted


def events_asked(request: Request) -> tuple[str | None, frozenset[str]]:
    """Which status events a stream is asked for (section 13): of one topic id or None for all, and the states.

    Raises Refusal.
    """
    parameters = query(request, ("id", "state"))
    tid = topics.topic_id(parameters["id"]) if "id" in parameters else None
    return tid, frozenset(_states(parameters, STATES))


def _registrations(work: Work, request: Request, found: Route) -> Response:
    parameters = query(request, ("state", "type", "waiting_for", "min_age_ms", "limit", "cursor"))
    wanted = _states(parameters, STATES[1:])
    kind = _check_type(parameters)
    parent = topics.topic_id(parameters["waiting_for"]) if "waiting_for" in parameters else None
    age = parameters.get("min_age_ms")
    if age is not None and not (age.isascii() and age.isdigit() and len(age) <= 18):
        raise Refusal("invalid_query", "min_age_ms is a number of milliseconds")

    def selected(shown: dict[str, Any]) -> bool:
        return (
            shown["state"] in wanted
            and kind in (None, shown.get("@type"))
            and parent in (None, shown.get("waiting_for"))
            and (age is None or shown.get("age_ms", -1) >= int(age))
        )

    limit, digest = _limit(parameters), _digest(request, parameters)
    last = _read_cursor(parameters["cursor"], digest).last[-1] if "cursor" in parameters else ""
    only_pending = parent is not None or age is not None
    families = {FAMILIES[state] for state in wanted if state == "pending" or not only_pending}
    ids = (tid for tid in _known_ids(work.store, found.root, families, last) if tid != last)
    page, more = _page(filter(selected, (show_status(work, found.root, tid) for tid in ids)), limit)
    cursor = _write_cursor(digest, Place(0, [page[-1]["@topic-id"]])) if more else None
    return Response(200, {}, {"items": page, "next": cursor})


def _known_ids(store: Store, root: str, families: set[bytes], start: str) -> Iterator[str]:
    """The ids in these families from one on, sorted; each is in one family only."""
    return heapq.merge(*(_ids(store, key(family, root), start) for family in sorted(families)))


def _ids(store: Store, prefix: bytes, start: str) -> Iterator[str]:
    first = prefix + start.encode("utf-8", "surrogatepass")
    return (parts(raw, 2)[0][1] for raw, _ in store.span(first, after(prefix)))


def _status(work: Work, request: Request, _found: Route) -> Response:
    query(request, ())
    return Response(200, {}, {"roots": {root: totals(work, root) for root in work.config.roots}})


def totals(work: Work, root: str) -> dict[str, Any]:
    """The totals of one root (section 13)."""
    open_root(work, root)
    store = work.store
    prefix = key(b"t", root)
    counters = {raw[len(prefix) :].decode(): store.number(raw) for raw, _ in store.under(prefix)}
    cache = ("telemetry", "telemetry_bytes", "metadata", "metadata_bytes")
    return {
        "entities": {kind: counters.get(f"entities.{kind}", 0) for kind in TYPES},
        "automatic": counters.get("automatic", 0),
        "pending": counters.get("pending", 0),
        "cache": {name: counters.get(name, 0) for name in cache},
        "dropped": {n.removeprefix("dropped."): c for n, c in counters.items() if n.startswith("dropped.")},
    }


_READS: dict[str, Callable[[Work, Request, Route], Response]] = {
    "entities": _entities,
    "entity": _entity,
    "twin": _twin,
    "twin-key": _twin,
    "config": _config,
    "config-key": _config,
    "registrations": _registrations,
    "registration": _registration,
    "status": _status,
}
