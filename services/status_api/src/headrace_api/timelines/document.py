"""The calls of timeline.md 17 in the OpenAPI document: paths and schemas, by hand like the rest of it."""

from __future__ import annotations

from typing import Any

from headrace_api.problems import MEDIA_TYPE
from headrace_api.shapes import COUNT, MAYBE_TEXT, TEXT, closed_object, ref
from headrace_api.timelines.answers import STATUS
from headrace_api.timelines.lookups import DEFAULT_PAGE
from headrace_api.timelines.messages import MOST_ITEMS
from headrace_api.timelines.polling import DEFAULT_LIMIT
from headrace_core.timeline.message import STATUSES
from headrace_core.timeline.queries import MAX_PAGE

BASE = "/v1/timelines/{timeline}"
TIME = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}
BOOLEAN = {"type": "boolean"}
HEADERS_OF_MESSAGE = {"type": "object", "additionalProperties": TEXT}
STATE = {"type": "string", "enum": list(STATUSES)}
BODY = {"body": TEXT, "body_base64": TEXT}
OK = "the answer"


def _list(items: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **more}


MESSAGE = {
    "id": TEXT, "timestamp": TIME, "status": STATE, "leased": BOOLEAN, "lock": MAYBE_TEXT, "group": TEXT,
    "bucket": COUNT, "version": COUNT, "lease_version": COUNT, "due_at": COUNT, "deliveries": COUNT,
    "created_at": COUNT, "headers": HEADERS_OF_MESSAGE,
}  # fmt: skip
LEASE = {
    "lease_id": TEXT, "id": TEXT, "version": COUNT, "expires_at": TIME, "due_at": COUNT, "deliveries": COUNT,
    "headers": HEADERS_OF_MESSAGE,
}  # fmt: skip
CREATE = {"id": TEXT, "timestamp": TIME, "delay_ms": TIME, "headers": HEADERS_OF_MESSAGE, **BODY}
RESULT = closed_object({"ok": BOOLEAN}, {"id": TEXT, "lease_id": TEXT, "code": TEXT, "version": COUNT}, closed=False)
PARTITION = closed_object(
    {"partition": COUNT, "owner": MAYBE_TEXT},
    {"now": COUNT, "degraded": BOOLEAN, "frozen": BOOLEAN, "code": {"enum": list(STATUS)}},
)

SCHEMAS: dict[str, Any] = {
    "TimelineProblem": closed_object(
        {"type": TEXT, "title": TEXT, "status": {"type": "integer"}, "code": {"enum": list(STATUS)}, "detail": TEXT},
        {"limit": COUNT, "version": COUNT, "message_status": STATE, "ids": _list(TEXT), "setting": TEXT,
         "deleted": BOOLEAN, "same_owner": BOOLEAN},
        closed=False,
    ) | {"description": "RFC 9457; `type` is `urn:headrace:timeline:<code>`; details of timeline.md 5 follow"},
    "Timeline": closed_object({"name": TEXT, "settings": {"type": "object"}, "partitions": _list(PARTITION)}),
    "TimelineSettings": closed_object({"name": TEXT, "settings": {"type": "object"}}),
    "TimelineCreate": closed_object({}, CREATE),
    "TimelineCreated": closed_object(
        {name: MESSAGE[name] for name in ("id", "version", "timestamp", "bucket", "status")}
    ),
    "TimelineMoved": closed_object({name: MESSAGE[name] for name in ("id", "version", "timestamp", "status")}),
    "TimelineTime": closed_object({}, {"timestamp": TIME, "delay_ms": TIME}),
    "TimelineMessage": closed_object(MESSAGE),
    "TimelineBody": closed_object({}, BODY),
    "TimelinePage": closed_object({"items": _list(ref("TimelineMessage")), "next_cursor": MAYBE_TEXT}),
    "TimelineResults": closed_object({"results": _list(RESULT)}),
    "TimelineMessageItems": closed_object({"items": _list(closed_object(
        {"op": {"enum": ["create", "move", "cancel"]}}, {"request_id": TEXT, "version": TIME, **CREATE},
    ), minItems=1, maxItems=MOST_ITEMS)}),
    "TimelineLeaseItems": closed_object({"items": _list(closed_object(
        {"op": {"enum": ["extend", "release", "complete"]}, "lease_id": TEXT},
        {"request_id": TEXT, "lease_ms": TIME, "expires_at": TIME, "delay_ms": TIME, "timestamp": TIME},
    ), minItems=1, maxItems=MOST_ITEMS)}),
    "TimelinePoll": closed_object({}, {
        "limit": {"type": "integer", "minimum": 1, "default": DEFAULT_LIMIT}, "lease_ms": TIME, "expires_at": TIME,
        "wait_ms": TIME, "buckets": _list(COUNT, minItems=1),
    }),
    "TimelineLease": closed_object(LEASE, {**BODY, "body_omitted": BOOLEAN}),
    "TimelineLeases": closed_object({"leases": _list(ref("TimelineLease"))}, {"has_more": BOOLEAN}),
    "TimelineLeaseTime": closed_object({}, {"lease_ms": TIME, "expires_at": TIME, "version": TIME}),
    "TimelineExtended": closed_object({name: LEASE[name] for name in ("lease_id", "id", "version", "expires_at")}),
    "TimelineCounts": closed_object({"total": COUNT}, {"slots": _list(COUNT)}),
    "TimelineToken": closed_object({}, {"token": TEXT}),
    "TimelineSubscription": closed_object({"token": TEXT, "buckets": _list(COUNT)}),
    "TimelinePing": closed_object({"t0": TIME}),
    "TimelinePong": closed_object({"t0": TIME, "t1": TIME, "t2": TIME, "now": TIME}),
}  # fmt: skip


