"""The store over the writes of a chunk: what is held back is written once, and nothing of it is ever missed."""

from __future__ import annotations

import pytest

from headrace_core.registration.items import (
    CLOCK,
    METADATA,
    TELEMETRY,
    Cached,
    Entity,
    Pending,
    derived,
    name_of,
    number,
)
from headrace_core.registration.message import Message
from headrace_core.registration.store import Store
from headrace_core.state import MemoryState, Overlay

NAME = name_of("te", "device/a//")
ENTRY = b"P" + NAME


def cached(at: int, kind: bytes = TELEMETRY) -> tuple[bytes, Cached]:
    """A cached message with its key."""
    return b"M" + NAME + kind + number(at), Cached("m/t", True, Message("te/device/a///m/t", b"1", False, 5, at))


def kept() -> tuple[Store, Overlay]:
    overlay = Overlay(MemoryState())
    store = Store(overlay, keep=True)
    assert store.keeps
    return store, overlay


def test_a_store_over_a_plain_state_holds_nothing_back() -> None:
    state = MemoryState()
    store = Store(state, keep=True)
    store.put(ENTRY, Pending(5, 1, 1))
    store.set_number(CLOCK, 5)
    assert not store.keeps
    assert state.get(ENTRY) is not None
    assert state.get(CLOCK) == number(5)


def test_pending_entries_and_numbers_are_written_when_the_chunk_is_read() -> None:
    store, overlay = kept()
    for count in (1, 2, 3):
        store.put(ENTRY, Pending(5, 1, count))
        store.count("in")
    assert overlay.get(ENTRY) is None
    assert store.pending("te", "device/a//") == Pending(5, 1, 3)
    written = Overlay(MemoryState(overlay.mutations))  # type: ignore[arg-type]
    assert Store(written).pending("te", "device/a//") == Pending(5, 1, 3)
    assert Store(written).number(b"nin") == 3


def test_a_scan_of_what_is_held_back_sees_it() -> None:
    store, _ = kept()
    store.put(ENTRY, Pending(5, 1, 1))
    store.tally("te", "pending")
    assert [raw for raw, _ in store.under(b"P")] == [ENTRY]
    assert [raw for raw, _ in store.span(b"t", b"u")] == [b"tte\0pending"]


def test_an_entry_that_begins_and_ends_within_a_chunk_is_written_as_deleted() -> None:
    """Another writer may have cut the log in between; its record of the key must not be the newest."""
    store, overlay = kept()
    store.put(ENTRY, Pending(5, 1, 1))
    store.delete(ENTRY)
    assert store.pending("te", "device/a//") is None
    assert {raw: value for raw, value in overlay.mutations.items() if raw[:1] == b"P"} == {ENTRY: None}


@pytest.mark.parametrize("read_before", [True, False])
def test_taken_messages_come_in_order_and_leave_neither_item_nor_index(read_before: bool) -> None:
    store, overlay = kept()
    items = [cached(3), cached(4), cached(1, METADATA), cached(2, METADATA)]
    for raw, item in items:
        store.replace(raw, None, item)
    base = MemoryState({raw: value for raw, value in overlay.mutations.items() if value is not None})
    assert sum(len(derived(raw, value)) for raw, value in base.scan(b"M", b"N")) == 2
    over = Overlay(base)
    store = Store(over, keep=True)
    if read_before:
        assert store.get(items[0][0], Cached) == items[0][1]
    assert store.take_under(b"M" + NAME + METADATA, Cached) == [items[2][1], items[3][1]]
    assert store.take_under(b"M" + NAME + TELEMETRY, Cached) == [items[0][1], items[1][1]]
    assert store.take_under(b"M" + NAME, Cached) == []
    base.commit(over.mutations)
    assert base.snapshot() == {}


def test_what_is_there_is_known_after_a_write_and_a_removal_within_the_chunk() -> None:
    store, _ = kept()
    raw = b"E" + NAME
    assert not store.has_entity("te", "device/a//")
    store.put(raw, Entity("child-device", "x", None, None, False, 5, b"{}"))
    assert store.has_entity("te", "device/a//")
    assert store.owner("te", "x") == "device/a//"
    store.delete(raw)
    assert not store.has_entity("te", "device/a//")
    assert store.owner("te", "x") is None
    store.write(b"T" + NAME + b"k", b"1")
    assert store.raw(b"T" + NAME + b"k") == b"1"
    store.write(b"T" + NAME + b"k", None)
    assert store.raw(b"T" + NAME + b"k") is None


def test_messages_that_were_written_and_those_held_back_are_taken_in_order_of_arrival() -> None:
    store, overlay = kept()
    for at in (1, 2, 3, 4):
        raw, item = cached(at)
        store.replace(raw, None, item)
        if at == 2:
            assert len(list(store.under(b"M"))) == 2, "a scan writes what is held back"
    store.delete(cached(3)[0])
    first = store.first_under(b"O")
    assert first is not None
    assert first[0].endswith(number(1))
    assert [item.message.ref for item in store.take_under(b"M" + NAME + TELEMETRY, Cached)] == [1, 2, 4]
    assert {raw for raw, value in overlay.mutations.items() if value is not None} == set()


def test_a_message_that_is_replayed_within_its_chunk_is_written_as_deleted() -> None:
    store, overlay = kept()
    raw, item = cached(1)
    store.replace(raw, None, item)
    assert store.take_under(raw[:-8], Cached) == [item]
    assert overlay.mutations == {raw: None}
