"""The delayed retry topic (spark-writer.md 8): what goes there, and what comes back on `<job>.again`.

Theory: a record whose rows could not all be written goes on with the same key, value and headers, and with headers that
say when it is due, how often it was there, and where it came from. A time buffer of the timeline service moves it to
`<job>.again` when it is due; the job reads that too. One header more, `hr-left`, names the members that are still to be
done, so what was written or refused for good is neither paid nor reported twice; a record without it is done whole.

    deliver-at = now + min(1 h, 30 s * 2^round * (1 +- 20 %))

`round` is how often the record was there before. The jitter comes from the document's id and the round, so a replay has
the same. What a record is known by (dead letters, ids) is its first place, `hr-source`, on every round.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from headrace_spark.transforms.records import DELIVER_AT, LEFT, ROUND, SOURCE, Headers, Record

FIRST_DELAY_MS: Final = 30_000
LONGEST_DELAY_MS: Final = 3_600_000
JITTER: Final = 0.2
_OWN: Final = frozenset({DELIVER_AT, LEFT, ROUND, SOURCE, "tl-source"})


class Delayed(msgspec.Struct, frozen=True):
    """A record for the delayed retry topic."""

    key: bytes | None
    value: bytes | None
    headers: Headers


def delay_ms(document: str, past: int) -> int:
    """How long a document waits that was in the retry topic `past` times, 0 or more."""
    digest = hashlib.sha256(f"{document}:{past}".encode()).digest()
    spread = 2 * int.from_bytes(digest[:8], "big") / (2**64 - 1) - 1
    whole = min(LONGEST_DELAY_MS, FIRST_DELAY_MS << min(past, 20))
    return min(LONGEST_DELAY_MS, round(whole * (1 + JITTER * spread)))


def delayed(record: Record, document: str, left: Iterable[int], now_ms: int, past: int) -> Delayed:
    """The record for its next round, with the members that are `left`. `record` is known by its first place
    (`origin`); `past` is how often it was there."""
    headers: Headers = [one for one in record.headers if one[0] not in _OWN]
    source = f"{record.topic}-{record.partition}-{record.offset}"
    return Delayed(
        record.key,
        record.value,
        [
            *headers,
            (DELIVER_AT, str(now_ms + delay_ms(document, past)).encode()),
            (ROUND, str(past + 1).encode()),
            (SOURCE, source.encode()),
            (LEFT, json.dumps(spans(sorted(set(left))), separators=(",", ":")).encode()),
        ],
    )


def spans(numbers: Sequence[int]) -> list[list[int]]:
    """Rising numbers as spans, both ends included: short, whatever their number."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return found
