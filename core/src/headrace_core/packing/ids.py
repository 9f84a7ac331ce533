"""Ids: an ingestion id names a subject and a metric, a batch id names what went out in one call.

An ingestion id is `subject$metric` with exactly one `$` and both parts not empty; a configured table id -> subject is
asked first (packing.md 1). Every other id is *unsplittable*; all of them together are one further subject, written as
the empty string here, which no splittable id can have.

Subjects become small numbers before anything is packed, so that the packer handles integers only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import count, repeat
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace_core.partitioner import partition_of

UNSPLITTABLE = ""
SAMPLE = 1000
Ints = npt.NDArray[np.int64]


def subject_of(ingestion_id: str, table: Mapping[str, str] | None = None) -> str:
    """The subject of an id; `UNSPLITTABLE` if it has none."""
    if table is not None and (named := table.get(ingestion_id)):
        return named
    subject, dollar, metric = ingestion_id.partition("$")
    if not dollar or not subject or not metric or "$" in metric:
        return UNSPLITTABLE
    return subject


class Subjects(NamedTuple):
    """`codes`: one subject number per row; `names`: the subjects by number; `unsplittable`: its number, or -1."""

    codes: Ints
    names: list[str]
    unsplittable: int


def number_subjects(ids: Sequence[str], table: Mapping[str, str] | None = None) -> Subjects:
    """Number the subjects by first appearance. Python loops run over distinct ids, never over rows (packing.md 5)."""
    distinct = list(dict.fromkeys(ids)) if _repeat(ids) else ids  # in order of appearance
    numbers: defaultdict[str, int] = defaultdict(count().__next__)
    codes = np.fromiter(map(numbers.__getitem__, _subjects(distinct, table)), np.int64, len(distinct))
    if distinct is not ids:
        code_of_id = dict(zip(distinct, codes.tolist(), strict=True))
        codes = np.fromiter(map(code_of_id.__getitem__, ids), np.int64, len(ids))
    return Subjects(codes, list(numbers), numbers.get(UNSPLITTABLE, -1))


def _repeat(ids: Sequence[str]) -> bool:
    """Whether to look for repeated ids first: not worth it, and no more than that, if a sample has next to none."""
    sample = ids[:: max(1, len(ids) // SAMPLE)]
    return len(set(sample)) < 0.95 * len(sample)


def _subjects(ids: Sequence[str], table: Mapping[str, str] | None) -> list[str]:
    """`subject_of` each; without a table split in one go, which is what a lane of many subjects spends its time on."""
    if table:
        return [subject_of(each, table) for each in ids]
    return [
        parts[0] if len(parts) == 2 and parts[0] and parts[1] else UNSPLITTABLE
        for parts in map(str.split, ids, repeat("$"))
    ]


def batch_id(lane: int | str, first_offset: int, last_offset: int, index: int) -> str:
    """`lane:first:last:index` (packing.md 7.1): offsets of the micro-batch in this lane, place of the batch in it."""
    return f"{lane}:{first_offset}:{last_offset}:{index}"


def shuffled_batch_id(lane: int | str, micro_batch: int, index: int) -> str:
    """`lane:micro-batch:index`, for lanes by shuffle, which have no offsets of their own (packing.md 7.1)."""
    return f"{lane}:{micro_batch}:{index}"


def shuffled_lane(subject: str, lanes: int) -> int:
    """The lane of a subject when the source is not keyed by subject (packing.md 6.2); unsplittable: empty subject."""
    return partition_of(subject.encode(), lanes)
