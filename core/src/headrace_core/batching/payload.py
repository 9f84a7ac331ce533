"""What a data record says: source, type, event time and value (architecture.md, from data to batcher message).

The value goes on as it came, so the payload is only taken apart at its top: values stay encoded. What no reader of the
batch could understand for certain is unreadable: other bytes than UTF-8, a key given twice in one object (each reader
takes another of its values), and nesting so deep that it depends on the reader whether it can be read.
"""

from __future__ import annotations

from json import JSONDecoder

import msgspec

from headrace_core.batching.event_time import encoded_event_ms
from headrace_core.batching.messages import Message
from headrace_core.nesting import DEEPEST, is_too_deep

PAYLOAD = msgspec.json.Decoder(dict[str, msgspec.Raw])
encode = msgspec.json.Encoder().encode


class RepeatedKeyError(Exception):
    """An object has a key twice."""


def readable(payload: bytes, entity: bytes, type_: bytes, receipt_ms: int) -> Message | None:
    """The measurement in a data record, or None if source, type, payload or event time cannot be read (6.3)."""
    try:
        source = entity.decode()
        if not payload.isascii():
            payload.decode()  # what is not decoded below must be UTF-8 as well
        members = PAYLOAD.decode(payload)
        colons, time = len(members), members.pop("time", None)  # a key has a colon behind it
        at_ms: int | None = receipt_ms
        if time is not None:
            encoded = bytes(time)
            colons += encoded.count(b":")
            at_ms = encoded_event_ms(encoded)
        if not source or at_ms is None or (len(payload) > 2 * DEEPEST and is_too_deep(payload.decode())):
            return None
        if payload.count(b":") != colons and repeats_a_key(payload.decode()):
            return None
        return Message(source, type_.decode(), at_ms, encode(members))
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError, ArithmeticError):
        return None


def repeats_a_key(text: str) -> bool:
    """Whether an object anywhere in a valid JSON text has a key twice, however it is written."""
    try:
        WHOLE.decode(text)
    except RepeatedKeyError:
        return True
    return False


def _once(pairs: list[tuple[str, object]]) -> None:
    if len(dict(pairs)) != len(pairs):
        raise RepeatedKeyError


WHOLE = JSONDecoder(object_pairs_hook=_once, parse_int=len)
"""Reads only for its hook; the numbers, which may have any length, are left as they are."""
