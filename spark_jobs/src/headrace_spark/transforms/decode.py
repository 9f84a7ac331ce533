"""Strict decoding of a batch document (spark-writer.md 3, batching.md 9).

Theory: a record's value is bytes. It is either a `Document`, or it is rejected with exactly one reason. JSON is read
once; what JSON allows to be written but nobody should believe (a key twice, NaN, a number beyond a double) becomes a
`Flaw` at its place in the tree. A flaw in the envelope rejects the record, a flaw inside a member rejects that member
alone (`measurements.py`), so one bad element never changes its neighbours.

Nearly every value is without a flaw, and is read by a decoder that is quick but silent about a key that comes twice:
`_believed`. What it cannot prove to be good is read once more, slowly, by one that names the flaws.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

import msgspec

MAX_DEPTH: Final = 64
MAX_DETAIL: Final = 1000
"""Characters: a detail may name what the record has, which may be as long as the record."""
INT64: Final = 2**63
DOUBLE: Final = 10**300
"""An integer within is surely a double."""
_SPACED: Final = (b" :", b"\t:", b"\n:", b"\r:")
_quick: Final = msgspec.json.Decoder().decode
_NOISE: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[^\[\]{}"]+', re.DOTALL)
_ID: Final = re.compile(r"[0-9a-f]{32}")
_TIMES: Final = ("time", "opened_at", "closed_at")
_NAMES: Final = frozenset({"id", "source", *_TIMES, "close", "members"})


class Rejected(Exception):
    """The record or element cannot be taken. `reason` is one of spark-writer.md 3, `detail` is for people."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail[:MAX_DETAIL].encode("utf-8", "backslashreplace").decode("utf-8")


class Flaw(msgspec.Struct, frozen=True):
    """Stands in the tree for a value that must not be used."""

    reason: str
    detail: str


class Document(msgspec.Struct, frozen=True):
    """An envelope that holds. Times are ms; `members` are still unchecked JSON values."""

    id: str
    source: str
    closed_at: int
    members: list[Any]


def decode(value: bytes | None, max_bytes: int) -> Document:
    """The document in `value`. `max_bytes` is the largest value taken. Raises `Rejected`."""
    if value is None:
        raise Rejected("null_value", "the record has no value")
    if len(value) > max_bytes:
        raise Rejected("too_large", f"{len(value)} bytes, at most {max_bytes} are taken")
    return _envelope(parse(value))


def parse(value: bytes) -> Any:
    """JSON with a `Flaw` wherever a value must not be believed. Raises `Rejected`."""
    believed = _believed(value)
    return _searched(value) if believed is msgspec.UNSET else believed