def _header(name: str, words: str, *, required: bool = False) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": required, "schema": TEXT, "description": words}


def _query(name: str, schema: dict[str, Any], words: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": words}


GROUP = _header("X-Producer-Group", "owner of the message", required=True) | {"example": "billing"}
CONSUMER = _header("X-Consumer-Id", "who works", required=True) | {"example": "worker-1"}
KEY = _header("Idempotency-Key", "the same in every repeat of the request")
IF_MATCH = _header("If-Match", '"<version>"')
LIMIT = _query("limit", {"type": "integer", "minimum": 1, "maximum": MAX_PAGE, "default": DEFAULT_PAGE}, "items a page")
CURSOR = _query("cursor", TEXT, "from the answer before; opaque, for the same filters only")
STATUS_QUERY = _query("status", STATE, "only messages of this status")
FROM, TO = _query("from", TIME, "earliest timestamp, ms"), _query("to", TIME, "timestamps before this, ms")
PATH = {
    "timeline": ("name of the timeline", "jobs"), "id": ("id, percent-encoded", "bill-7"),
    "lease_id": ("from the grant; opaque", "kwCmYmlsbC03Ag"), "consumer": ("id of the consumer", "worker-1"),
}  # fmt: skip
ALWAYS = (400, 404, 429, 503, 504)
CODES = {
    status: ", ".join(code for code, of in STATUS.items() if of == status and code != "METHOD_NOT_ALLOWED")
    for status in sorted(set(STATUS.values()))
}
ANSWERED = {
    "X-Timeline-Now": {"schema": TEXT, "required": False, "description": "largest NOW of the partitions asked"},
    "ETag": {"schema": TEXT, "required": False, "description": "version of the message"},
    "Idempotent-Replay": {"schema": TEXT, "required": False, "description": "`true`: the first answer again"},
}
RETRY_AFTER = {"Retry-After": {"schema": TEXT, "required": False, "description": "seconds"}}


def _call(
    path: str, method: str, summary: str, answers: dict[int, str | None], refusals: tuple[int, ...] = (),
    parameters: tuple[dict[str, Any], ...] = (), sent: str | None = None, example: Any = None,
) -> dict[str, Any]:  # fmt: skip
    """One call; `answers` and `sent` name schemas, None: no body."""
    names = [part[1:-1] for part in (BASE + path).split("/") if part.startswith("{")]
    of_path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1},
         "description": PATH[name][0], "example": PATH[name][1]}
        for name in names
    ]  # fmt: skip
    responses: dict[str, Any] = {}
    for status, schema in answers.items():
        responses[str(status)] = {"description": OK, "headers": ANSWERED}
        if schema is not None:
            responses[str(status)]["content"] = {"application/json": {"schema": ref(schema)}}
    for status in sorted({*ALWAYS, *refusals, *((413,) if method != "GET" else ())}):
        responses[str(status)] = {
            "description": CODES[status], "headers": ANSWERED | RETRY_AFTER,
            "content": {MEDIA_TYPE: {"schema": ref("TimelineProblem")}},
        }  # fmt: skip
    found: dict[str, Any] = {"summary": summary, "parameters": [*of_path, *parameters], "responses": responses}
    if sent is not None:
        shown = {} if example is None else {"examples": {"one": {"value": example}}}
        content = {"application/json": {"schema": ref(sent), **shown}}
        found["requestBody"] = {"required": example is not None, "content": content}
    return {method.lower(): found}


