"""Requests, answers and paths of the HTTP calls (registration.md 12, 13), as values without a web framework.

A path is split before its segments are percent-decoded, so an encoded slash can be told from a real one (and refused).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote

from headrace_core.registration import topics
from headrace_core.registration.config import RegistrationConfig
from headrace_core.registration.message import write_json
from headrace_core.registration.reasons import HTTP_STATUS, Refusal

ABSENT: Any = object()
"""The body of a request without body; null is a body."""


@dataclass(frozen=True, slots=True)
class Request:
    """`path` with query string, as sent; names of `headers` in any case; `body` is the JSON value."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = ABSENT

    def header(self, name: str) -> str | None:
        return next((v for k, v in self.headers.items() if k.lower() == name.lower()), None)


@dataclass(frozen=True, slots=True)
class Response:
    """`body` is a JSON value, ABSENT if there is none."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = ABSENT


@dataclass(frozen=True, slots=True)
class Route:
    """What a path names. `resource`: `entities`, `entity`, `twin`, `twin-key`, `config`, `config-key`,
    `registrations`, `registration`, `events`, `status`.
    `encoded`: the id or key holds an encoded slash or is not UTF-8."""

    resource: str
    root: str = ""
    segments: tuple[str, ...] = ()
    key: str = ""
    encoded: bool = False

    @property
    def topic_id(self) -> str:
        """Raises Refusal `invalid_topic_id`."""
        if self.encoded:
            raise Refusal("invalid_topic_id", "a segment holds an encoded slash or is not UTF-8")
        return topics.topic_id("/".join(self.segments))


COLLECTIONS = {"entities": "entities", "registrations": "registrations", "registration-events": "events"}
METHODS = {
    "entities": ("GET", "POST"),
    "entity": ("GET", "PATCH", "DELETE"),
    "twin": ("GET", "PUT", "DELETE"),
    "twin-key": ("GET", "PUT", "DELETE"),
    "config": ("GET",),
    "config-key": ("GET",),
    "registrations": ("GET",),
    "registration": ("GET",),
    "events": ("GET",),
    "status": ("GET",),
}


def route(config: RegistrationConfig, request: Request) -> Route:
    """Find what a request is for. Raises Refusal `not_found` or MethodNotAllowed."""
    found = _find(config, request.path.partition("?")[0])
    if request.method not in METHODS[found.resource]:
        raise MethodNotAllowed(METHODS[found.resource])
    return found


class MethodNotAllowed(Refusal):
    """405; `allow` lists the methods of the resource."""

    def __init__(self, allow: tuple[str, ...]) -> None:
        super().__init__("method_not_allowed", f"allowed: {', '.join(allow)}")
        self.allow = allow


def _find(config: RegistrationConfig, path: str) -> Route:
    if path == "/v1/status":
        return Route("status")
    raw = path.split("/")
    if len(raw) < 4 or raw[0] or raw[2] != "v1" or raw[3] not in COLLECTIONS:
        raise Refusal("not_found", "no such resource")
    root, (rest, encoded) = _decode([raw[1]])[0][0], _decode(raw[4:])
    if root not in config.roots:
        raise Refusal("not_found", "no such root")
    if not rest or rest == [""]:
        return Route(COLLECTIONS[raw[3]], root)
    if raw[3] == "registration-events":
        raise Refusal("not_found", "events are those of a root; choose with ?id=")
    if raw[3] == "registrations":
        return Route("registration", root, tuple(rest), encoded=encoded)
    if len(rest) <= 4:
        return Route("entity", root, tuple(rest), encoded=encoded)
    if rest[4] in ("twin", "config") and len(rest) <= 6:
        resource = rest[4] if len(rest) == 5 else f"{rest[4]}-key"
        return Route(resource, root, tuple(rest[:4]), rest[5] if len(rest) == 6 else "", encoded)
    raise Refusal("not_found", "no such resource of an entity")


def _decode(raw: list[str]) -> tuple[list[str], bool]:
    """Percent-decode segments; true if one holds an encoded slash or is not UTF-8."""
    decoded = [unquote(s, errors="surrogateescape") for s in raw]
    return decoded, any("/" in s or any("\udc80" <= c <= "\udcff" for c in s) for s in decoded)


def query(request: Request, allowed: tuple[str, ...]) -> dict[str, str]:
    """Query parameters; empty ones are ignored. Raises Refusal `invalid_query`."""
    pairs = parse_qsl(request.path.partition("?")[2], keep_blank_values=True)
    found: dict[str, str] = {}
    for name, value in pairs:
        if name not in allowed:
            raise Refusal("invalid_query", f"no parameter {name!r} here")
        if name in found:
            raise Refusal("invalid_query", f"{name!r} is given twice")
        if value:
            found[name] = value
    return found


def etag(value: Any, *, weak: bool = False) -> str:
    """An entity tag that depends on the JSON value only."""
    return f'{"W/" if weak else ""}"{hashlib.blake2b(write_json(value), digest_size=12).hexdigest()}"'


def matches(condition: str, tag: str, *, strong: bool) -> bool:
    """Whether `condition` (If-Match strong, If-None-Match weak) names `tag`; RFC 9110, 8.8.3.2 and 13.1."""
    if condition.strip() == "*":
        return True
    if strong and tag.startswith("W/"):
        return False
    tags = [t.strip() for t in condition.split(",")]
    return tag in tags if strong else tag.removeprefix("W/") in [t.removeprefix("W/") for t in tags]


def problem(refusal: Refusal, path: str) -> Response:
    """The problem document of a refused request (RFC 9457)."""
    reason = refusal.reason
    code = HTTP_STATUS.get(reason, 400)
    body = {
        "type": f"urn:headrace:registration:{reason}",
        "title": reason.replace("_", " ").capitalize(),
        "status": code,
        "detail": refusal.detail,
        "instance": path.partition("?")[0],
        "reason": reason,
    }
    headers = {"Content-Type": "application/problem+json"}
    if isinstance(refusal, MethodNotAllowed):
        headers["Allow"] = ", ".join(refusal.allow)
    return Response(code, headers, body)
