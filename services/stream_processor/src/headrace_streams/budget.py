"""How much of the input a worker holds at a time, over all its partitions (`streams.md` 1).

A chunk in memory is many times its size in the log: records, the emissions and mutations that follow from them, the
batches that are sent. What is bounded is the weight of the records that are handed over and not acknowledged, for the
rest is in proportion to it and lives no longer.

A bound for each partition alone grows with the number of partitions, and most of it helps nobody: one interpreter works
on one chunk at a time, the others wait. So there is one budget. While it lasts, chunks are as large as they can be and
a partition may have several; when there is no room for a whole one, one that has a chunk waits for its next, for many
that are cut cost more than a few large ones. One that has none always gets a small one, so that none ever waits for the
others' sake: a quiet root beside a busy one is not delayed. And chunks that are small together are not counted: under
light load many of a few records each gather while one waits for its acknowledgements, and are applied as one afterwards
(`chunks.py`).

Never more is held than `BYTES`, one fetch, and small chunks for each partition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence, Set
from typing import Any, NamedTuple

from headrace_core.stage import Record

BYTES = 32 * 1024 * 1024
RECORD_BYTES = 1024
"""What a record weighs without its value: tuples, headers, key."""
SMALL_RECORDS = 1_000
SMALL_BYTES = 640 * 1024
"""Of one partition under way, however many chunks it is: 0.5 s of 1,000 messages/s."""
CHUNKS = 3
"""So many chunks of one partition at most: one being applied, and two that have been unpacked meanwhile."""


class Room(NamedTuple):
    """What may be handed over next: chunks of these partitions, of so many records at most."""

    partitions: set[Any]
    records: int


def weight(records: Sequence[Record]) -> int:
    """Bytes, by estimate, of records in memory."""
    return len(records) * RECORD_BYTES + sum([len(value) for _, _, _, _, value, _ in records if value])


def room(under_way: Iterable[tuple[Any, int]], partitions: Set[Any], most_records: int) -> Room:
    """Which of `partitions` may get a chunk, beside the (partition, weight) of those under way."""
    held, weights = Counter[Any](), Counter[Any]()
    for partition, bytes_ in under_way:
        held[partition] += 1
        weights[partition] += bytes_
    left = (BYTES - weights.total()) // RECORD_BYTES
    most = CHUNKS if left >= most_records else 1
    have_room = {one for one in partitions if held[one] < most or weights[one] < SMALL_BYTES}
    return Room(have_room, min(most_records, max(left, SMALL_RECORDS)))
