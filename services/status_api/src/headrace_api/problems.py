"""Problem documents (RFC 9457) for every error, whoever raises it: the queries, the framework, the protocol, a bug."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from headrace_core.registration.message import write_json

MEDIA_TYPE = "application/problem+json"
REASONS = {
    400: "invalid_request", 404: "not_found", 405: "method_not_allowed", 413: "too_large",
    408: "timeout", 415: "unsupported_media_type", 422: "invalid_request", 500: "internal", 503: "not_ready",
}  # fmt: skip
READS = "GET, HEAD, OPTIONS"
RETRY_S = "1"
"""Retry-After of 503."""


def document(status: int, reason: str, detail: str, instance: str) -> dict[str, Any]:
    """The members of registration.md 12."""
    return {
        "type": f"urn:headrace:registration:{reason}",
        "title": reason.replace("_", " ").capitalize(),
        "status": status,
        "detail": detail,
        "instance": instance,
        "reason": reason,
    }


def problem(
    status: int, reason: str, detail: str, instance: str, *, headers: Mapping[str, str] | None = None, **more: Any
) -> Response:
    """An answer with a problem document; `more` are extension members."""
    body = document(status, reason, detail, instance) | more
    return Response(write_json(body), status, {"Cache-Control": "no-store"} | dict(headers or {}), MEDIA_TYPE)


def not_ready(detail: str, instance: str, **more: Any) -> Response:
    """503: the replica is not restored."""
    return problem(503, "not_ready", detail, instance, headers={"Retry-After": RETRY_S}, **more)


async def of_framework(request: Request, error: Exception) -> Response:
    """What Starlette raises itself."""
    assert isinstance(error, HTTPException)
    reason = REASONS.get(error.status_code, "error")
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = READS
    return problem(error.status_code, reason, str(error.detail), request.scope["path"], headers=headers)


async def of_bug(request: Request, _error: Exception) -> Response:
    """500; what happened is in the log, not in the answer."""
    return problem(500, "internal", "an error of this service; see its log", request.scope["path"])
