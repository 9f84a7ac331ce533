"""What a chunk of registration writes does not depend on where the log was cut (streams.md 5).

A late writer, an owner that does not know yet that it is none, has the state of some offset and cuts the log from there
at other places; its groups stand in the changelog among the new owner's. A recovery keeps the value of the highest
source offset of each key. So whatever any cut writes, the owner's chunk over the same records must write too, be it as
deleted: a key that comes and goes within the owner's chunk, and that a late writer's shorter chunk has put, would stay
as a ghost. That holds if the keys that a chunk writes are those that its records write one by one.

The tests see every family that is ever deleted, and fail if a chunk leaves out what comes and goes of just one.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_core.registration import listing
from headrace_core.registration.config import RegistrationConfig
from headrace_core.registration.stage import RegistrationStage
from headrace_core.registration.store import PRIMARY
from headrace_core.stage import Record
from headrace_core.state import MemoryState, Overlay

CONFIG = RegistrationConfig(
    telemetry_cache_size=3, metadata_cache_bytes=300, pending_ttl=200, status_retention=300, status_history=2
)
NEVER_DELETED = b"cnt"
COME_AND_GO = bytes(sorted(set(PRIMARY) - set(NEVER_DELETED)))
Writes = dict[bytes, bytes | None]
Newest = dict[bytes, tuple[int, bytes | None]]


@pytest.fixture(autouse=True)
def few_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that moves (family H) are forgotten within a chunk."""
    monkeypatch.setattr(listing, "KEPT", 1)


def topic_id(dice: random.Random) -> str:
    return dice.choice(["device/a//", "device/b//", "cell/a//", "cell/b//", "device/a/service/s"])


def registration(dice: random.Random) -> bytes:
    members = {"@type": dice.choice(["child-device", "child-device", "service", "thing"]), "name": dice.randrange(2)}
    if dice.random() < 0.6:
        members["@parent"] = topic_id(dice)
    return json.dumps(members).encode()


def request(dice: random.Random, offset: int, at: int) -> Record:
    entity = topic_id(dice)
    method, rest, body = dice.choice([
        ("POST", "", {"@topic-id": entity, "@type": "child-device"}),
        ("DELETE", f"/{entity}", None),
        ("PUT", f"/{entity}/twin/k", dice.randrange(2)),
        ("PATCH", f"/{entity}", {"@parent": topic_id(dice)}),
        ("PATCH", f"/{entity}", {"@parent": "device/main//"}),
    ])  # fmt: skip
    value = {"method": method, "path": f"/te/v1/entities{rest}", "headers": {}, "body": body, "correlation": "c"}
    return Record(0, offset, at, b"te", json.dumps(value).encode(), (("kind", b"request"),))


def log(dice: random.Random, count: int) -> list[Record]:
    """Records in which every kind of item comes and goes soon."""
    found, at = [], 1_000
    for offset in range(count):
        at += dice.choice([0, 1, 5, 40])
        if dice.random() < 0.2:
            found.append(request(dice, offset, at))
            continue
        topic, payload = f"te/{topic_id(dice)}", b"1"
        if (what := dice.random()) < 0.3:
            topic, payload = dice.choice([topic, topic.rstrip("/")]), registration(dice)
        elif what < 0.45:
            payload = b""
        else:
            topic += "/" + dice.choice(["m/t", "e/x", "twin/k", "config", "cmd/op/1"])
            payload = dice.choice([b"1", b"2", b""])
        found.append(Record(0, offset, at, b"te", payload, (("topic", topic.encode()), ("retain", b"1"))))
    return found


def cut(dice: random.Random, records: Sequence[Record], most: int) -> list[Sequence[Record]]:
    found, at = [], 0
    while at < len(records):
        size = dice.randint(1, most)
        found.append(records[at : at + size])
        at += size
    return found


class Writer:
    """Applies chunks to its own state. `leaves_out`: a family of which it does not write what comes and goes."""

    def __init__(self, state: MemoryState, leaves_out: int | None = None) -> None:
        self.state = state
        self.gone: set[int] = set()
        """Families of which something came and went within a chunk."""
        self._stage = RegistrationStage(CONFIG)
        self._leaves_out = leaves_out

    def chunk(self, records: Sequence[Record]) -> Writes:
        """Apply one chunk; returns what it writes to the changelog."""
        overlay = Overlay(self.state)
        for record in records:
            self._stage.apply(overlay, record, lambda _: None)
        writes = {key: value for key, value in overlay.mutations.items() if key[0] in PRIMARY}
        ghosts = {key for key, value in writes.items() if value is None and self.state.get(key) is None}
        self.gone |= {key[0] for key in ghosts}
        self.state.commit(overlay.mutations)
        return {key: value for key, value in writes.items() if key not in ghosts or key[0] != self._leaves_out}


def check_keys(seed: int, leaves_out: int | None = None) -> set[int]:
    """A chunk writes what its records write one by one, with the last value. Returns the families seen to go."""
    dice = random.Random(seed)
    owner, singly = Writer(MemoryState(), leaves_out), Writer(MemoryState())
    for records in cut(dice, log(dice, 120), 30):
        apart: Writes = {}
        for record in records:
            apart |= singly.chunk([record])
        assert owner.chunk(records) == apart
    assert owner.state.snapshot() == singly.state.snapshot()
    return owner.gone


def check_late_writers(seed: int, leaves_out: int | None = None) -> set[int]:
    """Whatever late writers append and where, after each chunk a recovery finds the owner's state.

    Returns as `check_keys`.
    """
    dice = random.Random(seed)
    records, owner, late = log(dice, 120), Writer(MemoryState(), leaves_out), list[tuple[int, Writes]]()
    newest: Newest = {}
    for chunk in cut(dice, records, 30):
        first, last = chunk[0].offset, chunk[-1].offset
        sleeper = Writer(MemoryState(owner.state.snapshot()))
        for again in cut(dice, records[first : first + dice.randint(1, 40)], 30):
            late.append((again[-1].offset, sleeper.chunk(again)))
        groups = [(last, owner.chunk(chunk)), *(group for group in late if group[0] <= last)]
        late = [group for group in late if group[0] > last]
        dice.shuffle(groups)
        for source, writes in groups:
            recover(newest, source, writes)
        found = {key: value for key, (_, value) in newest.items() if value is not None}
        assert found == {key: value for key, value in owner.state.snapshot().items() if key[0] in PRIMARY}
    return owner.gone


def recover(newest: Newest, source: int, writes: Writes) -> None:
    """Read one group of the changelog: of each key the value of the highest source offset stays."""
    for key, value in writes.items():
        if key not in newest or source >= newest[key][0]:
            newest[key] = source, value


CHECKS = [check_keys, check_late_writers]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32))
def test_a_chunk_writes_the_keys_that_its_records_write_one_by_one(seed: int) -> None:
    check_keys(seed)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32))
def test_late_writers_with_other_cuts_leave_no_ghost(seed: int) -> None:
    check_late_writers(seed)


@pytest.mark.parametrize("check", CHECKS)
def test_each_family_that_is_ever_deleted_is_seen_to_come_and_go(check: Callable[[int], set[int]]) -> None:
    assert bytes(sorted(set().union(*(check(seed) for seed in range(20))))) == COME_AND_GO


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("family", COME_AND_GO, ids=chr)
def test_leaving_out_what_comes_and_goes_of_one_family_is_seen(
    check: Callable[[int, int], set[int]], family: int
) -> None:
    def fails(seed: int) -> bool:
        try:
            check(seed, family)
        except AssertionError:
            return True
        return False

    assert any(fails(seed) for seed in range(50))