def _believed(value: bytes) -> Any:
    """The tree, if it surely has no flaw; else UNSET.

    The tree has as many keys as the text has ends of keys, so none came twice.
    """
    try:
        tree = _quick(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return msgspec.UNSET
    return tree if _keys(tree) == key_ends(value) else msgspec.UNSET


def key_ends(value: bytes) -> int:
    """At least how many keys the text has, each time that one comes; -1 if that cannot be told.

    In JSON every key ends with a quote, and a colon follows it. Where no white space stands before a colon, the text
    has at least as many pairs of quote and colon as keys; so if the tree has just as many keys, none came twice.
    """
    ends = value.count(b'":')
    if value.count(b":") != ends and any(mark in value for mark in _SPACED):
        return -1
    return ends


def _keys(tree: Any) -> int | None:
    """How many keys the objects of a tree have; None if it nests too deep or a number is too large for a double."""
    keys = level = 0
    below = [tree]
    while below:
        inner: list[Any] = []
        for one in below:
            kind = type(one)
            if kind is dict:
                keys += len(one)
                inner += one.values()
            elif kind is list:
                inner += one
            elif kind is int and not -DOUBLE < one < DOUBLE:
                return None
        below, level = inner, level + 1
        if level > MAX_DEPTH:
            return None
    return keys


def _searched(value: bytes) -> Any:
    """See `parse`: every flaw at its place."""
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Rejected("not_utf8", str(error)) from None
    if depth(value) > MAX_DEPTH:
        raise Rejected("too_deep", f"nested deeper than {MAX_DEPTH}")
    try:
        return json.loads(text, object_pairs_hook=_pairs, parse_constant=_constant, parse_float=_float, parse_int=_int)
    except ValueError as error:
        raise Rejected("not_json", str(error)) from None


def depth(value: bytes) -> int:
    """How deep arrays and objects nest, brackets in strings left out."""
    if value.count(b"[") + value.count(b"{") <= MAX_DEPTH:
        return 0
    deepest = level = 0
    for byte in _NOISE.sub(b"", value):
        level += (byte in b"[{") - (byte in b"]}")
        deepest = max(deepest, level)
    return deepest


def is_id(text: str) -> bool:
    """Whether a text can be the id of a batch document."""
    return _ID.fullmatch(text) is not None


def text_problem(text: str) -> str | None:
    """Why a text cannot be part of a row id in every store, or None."""
    if "\x00" in text:
        return "holds the character NUL"
    if text.isascii():
        return None
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return "holds half of a surrogate pair"
    return None


def time_ms(value: Any, name: str) -> int:
    """An integer of 64 bits. Raises `Rejected`."""
    if isinstance(value, Flaw):
        raise Rejected(value.reason, f"{name}: {value.detail}")
    if isinstance(value, bool) or not isinstance(value, int):
        raise Rejected("schema", f"{name} must be an integer (ms)")
    if not -INT64 <= value < INT64:
        raise Rejected("number_range", f"{name} does not fit 64 bits")
    return value


def text(value: Any, name: str, *, empty: bool = False) -> str:
    """A text that fits every store; `empty`: it may be empty (a type may, batching.md 2). Raises `Rejected`."""
    if isinstance(value, Flaw):
        raise Rejected(value.reason, f"{name}: {value.detail}")
    if not isinstance(value, str) or not (value or empty):
        raise Rejected("schema", f"{name} must be a text{'' if empty else ' that is not empty'}")
    problem = text_problem(value)
    if problem:
        raise Rejected("schema", f"{name} {problem}")
    return value


def only(tree: dict[str, Any], names: frozenset[str]) -> None:
    """An object has no other members than these. Raises `Rejected`."""
    if tree.keys() <= names:
        return
    for name in tree:
        if name not in names:
            raise Rejected("schema", f"{name!r} is not a member that is known")


def _envelope(tree: Any) -> Document:
    if isinstance(tree, Flaw):
        raise Rejected(tree.reason, tree.detail)
    if not isinstance(tree, dict):
        raise Rejected("schema", "a batch document is an object")
    only(tree, _NAMES)
    times = {name: time_ms(tree.get(name), name) for name in _TIMES}
    if not is_id(text(tree.get("id"), "id")):
        raise Rejected("schema", "id must be 32 hexadecimal digits")
    if text(tree.get("close"), "close") not in ("timeout", "flush"):
        raise Rejected("schema", "close must be timeout or flush")
    source = text(tree.get("source"), "source")
    return Document(tree["id"], source, times["closed_at"], _members(tree.get("members")))


def _members(value: Any) -> list[Any]:
    if isinstance(value, Flaw):
        raise Rejected(value.reason, f"members: {value.detail}")
    if not isinstance(value, list) or not value:
        raise Rejected("schema", "members must be a list that is not empty")
    return value


def _pairs(pairs: list[tuple[str, Any]]) -> Any:
    result = dict(pairs)
    if len(result) == len(pairs):
        return result
    names = [name for name, _ in pairs]
    twice = next(name for index, name in enumerate(names) if name in names[:index])
    return Flaw("duplicate_key", f"the key {twice!r} stands twice in one object")


def _constant(name: str) -> Flaw:
    return Flaw("not_finite", f"{name} is not a number")


def _float(digits: str) -> float | Flaw:
    number = float(digits)
    return number if math.isfinite(number) else Flaw("number_range", f"{digits[:40]} is beyond a double")


def _int(digits: str) -> int | Flaw:
    try:
        number = int(digits)
        float(number)
    except (ValueError, OverflowError):
        return Flaw("number_range", f"{digits[:40]} is beyond a double")
    return number
