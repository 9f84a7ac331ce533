"""Exact counts per slot of time from counters per day and minute (timeline.md 10).

A tally walks the days of its range. A day within one slot is added as a whole; of a day that a slot's edge cuts, the
minutes are looked at; of a minute that an edge cuts, the entries. So it costs O(days + minutes + entries at edges).
available = all with timestamp <= NOW; processing = locked ahead of NOW; waiting = all - locked ahead of NOW.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headrace_core.state import State
from headrace_core.timeline import keys
from headrace_core.timeline.context import Context
from headrace_core.timeline.due import buckets_of
from headrace_core.timeline.message import AVAILABLE, PARKED, PROCESSING, WAITING
from headrace_core.timeline.settings import MAX_MS
from headrace_core.timeline.store import read_slot

MAX_SLOTS = 1_000


@dataclass(frozen=True, slots=True)
class Slots:
    """`[from_ms, to_ms)` in slots of `step_ms`, the last one cut; of it only `[low, high)` is counted."""

    from_ms: int
    step_ms: int
    low: int
    high: int

    def of(self, timestamp: int) -> int:
        return (timestamp - self.from_ms) // self.step_ms

    def whole(self, start: int, end: int) -> bool:
        """Does `[start, end)` lie within one slot and within what is counted?"""
        return self.low <= start and end <= self.high and self.of(start) == self.of(end - 1)


def tally(context: Context, from_ms: int, to_ms: int, step_ms: int, status: str | None) -> list[int]:
    """Messages of `status` (None: all but parked) per slot of `[from_ms, to_ms)`."""
    counts = [0] * max(0, -(-(to_ms - from_ms) // step_ms))
    if status == PARKED:
        for timestamp in _parked(context):
            if from_ms <= timestamp < to_ms:
                counts[(timestamp - from_ms) // step_ms] += 1
        return counts
    ahead = context.now_ms + 1
    low = max(from_ms, ahead) if status in (WAITING, PROCESSING) else from_ms
    high = min(to_ms, ahead) if status == AVAILABLE else to_ms
    slots = Slots(from_ms, step_ms, low, high)
    for timestamp, all_, locked in cells(context, slots):
        counts[slots.of(timestamp)] += {PROCESSING: locked, WAITING: all_ - locked}.get(status or "", all_)
    return counts


def cells(context: Context, slots: Slots) -> Iterator[tuple[int, int, int]]:
    """Start, messages and locked ones of days, minutes and single entries, each within one slot."""
    if slots.low >= slots.high:
        return
    state, last = context.store.state, slots.high - 1
    days = state.scan(keys.day_key(slots.low // keys.DAY_MS), keys.day_key(last // keys.DAY_MS + 1))
    for day_key, raw in days:
        day = int.from_bytes(day_key[2:]) * keys.DAY_MS
        if slots.whole(day, day + keys.DAY_MS):
            yield day, *read_slot(raw)
            continue
        first = max(day, slots.low) // keys.MINUTE_MS
        final = min(day + keys.DAY_MS - 1, last) // keys.MINUTE_MS
        for minute_key, raw_minute in state.scan(keys.minute_key(first), keys.minute_key(final + 1)):
            minute = int.from_bytes(minute_key[2:]) * keys.MINUTE_MS
            if slots.whole(minute, minute + keys.MINUTE_MS):
                yield minute, *read_slot(raw_minute)
            else:
                yield from _entries(context, max(minute, slots.low), min(minute + keys.MINUTE_MS, slots.high))


def furthest(state: State) -> int | None:
    """The minute (UTC ms of its beginning) of the last message that is not parked; None: there is none. O(days +
    minutes of a day)."""
    found = None
    for day_key, raw in state.scan(keys.day_key(0), keys.day_key(MAX_MS // keys.DAY_MS + 1)):
        if read_slot(raw)[0]:
            found = int.from_bytes(day_key[2:])
    if found is None:
        return None
    first = found * keys.DAY_MS // keys.MINUTE_MS
    minutes = state.scan(keys.minute_key(first), keys.minute_key(first + keys.DAY_MS // keys.MINUTE_MS))
    return max(int.from_bytes(key[2:]) * keys.MINUTE_MS for key, raw in minutes if read_slot(raw)[0])


def _entries(context: Context, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The messages of part of a minute, one by one."""
    for bucket in buckets_of(context, None):
        for key, flag in context.store.state.scan(keys.time_key(bucket, start), keys.time_key(bucket, end)):
            yield int.from_bytes(key[3:11]), 1, int(flag == keys.LOCKED)


def _parked(context: Context) -> Iterator[int]:
    for key, _ in context.store.state.scan(b"p", b"p" + keys.END):
        message = context.store.message(key[17:])
        if message is not None:
            yield message.timestamp


LAST = MAX_MS + 1
"""The end of an open range."""
