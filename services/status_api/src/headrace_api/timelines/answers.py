"""Answers of the engine as HTTP answers: status codes, headers, problem documents (timeline.md 17).

A refusal is a problem document {type, title, status, code, detail} with the details of section 5. One of them would
have the name of a member that RFC 9457 has taken: the `status` of NOT_AVAILABLE is `message_status` here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from headrace_api.problems import MEDIA_TYPE

Answer = dict[str, Any]
"""As the engine gives it: `ok`, `code` of a refusal, `now`, and what the operation says."""

STATUS = {
    "BAD_REQUEST": 400, "NOT_OWNER": 403, "NOT_LEASE_HOLDER": 403, "NOT_ALLOWED": 403, "NOT_FOUND": 404,
    "UNKNOWN_TIMELINE": 404, "METHOD_NOT_ALLOWED": 405, "ALREADY_EXISTS": 409, "NOT_AVAILABLE": 409,
    "DELIVERIES_EXHAUSTED": 409, "FROZEN": 409, "SETTING_IMMUTABLE": 409, "ALREADY_SUBSCRIBED": 409,
    "NOT_SUBSCRIBED": 409, "LEASE_EXPIRED": 410, "VERSION_MISMATCH": 412, "BODY_TOO_LARGE": 413,
    "TIMESTAMP_TOO_SOON": 422, "TIMESTAMP_TOO_FAR": 422, "LEASE_TOO_LONG": 422, "REQUEST_ID_REUSED": 422,
    "LEASE_ACTIVE": 423, "RATE_LIMITED": 429, "DEGRADED": 503, "RECOVERING": 503, "OVERLOADED": 503,
    "LOG_UNAVAILABLE": 503, "UNKNOWN_OUTCOME": 504,
}  # fmt: skip
"""HTTP status of each code. METHOD_NOT_ALLOWED is not in the specification's table: HTTP itself asks for it."""
DETAIL = {
    "NOT_OWNER": "another group owns the message",
    "NOT_LEASE_HOLDER": "another consumer has the message, or nobody",
    "NOT_ALLOWED": "this is for others, or not possible in this timeline",
    "NOT_FOUND": "there is no such message",
    "ALREADY_EXISTS": "the id is taken",
    "NOT_AVAILABLE": "the message cannot be leased now",
    "DELIVERIES_EXHAUSTED": "the message has been delivered as often as it may be",
    "FROZEN": "the timeline is frozen",
    "SETTING_IMMUTABLE": "this setting cannot be changed",
    "ALREADY_SUBSCRIBED": "the consumer is subscribed; its token is needed",
    "NOT_SUBSCRIBED": "the consumer is not subscribed",
    "LEASE_EXPIRED": "the lease is over; stop the work",
    "VERSION_MISMATCH": "the message has changed since",
    "BODY_TOO_LARGE": "the body is too large",
    "TIMESTAMP_TOO_SOON": "the time is not far enough ahead",
    "TIMESTAMP_TOO_FAR": "the time is too far ahead",
    "LEASE_TOO_LONG": "the lease would be too long",
    "REQUEST_ID_REUSED": "this Idempotency-Key belongs to another request",
    "LEASE_ACTIVE": "a lease is active",
    "DEGRADED": "the clocks of the senders are too far from the log's",
    "OVERLOADED": "too many wait already",
}
RETRY = frozenset({"RATE_LIMITED", "DEGRADED", "RECOVERING", "OVERLOADED", "LOG_UNAVAILABLE"})
RETRY_S = "1"
OWN = frozenset({"ok", "code", "detail", "now", "emitted", "served", "replayed", "timestamp", "status"})
"""Members of a refusal that are no details."""


class Reply(NamedTuple):
    """What is sent; `body` None: none."""

    status: int
    body: Any = None
    headers: Mapping[str, str] = {}
    media: str = "application/json"


def refused(code: str, detail: str = "", **details: Any) -> Answer:
    """A refusal of this service."""
    return {"ok": False, "code": code, **({"detail": detail} if detail else {}), **details}


def reply(answer: Answer, status: int, body: Any = None, **headers: str) -> Reply:
    """The HTTP answer: the problem of a refusal, else `status` and `body`."""
    if not answer["ok"]:
        return problem(answer)
    return Reply(status, body, common(answer) | headers)


def common(answer: Answer) -> dict[str, str]:
    """Headers that every answer has, as far as it knows what they say."""
    found = {} if "now" not in answer else {"X-Timeline-Now": str(answer["now"])}
    if answer.get("ok") and "version" in answer:
        found["ETag"] = f'"{answer["version"]}"'
    if answer.get("replayed"):
        found["Idempotent-Replay"] = "true"
    return found


def problem(answer: Answer) -> Reply:
    """The problem document of a refusal (RFC 9457)."""
    code = answer["code"] if answer["code"] in STATUS else "NOT_ALLOWED"
    headers = common(answer)
    if code in RETRY:
        headers["Retry-After"] = RETRY_S
    elif code == "NOT_AVAILABLE" and answer["status"] in ("waiting", "processing"):
        headers["Retry-After"] = str(max(1, -(-(answer["timestamp"] - answer["now"]) // 1000)))
    return Reply(STATUS[code], document(answer, code), headers, MEDIA_TYPE)


def document(answer: Answer, code: str) -> dict[str, Any]:
    """Its members."""
    found = {
        "type": f"urn:headrace:timeline:{code}",
        "title": code.replace("_", " ").capitalize(),
        "status": STATUS[code],
        "code": code,
        "detail": answer.get("detail") or DETAIL.get(code, ""),
    }
    return found | details(answer)


def details(answer: Answer) -> dict[str, Any]:
    """The details of section 5."""
    found = {name: value for name, value in answer.items() if name not in OWN}
    return found | ({"message_status": answer["status"]} if "status" in answer else {})


def result(answer: Answer, **known: Any) -> dict[str, Any]:
    """One item of the answer to a batch: {id, ok, code?, version?}, with what else there is to say."""
    if not answer["ok"]:
        more = {"detail": answer["detail"]} if answer.get("detail") else {}
        found = {"ok": False, "code": answer["code"], **more, **details(answer)}
        found |= {"replayed": True} if answer.get("replayed") else {}
    else:
        found = {name: value for name, value in answer.items() if name not in ("now", "emitted", "served")}
    return known | found
