"""The OpenAPI document, written by hand: paths hold topic ids, whose last segments may be empty."""

from __future__ import annotations

import json
from typing import Any

from headrace_api import problems
from headrace_api.examples import (
    ENTITIES,
    ENTITY,
    EXAMPLES,
    FULL,
    FULL_REGISTRATION,
    OVEN_STATUS,
    REGISTRATION,
    REGISTRATIONS,
    TWIN,
    TWIN_KEY,
    WRITES,
    Example,
)
from headrace_api.shapes import COUNT, COUNTS, KIND_OF_ENTITY, SCHEMAS, TEXT, closed_object, ref
from headrace_api.timelines import document as timelines
from headrace_core.registration.routes import ABSENT

DESCRIPTIONS = {
    200: "the answer", 304: "not changed: `If-None-Match` names the present tag", 400: "the request is wrong",
    201: "registered; what waited for it follows", 204: "done, there is nothing to show",
    404: "there is no such thing", 409: "it is registered, or its external id is taken",
    412: "`If-Match` names another version", 413: "the body is larger than 1 MiB", 415: "the body is not JSON by type",
    422: "a required member is missing", 429: "too many streams and long polls are open",
    503: "not caught up yet, or Kafka is away", 504: "no answer in time; the write may still happen",
}  # fmt: skip
NOT_READY = {
    "description": DESCRIPTIONS[503],
    "headers": {"Retry-After": {"schema": {"type": "integer"}}},
    "content": {
        problems.MEDIA_TYPE: {
            "schema": ref("Problem"),
            "examples": {
                "catching_up": {
                    "value": problems.document(
                        503, "not_ready", "812 records of headrace.registration.changelog are to be read",
                        "/te/v1/entities",
                    )
                }
            },
        }
    },
}  # fmt: skip
TIMEOUT = {
    "description": DESCRIPTIONS[504],
    "content": {
        problems.MEDIA_TYPE: {
            "schema": ref("Problem"),
            "examples": {
                "no_stream_processor": {
                    "value": problems.document(
                        504, "timeout", "no answer within 10 s; it is in the log, raw-2 at 4711, and happens when the "
                        "stream processor gets there: is it running?", "/te/v1/entities",
                    )
                }
            },
        }
    },
}  # fmt: skip
ETAG = {"ETag": {"schema": TEXT, "description": "depends on the content only"}}


def _parameters(template: str) -> list[dict[str, Any]]:
    names = [part[1:-1] for part in template.split("/") if part.startswith("{")]
    values = {
        "root": ("first segment of the MQTT topics of a gateway", "te"),
        "s1": ("first segment of the topic id", "device"), "s2": ("second segment", "press"),
        "s3": ("third segment; may be empty in the URL", "service"),
        "s4": ("fourth segment; may be empty in the URL", "monitor"), "key": ("name", "os"),
    }  # fmt: skip
    return [
        {"name": name, "in": "path", "required": True, "schema": TEXT, "description": values[name][0],
         "example": values[name][1]}
        for name in names
    ]  # fmt: skip


