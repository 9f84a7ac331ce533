"""What an HTTP bulk interface is told, and how its answers are read (spark-writer.md 7, "HTTP bulk"); pure.

Theory: the body has two lines for each row, an action and the document. The document's id is a hash of the row's id,
its version is external and comes from the row's content, so the store itself refuses what is old or was there: a
conflict means done, and sending twice is harmless. Each item of the answer is read; an answer that cannot be read says
nothing about any row, so all are unknown.

The external version is one integer of 63 bits: `closed_at` in ms (42 bits, until the year 2109; beyond the range it is
held at the range's end), then the first 21 bits of the batch id. Two batches that closed in the same millisecond
and share these bits tie; then the first that arrives stays. With a configured key that lacks the event time, it is the
event time in ms (42 bits), then how long after it the batch closed, in ms, up to 35 minutes (21 bits); with a
configured version it is that column, from 0 up.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from typing import Any, Final

import msgspec

from headrace_core.errors import ConfigError
from headrace_spark.sinks.answers import AGAIN, Answer, Verdict, all_of
from headrace_spark.sinks.callables import Result
from headrace_spark.transforms.rows import IDENTITY, Keying, Row

_BUSY: Final = frozenset({429, 503})
_UNKNOWN: Final = frozenset({408, 425})
_NEVER: Final = frozenset({401, 403, 404})
_LONGEST_RESET_MS: Final = 86_400_000
"""Above it the header tells a point in time, not how long."""
_DONE: Final = {"created": "inserted", "updated": "replaced", "noop": "repeat"}
_BATCH_BITS: Final = 21
_CLOSED_MAX: Final = (1 << 42) - 1
_DETAIL: Final = 500
_encode = msgspec.json.Encoder().encode


def document_id(row: Row, keying: Keying = IDENTITY) -> str:
    """40 hex digits of the SHA-256 of (source, metric, event time), or of the configured key."""
    return hashlib.sha256(msgspec.msgpack.encode(keying.id(row))).hexdigest()[:40]


def version(row: Row, keying: Keying = IDENTITY) -> int:
    """See above; at least 0 and below 2^63."""
    if keying.column:
        return max(0, int(getattr(row, keying.column)))
    if "time_ms" not in keying.key:
        time_ms = min(max(row.time_ms, 0), _CLOSED_MAX)
        return time_ms << _BATCH_BITS | min(max(row.closed_at - row.time_ms, 0), (1 << _BATCH_BITS) - 1)
    closed_at = min(max(row.closed_at, 0), _CLOSED_MAX)
    return closed_at << _BATCH_BITS | int(row.batch, 16) >> (len(row.batch) * 4 - _BATCH_BITS)


def body(
    rows: Sequence[Row], keying: Keying = IDENTITY, headers: Mapping[str, Mapping[str, str]] = MappingProxyType({})
) -> bytes:
    """Newline-delimited JSON. A document of which headers are carried has them as one member more."""
    return b"".join(
        line + b"\n" for row in rows for line in (_action(row, keying), _document(row, headers.get(row.batch)))
    )


def _document(row: Row, headers: Mapping[str, str] | None) -> bytes:
    return _encode({**msgspec.structs.asdict(row), "headers": headers}) if headers else _encode(row)


def _action(row: Row, keying: Keying) -> bytes:
    name, number = document_id(row, keying), version(row, keying)
    return _encode({"index": {"_id": name, "version": number, "version_type": "external"}})


def read(
    rows: Sequence[Row],
    status: int,
    headers: Mapping[str, str],
    content: bytes,
    now: datetime,
    keying: Keying = IDENTITY,
) -> Answer:
    """What the answer says of each row. `headers` by names in lower case; `now` for a `Retry-After` that is a date.
    Raises `ConfigError` for an answer that no other request will change."""
    after = retry_after_ms(headers.get("retry-after"), now)
    if status == 413:
        return Answer(too_large=True)
    if status in _BUSY:
        return Answer(all_of(rows, "refused", f"status {status}"), busy=True, retry_after_ms=after)
    if 200 <= status < 300:
        verdicts = _items(rows, content, keying)
        busy = any(one.became == "refused" for one in verdicts)
        return Answer(verdicts, busy=busy, retry_after_ms=after if busy else None)
    if status >= 500 or status in _UNKNOWN:
        return Answer(all_of(rows, "unknown", f"status {status}"))
    text = content[:_DETAIL].decode("utf-8", "replace")
    raise ConfigError("sink", f"the whole request was answered with status {status}: {text}")


def whole(rows: Sequence[Row], status: int, headers: Mapping[str, str], content: bytes, now: datetime) -> Result:
    """What the answer says of the request as a whole, for mode `lanes` (packing.md 7). An answer with an item for each
    row is read: the request goes again if any item was not taken, and is refused if any is refused for good. Raises
    `ConfigError` for an answer that no other request will change."""
    after = _after_ms(headers, now)
    if 200 <= status < 300:
        return _folded(_items(rows, content, IDENTITY), after) if _has_items(content) else Result()
    if status in _BUSY or status >= 500 or status in _UNKNOWN:
        return Result("retry", f"status {status}", after, busy=status in _BUSY)
    text = f"status {status}: {content[:_DETAIL].decode('utf-8', 'replace')}"
    if status < 400 or status in _NEVER:
        raise ConfigError("sink", f"the whole request was answered with {text}")
    return Result("reject", text)


def _folded(verdicts: Sequence[Verdict], after_ms: int) -> Result:
    again = [one for one in verdicts if one.became in AGAIN]
    if again:
        busy = any(one.became == "refused" for one in again)
        return Result("retry", f"{len(again)} of {len(verdicts)} items: {again[0].detail}", after_ms, busy=busy)
    refused = [one for one in verdicts if one.became == "rejected"]
    if refused:
        return Result("reject", f"{len(refused)} of {len(verdicts)} items: {refused[0].detail}")
    return Result()


def _has_items(content: bytes) -> bool:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and "items" in found


def _after_ms(headers: Mapping[str, str], now: datetime) -> int:
    """From `Retry-After`, else from the seconds until a limit of requests begins anew; 0 if neither is told."""
    after = retry_after_ms(headers.get("retry-after"), now)
    if after is None:
        told = [retry_after_ms(headers.get(name), now) for name in ("ratelimit-reset", "x-ratelimit-reset")]
        after = next((one for one in told if one is not None and one <= _LONGEST_RESET_MS), 0)
    return after


def charged(text: str | None) -> int | None:
    """Units from the charge header, rounded up; None if it is not there or no number of at least 0."""
    try:
        found = Decimal(text.strip()) if text else None
    except InvalidOperation:
        return None
    if found is None or not found.is_finite() or not 0 <= found < 1 << 62:
        return None
    return int(found.to_integral_value(ROUND_CEILING))


def retry_after_ms(text: str | None, now: datetime) -> int | None:
    """RFC 9110, 10.2.3: seconds, or a date. None for anything else."""
    text = (text or "").strip()
    if text.isascii() and text.isdigit() and len(text) <= 9:
        return int(text) * 1000
    try:
        when = parsedate_to_datetime(text)
    except ValueError:
        return None
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    return max(0, round((when - now).total_seconds() * 1000))


def _items(rows: Sequence[Row], content: bytes, keying: Keying) -> list[Verdict]:
    try:
        items = json.loads(content)["items"]
        found = [next(iter(item.values())) for item in items]
        if len(found) != len(rows):
            raise ValueError(f"{len(found)} items for {len(rows)} rows")
        return [_item(document_id(row, keying), item) for row, item in zip(rows, found, strict=True)]
    except (ValueError, TypeError, KeyError, AttributeError, StopIteration, RecursionError) as error:
        return all_of(rows, "unknown", f"the answer cannot be read: {error!r}"[:_DETAIL])


def _item(wanted: str, item: Mapping[str, Any]) -> Verdict:
    """Raises ValueError for an item that is not of the row with this id, or has no status."""
    name, status = item.get("_id", wanted), item["status"]
    if name != wanted or not isinstance(status, int):
        raise ValueError(f"not an item of this row: {name!r}")
    detail = f"status {status}: {json.dumps(item.get('error'))}"[:_DETAIL]
    if 200 <= status < 300:
        told = _DONE.get(str(item.get("result")), "inserted" if status == 201 else "replaced")
        return Verdict(told)  # type: ignore[arg-type]
    if status == 409:
        return Verdict("repeat")
    if status in _BUSY:
        return Verdict("refused", detail)
    if 400 <= status < 500 and status not in _UNKNOWN:
        return Verdict("rejected", detail)
    return Verdict("unknown", detail)
