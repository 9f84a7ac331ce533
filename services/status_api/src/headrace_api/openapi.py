"""The OpenAPI document, written by hand: paths hold topic ids, whose last segments may be empty."""

from __future__ import annotations

from typing import Any

from headrace_api import problems
from headrace_api.examples import (
    ENTITIES,
    ENTITY,
    EXAMPLES,
    FULL,
    FULL_REGISTRATION,
    REGISTRATION,
    REGISTRATIONS,
)  # fmt: skip

TYPE = {"type": "string", "enum": ["device", "child-device", "service"]}
STATE = {"type": "string", "enum": ["unknown", "pending", "registered", "expired", "removed"]}
TEXT = {"type": "string"}
COUNT = {"type": "integer", "minimum": 0}
COUNTS = {"type": "object", "additionalProperties": {"type": "integer"}}


def _object(required: dict[str, Any], optional: dict[str, Any] | None = None, *, closed: bool = True) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "object", "required": list(required), "properties": required | (optional or {})}
    return found | ({"additionalProperties": False} if closed else {})


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


PARTS = {"@type": TYPE, "@id": TEXT}
REFERENCES = {"@parent": TEXT, "@health": TEXT}
STATUS_HEAD = {"@topic-id": TEXT, "root": TEXT, "state": STATE, "since": {"type": ["integer", "null"]}}

SCHEMAS: dict[str, Any] = {
    "Problem": _object(
        {"type": TEXT, "title": TEXT, "status": {"type": "integer"}, "detail": TEXT, "instance": TEXT, "reason": TEXT},
        closed=False,
    ) | {"description": "RFC 9457; `type` is `urn:headrace:registration:<reason>`"},
    "Entity": _object({"@topic-id": TEXT} | PARTS, REFERENCES),
    "Registration": _object(
        STATUS_HEAD,
        PARTS | REFERENCES | {
            "automatic": {"type": "boolean"},
            "age_ms": COUNT,
            "expires_at": COUNT,
            "registration": {"type": "boolean"},
            "waiting_for": {"type": ["string", "null"]},
            "missing": {"type": "array", "items": TEXT},
            "cycle": {"type": "boolean"},
            "cached": _object({"telemetry": COUNT, "metadata": COUNT, "bytes": COUNT}),
            "last_error": _object({"reason": TEXT, "receipt_time": {"type": "integer"}}),
        },
    ),
    "Totals": _object(
        {
            "entities": COUNTS, "automatic": COUNT, "pending": COUNT, "dropped": COUNTS,
            "cache": _object(dict.fromkeys(("telemetry", "telemetry_bytes", "metadata", "metadata_bytes"), COUNT)),
        }
    ),
    "Status": _object(
        {
            "ready": {"type": "boolean"},
            "config": {"type": "object"},
            "replica": _object({
                "topic": TEXT, "kafka_up": {"type": "boolean"},
                "partitions": {
                    "type": "object",
                    "additionalProperties": _object({"offset": COUNT, "lag": COUNT, "source": {"type": "integer"}}),
                },
            }),
            "counters": {"type": "object", "additionalProperties": COUNTS},
            "roots": {"type": "object", "additionalProperties": _ref("Totals")},
        },
        {"reason": TEXT},
    ),
}  # fmt: skip

