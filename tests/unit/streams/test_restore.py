"""Restoring: the highest source offset wins, and derived keys are written anew."""

from __future__ import annotations

from pathlib import Path

import msgspec

from headrace_core.changelog import MARKER_KEY, Delta, Marker
from headrace_streams.restore import apply_delta
from headrace_streams.store import Position, RocksState
from tests.support.counting_stage import CountingStage


def eight(number: int) -> bytes:
    return number.to_bytes(8, "big")


def test_a_late_writer_cannot_put_an_older_value_over_a_newer_one() -> None:
    delta = Delta({}, Marker())
    for source, value in ((10, b"new"), (5, b"old")):
        delta.add(b"ck", value, source)
        delta.add(MARKER_KEY, msgspec.json.encode(Marker(source=source, clock=source)), source)
    assert delta.items == {b"ck": (10, b"new")}
    assert delta.marker == Marker(source=10, clock=10)


def test_a_tombstone_deletes_and_stale_derived_keys_go(tmp_path: Path) -> None:
    state, stage = RocksState(tmp_path / "db"), CountingStage()
    before = {b"ca": eight(1), b"n" + eight(1) + b"a": b"", b"cb": eight(4), b"n" + eight(4) + b"b": b""}
    state.commit(before, Position(Marker(source=4), changelog=9))
    delta = Delta({}, state.position.marker)
    delta.add(b"ca", eight(3), 8)
    delta.add(b"cb", None, 8)
    delta.add(MARKER_KEY, msgspec.json.encode(Marker(source=8, clock=80)), 8)
    apply_delta(state, stage, delta, 20)
    assert dict(state.scan(b"\x00", b"\xff")) == {b"ca": eight(3), b"n" + eight(3) + b"a": b""}
    assert state.position == Position(Marker(source=8, clock=80), changelog=20)
    state.close()


def test_without_news_only_the_changelog_position_moves(tmp_path: Path) -> None:
    state = RocksState(tmp_path / "db")
    state.commit({b"nx": b"kept"}, Position(Marker(source=4), changelog=9))
    apply_delta(state, CountingStage(), Delta({}, Marker(source=4)), 11)
    assert state.get(b"nx") == b"kept"
    assert state.position == Position(Marker(source=4), changelog=11)
    state.close()
