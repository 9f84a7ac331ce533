"""Typed reads and writes of a partition's state; one write of a message keeps every derived key of it right.

The derived keys of a message are a pure function of it (`derived`). `save` writes the difference between the keys of
the old and of the new message, so an index cannot drift from its record; `derive` writes them after a restore.
Counters per day and minute are gathered during one record and written by `flush`, one read and write a slot.

`heads` holds hints only (13.6): per bucket a lower bound of its first timestamp. An insert below lowers it, a search
raises it; an unknown bucket has none. Dropping them at any time changes no answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

import msgspec

from headrace_core.state import State
from headrace_core.timeline import keys
from headrace_core.timeline.message import Clock, Message, Remembered, Waiter
from headrace_core.timeline.settings import MAX_MS

_encode = msgspec.msgpack.Encoder().encode
_messages = msgspec.msgpack.Decoder(Message)
_clocks = msgspec.msgpack.Decoder(Clock)
_waiters = msgspec.msgpack.Decoder(Waiter)
_remembered = msgspec.msgpack.Decoder(Remembered)
DERIVED = b"celopqtvx"
MINUTES_A_DAY = 1_440
Slots = dict[int, list[int]]


class Change(NamedTuple):
    """What happened to the record of an id; None: there is none."""

    id: bytes
    before: Message | None
    after: Message | None


class Store:
    """One record's view of the state. `clock` is read at once; `flush` writes clock and counters back.

    `changes`: what was saved so far, in order.
    """

    __slots__ = ("_clock_before", "_minutes", "_totals", "changes", "clock", "heads", "state")

    def __init__(self, state: State, heads: dict[int, int]) -> None:
        self.state = state
        self.heads = heads
        raw = state.get(keys.CLOCK)
        self.clock = _clocks.decode(raw) if raw is not None else Clock()
        self._clock_before = raw
        self._minutes: Slots = {}
        self._totals: dict[str, int] = {}
        self.changes: list[Change] = []

    def flush(self) -> None:
        """Write the counters gathered so far and the clock."""
        if self._minutes:
            self._flush_slots()
        if self._totals:
            changes = {name: getattr(self.clock, name) + by for name, by in self._totals.items()}
            self.clock = msgspec.structs.replace(self.clock, **changes)
            self._totals.clear()
        raw = _encode(self.clock)
        if raw != self._clock_before:
            self.state.put(keys.CLOCK, raw)
            self._clock_before = raw

    def _flush_slots(self) -> None:
        days: Slots = {}
        for minute, (all_, locked) in self._minutes.items():
            day = days.setdefault(minute // MINUTES_A_DAY, [0, 0])
            day[0] += all_
            day[1] += locked
            if all_ or locked:
                add_to_slot(self.state, keys.minute_key(minute), all_, locked)
        for number, (all_, locked) in days.items():
            if all_ or locked:
                add_to_slot(self.state, keys.day_key(number), all_, locked)
        self._minutes.clear()

    # messages

    def message(self, id_: bytes) -> Message | None:
        """The record of an id, tombstones included."""
        raw = self.state.get(keys.message_key(id_))
        return None if raw is None else _messages.decode(raw)

    def save(self, id_: bytes, before: Message | None, after: Message | None) -> None:
        """Replace the record of an id (None = there is none) together with all that is derived from it."""
        state = self.state
        self.changes.append(Change(id_, before, after))
        if after is None:
            state.delete(keys.message_key(id_))
        else:
            state.put(keys.message_key(id_), _encode(after))
        old = derived(id_, before) if before is not None else {}
        new = derived(id_, after) if after is not None else {}
        for key in old:
            if key not in new:
                state.delete(key)
        for key, value in new.items():
            if old.get(key) != value:
                state.put(key, value)
        self._count(before, -1)
        self._count(after, 1)
        if after is not None and not after.deleted and not after.parked:
            bound = self.heads.get(after.bucket)
            if bound is not None and after.timestamp < bound:
                self.heads[after.bucket] = after.timestamp

    def _count(self, message: Message | None, by: int) -> None:
        """Section 10: counters change in the same batch as the state."""
        if message is None:
            return
        totals = self._totals
        if message.deleted:
            totals["tombstones"] = totals.get("tombstones", 0) + by
            return
        if message.source is not None:
            totals["buffered"] = totals.get("buffered", 0) + by
        if message.parked:
            totals["parked"] = totals.get("parked", 0) + by
            return
        totals["live"] = totals.get("live", 0) + by
        slot = self._minutes.setdefault(message.timestamp // keys.MINUTE_MS, [0, 0])
        slot[0] += by
        if message.lock is not None:
            slot[1] += by

    def remove_stray(self, buckets: Iterable[int], timestamp: int, id_: bytes) -> None:
        """An index entry without its record: removed and counted (section 13.7)."""
        for bucket in buckets:
            self.state.delete(keys.time_key(bucket, timestamp, id_))
        self.clock = msgspec.structs.replace(self.clock, repairs=self.clock.repairs + 1)

    def body(self, id_: bytes) -> bytes:
        return self.state.get(keys.body_key(id_)) or b""

    # requests and waiters

    def remembered(self, id_: bytes, request_id: str) -> Remembered | None:
        raw = self.state.get(keys.request_key(id_, request_id))
        return None if raw is None else _remembered.decode(raw)

    def remember(self, id_: bytes, request_id: str, entry: Remembered | None) -> None:
        key = keys.request_key(id_, request_id)
        before = self.state.get(key)
        if before is not None:
            self.state.delete(keys.request_age_key(_remembered.decode(before).at_ms, key[1:]))
        if entry is None:
            self.state.delete(key)
            return
        self.state.put(key, _encode(entry))
        self.state.put(keys.request_age_key(entry.at_ms, key[1:]), b"")

    def waiter(self, sequence: int) -> Waiter | None:
        raw = self.state.get(keys.waiter_key(sequence))
        return None if raw is None else _waiters.decode(raw)

    def waiters(self, start: int = 0, limit: int | None = None) -> list[tuple[int, Waiter]]:
        """Waiting polls from sequence `start`, first come first."""
        found = islice(self.state.scan(keys.waiter_key(start), b"w" + keys.END * 9), limit)
        return [(int.from_bytes(key[1:]), _waiters.decode(raw)) for key, raw in found]

    def enqueue(self, waiter: Waiter) -> int:
        sequence = self.next_sequence()
        self.clock = msgspec.structs.replace(self.clock, waiting=self.clock.waiting + 1)
        self.state.put(keys.waiter_key(sequence), _encode(waiter))
        self.state.put(keys.waiter_end_key(waiter.end_ms, sequence), b"")
        return sequence

    def replace_waiter(self, sequence: int, waiter: Waiter) -> None:
        """The same poll with another address for its answer; its end stays."""
        self.state.put(keys.waiter_key(sequence), _encode(waiter))

    def dequeue(self, sequence: int, waiter: Waiter) -> None:
        self.clock = msgspec.structs.replace(self.clock, waiting=self.clock.waiting - 1)
        self.state.delete(keys.waiter_key(sequence))
        self.state.delete(keys.waiter_end_key(waiter.end_ms, sequence))

    def next_sequence(self) -> int:
        """A number that is higher than all that this partition gave out before."""
        self.clock = msgspec.structs.replace(self.clock, sequence=self.clock.sequence + 1)
        return self.clock.sequence

    def scan(self, start: bytes, stop: bytes, limit: int) -> list[bytes]:
        """At most `limit` keys, taken out before anything is written."""
        found = []
        for key, _ in self.state.scan(start, stop):
            found.append(key)
            if len(found) >= limit:
                break
        return found


def derived(id_: bytes, message: Message) -> dict[bytes, bytes]:
    """The index items of one message (13.5), without the counters."""
    if message.deleted:
        return {keys.tombstone_key(message.deleted_at, id_): b""}
    items = {keys.owner_key(message.group, id_): b""}
    if message.parked:
        items[keys.parked_key(message.parked_at, message.parking, id_)] = b""
        return items
    locked = message.lock is not None
    items[keys.time_key(message.bucket, message.timestamp, id_)] = keys.LOCKED if locked else keys.FREE
    if message.lock is not None:
        items[keys.lease_key(message.lock, message.timestamp, id_)] = b""
    if message.source is not None:
        items[keys.buffer_key(message.timestamp, *message.source, id_)] = b""
    return items


def slots_of(timestamp: int) -> tuple[bytes, bytes]:
    """The day and the minute that count a message with this timestamp (section 10)."""
    return keys.day_key(timestamp // keys.DAY_MS), keys.minute_key(timestamp // keys.MINUTE_MS)


def add_to_slot(state: State, key: bytes, all_: int, locked: int) -> None:
    """Change one counter; a slot without messages has no key."""
    before_all, before_locked = read_slot(state.get(key))
    if before_all + all_:
        state.put(key, _encode((before_all + all_, before_locked + locked)))
    else:
        state.delete(key)


def read_slot(raw: bytes | None) -> tuple[int, int]:
    """Number of messages, and of locked ones among them."""
    if raw is None:
        return 0, 0
    all_, locked = msgspec.msgpack.decode(raw)
    return all_, locked


def derive(state: State, key: bytes, value: bytes) -> None:
    """Write the derived keys of one primary item (after a restore)."""
    if key[:1] == b"m":
        message = _messages.decode(value)
        for index, item in derived(key[1:], message).items():
            state.put(index, item)
        if not message.deleted and not message.parked:
            for slot in slots_of(message.timestamp):
                add_to_slot(state, slot, 1, int(message.lock is not None))
    elif key[:1] == b"r":
        state.put(keys.request_age_key(_remembered.decode(value).at_ms, key[1:]), b"")
    elif key[:1] == b"w":
        state.put(keys.waiter_end_key(_waiters.decode(value).end_ms, int.from_bytes(key[1:])), b"")


def derived_families(state: State) -> dict[bytes, bytes]:
    """All derived items that are there."""
    found: dict[bytes, bytes] = {}
    for family in DERIVED:
        found.update(state.scan(bytes([family]), bytes([family + 1])))
    return found


def first_timestamp(state: State, bucket: int, from_ms: int) -> int:
    """The first timestamp of a bucket at or after `from_ms`; MAX_MS + 1 if there is none."""
    prefix = keys.bucket_prefix(bucket)
    for key, _ in state.scan(keys.time_key(bucket, from_ms), prefix + keys.END):
        return int.from_bytes(key[3:11])
    return MAX_MS + 1
