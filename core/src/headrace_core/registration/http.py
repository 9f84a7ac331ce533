"""HTTP writes (registration.md 12), applied in log order. A refused request changes nothing and has no dead letter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from headrace_core.registration import entities, removal, topics
from headrace_core.registration.effects import Published
from headrace_core.registration.items import Entity, name_of
from headrace_core.registration.message import read_definition, read_json, read_reference, same, write_json
from headrace_core.registration.queries import twin_values
from headrace_core.registration.reasons import Refusal
from headrace_core.registration.routes import ABSENT, Request, Response, Route, etag, matches, problem, route
from headrace_core.registration.updates import change, check_parent
from headrace_core.registration.work import Work, document, open_root, publication

MAX_BODY = 1_048_576
PLAIN = "/:@!$&'()*,;=~"
"""What need not be encoded in the path of a URL, beside letters and digits (RFC 3986, 3.3)."""


def answer(work: Work, request: Request) -> Response:
    """Apply a write and answer it; a read or anything wrong is answered with a problem document."""
    try:
        found = route(work.config, request)
        handler = _WRITES.get((request.method, found.resource))
        if handler is None:
            raise Refusal("invalid_payload", "reads are not written to the log")
        check_body(request)
        open_root(work, found.root)
        return handler(work, request, found)
    except Refusal as refusal:
        return problem(refusal, request.path)


def check_body(request: Request) -> None:
    """Raises Refusal `unsupported_media_type` or `too_large`."""
    kind = request.header("content-type")
    if request.body is not ABSENT and kind is not None:
        media = kind.partition(";")[0].strip().lower()
        if media != "application/json" and not media.endswith("+json"):
            raise Refusal("unsupported_media_type", f"{media} is not JSON")
    if request.body is not ABSENT and len(write_json(request.body)) > MAX_BODY:
        raise Refusal("too_large", f"the body is larger than {MAX_BODY} bytes")


def _post(work: Work, request: Request, found: Route) -> Response:
    body = request.body
    if not isinstance(body, dict):
        raise Refusal("invalid_payload", "not an object")
    tid = read_reference(body, "@topic-id")
    if tid is None:
        raise Refusal("missing_topic_id", "@topic-id is required")
    if work.store.entity(found.root, tid) is not None:
        raise Refusal("exists", f"{tid} is registered")
    members = {k: v for k, v in body.items() if k != "@topic-id"}
    definition = read_definition(work.config, tid, members)
    if definition.ignored:
        work.store.count("warnings.unknown_member")
    entities.register(work, found.root, tid, definition)
    work.store.put(b"E" + name_of(found.root, tid), entities.echoed(_known(work, found.root, tid)))
    _publish(work, found.root, tid)
    return Response(201, {"Location": quote(f"/{found.root}/v1/entities/{tid}", safe=PLAIN)}, {"@topic-id": tid})


def _publish(work: Work, root: str, tid: str) -> None:
    entity = work.store.entity(root, tid)
    assert entity is not None
    work.emit(Published(f"{root}/{tid}", publication(entity)))


def _known(work: Work, root: str, tid: str) -> Entity:
    entity = work.store.entity(root, tid)
    if entity is None:
        raise Refusal("not_found", f"{tid} is not registered")
    return entity


def _precondition(request: Request, value: Any) -> None:
    """Check If-Match against the present document; ABSENT: there is none."""
    condition = request.header("if-match")
    if condition is None:
        return
    if value is ABSENT or not matches(condition, etag(value), strong=True):
        raise Refusal("precondition_failed", "If-Match names another version")


def _patch(work: Work, request: Request, found: Route) -> Response:
    root, tid = found.root, found.topic_id
    entity = _known(work, root, tid)
    _precondition(request, document(tid, entity))
    body = request.body
    if not isinstance(body, dict):
        raise Refusal("invalid_payload", "not an object")
    for member in body:
        if member not in ("@parent", "@health"):
            raise Refusal("unknown_field", f"{member!r} cannot be changed")
    parent, health = read_reference(body, "@parent"), read_reference(body, "@health")
    if parent is not None:
        check_parent(work.store, root, tid, entity, parent)
    if health is not None:
        service = work.store.entity(root, health)
        if service is None or service.type != "service":
            raise Refusal("invalid_health", f"{health} is not a registered service")
    new = change(work, root, tid, entity, parent, health)
    if new != entity:
        _publish(work, root, tid)
    shown = document(tid, new)
    return Response(200, {"ETag": etag(shown)}, shown)


def _delete(work: Work, request: Request, found: Route) -> Response:
    root, tid = found.root, found.topic_id
    entity = work.store.entity(root, tid)
    _precondition(request, ABSENT if entity is None else document(tid, entity))
    removed = removal.remove(work, root, tid)
    return Response(200, {}, removed) if removed else Response(204)


def _put_twin(work: Work, request: Request, found: Route) -> Response:
    """Replace all twin data: removals first, in key order (section 12)."""
    root, tid, body = found.root, found.topic_id, request.body
    _known(work, root, tid)
    _precondition(request, twin_values(work.store, root, tid))
    if body is ABSENT or not (body is None or isinstance(body, dict)):
        raise Refusal("invalid_payload", "not an object")
    wanted = {k: v for k, v in (body or {}).items() if v is not None}
    for name in body or {}:
        topics.check_twin_key(name)
    _replace_twin(work, root, tid, wanted)
    return Response(204) if body is None else Response(200, {"ETag": etag(wanted)}, wanted)


def _replace_twin(work: Work, root: str, tid: str, wanted: dict[str, Any]) -> None:
    for name in twin_values(work.store, root, tid):
        if name not in wanted:
            _write_twin(work, root, tid, name, None)
    for name, value in wanted.items():
        _write_twin(work, root, tid, name, value)


def _write_twin(work: Work, root: str, tid: str, name: str, value: Any) -> None:
    """Write one value, for the bridge too, unless it is what is there."""
    raw = work.store.raw(b"T" + name_of(root, tid) + name.encode())
    if (raw is None) == (value is None) and (raw is None or same(read_json(raw), value)):
        return
    entities.set_twin(work, root, tid, name, value)
    topic = f"{root}/{tid}/twin/{name}"
    entities.mark(work, root, tid, topic, retained=value is not None)
    work.emit(Published(topic, b"" if value is None else write_json(value)))


def _put_twin_key(work: Work, request: Request, found: Route) -> Response:
    root, tid = found.root, found.topic_id
    topics.check_twin_key(found.key)
    _known(work, root, tid)
    _precondition(request, twin_values(work.store, root, tid).get(found.key, ABSENT))
    if request.body is ABSENT:
        raise Refusal("invalid_payload", "a value is required")
    _write_twin(work, root, tid, found.key, request.body)
    return Response(204) if request.body is None else Response(200, {"ETag": etag(request.body)}, request.body)


def _delete_twin(work: Work, request: Request, found: Route) -> Response:
    root, tid = found.root, found.topic_id
    _known(work, root, tid)
    _precondition(request, twin_values(work.store, root, tid))
    _replace_twin(work, root, tid, {})
    return Response(204)


def _delete_twin_key(work: Work, request: Request, found: Route) -> Response:
    root, tid = found.root, found.topic_id
    topics.check_twin_key(found.key)
    _known(work, root, tid)
    _precondition(request, twin_values(work.store, root, tid).get(found.key, ABSENT))
    _write_twin(work, root, tid, found.key, None)
    return Response(204)


_WRITES: dict[tuple[str, str], Callable[[Work, Request, Route], Response]] = {
    ("POST", "entities"): _post,
    ("PATCH", "entity"): _patch,
    ("DELETE", "entity"): _delete,
    ("PUT", "twin"): _put_twin,
    ("DELETE", "twin"): _delete_twin,
    ("PUT", "twin-key"): _put_twin_key,
    ("DELETE", "twin-key"): _delete_twin_key,
}
