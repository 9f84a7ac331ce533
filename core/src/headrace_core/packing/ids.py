"""Ids: an ingestion id names a subject and a metric, a batch id names what went out in one call.

An ingestion id is `subject$metric` with exactly one `$` and both parts not empty; a configured table id -> subject is
asked first (packing.md 1). Every other id is *unsplittable*; all of them together are one further subject, written as
the empty string here, which no splittable id can have.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace_core.partitioner import partition_of

UNSPLITTABLE = ""


def subject_of(ingestion_id: str, table: Mapping[str, str] | None = None) -> str:
    """The subject of an id; `UNSPLITTABLE` if it has none."""
    if table is not None and (named := table.get(ingestion_id)):
        return named
    subject, dollar, metric = ingestion_id.partition("$")
    if not dollar or not subject or not metric or "$" in metric:
        return UNSPLITTABLE
    return subject


def batch_id(lane: int | str, first_offset: int, last_offset: int, index: int) -> str:
    """`lane:first:last:index` (packing.md 7.1): offsets of the micro-batch in this lane, place of the batch in it."""
    return f"{lane}:{first_offset}:{last_offset}:{index}"


def shuffled_batch_id(lane: int | str, micro_batch: int, index: int) -> str:
    """`lane:micro-batch:index`, for lanes by shuffle, which have no offsets of their own (packing.md 7.1)."""
    return f"{lane}:{micro_batch}:{index}"


def shuffled_lane(subject: str, lanes: int) -> int:
    """The lane of a subject when the source is not keyed by subject (packing.md 6.2); unsplittable: empty subject."""
    return partition_of(subject.encode(), lanes)
