"""Restoring: the highest source offset wins, what the cleaner took is noticed, derived keys are written anew."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_core.changelog import MARKER_KEY, SOURCE_HEADER, ChangelogError, Marker
from headrace_streams.restore import Holes, load, rederive
from headrace_streams.store import Position, RocksState
from tests.support.counting_stage import CountingStage


class Logged(NamedTuple):
    """A changelog record."""

    offset: int
    key: bytes
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


def eight(number: int) -> bytes:
    return number.to_bytes(8, "big")


def logged(*items: tuple[bytes, bytes | None, int], start: int = 0) -> list[Logged]:
    """Records of (key, value, source)."""
    return [
        Logged(start + at, key, value, ((SOURCE_HEADER, source.to_bytes(8, "big", signed=True)),))
        for at, (key, value, source) in enumerate(items)
    ]


def mark(source: int) -> tuple[bytes, bytes, int]:
    return MARKER_KEY, msgspec.json.encode(Marker(source=source, clock=source * 10)), source


class Log:
    """A changelog in memory that is read in small pieces."""

    def __init__(self, records: Sequence[Logged], first: int = 0, piece: int = 3) -> None:
        self.records, self._first, self._piece = records, first, piece
        self.readings = 0

    async def first(self) -> int:
        return self._first

    async def read(self, start: int, end: int) -> AsyncIterator[Sequence[Any]]:
        self.readings += 1
        there = [record for record in self.records if start <= record.offset < end]
        for at in range(0, len(there), self._piece):
            yield there[at : at + self._piece]


@pytest.fixture
def state(tmp_path: Path) -> Iterator[RocksState]:
    one = RocksState(tmp_path / "db")
    yield one
    one.close()


def items(state: RocksState) -> dict[bytes, bytes]:
    return dict(state.scan(b"\x00", b"\xff"))


async def test_a_late_writer_cannot_put_an_older_value_over_a_newer_one(state: RocksState) -> None:
    log: Any = Log(logged((b"ck", b"new", 10), mark(10), (b"ck", b"old", 5), mark(5)))
    loader = await load(log, state, 4)
    assert items(state) == {b"ck": b"new"}
    assert loader.marker == Marker(source=10, clock=100)


async def test_what_only_the_late_writer_has_is_taken(state: RocksState) -> None:
    late = [(b"ca", b"late", 5), (b"cb", b"late", 5), (b"ca", b"later", 6), mark(6)]
    log: Any = Log(logged((b"cb", b"new", 10), mark(10), *late))
    await load(log, state, 6)
    assert items(state) == {b"ca": b"later", b"cb": b"new"}
    assert log.readings == 2


STEPS = st.lists(st.tuples(st.sampled_from([b"ca", b"cb", b"cc"]), st.none() | st.just(b"v"), st.integers(0, 6)))


@settings(max_examples=40, deadline=None)
@given(steps=STEPS, contained=st.integers(-1, 3))
async def test_per_key_the_highest_source_wins_and_of_equal_ones_the_last(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[bytes, bytes | None, int]], contained: int
) -> None:
    state = RocksState(tmp_path_factory.mktemp("restore") / "db")
    before = {b"ca": b"before", b"cd": b"before"}
    state.commit(before, Position(Marker(source=contained)))
    named = [(key, value and b"%d" % at, source) for at, (key, value, source) in enumerate(steps)]
    log: Any = Log(logged(*named))
    await load(log, state, len(steps))
    newest: dict[bytes, tuple[int, bytes | None]] = {}
    for key, value, source in named:
        if source > contained and source >= newest.get(key, (-1, None))[0]:
            newest[key] = (source, value)
    expected = {**before, **{key: value for key, (_, value) in newest.items()}}
    assert items(state) == {key: value for key, value in expected.items() if value is not None}
    state.close()


async def test_a_tombstone_deletes_and_stale_derived_keys_go(state: RocksState) -> None:
    before = {b"ca": eight(1), b"n" + eight(1) + b"a": b"", b"cb": eight(4), b"n" + eight(4) + b"b": b""}
    state.commit(before, Position(Marker(source=4), changelog=17))
    log: Any = Log(logged((b"ca", eight(3), 8), (b"cb", None, 8), mark(8), start=17))
    loader = await load(log, state, 20)
    await rederive(state, CountingStage())
    assert items(state) == {b"ca": eight(3), b"n" + eight(3) + b"a": b""}
    assert (loader.marker, loader.keys) == (Marker(source=8, clock=80), 2)


@pytest.mark.parametrize(
    ("missing", "first", "end"),
    [([17], 0, 21), ([18, 19], 0, 21), ([19, 20], 0, 21), ([], 18, 21)],
    ids=["at the position", "in between", "at the end", "the beginning of the log"],
)
async def test_what_is_missing_behind_the_position_is_noticed(
    state: RocksState, missing: list[int], first: int, end: int
) -> None:
    state.commit({b"ca": eight(1)}, Position(Marker(source=4), changelog=17))
    records = logged((b"ca", None, 5), mark(5), (b"cb", b"1", 6), mark(6), start=17)
    log: Any = Log([record for record in records if record.offset not in missing], first)
    with pytest.raises(Holes):
        await load(log, state, end)


async def test_what_is_missing_is_none_of_a_new_databases_business_nor_is_a_transactions_end(
    state: RocksState, tmp_path: Path
) -> None:
    records = logged((b"ca", b"1", 5), mark(5), (b"cb", b"1", 6), mark(6), start=17)
    log: Any = Log([record for record in records if record.offset != 18], first=3)
    await load(log, state, 30)
    assert items(state) == {b"ca": b"1", b"cb": b"1"}
    other = RocksState(tmp_path / "other")
    other.commit({b"cz": b"1"}, Position(Marker(source=4), changelog=17))
    whole: Any = Log(records)
    await load(whole, other, 22)
    assert items(other) == {b"ca": b"1", b"cb": b"1", b"cz": b"1"}
    other.close()


async def test_without_news_nothing_is_written(state: RocksState) -> None:
    state.commit({b"nx": b"kept"}, Position(Marker(source=4), changelog=9))
    log: Any = Log([])
    loader = await load(log, state, 9)
    assert (loader.keys, loader.marker, items(state)) == (0, Marker(source=4), {b"nx": b"kept"})


async def test_a_record_that_no_worker_wrote_is_refused(state: RocksState) -> None:
    log: Any = Log([Logged(0, b"ca", b"1", ())])
    with pytest.raises(ChangelogError):
        await load(log, state, 1)


async def test_deriving_anew_of_more_keys_than_a_batch_holds_equals_deriving_at_once(state: RocksState) -> None:
    count = 25_000
    state.commit({b"c%d" % i: eight(i) for i in range(count)}, Position(Marker(source=4), changelog=9))
    state.load({b"n" + eight(count) + b"stale": b""})
    await rederive(state, CountingStage())
    assert sum(1 for _ in state.scan(b"n", b"o")) == count
    assert state.get(b"n" + eight(7) + b"7") == b""


def test_an_emptied_database_has_neither_keys_nor_position(state: RocksState) -> None:
    state.commit({b"ca": b"1"}, Position(Marker(source=4), changelog=9))
    state.empty()
    assert (items(state), state.position) == ({}, Position())
    state.put(b"cb", b"1")
    assert items(state) == {b"cb": b"1"}
