"""A request of section 17, read: path, query, headers and body, before anything is sent.

Strict where the log cannot be: unknown members and parameters are BAD_REQUEST here; what a value may be is the engine's
shape check (section 5), so that it is said once.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote_to_bytes

from headrace_core.timeline.refusals import bad_request
from headrace_core.timeline.settings import MAX_MS

Members = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Asked:
    """`segments` of the path behind the timeline's name, decoded; headers by lower-case name."""

    method: str
    segments: tuple[str, ...]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    members: Members | list[Any] | None = None

    def body(self, *allowed: str) -> Members:
        """The members of the body, nulls left out. Raises Refused BAD_REQUEST for one that is not known."""
        return members({} if self.members is None else self.members, allowed)

    def parameters(self, *allowed: str) -> dict[str, str]:
        """The query. Raises Refused BAD_REQUEST for a parameter that is not known."""
        for name in self.query:
            if name not in allowed:
                raise bad_request(f"{name}: there is no such parameter")
        return dict(self.query)

    @property
    def group(self) -> str:
        """Raises Refused BAD_REQUEST."""
        return self._header("X-Producer-Group")

    @property
    def consumer(self) -> str:
        """Raises Refused BAD_REQUEST."""
        return self._header("X-Consumer-Id")

    @property
    def key(self) -> str | None:
        """The request id that the client gave."""
        return self.headers.get("idempotency-key") or None

    @property
    def request_id(self) -> str:
        """The client's, or one made here (8.1)."""
        return self.key or uuid.uuid4().hex

    @property
    def version(self) -> int | None:
        """`If-Match: "<version>"`. Raises Refused BAD_REQUEST."""
        text = self.headers.get("if-match", "").strip()
        if text in ("", "*"):
            return None
        bare = text[1:-1]
        if not (len(text) > 2 and text[0] == text[-1] == '"' and bare.isascii() and bare.isdigit() and len(bare) < 20):
            raise bad_request('If-Match: "<version>", one version in quotes')
        return int(bare)

    def _header(self, name: str) -> str:
        value = self.headers.get(name.lower())
        if not value:
            raise bad_request(f"{name}: this call needs the header")
        return value


def members(value: Any, allowed: Iterable[str]) -> Members:
    """The members of an object, nulls left out. Raises Refused BAD_REQUEST."""
    if not isinstance(value, dict):
        raise bad_request("the body is a JSON object")
    known = set(allowed)
    for name in value:
        if name not in known:
            raise bad_request(f"{name}: there is no such member")
    return {name: one for name, one in value.items() if one is not None}


def content(found: Members) -> bytes:
    """Takes `body` (text) or `body_base64` out of a create. Raises Refused BAD_REQUEST."""
    text, coded = found.pop("body", None), found.pop("body_base64", None)
    if text is not None and coded is not None:
        raise bad_request("one of body and body_base64")
    if coded is not None:
        return _base64(coded)
    if text is not None and not isinstance(text, str):
        raise bad_request("body: a text")
    return b"" if text is None else text.encode()


def _base64(text: Any) -> bytes:
    try:
        if not isinstance(text, str):
            raise ValueError(text)
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise bad_request("body_base64: not Base64") from None


def with_version(found: Members, version: int | None) -> Members:
    """Arguments with the version of `If-Match`. Raises Refused BAD_REQUEST if the body has one as well."""
    if version is None:
        return found
    if found.get("version", version) != version:
        raise bad_request("version: not that of If-Match")
    return {**found, "version": version}


def numbers(found: Mapping[str, str], *names: str) -> dict[str, Any]:
    """Parameters, those of `names` as whole numbers. Raises Refused BAD_REQUEST."""
    read: dict[str, Any] = dict(found)
    for name in names:
        if name in found:
            read[name] = whole(name, found[name])
    return read


def whole(name: str, text: str) -> int:
    """A whole number from 0 to int64. Raises Refused BAD_REQUEST."""
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= MAX_MS):
        raise bad_request(f"{name}: a whole number from 0 to {MAX_MS}")
    return int(text)


def segments(path: str) -> tuple[str, ...]:
    """Segments of a path as sent, each decoded on its own: `/` in an id is `%2F`. Raises Refused BAD_REQUEST."""
    return tuple(_decoded(part) for part in path.split("/"))


def query(text: str) -> dict[str, str]:
    """Parameters, each at most once. Raises Refused BAD_REQUEST."""
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=100)
    except ValueError as error:
        raise bad_request(f"query: {error}") from None
    found = dict(pairs)
    if len(found) < len(pairs):
        raise bad_request("query: a parameter is given twice")
    return found


def header_text(raw: str) -> str:
    """A header as UTF-8. Raises Refused BAD_REQUEST."""
    try:
        return raw.encode("latin-1").decode()
    except UnicodeError:
        raise bad_request("headers: not UTF-8") from None


def _decoded(part: str) -> str:
    try:
        return unquote_to_bytes(part).decode()
    except UnicodeDecodeError:
        raise bad_request("path: not UTF-8") from None
