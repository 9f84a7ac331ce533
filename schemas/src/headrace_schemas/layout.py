"""How keys and values of a stage's state are made of bytes, said once: read by `decode`, written down by `state_page`.

A key is its family's byte and *parts*; a value has a *shape*. Integers are big-endian. What does not fit raises
`Unfit`, so that nothing is shown that is not there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

SHIFT = 1 << 63
TOP = (1 << 64) - 1


class Unfit(ValueError):
    """Bytes that are not as their family says."""


@dataclass(frozen=True, slots=True)
class Code:
    """One way to write a value. `read(raw, at)` gives the value and where it ends."""

    words: str
    read: Callable[[bytes, int], tuple[Any, int]]


@dataclass(frozen=True, slots=True)
class Part:
    """A named part of a key."""

    name: str
    code: Code


@dataclass(frozen=True, slots=True)
class Shape:
    """What a value is. `record` is what it consists of, for the page."""

    words: str
    read: Callable[[bytes], Any]
    record: Record | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """A member of an array. `types` are Python types of the decoded value; `array` says more about a nested one."""

    name: str
    words: str
    types: tuple[type, ...]
    array: Record | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """An array whose members have names. `many`: an array of such arrays."""

    name: str
    members: tuple[Member, ...]
    many: bool = False


@dataclass(frozen=True, slots=True)
class Family:
    """All keys that begin with one byte, or with a few."""

    name: str
    summary: str
    key: tuple[Part, ...]
    value: Shape
    records: tuple[Record, ...] = field(default=())


def read_key(family: Family, raw: bytes, at: int = 1) -> dict[str, Any]:
    """The parts of a key by name, behind the `at` bytes that name the family. Raises Unfit."""
    found: dict[str, Any] = {}
    for part in family.key:
        found[part.name], at = part.code.read(raw, at)
    if at != len(raw):
        raise Unfit(f"{len(raw) - at} bytes too many in the key")
    return found


def _take(raw: bytes, at: int, size: int) -> bytes:
    piece = raw[at : at + size]
    if len(piece) != size:
        raise Unfit(f"{size} bytes expected at {at}")
    return piece


def _text(raw: bytes) -> str:
    try:
        return raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise Unfit(str(error)) from error


def _ended(raw: bytes, at: int) -> tuple[str, int]:
    end = raw.find(b"\0", at)
    if end < 0:
        raise Unfit("a text without its NUL")
    return _text(raw[at:end]), end + 1


def _named(names: Mapping[bytes, str]) -> Callable[[bytes, int], tuple[str, int]]:
    def read(raw: bytes, at: int) -> tuple[str, int]:
        byte = _take(raw, at, 1)
        if byte not in names:
            raise Unfit(f"{byte!r} is none of {sorted(names)}")
        return names[byte], at + 1

    return read


ENDED = Code("UTF-8 and a NUL", _ended)
REST = Code("UTF-8 to the end", lambda raw, at: (_text(raw[at:]), len(raw)))
NUMBER = Code("8 bytes, unsigned", lambda raw, at: (int.from_bytes(_take(raw, at, 8)), at + 8))
PAGE = Code("4 bytes, unsigned", lambda raw, at: (int.from_bytes(_take(raw, at, 4)), at + 4))
RISING = Code("8 bytes, plus 2^63", lambda raw, at: (int.from_bytes(_take(raw, at, 8)) - SHIFT, at + 8))
CLASS = Code("`0` metadata, `1` telemetry", _named({b"0": "metadata", b"1": "telemetry"}))


def _nothing(raw: bytes) -> None:
    if raw:
        raise Unfit("a value where none belongs")


def _whole(signed: bool) -> Callable[[bytes], int]:
    def read(raw: bytes) -> int:
        if len(raw) != 8:
            raise Unfit("8 bytes expected")
        return int.from_bytes(raw, signed=signed)

    return read


def _json(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError as error:
        raise Unfit(str(error)) from error


def _pair(raw: bytes) -> dict[str, int]:
    if len(raw) != 16:
        raise Unfit("16 bytes expected")
    return {"offset": RISING.read(raw, 0)[0], "index": RISING.read(raw, 8)[0]}


def _object(raw: bytes) -> dict[str, Any]:
    found = _unpack(raw)
    if not isinstance(found, dict):
        raise Unfit("an object expected")
    return found


NOTHING = Shape("empty", _nothing)
PLAIN = Shape("bytes", lambda raw: raw)
OBJECT = Shape("MessagePack: object", _object)
SIGNED = Shape("8 bytes, signed", _whole(signed=True))
COUNT = Shape("8 bytes, unsigned", _whole(signed=False))
JSON = Shape("JSON", _json)
PLACE = Shape("offset and index, 8 bytes each, plus 2^63", _pair)


def packed(record: Record) -> Shape:
    """An array of MessagePack, read into an object (or, if `many`, into a list of objects)."""
    words = f"MessagePack: {'array of ' if record.many else ''}`{record.name}`"
    return Shape(words, lambda raw: _record(_unpack(raw), record), record)


def _unpack(raw: bytes) -> Any:
    try:
        return msgspec.msgpack.decode(raw)
    except msgspec.DecodeError as error:
        raise Unfit(str(error)) from error


def _record(found: Any, record: Record) -> Any:
    if record.many:
        if not isinstance(found, list):
            raise Unfit("an array expected")
        return [_one(item, record) for item in found]
    return _one(found, record)


def _one(found: Any, record: Record) -> dict[str, Any]:
    if not isinstance(found, list) or len(found) != len(record.members):
        raise Unfit(f"an array of {len(record.members)} members expected")
    return {member.name: _member(item, member) for item, member in zip(found, record.members, strict=True)}


def _member(found: Any, member: Member) -> Any:
    if type(found) not in member.types:
        raise Unfit(f"{member.name} is {type(found).__name__}")
    return found if member.array is None else _record(found, member.array)
