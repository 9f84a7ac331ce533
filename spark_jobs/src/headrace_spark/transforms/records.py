"""From one Kafka record to what a task reports about it (spark-writer.md 2, 3 and 7).

Theory: a record is skipped (a tick or a flush), rejected, or taken; exactly one of the three. The report is everything
that the driver needs: measurements, and for dead letters the record itself, unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final

import msgspec

from headrace_spark.transforms import quick
from headrace_spark.transforms.costs import Dearest
from headrace_spark.transforms.decode import Document, Rejected, decode
from headrace_spark.transforms.measurements import Fits, Taken, measurements
from headrace_spark.transforms.rows import row_of

Headers = list[tuple[str, bytes | None]]
Place = tuple[str, int, int]
"""Topic, partition, offset."""
DELIVER_AT: Final = "deliver-at"
ROUND: Final = "hr-round"
SOURCE: Final = "hr-source"
LEFT: Final = "hr-left"
_SOURCE: Final = re.compile(r"(.+)-(\d{1,9})-(\d{1,18})", re.DOTALL)


class Record(msgspec.Struct, frozen=True, array_like=True):
    """A Kafka record as it came; `append_ms` is its time in the topic."""

    topic: str
    partition: int
    offset: int
    append_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Report(msgspec.Struct, frozen=True, array_like=True):
    """What became of the record at (topic, partition, offset). `record` is there only if something of it is refused.
    `staged`: the number of measurements, once they are in the staging table and no longer here. `round`: how often it
    was in the delayed retry topic. `headers`: those that go with its rows to the sink."""

    topic: str
    partition: int
    offset: int
    skipped: bool = False
    taken: Taken | None = None
    reason: str = ""
    detail: str = ""
    record: Record | None = None
    staged: int = 0
    round: int = 0
    headers: dict[str, str] = {}

    @property
    def place(self) -> Place:
        """Where the record stands; reports are put in this order, whatever task they come from."""
        return self.topic, self.partition, self.offset


def report(
    record: Record, max_bytes: int, dearest: Dearest | None = None, again: str = "", carried: Collection[str] = ()
) -> Report:
    """Decode one record; nothing is raised for bad content. `dearest` is what a single row may cost, `again` the topic
    of what comes back from the delayed retry topic, `carried` names the headers that go with its rows."""
    place = (record.topic, record.partition, record.offset)
    past, left = returned(record, again)
    known = origin(record, again)
    if kind(record.headers) in (b"tick", b"flush"):
        return Report(*place, skipped=True)
    try:
        taken = quick.taken(record.value, max_bytes) if dearest is None and left is None else None
        if taken is None:
            document = decode(record.value, max_bytes)
            taken = measurements(document, _fits(document, dearest), left)
    except Rejected as error:
        return Report(*place, reason=error.reason, detail=error.detail, record=known, round=past)
    own = {name: plain(value) for name, value in record.headers if name in carried} if carried else {}
    return Report(*place, taken=taken, record=known if taken.refusals else None, round=past, headers=own)


def returned(record: Record, again: str) -> tuple[int, frozenset[int] | None]:
    """Of a record on the topic `again` how often it was in the retry topic, and which members are left, None for all. A
    header that cannot be read is as if it was not there; elsewhere these headers mean nothing."""
    if not again or record.topic != again:
        return 0, None
    found = {name: value for name, value in record.headers if name in (ROUND, LEFT)}
    number = found.get(ROUND) or b""
    past = max(1, int(number)) if number.isdigit() and len(number) <= 4 else 1
    try:
        spans = msgspec.json.decode(found.get(LEFT) or b"", type=list[tuple[int, int]])
    except msgspec.MsgspecError:
        return past, None
    whole = len(record.value or b"")  # a document has fewer members than bytes
    return past, frozenset(one for first, last in spans for one in range(max(0, first), min(last, whole) + 1))


def origin(record: Record, again: str) -> Record:
    """The record at its first place, where it came from by way of the retry topic."""
    if not again or record.topic != again:
        return record
    source = next((value for name, value in reversed(record.headers) if name == SOURCE), None) or b""
    found = _SOURCE.fullmatch(source.decode("utf-8", "replace"))
    if found is None:
        return record
    return msgspec.structs.replace(record, topic=found[1], partition=int(found[2]), offset=int(found[3]))


def _fits(document: Document, dearest: Dearest | None) -> Fits | None:
    if dearest is None:
        return None
    return lambda one: dearest.fits(row_of(document.id, document.source, document.closed_at, one))


def elements(record: Record, max_bytes: int, dearest: Dearest | None, again: str) -> dict[tuple[str, int], int]:
    """Which member of a taken record gave the measurement (metric, event time); the first, if several have it."""
    document, (_, left) = decode(record.value, max_bytes), returned(record, again)
    found: dict[tuple[str, int], int] = {}
    for element in range(len(document.members)):
        if left is None or element in left:
            taken = measurements(document, _fits(document, dearest), frozenset([element]))
            for one in taken.measurements:
                found.setdefault((one.metric, one.time_ms), element)
    return found


def light(full: Report) -> Report:
    """The report without its measurements, which are counted."""
    if full.taken is None:
        return full
    taken = msgspec.structs.replace(full.taken, measurements=[])
    return msgspec.structs.replace(full, taken=taken, staged=len(full.taken.measurements))


def plain(value: bytes | None) -> str:
    """A header's value as text; what is not UTF-8 is escaped."""
    return (value or b"").decode("utf-8", "backslashreplace")


def kind(headers: Iterable[tuple[str, bytes | None]]) -> bytes | None:
    """The last header `kind`, as Kafka readers take the last of equals."""
    found = None
    for name, value in headers:
        if name == "kind":
            found = value
    return found
