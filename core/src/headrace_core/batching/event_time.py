"""The event time of a payload (architecture.md, from data to batcher message)."""

from __future__ import annotations

import re
from datetime import datetime
from decimal import ROUND_FLOOR, Context, Decimal
from functools import lru_cache

import msgspec

from headrace_core.batching.keys import HIGHEST_MS, LOWEST_MS

PLAIN_SECONDS = re.compile(rb"(\d{1,15})(?:\.(\d+))?")
"""The usual number: cut by its digits, without arithmetic on decimals."""
NUMBER_OR_TEXT = msgspec.json.Decoder(float_hook=Decimal)
SECOND = re.compile(rb"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d")
OFFSET = re.compile(rb"[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d")
"""Hours to 23 and minutes to 59 (RFC 3339, 5.6); the parser of the standard library takes 60 minutes and more."""
RFC3339 = re.compile(rb"(%b)(?:\.(\d+))?(%b)" % (SECOND.pattern, OFFSET.pattern))
EXACT = Context(prec=40)
"""More digits than a time in range has, so that cutting is the only rounding."""
MILLISECOND = Decimal("0.001")
SHORT = 40
"""Bytes of an encoded time that is kept; the usual ones have 26 to 31."""
EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


def encoded_event_ms(time: bytes) -> int | None:
    """`event_ms` of an encoded JSON value. Raises msgspec.DecodeError if it is none."""
    return _known_ms(time) if len(time) <= SHORT else _encoded_ms(time)


@lru_cache(1024)
def _known_ms(time: bytes) -> int | None:
    """What a device measures at one moment comes in several messages with one time."""
    return _encoded_ms(time)


def _encoded_ms(time: bytes) -> int | None:
    if time[:1] == b'"':
        usual = _usual_ms(time)
        return event_ms(NUMBER_OR_TEXT.decode(time)) if usual is None else usual
    plain = PLAIN_SECONDS.fullmatch(time)
    if plain is not None and (time[:1] != b"0" or len(plain[1]) == 1):
        return int(plain[1]) * 1000 + _milliseconds(plain[2])
    return event_ms(NUMBER_OR_TEXT.decode(time))


def _usual_ms(time: bytes) -> int | None:
    """Of the usual text, quoted, with at least milliseconds: cut at its places, the second and the offset looked up."""
    fraction = time[21:24]
    if time[20:21] != b"." or len(fraction) != 3 or not fraction.isdigit():
        return None
    whole = _second_ms(time[1:20], time[24:-1].lstrip(b"0123456789"))
    return None if whole is None else whole + int(fraction)


def event_ms(time: object) -> int | None:
    """Milliseconds since 1970 of RFC 3339 text with offset, or of Unix seconds as a number; fractions are cut off.

    None: it is neither, or beyond what the state can hold.
    """
    if isinstance(time, str):
        found = _of_text(time)
    elif isinstance(time, int | Decimal) and not isinstance(time, bool):
        found = _of_seconds(Decimal(time))
    else:
        return None
    return found if found is not None and LOWEST_MS <= found <= HIGHEST_MS else None


def _of_text(text: str) -> int | None:
    match = RFC3339.fullmatch(text.encode(errors="replace"))
    whole = None if match is None else _second_ms(match[1], match[3])
    return None if match is None or whole is None else whole + _milliseconds(match[2])


@lru_cache(4096)
def _second_ms(second: bytes, offset: bytes) -> int | None:
    """The whole second, ms; None if there is no such moment. Neighbours in a log mostly share it."""
    if not SECOND.fullmatch(second) or not OFFSET.fullmatch(offset):
        return None
    day, clock, zone = second[:10].decode(), second[11:].decode(), offset.decode().upper().replace("Z", "+00:00")
    try:
        moment = datetime.fromisoformat(f"{day}T{clock}{zone}")
    except ValueError:
        return None
    since = moment - EPOCH
    return (since.days * 86400 + since.seconds) * 1000


def _milliseconds(fraction: bytes | None) -> int:
    return int((fraction or b"")[:3].ljust(3, b"0"))


def _of_seconds(seconds: Decimal) -> int | None:
    if not seconds.is_finite() or seconds.adjusted() > 18:
        return None
    cut = seconds.quantize(MILLISECOND, rounding=ROUND_FLOOR, context=EXACT)
    return int(cut.scaleb(3, context=EXACT))
