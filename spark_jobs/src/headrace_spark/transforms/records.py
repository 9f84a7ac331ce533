"""From one Kafka record to what a task reports about it (spark-writer.md 2, 3 and 7).

Theory: a record is skipped (a tick or a flush), rejected, or taken; exactly one of the three. The report is everything
that the driver needs: measurements, and for dead letters the record itself, unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headrace_spark.transforms.costs import Dearest
from headrace_spark.transforms.decode import Document, Rejected, decode
from headrace_spark.transforms.measurements import Fits, Taken, measurements
from headrace_spark.transforms.rows import row_of

Headers = list[tuple[str, bytes | None]]


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
    `staged`: the number of measurements, once they are in the staging table and no longer here."""

    topic: str
    partition: int
    offset: int
    skipped: bool = False
    taken: Taken | None = None
    reason: str = ""
    detail: str = ""
    record: Record | None = None
    staged: int = 0

    @property
    def place(self) -> tuple[str, int, int]:
        """Where the record stands; reports are put in this order, whatever task they come from."""
        return self.topic, self.partition, self.offset


def report(record: Record, max_bytes: int, dearest: Dearest | None = None) -> Report:
    """Decode one record; nothing is raised for bad content. `dearest` is what a single row may cost."""
    place = (record.topic, record.partition, record.offset)
    if kind(record.headers) in (b"tick", b"flush"):
        return Report(*place, skipped=True)
    try:
        document = decode(record.value, max_bytes)
        taken = measurements(document, _fits(document, dearest))
    except Rejected as error:
        return Report(*place, reason=error.reason, detail=error.detail, record=record)
    return Report(*place, taken=taken, record=record if taken.refusals else None)


def _fits(document: Document, dearest: Dearest | None) -> Fits:
    if dearest is None:
        return lambda _: True
    return lambda one: dearest.fits(row_of(document.id, document.source, document.closed_at, one))


def light(full: Report) -> Report:
    """The report without its measurements, which are counted."""
    if full.taken is None:
        return full
    taken = msgspec.structs.replace(full.taken, measurements=[])
    return msgspec.structs.replace(full, taken=taken, staged=len(full.taken.measurements))


def kind(headers: Iterable[tuple[str, bytes | None]]) -> bytes | None:
    """The last header `kind`, as Kafka readers take the last of equals."""
    found = None
    for name, value in headers:
        if name == "kind":
            found = value
    return found
