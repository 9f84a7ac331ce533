"""The shape check, first of all checks (timeline.md 5): every failure is BAD_REQUEST.

A member that is null counts as missing. Booleans and fractions are no numbers here. Arguments that no operation knows
are left alone; the HTTP API refuses them.
"""

from __future__ import annotations

from typing import Any

from headrace_core.timeline.refusals import bad_request
from headrace_core.timeline.settings import MAX_MS

Args = dict[str, Any]
MAX_ID_BYTES = 255


def text(args: Args, name: str) -> str:
    """A text that is not empty, has no NUL and can be written as UTF-8."""
    value = args.get(name)
    if type(value) is not str or not value or "\x00" in value:
        raise bad_request(f"{name}: a text that is not empty and has no NUL")
    if not value.isascii():
        _bytes_of(name, value)
    return value


def optional_text(args: Args, name: str) -> str | None:
    return None if args.get(name) is None else text(args, name)


def identifier(args: Args, name: str = "id") -> bytes:
    """An id as bytes: 1 to 255 of UTF-8, no NUL (section 2)."""
    raw = text(args, name).encode()
    if len(raw) > MAX_ID_BYTES:
        raise bad_request(f"{name}: at most {MAX_ID_BYTES} bytes")
    return raw


def number(args: Args, name: str, lowest: int = 0, highest: int = MAX_MS) -> int:
    value = args.get(name)
    if type(value) is not int or not lowest <= value <= highest:
        raise bad_request(f"{name}: a whole number from {lowest} to {highest}")
    return value


def optional_number(args: Args, name: str, lowest: int = 0, highest: int = MAX_MS) -> int | None:
    return None if args.get(name) is None else number(args, name, lowest, highest)


def version(args: Args) -> int | None:
    return optional_number(args, "version", 1)


def instant(args: Args, absolute: str, relative: str, now_ms: int) -> int:
    """Exactly one of a time pair (section 3.2), as an absolute time; a sum may lie beyond int64."""
    if (args.get(absolute) is None) == (args.get(relative) is None):
        raise bad_request(f"exactly one of {absolute} and {relative}")
    if args.get(absolute) is not None:
        return number(args, absolute)
    return now_ms + number(args, relative)


def body(args: Args) -> bytes:
    value = args.get("body")
    if value is None:
        return b""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return _bytes_of("body", value)
    raise bad_request("body: text or bytes")


def headers(args: Args) -> dict[str, str] | None:
    value = args.get("headers")
    if value is None:
        return None
    if not isinstance(value, dict):
        raise bad_request("headers: an object of texts")
    for name, content in value.items():
        if type(name) is not str or type(content) is not str:
            raise bad_request("headers: an object of texts")
        _bytes_of("headers", name + content)
    return value or None


def buckets(args: Args, bucket_count: int) -> list[int] | None:
    """The asked buckets, rising, each once; None: all of the partition."""
    value = args.get("buckets")
    if value is None:
        return None
    if not isinstance(value, list) or not value:
        raise bad_request("buckets: a list that is not empty")
    for bucket in value:
        if type(bucket) is not int or not 0 <= bucket < bucket_count:
            raise bad_request(f"buckets: whole numbers from 0 to {bucket_count - 1}")
    return sorted(set(value))


def choice(args: Args, name: str, allowed: tuple[str, ...]) -> str | None:
    value = args.get(name)
    if value is not None and value not in allowed:
        raise bad_request(f"{name}: one of {', '.join(allowed)}")
    return None if value is None else str(value)


def _bytes_of(name: str, value: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise bad_request(f"{name}: not to be written as UTF-8") from None