HOLDS = (403, 409, 410, 412, 422)
PATHS: dict[str, Any] = {
    BASE: _call("", "GET", "settings in force, and the state of each partition", {200: "Timeline"})
    | _call("", "PUT", "create it in its log, or change settings", {201: "TimelineSettings", 200: "TimelineSettings"},
            (409,), sent="Settings", example={"max_poll": 100})
    | _call("", "DELETE", "drop all its messages, unless a lease is active", {204: None}, (423,)),
    BASE + "/messages":
        _call("/messages", "GET", "messages, by partition and index", {200: "TimelinePage"},
              parameters=(_query("group", TEXT, "only of this owner"), STATUS_QUERY, FROM, TO, LIMIT, CURSOR))
        | _call("/messages", "POST", "create; 200: this request has made it already",
                {201: "TimelineCreated", 200: "TimelineCreated"}, (409, 422), (GROUP, KEY),
                "TimelineCreate", {"id": "bill-7", "delay_ms": 60_000, "body": "remind"}),
    BASE + "/messages:batch":
        _call("/messages:batch", "POST", "create, move, cancel; each on its own", {200: "TimelineResults"}, (),
              (GROUP, KEY), "TimelineMessageItems", {"items": [{"op": "cancel", "id": "bill-7"}]}),
    BASE + "/messages/{id}":
        _call("/messages/{id}", "GET", "a message without its body", {200: "TimelineMessage"})
        | _call("/messages/{id}", "PATCH", "move it to another time", {200: "TimelineMoved"}, (403, 409, 412, 422, 423),
                (GROUP, KEY, IF_MATCH), "TimelineTime", {"delay_ms": 60_000})
        | _call("/messages/{id}", "DELETE", "cancel it; also if that is done already", {204: None},
                (403, 409, 412, 422, 423), (GROUP, KEY, IF_MATCH)),
    BASE + "/messages/{id}/body":
        _call("/messages/{id}/body", "GET", "its body, for owner and holder", {200: "TimelineBody"}, (403,),
              (GROUP | {"required": False}, CONSUMER | {"required": False})),
    BASE + "/messages/{id}/lease":
        _call("/messages/{id}/lease", "POST", "lease this one", {200: "TimelineLease"}, (403, 409, 412, 422),
              (CONSUMER, KEY, IF_MATCH), "TimelineLeaseTime", {"lease_ms": 30_000}),
    BASE + "/leases":
        _call("/leases", "GET", "active leases of the consumer, without bodies", {200: "TimelineLeases"}, (),
              (CONSUMER,))
        | _call("/leases", "POST", "lease what is due; 204: nothing", {200: "TimelineLeases", 204: None},
                (403, 409, 422), (CONSUMER, KEY), "TimelinePoll", {"lease_ms": 30_000, "wait_ms": 0}),
    BASE + "/leases:batch":
        _call("/leases:batch", "POST", "extend, release, complete; each on its own", {200: "TimelineResults"}, (),
              (CONSUMER, KEY), "TimelineLeaseItems", {"items": [{"op": "complete", "lease_id": "kwCmYmlsbC03Ag"}]}),
    BASE + "/leases/{lease_id}":
        _call("/leases/{lease_id}", "PATCH", "extend", {200: "TimelineExtended"}, HOLDS, (CONSUMER, KEY),
              "TimelineLeaseTime", {"lease_ms": 30_000})
        | _call("/leases/{lease_id}", "DELETE", "complete; also if that is done already", {204: None}, HOLDS,
                (CONSUMER, KEY)),
    BASE + "/leases/{lease_id}/release":
        _call("/leases/{lease_id}/release", "POST", "send it back into the future", {200: "TimelineMoved"}, HOLDS,
              (CONSUMER, KEY), "TimelineTime", {"delay_ms": 60_000}),
    BASE + "/counts":
        _call("/counts", "GET", "how many messages; with `step` by slots of so many ms", {200: "TimelineCounts"},
              parameters=(FROM, TO, STATUS_QUERY, _query("step", TIME | {"minimum": 1}, "ms a slot; needs from, to"))),
    BASE + "/parked":
        _call("/parked", "GET", "parked messages", {200: "TimelinePage"}, parameters=(LIMIT, CURSOR)),
    BASE + "/consumers/{consumer}":
        _call("/consumers/{consumer}", "PUT", "subscribe, or keep alive with the token", {200: "TimelineSubscription"},
              (409,), (), "TimelineToken")
        | _call("/consumers/{consumer}", "DELETE", "unsubscribe", {204: None}, (409,)),
    BASE + "/clock:ping":
        _call("/clock:ping", "POST", "times for an estimate of the clocks' difference", {200: "TimelinePong"}, (), (),
              "TimelinePing", {"t0": 1_760_000_000_000}),
}  # fmt: skip
PATHS[BASE]["put"]["requestBody"]["content"]["application/json"]["schema"] = {"type": "object"}
