"""Bodies of HTTP writes: bytes to a JSON value, or the refusal that says what is wrong with them.

Strict, because what is accepted here is a record of the log for good: JSON in UTF-8 by its type, not compressed, at
most 1 MiB, no member twice (readers would differ on which counts, RFC 8259 4), not nested deeper than every reader can
follow.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

from starlette.requests import ClientDisconnect, Request

from headrace_core.registration.http import MAX_BODY
from headrace_core.registration.message import write_json
from headrace_core.registration.reasons import Refusal
from headrace_core.registration.routes import ABSENT

DRAINED_BYTES = 8 * 1024 * 1024
MOST_NESTED = 200
"""Levels of arrays and objects; the reader in the stream processor must be able to follow."""
UTF_8 = frozenset({"", "utf-8", "utf8"})


def check_head(headers: Mapping[str, str], limit: int = MAX_BODY) -> None:
    """Check what the header says of a body of at most `limit` bytes; names in lower case. Raises Refusal."""
    length = headers.get("content-length", "0")
    if length.isascii() and length.isdigit() and (len(length) > 18 or int(length) > limit):
        raise too_large(limit)
    if length == "0" and "transfer-encoding" not in headers:
        return
    if headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise Refusal("unsupported_media_type", "bodies are not compressed here")
    if "content-type" not in headers:
        if "origin" in headers:  # a page of another site may send this without being asked whether it may
            raise Refusal("unsupported_media_type", "a browser has to say that it sends JSON")
        return
    media, _, parameters = headers["content-type"].partition(";")
    media = media.strip().lower()
    if media != "application/json" and not media.endswith("+json"):
        raise Refusal("unsupported_media_type", f"{media or 'no type'} is not JSON")
    name, _, charset = parameters.strip().partition("=")
    if name.strip().lower() == "charset" and charset.strip(' "').lower() not in UTF_8:
        raise Refusal("unsupported_media_type", "JSON is in UTF-8")


def too_large(limit: int = MAX_BODY) -> Refusal:
    return Refusal("too_large", f"the body is larger than {limit} bytes")


async def received(request: Request, limit: int = MAX_BODY) -> bytes:
    """The body, up to its limit. Raises Refusal `too_large`, ClientDisconnect."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise too_large(limit)
        parts.append(part)
    return b"".join(parts)


async def drain(request: Request) -> None:
    """Take the rest of a body that is refused: who sends it reads our answer only then.

    Who has asked before sending does not send it; whoever sends far too much is cut off.
    """
    if "expect" in request.headers:
        return
    left = DRAINED_BYTES
    with contextlib.suppress(ClientDisconnect, RuntimeError):  # gone, or read to its end already
        async for part in request.stream():
            left -= len(part)
            if left < 0:
                return


def read_body(raw: bytes, limit: int = MAX_BODY) -> Any:
    """The JSON value of a body, ABSENT if it is empty. Raises Refusal."""
    if not raw:
        return ABSENT
    if len(raw) > limit:
        raise too_large(limit)
    try:
        value = json.loads(raw.decode(), parse_constant=_no_constant, object_pairs_hook=_members)
        check_nesting(value)
        write_json(value)
    except RecursionError as error:
        raise Refusal("invalid_payload", "nested too deeply") from error
    except ValueError as error:
        raise Refusal("invalid_payload", f"not JSON: {error}") from error
    return value


def check_nesting(value: Any) -> None:
    """Raises Refusal `invalid_payload` for a value of more than MOST_NESTED levels."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MOST_NESTED):
        level = [
            child
            for one in level
            for child in (one.values() if isinstance(one, dict) else one)
            if isinstance(child, dict | list)
        ]
        if not level:
            return
    raise Refusal("invalid_payload", f"nested deeper than {MOST_NESTED} levels")


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise Refusal("invalid_payload", f"the member {twice!r} is given twice")
    return found
