"""The short way from a record's value to its measurements, for documents without any flaw (spark-writer.md 3).

Theory: nearly every document is good all over, and flat: a member's value is a number, or an object of numbers and
texts. `taken` gives for such a document just what `decode` and `measurements` give, and None for every other one, which
then goes the long way. So it decides nothing: whatever it cannot prove to be good is not its business.

That no key comes twice it proves as `decode.py` does: the text has no more ends of keys than the tree has keys.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from headrace_spark.transforms.decode import DOUBLE, INT64, is_id, key_ends
from headrace_spark.transforms.measurements import MAX_KEY_BYTES, Measurement, Taken


class _Member(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    type: str
    time: Any
    received: Any
    value: Any


class _Envelope(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    source: str
    time: Any
    opened_at: Any
    closed_at: Any
    close: str
    members: list[_Member]


_ENVELOPE_KEYS: Final = len(_Envelope.__struct_fields__)
_MEMBER_KEYS: Final = len(_Member.__struct_fields__)
_decode: Final = msgspec.json.Decoder(_Envelope).decode


def taken(value: bytes | None, max_bytes: int) -> Taken | None:
    """What the document gives, if it is surely good all over and flat. `max_bytes` is the largest value taken."""
    if value is None or len(value) > max_bytes:
        return None
    ends = key_ends(value)
    try:
        found = _decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if not found.members or not _envelope(found):
        return None
    rows: list[Measurement] = []
    room = MAX_KEY_BYTES - len(found.source)
    keys, texts, empty = _ENVELOPE_KEYS + _MEMBER_KEYS * len(found.members), 0, 0
    for member in found.members:
        kind, time, before = member.type, member.time, len(rows)
        if not _time(time) or not _time(member.received):
            return None
        leaves = member.value
        if type(leaves) is dict:
            keys += len(leaves)
            for name, leaf in leaves.items():
                if type(leaf) is str:
                    texts += 1
                    continue
                one = _measured(f"{kind}.{name}", time, leaf, room)
                if one is None:
                    return None
                rows.append(one)
        else:
            one = _measured(kind, time, leaves, room)
            if one is None:
                return None
            rows.append(one)
        if len(rows) == before:
            if not _plain(kind):
                return None
            empty += 1
    if keys != ends:
        return None
    return Taken(found.id, found.source, found.closed_at, len(found.members), rows, [], texts, empty)


def _measured(metric: str, time: int, leaf: Any, room: int) -> Measurement | None:
    kind = type(leaf)
    if kind is float:
        pass
    elif kind is int:
        if not -DOUBLE < leaf < DOUBLE:
            return None
    elif kind is not bool:
        return None
    if not metric.isascii() or "\x00" in metric or len(metric) > room:
        return None
    return Measurement(metric, time, float(leaf), kind is bool)


def _envelope(found: _Envelope) -> bool:
    times = _time(found.time) and _time(found.opened_at) and _time(found.closed_at)
    named = bool(found.source) and _plain(found.source) and is_id(found.id)
    return times and named and found.close in ("timeout", "flush")


def _time(value: Any) -> bool:
    return type(value) is int and -INT64 <= value < INT64


def _plain(text: str) -> bool:
    return text.isascii() and "\x00" not in text
