"""The replica beside the owner's state: late writers, compaction, kills between any two polls."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace_api.replica import Change, Replica
from headrace_api.sqlite_state import SqliteState, connect
from headrace_core.changelog import MARKER_KEY
from headrace_core.registration.config import RegistrationConfig
from headrace_core.stage import Record
from headrace_core.state import MemoryState
from tests.support.changelog import Owner, changes, message

CONFIG = RegistrationConfig(telemetry_cache_size=3)
DAY_S = 86_400


def raw_log(dice: random.Random, count: int) -> list[Record]:
    """Messages that register, wait, are cached, evicted, released and removed."""
    found = []
    for offset in range(count):
        name = f"te/line/m{dice.randrange(3)}//"
        topic, payload = dice.choice([
            (name, {"@type": "child-device", "@parent": f"line/m{dice.randrange(3)}//"}),
            (name, {"@type": "child-device", "v": dice.randrange(3)}),
            (name, b""),
            (f"{name}/m/t", offset),
            (f"{name}/twin/k", dice.randrange(2)),
        ])  # fmt: skip
        found.append(message(offset, offset * 10, topic, payload))
    return found


def cut(dice: random.Random, log: list[Record], most: int) -> list[list[Record]]:
    found, at = [], 0
    while at < len(log):
        size = dice.randint(1, most)
        found.append(log[at : at + size])
        at += size
    return found


def content(path: Path) -> dict[bytes, bytes]:
    db = connect(path)
    items = dict(SqliteState(db, 0).scan(b"", b"\xff" * 9))
    db.close()
    return items


def written(dice: random.Random, raw: list[Record]) -> tuple[list[Change], MemoryState]:
    """A changelog with groups of late writers among the owner's, and the owner's state at the end."""
    owner, log = Owner(CONFIG), list[list[tuple[bytes, bytes | None, int]]]()
    late: list[list[tuple[bytes, bytes | None, int]]] = []
    at = 0
    for chunk in cut(dice, raw, 6):
        if dice.random() < 0.3:  # one that slept here: the same state, another cut, written later
            sleeper = Owner(CONFIG, MemoryState(owner.state.snapshot()))
            late.append(sleeper.chunk(raw[at : at + dice.randint(1, 9)]))
        log.append(owner.chunk(chunk))
        at += len(chunk)
        if late and dice.random() < 0.4:
            log.append(late.pop(0))
    last = raw[-1].offset
    log += [group for group in late if group[0][2] <= last]
    return changes(log), owner.state


def compacted(dice: random.Random, log: list[Change]) -> list[Change]:
    """The cleaner took records of a head of the log that have a newer one of their key anywhere in that head."""
    head = dice.randrange(len(log) + 1)
    newest = {change.key: change.offset for change in log[:head]}
    return [c for c in log if c.offset >= head or newest[c.key] == c.offset]


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.integers(0, 2**32), st.booleans())
def test_at_the_end_the_replica_is_the_owners_state(
    tmp_path_factory: pytest.TempPathFactory, seed: int, live_before: bool
) -> None:
    """Whatever is cut, killed and late; after an end was seen, groups of late writers may be of any age."""
    path, dice = tmp_path_factory.mktemp("replica") / "replica.db", random.Random(seed)
    log, state = written(dice, raw_log(dice, 60))
    replica = Replica(path)
    replica.begin("log", 1, max_offline_s=DAY_S)
    if live_before:
        replica.apply([], [(0, 0)])
    at = 0
    while at < len(log):
        size = dice.randint(1, 12)
        replica.apply([(0, change) for change in log[at : at + size]])
        at += size
        if dice.random() < 0.2:
            replica.close()
            replica = Replica(path)
            assert replica.begin("log", 1, max_offline_s=DAY_S) is False
            at = replica.partitions[0].position.offset
    replica.apply([], [(0, len(log))])
    replica.close()
    assert content(path) == state.snapshot()


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.integers(0, 2**32))
def test_a_compacted_log_gives_the_same(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    path, dice = tmp_path_factory.mktemp("replica") / "replica.db", random.Random(seed)
    owner = Owner(CONFIG)
    whole = changes([owner.chunk(chunk) for chunk in cut(dice, raw_log(dice, 60), 6)])
    log = compacted(dice, whole)
    replica = Replica(path)
    replica.begin("log", 1, max_offline_s=DAY_S)
    for change in log:
        replica.apply([(0, change)])
        if dice.random() < 0.05:
            replica.close()
            replica = Replica(path)
            replica.begin("log", 1, max_offline_s=DAY_S)
            for again in log:
                if replica.partitions[0].position.offset <= again.offset <= change.offset:
                    replica.apply([(0, again)])
    replica.apply([], [(0, len(whole))])
    assert replica.partitions[0].position.offset == len(whole)
    replica.close()
    assert content(path) == owner.state.snapshot()


def make(path: Path, *, live: bool = True) -> Replica:
    replica = Replica(path / "replica.db")
    replica.begin("log", 1, max_offline_s=DAY_S)
    if live:
        replica.apply([], [(0, 0)])
    return replica


def item(offset: int, key: bytes, value: bytes | None, source: int) -> tuple[int, Change]:
    return 0, Change(offset, key, value, source)


def test_half_a_group_is_not_seen_and_the_position_stays_before_it(tmp_path: Path) -> None:
    replica = make(tmp_path)
    replica.apply([item(0, b"na", b"00000001", 4), item(1, MARKER_KEY, b"{}", 4), item(2, b"nb", b"00000002", 7)])
    assert content(replica.path) == {b"na": b"00000001"}
    assert replica.partitions[0].position == (2, 4, 4)
    replica.apply([item(3, MARKER_KEY, b"{}", 7)])
    assert content(replica.path) == {b"na": b"00000001", b"nb": b"00000002"}
    assert replica.partitions[0].position == (4, 7, 7)


def test_a_late_batch_within_a_transaction_does_not_cut_it(tmp_path: Path) -> None:
    replica = make(tmp_path)
    replica.apply([item(0, b"na", b"00000009", 9)])
    replica.apply([item(1, b"na", b"00000003", 3), item(2, MARKER_KEY, b"{}", 3)])
    assert replica.partitions[0].position.offset == 0
    replica.apply([item(3, b"nb", b"00000009", 9), item(4, MARKER_KEY, b"{}", 9)])
    assert content(replica.path) == {b"na": b"00000009", b"nb": b"00000009"}
    assert replica.partitions[0].position == (5, 9, 9)


def test_while_catching_up_the_value_of_the_highest_source_wins(tmp_path: Path) -> None:
    replica = make(tmp_path, live=False)
    replica.apply([item(5, b"na", None, 9), item(8, b"na", b"00000004", 4), item(9, b"nb", b"00000004", 4)])
    replica.apply([], [(0, 10)])
    assert content(replica.path) == {b"nb": b"00000004"}
    assert replica.counts.stale == 1
    assert replica.partitions[0].position == (10, 9, 9)


def test_a_damaged_item_is_left_out_and_counted(tmp_path: Path) -> None:
    replica = make(tmp_path)
    replica.apply(
        [item(0, b"Ete\0device/a//\0", b"\xc1", 0), item(1, b"nb", b"00000004", 0), item(2, MARKER_KEY, b"", 0)]
    )
    assert content(replica.path) == {b"nb": b"00000004"}
    assert replica.counts.damaged == 1


@pytest.mark.parametrize(
    ("identity", "partitions", "offline_s"), [("other", 1, DAY_S), ("log", 2, DAY_S), ("log", 1, -1)]
)
def test_another_log_or_a_long_absence_empties_it(
    tmp_path: Path, identity: str, partitions: int, offline_s: int
) -> None:
    replica = make(tmp_path)
    replica.apply([item(0, b"na", b"00000001", 4), item(1, MARKER_KEY, b"{}", 4)])
    assert replica.begin("log", 1, max_offline_s=DAY_S) is False
    assert replica.begin(identity, partitions, max_offline_s=offline_s) is True
    assert replica.partitions[0].position == (0, -1, -1)
    assert content(replica.path) == {}


def test_a_failed_transaction_leaves_everything_as_it_was(tmp_path: Path, monkeypatch: Any) -> None:
    replica = make(tmp_path)

    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(SqliteState, "write", full)
    with pytest.raises(sqlite3.OperationalError):
        replica.apply([item(0, b"na", b"00000001", 4), item(1, MARKER_KEY, b"{}", 4)])
    monkeypatch.undo()
    replica.close()
    again = Replica(tmp_path / "replica.db")
    again.begin("log", 1, max_offline_s=DAY_S)
    assert again.partitions[0].position == (0, -1, -1)
    assert content(again.path) == {}


def test_a_damaged_file_is_built_anew(tmp_path: Path) -> None:
    (tmp_path / "replica.db").write_bytes(b"not a database" * 500)
    replica = Replica(tmp_path / "replica.db")
    assert replica.begin("log", 1, max_offline_s=DAY_S) is True
    assert content(replica.path) == {}
