"""Checking whole records: which message of its topic one is, and whether key, headers and value are as they must be.

For tests and tools. A record is of the message whose header `kind` it has and whose form of value and key it has; so
exactly one fits, or none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache

from jsonschema import Draft202012Validator

from headrace_schemas import validator, validator_of
from headrace_schemas.headers import BINARY, USER_PROPERTY, Schema
from headrace_schemas.topics import MARKER_KEY, Message, Value, topic

Pairs = Iterable[tuple[str, bytes]]


def headers_schema(message: Message) -> Schema:
    """The JSON Schema of the headers of a message, as an object of texts."""
    described: Schema = {
        "type": "object",
        "additionalProperties": message.carries,
        "required": list(message.headers),
        "properties": message.headers | message.optional,
    }
    if message.user_properties:
        described["patternProperties"] = {USER_PROPERTY: {"type": "string"}}
    return described


def message_of(name: str, key: bytes | None, value: bytes | None, headers: Pairs) -> Message | None:
    """The message that a record of the topic `name` is, or None. Raises KeyError for a topic that is not known."""
    found = dict(headers)
    kind = found.get("kind")
    for message in topic(name).messages:
        if (
            _kind(message) == kind
            and _told(message, topic(name).messages, found)
            and _marks(message) == (key == _latin(MARKER_KEY))
            and _form(message, value)
        ):
            return message
    return None


def violations(name: str, key: bytes | None, value: bytes | None, headers: Pairs) -> list[str]:
    """What is wrong with a record of the topic `name` (logical); empty if nothing is."""
    pairs = list(headers)
    message = message_of(name, key, value, pairs)
    if message is None:
        return [f"{name}: no message with these headers, key and value"]
    return [f"{name} {message.name}: {problem}" for problem in _problems(name, message, key, value, pairs)]


def _problems(name: str, message: Message, key: bytes | None, value: bytes | None, pairs: Pairs) -> Iterator[str]:
    of_key, of_headers = _validators(name, message.name)
    for error in of_key.iter_errors(_text(key, message.key)):
        yield f"key: {error.message}"
    for error in of_headers.iter_errors(_headers(message, pairs)):
        yield f"headers: {error.message}"
    if message.document is not None:
        for error in validator(message.document).iter_errors(json.loads(value or b"")):
            yield f"value{error.json_path[1:]}: {error.message}"


def _headers(message: Message, pairs: Pairs) -> dict[str, str | None]:
    described = message.headers | message.optional
    return {name: _text(value, described.get(name, {})) for name, value in pairs}


def _text(value: bytes | None, described: Schema) -> str | None:
    if value is None:
        return None
    if BINARY.items() <= described.items():
        return value.decode("latin-1")
    return value.decode("utf-8", "backslashreplace")


def _kind(message: Message) -> bytes | None:
    described = message.headers.get("kind")
    return described["enum"][0].encode() if described else None


def _told(message: Message, others: Iterable[Message], headers: Mapping[str, bytes]) -> bool:
    """Whether it has the header that tells it from others, and none that tells another one."""
    return {other.told_by for other in others if other.told_by in headers} <= {message.told_by} and (
        message.told_by is None or message.told_by in headers
    )


def _marks(message: Message) -> bool:
    return message.key.get("const") == MARKER_KEY


def _latin(text: str) -> bytes:
    return text.encode("latin-1")


def _form(message: Message, value: bytes | None) -> bool:
    if message.value in (Value.EMPTY, Value.NONE):
        return not value if message.value is Value.EMPTY else value is None
    if message.value is Value.JSON:
        return value is not None and _is_json(value)
    return value is not None and (bool(value) or message.name != "publish")


def _is_json(value: bytes) -> bool:
    try:
        json.loads(value)
    except ValueError:
        return False
    return True


@cache
def _validators(name: str, message_name: str) -> tuple[Draft202012Validator, Draft202012Validator]:
    """Those of key and headers."""
    message = next(message for message in topic(name).messages if message.name == message_name)
    return validator_of(message.key), validator_of(headers_schema(message))
