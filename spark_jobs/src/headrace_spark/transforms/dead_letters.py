"""Dead letters of the writer (spark-writer.md 3): the JSON shape of the other services plus the place in the topic.

Theory: a dead letter is a pure function of the record and the refusal, so a replay writes the same bytes under the same
`id` header, and a reader can drop the repeat. `lost_at` is therefore the record's time in its topic, not a clock.

A letter must always find room, or one bad record would hold up all others for ever: it has at most `MAX_LETTER` bytes,
whatever the record has. The payload is whole up to 512 KiB; a text whose escapes would take more than Base64 takes is
shown in Base64. Only where key and headers leave no room for that is less of the payload shown, and where they leave
none for an eighth of it, the letter goes without them and says so.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from headrace_spark.transforms.decode import MAX_DETAIL, Rejected, decode
from headrace_spark.transforms.measurements import of_member
from headrace_spark.transforms.records import Place, Record, Report

MAX_PAYLOAD: Final = 512 * 1024
MAX_LETTER: Final = 1_000_000
"""Bytes of key, value and headers: what a topic takes unless told otherwise (`max.message.bytes` of 1,048,588)."""
_LONGEST: Final = 4 * -(-MAX_PAYLOAD // 3)
_KEEPS: Final = (MAX_PAYLOAD, MAX_PAYLOAD // 2, MAX_PAYLOAD // 4, MAX_PAYLOAD // 8)
_HEADER_BYTES: Final = 16
_BARE: Final = " (without the record's key and headers, which are too large)"
TRACED: Final = frozenset({"traceparent", "tracestate"})
"""Headers of the record that its dead letter has too, so that the trace goes on (W3C Trace Context)."""


class DeadLetter(msgspec.Struct, frozen=True):
    """A record for `<prefix>dead-letter`; the key is the original's."""

    key: bytes | None
    value: bytes
    headers: list[tuple[str, bytes]]
    reason: str


def of_report(report: Report, job: str) -> Iterator[DeadLetter]:
    """One letter for a refused record, else one for each refused member."""
    if report.record is None:
        return
    if report.taken is None:
        yield letter(report.record, job, report.reason, report.detail)
        return
    for refusal in report.taken.refusals:
        yield letter(report.record, job, refusal.reason, refusal.detail, refusal.element)


class Guilty(msgspec.Struct, frozen=True, array_like=True):
    """A row that a store refuses, where it came from, and what the store says. `exact`, value and boolean, where a
    document may have several rows of one metric and time."""

    place: Place
    metric: str
    time_ms: int
    detail: str
    exact: tuple[float, bool] | None = None


def sink_rejected(guilty: Iterable[tuple[Record, Guilty]], max_bytes: int, job: str) -> Iterator[DeadLetter]:
    """One letter for each member of which the store refused a row. The member is found by decoding the record again; of
    several with the very same row each stands for one that was refused."""
    told: dict[tuple[Place, int], tuple[Record, list[str]]] = {}
    same: Counter[tuple[object, ...]] = Counter()
    for record, one in guilty:
        found = _elements(record, one, max_bytes)
        row = (one.place, one.metric, one.time_ms, one.exact)
        element = found[min(same[row], len(found) - 1)]
        same[row] += one.exact is not None
        told.setdefault((one.place, element), (record, []))[1].append(f"{one.metric}: {one.detail}")
    for (_, element), (record, details) in sorted(told.items(), key=lambda item: item[0]):
        yield letter(record, job, "sink_rejected", "; ".join(details), element)


def _elements(record: Record, one: Guilty, max_bytes: int) -> list[int]:
    """The members that have this row, in order."""
    elements = []
    for element, member in enumerate(decode(record.value, max_bytes).members):
        try:
            found, _ = of_member(member)
        except Rejected:
            continue
        if any(
            row.metric == one.metric and row.time_ms == one.time_ms and one.exact in (None, (row.value, row.boolean))
            for row in found
        ):
            elements.append(element)
    if not elements:
        raise LookupError(f"{one.place} has no {one.metric}")
    return elements


def letter(
    record: Record, job: str, reason: str, detail: str, element: int | None = None, attempts: int = 1
) -> DeadLetter:
    """The dead letter of `record`, or of its member `element`; `attempts`: how often it was sent."""
    receipt = _receipt_ms(record)
    document: dict[str, Any] = {
        "reason": reason,
        "detail": detail,
        "root": (_text(record.key) or "").split("/")[0],
        "topic": record.topic,
        "receipt_time": receipt,
        "lost_at": record.append_ms,
        "partition": record.partition,
        "offset": record.offset,
        "key": _text(record.key),
        "headers": {name: _text(value) for name, value in record.headers},
        "job": job,
        "attempts": attempts,
    }
    place = f"{job}:{record.partition}:{record.offset}"
    if element is not None:
        document["element"] = element
        place += f":{element}"
    traced = [(name, found) for name, found in record.headers if name in TRACED and found is not None]
    return fitted(record.key, document, record.value or b"", place, traced)


def fitted(
    key: bytes | None, document: dict[str, Any], payload: bytes, name: str, traced: Iterable[tuple[str, bytes]]
) -> DeadLetter:
    """The letter of `document`, which lacks the payload, under the id `name`, with as much of the payload as there is
    room for."""
    own = [("id", name.encode()), ("stage", f"spark.{document['job']}".encode())]
    detail = str(document["detail"])[:MAX_DETAIL]
    bare = {**document, "detail": detail + _BARE, "root": None, "key": None, "headers": {}}
    for facts, named, kept in (({**document, "detail": detail}, [*own, *traced], key), (bare, own, None)):
        for keep in _KEEPS:
            found = DeadLetter(kept, _json({**facts, **_payload(payload, keep)}), named, document["reason"])
            if _size(found) <= MAX_LETTER:
                return found
    raise AssertionError("a bare letter has room for an eighth")


def _size(found: DeadLetter) -> int:
    headers = sum(len(name.encode()) + len(value) + _HEADER_BYTES for name, value in found.headers)
    return len(found.key or b"") + len(found.value) + headers


def _json(value: Any) -> bytes:
    """Half of a surrogate pair, which a function may say, is escaped."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "backslashreplace")


def by_reason(letters: Iterable[DeadLetter]) -> dict[str, int]:
    """How many letters each reason has."""
    counts: dict[str, int] = {}
    for one in letters:
        counts[one.reason] = counts.get(one.reason, 0) + 1
    return counts


def _payload(value: bytes, keep: int) -> dict[str, Any]:
    more = {"truncated": True} if len(value) > keep else {}
    text = _as_text(value[:keep], whole=not more)
    if text is not None and len(_json(text)) - 2 <= _LONGEST:
        return {"payload": text, **more}
    return {"payload_base64": base64.b64encode(value[:keep]).decode("ascii"), **more}


def _as_text(cut: bytes, *, whole: bool) -> str | None:
    try:
        return cut.decode("utf-8")
    except UnicodeDecodeError as error:
        if whole or error.reason != "unexpected end of data":
            return None
        return cut[: error.start].decode("utf-8")  # the cut went through a character


def _receipt_ms(record: Record) -> int:
    for name, value in reversed(record.headers):
        if name == "receipt_time" and value is not None and value.isdigit() and len(value) <= 18:
            return int(value)
    return record.append_ms


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "backslashreplace")
