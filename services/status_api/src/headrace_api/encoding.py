"""Answers as bytes: JSON, what caches may do with it, and gzip where it saves something.

A single document has a strong tag, which names these very bytes and comes back in `If-Match`; so it is never
compressed. Lists, totals and whatever is larger is, for who accepts it.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from typing import NamedTuple

from headrace_core.registration.message import write_json
from headrace_core.registration.routes import ABSENT, Response

WORTH_BYTES = 1_024
LEVEL = 5
OK, MULTIPLE = 200, 300


class Encoded(NamedTuple):
    """An answer as bytes; `media` and `body` None: there is no body."""

    status: int
    headers: dict[str, str]
    media: str | None
    body: bytes | None


def encoded(answer: Response, accept: str = "") -> Encoded:
    """`accept` is the request's Accept-Encoding. Takes milliseconds for a page of documents: call it in a thread."""
    headers = dict(answer.headers)
    media = headers.pop("Content-Type", "application/json")
    # with a tag it may be kept and asked for again; without one it is of this moment
    headers.setdefault("Cache-Control", "no-cache" if "ETag" in headers else "no-store")
    if answer.body is ABSENT:
        return Encoded(answer.status, headers, None, None)
    return compressed(Encoded(answer.status, headers, media, write_json(answer.body)), accept)


def compressed(answer: Encoded, accept: str) -> Encoded:
    """The answer by gzip, if the client accepts it and it is worth it."""
    body, tag = answer.body, answer.headers.get("ETag", "")
    if body is None or len(body) < WORTH_BYTES or (tag and not tag.startswith("W/")):
        return answer
    headers = {**answer.headers, "Vary": "Accept-Encoding"}
    if not accepts_gzip(accept):
        return answer._replace(headers=headers)
    headers["Content-Encoding"] = "gzip"
    return answer._replace(headers=headers, body=gzip.compress(body, LEVEL, mtime=0))


def accepts_gzip(accept: str) -> bool:
    """RFC 9110, 12.5.3."""
    weights: Mapping[str, float] = dict(map(_weight, accept.lower().split(",")))
    return weights.get("gzip", weights.get("x-gzip", weights.get("*", 0.0))) > 0


def _weight(item: str) -> tuple[str, float]:
    name, _, parameters = item.partition(";")
    weight = parameters.replace(" ", "")
    try:
        return name.strip(), float(weight[2:]) if weight.startswith("q=") else 1.0
    except ValueError:
        return name.strip(), 0.0