def _query(name: str, schema: dict[str, Any], words: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": words}


IF_NONE_MATCH = {
    "name": "If-None-Match", "in": "header", "required": False, "schema": TEXT,
    "description": "entity tags that the caller has",
}  # fmt: skip
IF_MATCH = {
    "name": "If-Match", "in": "header", "required": False, "schema": TEXT,
    "description": "entity tags; checked when the write is processed",
}  # fmt: skip
LAST_EVENT_ID = {
    "name": "Last-Event-ID", "in": "header", "required": False, "schema": TEXT,
    "description": "go on behind this event",
}  # fmt: skip
LIMIT = _query("limit", {"type": "integer", "minimum": 1, "maximum": 1000, "default": 1000}, "items a page")
CURSOR = _query("cursor", TEXT, "from the answer before; opaque, for the same filters only")
KIND = _query("type", KIND_OF_ENTITY, "only entities of this type")
WAIT = _query(
    "wait",
    {"type": "integer", "minimum": 0, "maximum": 60},
    "seconds; with `If-None-Match`: hold the answer until the tag differs, else 304",
)


def _examples(template: str, method: str, status: int, shown: tuple[Example, ...]) -> dict[str, Any]:
    wanted = (template, method, status)
    return {
        e.name: {"summary": f"{e.method} {e.path}", "value": e.body}
        for e in shown
        if (e.template, e.method, e.status) == wanted and e.body is not ABSENT
    }


def _answers(template: str, method: str, schemas: dict[int, Any], problems_: tuple[int, ...]) -> dict[str, Any]:
    """Responses by status: those with a schema (None: without body), and problem documents."""
    found: dict[str, Any] = {}
    for status in (*schemas, *problems_):
        schema = ref("Problem") if status in problems_ else schemas[status]
        media = problems.MEDIA_TYPE if status in problems_ else "application/json"
        shown = _examples(template, method, status, EXAMPLES + WRITES)
        found[str(status)] = {"description": DESCRIPTIONS[status]}
        if schema is not None:
            content = {"schema": schema} | ({"examples": shown} if shown else {})
            found[str(status)]["content"] = {media: content}
    return found


def _get(
    template: str, summary: str, schema: dict[str, Any], *, statuses: tuple[int, ...],
    query: tuple[dict[str, Any], ...] = (), headers: Any = None,
) -> dict[str, Any]:  # fmt: skip
    single = (IF_NONE_MATCH,) if 304 in statuses else ()
    schemas = {200: schema} | ({304: None} if 304 in statuses else {})
    responses = _answers(template, "GET", schemas, tuple(s for s in statuses if s not in schemas))
    for status in ("200", "304") if headers else ():
        if status in responses:
            responses[status]["headers"] = headers
    parameters = [*_parameters(template), *query, *single]
    return {"get": {"summary": summary, "parameters": parameters, "responses": responses | {"503": NOT_READY}}}


def _write(
    method: str, template: str, summary: str, answers: dict[int, Any], refusals: tuple[int, ...], *,
    body: dict[str, Any] | None = None, headers: Any = None,
) -> dict[str, Any]:  # fmt: skip
    """A write; all but POST take `If-Match`. `headers` are those of the first answer."""
    single = (IF_MATCH,) if method != "POST" else ()
    responses = _answers(template, method, answers, (*refusals, *((412,) if single else ())))
    if headers:
        responses[str(min(answers))]["headers"] = headers
    call: dict[str, Any] = {
        "summary": summary,
        "parameters": [*_parameters(template), *single],
        "responses": responses | {"503": NOT_READY, "504": TIMEOUT},
    }
    if body is not None:
        sent = {
            e.name: {"value": e.sent}
            for e in WRITES
            if (e.template, e.method) == (template, method) and e.status < 300 and e.sent is not ABSENT
        }
        call["requestBody"] = {"required": True, "content": {"application/json": {"schema": body, "examples": sent}}}
    return {method.lower(): call}


def _plain(summary: str, responses: dict[str, Any], *query: dict[str, Any]) -> dict[str, Any]:
    return {"get": {"summary": summary, "parameters": list(query), "responses": responses}}


def _ok(media: str, schema: dict[str, Any], example: Any) -> dict[str, Any]:
    content = {media: {"schema": schema, "examples": {"ok": {"value": example}}}}
    return {"200": {"description": DESCRIPTIONS[200], "content": content}}


SINGLE, LIST = (200, 304, 400, 404), (200, 400, 404)
LINK = {"Link": {"schema": TEXT, "description": '`<...>; rel="next"` if there is another page', "required": False}}
LOCATION = {"Location": {"schema": TEXT, "description": "path of the entity"}}
BOOLEAN = {"type": "boolean"}
READY = closed_object(
    {
        "ready": BOOLEAN,
        "writes": BOOLEAN,
        "events": BOOLEAN,
        "lag": COUNTS,
        "recovering": {"type": "array", "items": TEXT},
    }
)
STALLED = {
    "description": "the consumer makes no progress",
    "content": {
        problems.MEDIA_TYPE: {
            "schema": ref("Problem"),
            "examples": {
                "stalled": {
                    "value": problems.document(503, "stalled", "the consumer has been stuck for 75 s", "/healthz")
                }
            },
        }
    },
}
STATUS_EXAMPLE = {
    "ready": True,
    "config": {"roots": {"te": "main-dev"}, "auto_register": True, "pending_ttl": 3_600_000},
    "replica": {
        "topic": "headrace.registration.changelog", "kafka_up": True,
        "partitions": {"0": {"offset": 5120, "lag": 0, "source": 4711}},
    },
    "counters": {"registration": {"applied": 3, "in": 8, "passed": 3, "pending": 2}},
    "roots": {
        "te": {
            "entities": {"device": 1, "child-device": 1, "service": 1}, "automatic": 0, "pending": 1,
            "cache": {"telemetry": 1, "telemetry_bytes": 46, "metadata": 0, "metadata_bytes": 65},
            "dropped": {"type_change": 1},
        }
    },
}  # fmt: skip

MAX_CHANGES = (400, 404, 413, 415)
EVENT_EXAMPLE = "event: status\nid: 1f2e3d4c-17.0.4.11\ndata: " + json.dumps(
    {name: value for name, value in OVEN_STATUS.items() if name != "age_ms"}
)
EVENTS = {
    "get": {
        "summary": "an event `status` at each change of state or last error, while the connection lasts",
        "parameters": [
            *_parameters("/{root}/v1/registration-events"), LAST_EVENT_ID,
            _query("id", TEXT, "topic id; only this one"), _query("state", TEXT, "comma list; only changes to these"),
        ],
        "responses": {
            "200": {
                "description": "events; one `reset` if those behind `Last-Event-ID` are not kept any more",
                "content": {"text/event-stream": {"schema": TEXT, "examples": {"waits": {"value": EVENT_EXAMPLE}}}},
            },
            **_answers("", "GET", {}, (400, 404, 429)),
            "503": NOT_READY,
        },
    }
}  # fmt: skip


def _entity(template: str, words: str) -> dict[str, Any]:
    return (
        _get(template, f"one entity{words}", ref("Entity"), statuses=SINGLE, headers=ETAG)
        | _write("PATCH", template, "another parent or health service", {200: ref("Entity")}, MAX_CHANGES,
                 body=ref("Patch"), headers=ETAG)
        | _write("DELETE", template, "remove it with all its descendants; 204: there was nothing, or it was pending",
                 {200: {"type": "array", "items": ref("Entity")}, 204: None}, (400, 404))
    )  # fmt: skip


CAPACITY_EXAMPLE = {
    "resource": "database", "shared_capacity": 500, "max_capacity": 500, "granted": 400, "used": 387, "free": 100,
    "waiting": 0, "pause_ms": 0, "factor": 1.0, "learning": False, "config_version": 1, "in_force_version": 1,
    "owners": [
        {"owner": "writer-1:4711:5d414", "want": 40, "share": 40, "partitions": 40, "granted": 400, "used": 387,
         "reserve": False},
    ],
}  # fmt: skip


STORE_AWAY = {
    "description": "the lease store does not answer",
    "headers": NOT_READY["headers"],
    "content": {
        problems.MEDIA_TYPE: {
            "schema": ref("Problem"),
            "examples": {
                "no_answer": {
                    "value": problems.document(
                        503, "lease_store_unavailable", "the lease store in PostgreSQL did not answer within 2000 ms",
                        "/v1/capacity/database",
                    ) | {"type": "urn:headrace:capacity:lease_store_unavailable"}
                }
            },
        }
    },
}  # fmt: skip


def _capacity() -> dict[str, Any]:
    found = _plain(
        "what is granted of a shared capacity, used and waited for, in sum and per owner",
        _ok("application/json", ref("Capacity"), CAPACITY_EXAMPLE)
        | _answers("", "GET", {}, (404,))
        | {"503": STORE_AWAY},
    )
    name = {"name": "resource", "in": "path", "required": True, "schema": TEXT, "description": "name of the resource",
            "example": "database"}  # fmt: skip
    found["get"]["parameters"].append(name)
    return found


PATHS: dict[str, Any] = {
    ENTITIES:
        _get(ENTITIES, "the entities of a root, by depth, then by the path from the top",
             {"type": "array", "items": ref("Entity")}, statuses=LIST, headers=LINK,
             query=(_query("root", TEXT, "topic id: this subtree with its top"),
                    _query("parent", TEXT, "topic id: direct children; not with `root`"), KIND, LIMIT, CURSOR))
        | _write("POST", ENTITIES, "register an entity; its parent must be registered", {201: ref("Created")},
                 (*MAX_CHANGES, 409, 422), body=ref("Create"), headers=LOCATION),
    ENTITY: _entity(ENTITY, "; trailing slashes left out"),
    FULL: _entity(FULL, ""),
    TWIN:
        _get(TWIN, "all twin data", {"type": "object"}, statuses=SINGLE, headers=ETAG)
        | _write("PUT", TWIN, "replace all twin data; null removes it", {200: ref("Twin"), 204: None}, MAX_CHANGES,
                 body={"type": ["object", "null"]}, headers=ETAG)
        | _write("DELETE", TWIN, "remove all twin data", {204: None}, (400, 404)),
    TWIN_KEY:
        _get(TWIN_KEY, "one value of the twin data", {}, statuses=SINGLE, headers=ETAG)
        | _write("PUT", TWIN_KEY, "set one value; null removes it", {200: {}, 204: None}, MAX_CHANGES, body={},
                 headers=ETAG)
        | _write("DELETE", TWIN_KEY, "remove one value", {204: None}, (400, 404)),
    FULL + "/config": _get(FULL + "/config", "the last published configuration", {}, statuses=SINGLE, headers=ETAG),
    FULL + "/config/{key}": _get(FULL + "/config/{key}", "one member of it", {}, statuses=SINGLE, headers=ETAG),
    REGISTRATIONS:
        _get(REGISTRATIONS, "registration status of all ids, by topic id",
             closed_object({"items": {"type": "array", "items": ref("Registration")},
                            "next": {"type": ["string", "null"]}}),
             statuses=LIST,
             query=(_query("state", TEXT, "comma list; all but `unknown`"), KIND,
                    _query("waiting_for", TEXT, "topic id of a parent"),
                    _query("min_age_ms", COUNT, "only pending ones of this age"), LIMIT, CURSOR)),
    REGISTRATION: _get(REGISTRATION, "registration status of one id; trailing slashes left out", ref("Registration"),
                       statuses=(*SINGLE, 429), headers=ETAG, query=(WAIT,)),
    FULL_REGISTRATION: _get(FULL_REGISTRATION, "registration status of one id", ref("Registration"),
                            statuses=(*SINGLE, 429), headers=ETAG, query=(WAIT,)),
    "/{root}/v1/registration-events": EVENTS,
    "/v1/status": _plain("totals, settings and how far the replica is",
             _ok("application/json", ref("Status"), STATUS_EXAMPLE)
             | {"400": {"description": DESCRIPTIONS[400], "content": {problems.MEDIA_TYPE: {
                 "schema": ref("Problem"),
                 "examples": {"parameter": {"value": problems.document(
                     400, "invalid_query", "no parameter 'x' here", "/v1/status")}}}}}}),
    "/v1/capacity/{resource}": _capacity(),
    "/": _plain("a page for people; `root` chooses one",
                _ok("text/html", TEXT, "<!doctype html>") | _answers("", "GET", {}, (404,)),
                _query("root", TEXT, "first segment of the MQTT topics of a gateway")),
    "/healthz": _plain("does everything make progress",
             _ok("application/json", closed_object({"status": TEXT}), {"status": "ok"}) | {"503": STALLED}),
    "/readyz": _plain("has the replica caught up; are writes and event streams possible now",
             _ok("application/json", READY,
                 {"ready": True, "writes": True, "events": True, "lag": {"0": 0}, "recovering": ["jobs-3"]})
             | {"503": NOT_READY}),
    "/metrics": _plain("Prometheus metrics", _ok("text/plain", TEXT, "headrace_api_ready 1.0\n")),
    "/openapi.json": _plain("this document", _ok("application/json", {"type": "object"}, {"openapi": "3.1.0"})),
}  # fmt: skip

DOCUMENT: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {
        "title": "headrace status API",
        "version": "1",
        "description": "Who is registered, and why someone is not; registering, changing and removing; "
        "and timelines: messages for a time to come, and their leases. "
        "Every error is a problem document "
        "(RFC 9457). Segments are percent-decoded after splitting; an encoded slash is refused.",
    },
    "paths": PATHS | timelines.PATHS,
    "components": {"schemas": SCHEMAS | timelines.SCHEMAS},
}
