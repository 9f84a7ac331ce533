"""Due search (timeline.md 9.2, 13.6): available messages of some buckets by (timestamp, id).

Only buckets whose first timestamp is due are merged. Per bucket a lower bound of its first timestamp is kept as a hint;
a search starts at the bound, never at the bucket's start, and raises it to what it finds. The store lowers it.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge

from headrace_core.timeline import keys
from headrace_core.timeline.context import Context
from headrace_core.timeline.store import first_timestamp


def buckets_of(context: Context, asked: list[int] | None) -> range | list[int]:
    """The asked buckets, else all of the partition: partition = bucket mod partitions (section 9.1)."""
    if asked is not None:
        return asked
    if context.partition is None:
        return range(context.settings.bucket_count)
    return range(context.partition, context.settings.bucket_count, context.settings.partitions)


def due_ids(context: Context, asked: list[int] | None) -> Iterator[bytes]:
    """Ids of due messages in poll order, lazily: write nothing while reading."""
    found = [_due_in(context, bucket) for bucket in due_buckets(context, asked)]
    ordered = found[0] if len(found) == 1 else merge(*found)
    return (entry[8:] for entry in ordered)


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
