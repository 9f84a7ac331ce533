"""Dead letters of the writer (spark-writer.md 3): the JSON shape of the other services plus the place in the topic.

Theory: a dead letter is a pure function of the record and the refusal, so a replay writes the same bytes under the same
`id` header, and a reader can drop the repeat. `lost_at` is therefore the record's time in its topic, not a clock.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from headrace_spark.transforms.decode import Rejected, decode
from headrace_spark.transforms.measurements import of_member
from headrace_spark.transforms.records import Record, Report

MAX_PAYLOAD: Final = 512 * 1024
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


def sink_rejected(guilty: Iterable[tuple[Record, str, int, str]], max_bytes: int, job: str) -> Iterator[DeadLetter]:
    """One letter for each member of which the store refused a row: (record, metric, event time, what the store says).
    The member is found by decoding the record again."""
    told: dict[tuple[tuple[str, int, int], int], tuple[Record, list[str]]] = {}
    for record, metric, time_ms, says in guilty:
        place = (record.topic, record.partition, record.offset)
        element = _element(record, metric, time_ms, max_bytes)
        told.setdefault((place, element), (record, []))[1].append(f"{metric}: {says}")
    for (_, element), (record, details) in sorted(told.items(), key=lambda one: one[0]):
        yield letter(record, job, "sink_rejected", "; ".join(details), element)


def _element(record: Record, metric: str, time_ms: int, max_bytes: int) -> int:
    for element, member in enumerate(decode(record.value, max_bytes).members):
        try:
            found, _ = of_member(member)
        except Rejected:
            continue
        if any(one.metric == metric and one.time_ms == time_ms for one in found):
            return element
    raise LookupError(f"{record.topic}, partition {record.partition}, offset {record.offset} has no {metric}")


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
        **_payload(record.value or b""),
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
    value = json.dumps(document, separators=(",", ":")).encode()
    stage = f"spark.{job}"
    traced = [(name, found) for name, found in record.headers if name in TRACED and found is not None]
    return DeadLetter(record.key, value, [("id", place.encode()), ("stage", stage.encode()), *traced], reason)


def by_reason(letters: Iterable[DeadLetter]) -> dict[str, int]:
    """How many letters each reason has."""
    counts: dict[str, int] = {}
    for one in letters:
        counts[one.reason] = counts.get(one.reason, 0) + 1
    return counts


def _payload(value: bytes) -> dict[str, Any]:
    cut = value[:MAX_PAYLOAD]
    more = {"truncated": True} if len(value) > MAX_PAYLOAD else {}
    try:
        return {"payload": cut.decode("utf-8"), **more}
    except UnicodeDecodeError as error:
        if more and error.reason == "unexpected end of data":  # the cut went through a character
            return {"payload": cut[: error.start].decode("utf-8"), **more}
        return {"payload_base64": base64.b64encode(cut).decode("ascii"), **more}


def _receipt_ms(record: Record) -> int:
    for name, value in reversed(record.headers):
        if name == "receipt_time" and value is not None and value.isdigit() and len(value) <= 18:
            return int(value)
    return record.append_ms


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "backslashreplace")