DESCRIPTIONS = {
    200: "the answer", 304: "not changed: `If-None-Match` names the present tag", 400: "the request is wrong",
    404: "there is no such thing", 405: "writes come with a later version", 429: "too many long polls are open",
    503: "the replica has not caught up yet",
}  # fmt: skip
NOT_READY = {
    "description": DESCRIPTIONS[503],
    "headers": {"Retry-After": {"schema": {"type": "integer"}}},
    "content": {
        problems.MEDIA_TYPE: {
            "schema": _ref("Problem"),
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
LIMIT = _query("limit", {"type": "integer", "minimum": 1, "maximum": 1000, "default": 1000}, "items a page")
CURSOR = _query("cursor", TEXT, "from the answer before; opaque, for the same filters only")
KIND = _query("type", TYPE, "only entities of this type")
WAIT = _query(
    "wait",
    {"type": "integer", "minimum": 0, "maximum": 60},
    "seconds; with `If-None-Match`: hold the answer until the tag differs, else 304",
)


def _responses(template: str, schema: dict[str, Any], statuses: tuple[int, ...], headers: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for status in statuses:
        examples = {
            e.name: {"summary": e.path, "value": e.body}
            for e in EXAMPLES
            if (e.template, e.status, e.method) == (template, status, "GET")
        }
        media, shown = ("application/json", schema) if status == 200 else (problems.MEDIA_TYPE, _ref("Problem"))
        found[str(status)] = {"description": DESCRIPTIONS[status]}
        if status != 304:
            found[str(status)]["content"] = {media: {"schema": shown} | ({"examples": examples} if examples else {})}
        if headers and status in (200, 304):
            found[str(status)]["headers"] = headers
    found["503"] = NOT_READY
    return found


def _get(
    template: str, summary: str, schema: dict[str, Any], *, statuses: tuple[int, ...],
    query: tuple[dict[str, Any], ...] = (), headers: Any = None,
) -> dict[str, Any]:  # fmt: skip
    single = (IF_NONE_MATCH,) if 304 in statuses else ()
    return {
        template: {
            "get": {
                "summary": summary,
                "parameters": [*_parameters(template), *query, *single],
                "responses": _responses(template, schema, statuses, headers),
            }
        }
    }


def _plain(path: str, summary: str, status: dict[str, Any]) -> dict[str, Any]:
    return {path: {"get": {"summary": summary, "responses": status}}}


def _ok(media: str, schema: dict[str, Any], example: Any) -> dict[str, Any]:
    content = {media: {"schema": schema, "examples": {"ok": {"value": example}}}}
    return {"200": {"description": DESCRIPTIONS[200], "content": content}}


SINGLE, LIST = (200, 304, 400, 404), (200, 400, 404)
LINK = {"Link": {"schema": TEXT, "description": '`<...>; rel="next"` if there is another page', "required": False}}
READY = _object({"ready": {"type": "boolean"}, "lag": COUNTS})
STALLED = {
    "description": "the consumer makes no progress",
    "content": {
        problems.MEDIA_TYPE: {
            "schema": _ref("Problem"),
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

PATHS: dict[str, Any] = (
    _get(ENTITIES, "the entities of a root, by depth, then by the path from the top",
         {"type": "array", "items": _ref("Entity")}, statuses=LIST, headers=LINK,
         query=(_query("root", TEXT, "topic id: this subtree with its top"),
                _query("parent", TEXT, "topic id: direct children; not with `root`"), KIND, LIMIT, CURSOR))
    | _get(ENTITY, "one entity; trailing slashes left out", _ref("Entity"), statuses=SINGLE, headers=ETAG)
    | _get(FULL, "one entity", _ref("Entity"), statuses=SINGLE, headers=ETAG)
    | _get(FULL + "/twin", "all twin data", {"type": "object"}, statuses=SINGLE, headers=ETAG)
    | _get(FULL + "/twin/{key}", "one value of the twin data", {}, statuses=SINGLE, headers=ETAG)
    | _get(FULL + "/config", "the last published configuration", {}, statuses=SINGLE, headers=ETAG)
    | _get(FULL + "/config/{key}", "one member of it", {}, statuses=SINGLE, headers=ETAG)
    | _get(REGISTRATIONS, "registration status of all ids, by topic id",
           _object({"items": {"type": "array", "items": _ref("Registration")}, "next": {"type": ["string", "null"]}}),
           statuses=LIST,
           query=(_query("state", TEXT, "comma list; all but `unknown`"), KIND,
                  _query("waiting_for", TEXT, "topic id of a parent"),
                  _query("min_age_ms", COUNT, "only pending ones of this age"), LIMIT, CURSOR))
    | _get(REGISTRATION, "registration status of one id; trailing slashes left out", _ref("Registration"),
           statuses=(*SINGLE, 429), headers=ETAG, query=(WAIT,))
    | _get(FULL_REGISTRATION, "registration status of one id", _ref("Registration"),
           statuses=(*SINGLE, 429), headers=ETAG, query=(WAIT,))
    | _plain("/v1/status", "totals, settings and how far the replica is",
             _ok("application/json", _ref("Status"), STATUS_EXAMPLE)
             | {"400": {"description": DESCRIPTIONS[400], "content": {problems.MEDIA_TYPE: {
                 "schema": _ref("Problem"),
                 "examples": {"parameter": {"value": problems.document(
                     400, "invalid_query", "no parameter 'x' here", "/v1/status")}}}}}})
    | _plain("/healthz", "does the consumer make progress",
             _ok("application/json", _object({"status": TEXT}), {"status": "ok"}) | {"503": STALLED})
    | _plain("/readyz", "has the replica caught up",
             _ok("application/json", READY, {"ready": True, "lag": {"0": 0}}) | {"503": NOT_READY})
    | _plain("/metrics", "Prometheus metrics", _ok("text/plain", TEXT, "headrace_api_ready 1.0\n"))
    | _plain("/openapi.json", "this document", _ok("application/json", {"type": "object"}, {"openapi": "3.1.0"}))
)  # fmt: skip

DOCUMENT: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {
        "title": "headrace status API",
        "version": "1",
        "description": "Who is registered, and why someone is not. Reads only. Every error is a problem document "
        "(RFC 9457). Segments are percent-decoded after splitting; an encoded slash is refused.",
    },
    "paths": PATHS,
    "components": {"schemas": SCHEMAS},
}
