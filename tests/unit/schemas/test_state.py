"""The description of the durable state: whatever the stages write is read by it, whole and without a doubt."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from headrace_core.batching import keys
from headrace_core.batching.messages import Member
from headrace_core.batching.stage import BatchingStage
from headrace_core.registration import items, listing, message
from headrace_core.registration.stage import RegistrationStage
from headrace_core.stage import Record, Stage
from headrace_core.state import MemoryState, Overlay
from headrace_core.timeline import keys as timeline_keys
from headrace_core.timeline import message as timeline
from headrace_core.timeline.settings import Settings
from headrace_core.timeline.source import SourceStage
from headrace_core.timeline.stage import TimelineStage
from headrace_schemas import layout, state
from headrace_schemas.state import STATE, Item, decode, described_as
from headrace_schemas.state_page import state_page
from tests.model import test_batching_simulation, test_registration_simulation, test_timeline_simulation

STRUCTS = {
    "message": message.Message, "entity": items.Entity, "pending": items.Pending, "waiting": items.Waiting,
    "cached": items.Cached, "idle": items.Idle, "last_error": items.LastError, "moved": listing.Moved,
    "timeline_message": timeline.Message, "remembered": timeline.Remembered, "waiter": timeline.Waiter,
    "timeline_clock": timeline.Clock, "clock": keys.Clock, "open": keys.Open, "page": keys.Page, "member": Member,
}  # fmt: skip


def written(stage: Stage, records: Iterable[Record]) -> dict[bytes, set[bytes]]:
    """Every value that any primary key has had over a log."""
    whole, found = MemoryState(), defaultdict(set)
    for record in records:
        overlay = Overlay(whole)
        stage.apply(overlay, record, lambda _: None)
        whole.commit(overlay.mutations)
        for key, value in overlay.mutations.items():
            if value is not None and key[0] in stage.primary:
                found[key].add(value)
    return found


@pytest.mark.parametrize(
    ("stage", "log"),
    [
        (RegistrationStage(test_registration_simulation.CONFIG), test_registration_simulation.log),
        (BatchingStage(test_batching_simulation.CONFIG), test_batching_simulation.log),
        (TimelineStage(test_timeline_simulation.SETTINGS, "jobs"), test_timeline_simulation.log),
    ],
    ids=["registration", "batching", "timeline"],
)
def test_every_item_that_a_stage_writes_is_read_and_no_two_keys_look_alike(stage: Any, log: Any) -> None:
    items = written(stage, log(5, 2_000))
    families: Counter[str] = Counter()
    looks = set()
    for key, values in items.items():
        for value in values:
            item = decode(stage.name, key, value)
            assert item.problem is None, (key, value, item)
            families[item.family] += 1
        looks.add((item.family, str(item.key)))
    assert len(looks) == len(items)
    rare = {"page", "spelled", "settings"}
    assert set(families) >= {family.name for family in STATE[described_as(stage.name)].values()} - rare


@pytest.mark.parametrize("name", STRUCTS)
def test_an_array_has_the_members_of_the_engine_in_its_order(name: str) -> None:
    found = {record.name: record for record in vars(state).values() if isinstance(record, layout.Record)}
    assert [member.name for member in found[name].members] == list(STRUCTS[name].__struct_fields__)


def test_keys_of_batching_are_read_as_they_were_made() -> None:
    open_ = keys.Open(
        "te/device/é//", 7, -5, 46, 110, 210, "a", 1000, 524288, 60000, 3, 0, [Member("a", -5, 110, b"1.5")]
    )
    item = decode("batching", keys.open_key(7), msgspec.msgpack.encode(open_))
    assert item.key == {"number": 7}
    assert (item.value["source"], item.value["from_ms"]) == ("te/device/é//", -5)
    assert item.value["last"] == [{"type": "a", "event_ms": -5, "received_ms": 110, "value": "1.5"}]
    page = msgspec.msgpack.encode(keys.Page("s", [Member("a", 1, 2, b"{}")]))
    assert decode("batching", keys.page_key(7, 2), page).key == {"number": 7, "page": 2}
    identities = msgspec.msgpack.encode([msgspec.Raw(keys.identity_key("s", 12, "t"))])
    with pytest.raises(layout.Unfit):
        STATE["batching"]["x"].value.read(b"\x91\x01")
    closed = decode("batching", keys.timed_key(keys.FORGET, -3, 7), identities)
    assert (closed.key, closed.value) == (
        {"last_ms": -3, "number": 7}, [{"source": "s", "event_ms": 12, "type": "t"}]
    )  # fmt: skip
    seen = decode("batching", b"rregistration:3", keys.rising(99) + keys.rising(2))
    assert (seen.key, seen.value) == ({"input": "registration:3"}, {"offset": 99, "index": 2})


def test_keys_of_registration_are_read_as_they_were_made() -> None:
    cached = items.Cached("m/t", True, message.Message("te/device/a///m/t", b"\xff", False, 10, 4))
    key = items.key(b"M", "te", "device/a//") + items.TELEMETRY + items.number(9)
    item = decode("registration", key, msgspec.msgpack.encode(cached))
    assert item.key == {"root": "te", "topic_id": "device/a//", "class": "telemetry", "seq": 9}
    assert item.value["message"]["payload"] == {"base64": "/w=="}
    spelled = decode("registration", b"Rte\0device/a//\0te/device/a", b"")
    assert (spelled.problem, spelled.key) == (None, {"root": "te", "topic_id": "device/a//", "topic": "te/device/a"})
    assert decode("registration", items.CLOCK, items.number(5)) == Item("number", {"name": "clock"}, 5)


def test_keys_of_a_timeline_are_read_as_they_were_made() -> None:
    settings = msgspec.msgpack.encode(Settings(max_poll=7))
    found = decode("timeline.jobs", timeline_keys.SETTINGS, settings)
    assert (found.problem, found.family, found.value["max_poll"]) == (None, "settings", 7)
    assert decode("timeline.jobs", timeline_keys.SETTINGS, b"\x90").problem == "an object expected"
    assert decode("timeline.jobs", timeline_keys.CLOCK + b"x", b"").problem == "1 bytes too many in the key"
    assert decode("timeline.jobs", b"sx", b"").problem == "no such family is described"
    assert decode("timeline.jobs", timeline_keys.body_key(b"a/b"), b"\xff") == Item(
        "body", {"id": "a/b"}, {"base64": "/w=="}
    )
    remembered = msgspec.msgpack.encode(timeline.Remembered(5, b"print", b"", 3))
    request = decode("timeline.jobs", timeline_keys.request_key(b"", "r"), remembered)
    assert (request.key, request.value["waiter"]) == ({"id": "", "request_id": "r"}, 3)
    assert SourceStage.primary == b"n"
    assert decode("timeline.jobs.in", b"nin", bytes(7) + b"\x05") == Item("counter", {"name": "in"}, 5)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"Ete\0device/a//\0", b"\x91\xa1x"),
        (b"Ete\0device/a//\0", b"\x98\x01\xa1i\xc0\xc0\xc2\x00\xc4\x00\xc2"),
        (b"Ete\0device/a//\0more", b"\x98\xa1t\xa1i\xc0\xc0\xc2\x00\xc4\x00\xc2"),
        (b"Ete", b"\x98\xa1t\xa1i\xc0\xc0\xc2\x00\xc4\x00\xc2"),
        (b"Mte\0device/a//\x002" + b"\0" * 8, b""),
        (b"nin", b"\0" * 7),
        (b"Tte\0device/a//\0x", b"{"),
        (b"Vte\0device/a//\0x", b"y"),
        (b"Ite\0x", b""),
    ],
)
def test_what_does_not_fit_is_shown_as_it_is_and_says_why(key: bytes, value: bytes) -> None:
    item = decode("registration", key, value)
    assert item.problem
    assert item.value == state.shown(value)
    assert item.key == state.shown(key)


def test_a_stage_that_is_not_described_is_shown_as_it_is() -> None:
    assert decode("counting", b"ck", b"v") == Item("c", "ck", "v", "no such family is described")


def test_the_page_names_every_family_and_every_member() -> None:
    page = state_page()
    for families in STATE.values():
        for letter, family in families.items():
            assert f"| `{letter}` | `{family.name}` | {family.summary} |" in page
    for name, struct in STRUCTS.items():
        for at, member in enumerate(struct.__struct_fields__):
            assert f"| {f'`{name}`' if not at else ''} | `{member}` |" in page
