"""Due search (timeline.md 9.2, 13.6): available messages of some buckets by (timestamp, id).

Only buckets whose first timestamp is due are merged. Per bucket a lower bound of its first timestamp is kept as a hint;
a search starts at the bound, never at the bucket's start, and raises it to what it finds. The store lowers it.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge

from headrace_core.timeline import keys
from headrace_core.timeline.context import Context
from headrace_core.timeline.message import Message
from headrace_core.timeline.settings import MAX_MS
from headrace_core.timeline.store import first_timestamp


def buckets_of(context: Context, asked: list[int] | None) -> range | list[int]:
    """The asked buckets, else all of the partition: partition = bucket mod partitions (section 9.1)."""
    if asked is not None:
        return asked
    if context.partition is None:
        return range(context.settings.bucket_count)
    return range(context.partition, context.settings.bucket_count, context.settings.partitions)


def due_entries(context: Context, asked: list[int] | None) -> Iterator[tuple[int, bytes]]:
    """Timestamp and id of index entries that are due, in poll order, lazily: write nothing while reading."""
    found = [_due_in(context, bucket) for bucket in due_buckets(context, asked)]
    ordered = found[0] if len(found) == 1 else merge(*found)
    return ((int.from_bytes(entry[:8]), entry[8:]) for entry in ordered)


def stands_at(message: Message, timestamp: int) -> bool:
    """Does the record agree with its index entry? The record is the one source of truth (section 13.7)."""
    return not message.deleted and not message.parked and message.timestamp == timestamp


def next_timestamp(context: Context) -> int | None:
    """The first timestamp of the partition, exactly; hints are raised until the lowest of them is true."""
    heads = context.store.heads
    buckets = buckets_of(context, None)
    while True:
        bucket = min(buckets, key=lambda each: heads.get(each, 0))
        bound = heads.get(bucket, 0)
        heads[bucket] = first_timestamp(context.store.state, bucket, min(bound, MAX_MS))
        if heads[bucket] == bound:
            return bound if bound <= MAX_MS else None


def due_buckets(context: Context, asked: list[int] | None) -> list[int]:
    """Buckets whose first message is due."""
    heads, state, now_ms = context.store.heads, context.store.state, context.now_ms
    found = []
    for bucket in buckets_of(context, asked):
        bound = heads.get(bucket, 0)
        if bound > now_ms:
            continue
        heads[bucket] = first_timestamp(state, bucket, bound)
        if heads[bucket] <= now_ms:
            found.append(bucket)
    return found


def _due_in(context: Context, bucket: int) -> Iterator[bytes]:
    """Timestamp and id of the due entries of one bucket."""
    start = keys.time_key(bucket, context.store.heads.get(bucket, 0))
    for key, _ in context.store.state.scan(start, keys.time_key(bucket, context.now_ms + 1)):
        yield key[3:]
