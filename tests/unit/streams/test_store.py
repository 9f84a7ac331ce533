"""The RocksDB store: the State port, the position that moves with the state, and damage."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_core.changelog import Marker
from headrace_core.state import MemoryState, Overlay
from headrace_streams.store import Position, RocksState, read_copy

KEYS = st.binary(min_size=1, max_size=3).filter(lambda key: key[0] < 0xFF)
KEPT = range(3_000)
STEPS = st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=3)), max_size=30)


@settings(max_examples=30, deadline=None)
@given(chunks=st.lists(STEPS, max_size=4), start=KEYS, stop=KEYS)
def test_a_store_of_committed_overlays_reads_like_a_map_in_memory(
    tmp_path_factory, chunks, start: bytes, stop: bytes
) -> None:
    store, model = RocksState(tmp_path_factory.mktemp("store") / "db"), MemoryState()
    for number, steps in enumerate(chunks):
        overlay = Overlay(store)
        for key, value in steps:
            for state in (overlay, model):
                if value is None:
                    state.delete(key)
                else:
                    state.put(key, value)
        assert list(overlay.scan(start, stop)) == list(model.scan(start, stop))
        store.commit(overlay.mutations, Position(Marker(source=number)))
    assert list(store.scan(start, stop)) == list(model.scan(start, stop))
    assert store.get(start) == model.get(start)
    store.close()


def test_state_and_position_survive_closing_together(tmp_path: Path) -> None:
    store = RocksState(tmp_path / "db")
    assert store.position == Position()
    position = Position(Marker(source=7, clock=1_000, epoch=3), changelog=12)
    store.commit({b"a": b"1", b"b": None}, position)
    store.close()
    again = RocksState(tmp_path / "db")
    assert (again.get(b"a"), again.get(b"b"), again.position) == (b"1", None, position)
    again.close()


def test_a_damaged_database_is_moved_aside_and_an_empty_one_takes_its_place(tmp_path: Path) -> None:
    store = RocksState(tmp_path / "db")
    store.commit({b"a": b"1"}, Position(Marker(source=7), changelog=1))
    store.close()
    (tmp_path / "db" / "CURRENT").write_bytes(b"MANIFEST-999999\n")
    again = RocksState(tmp_path / "db")
    assert (again.get(b"a"), again.position) == (None, Position())
    again.close()
    assert len(list(tmp_path.glob("db.damaged-*"))) == 1


def flip_a_byte(database: Path) -> None:
    """Damage a block of the largest table."""
    table = max(database.glob("*.sst"), key=lambda file: file.stat().st_size)
    raw = bytearray(table.read_bytes())
    raw[len(raw) // 4] ^= 1
    table.write_bytes(raw)


@pytest.mark.parametrize("read", [lambda s: list(s.scan(b"k", b"l")), lambda s: [s.get(b"k%05d" % n) for n in KEPT]])
def test_a_damaged_block_is_an_error_and_the_next_start_rebuilds(tmp_path: Path, read) -> None:
    """The iterator of RocksDB ends at a damaged block as at the end of its range."""
    store = RocksState(tmp_path / "db")
    store.commit({b"k%05d" % n: b"v" * 20 for n in KEPT}, Position(Marker(source=7), changelog=1))
    store._db.flush()
    store.close()
    assert len(read_copy(tmp_path / "db")[0]) == len(KEPT)
    flip_a_byte(tmp_path / "db")
    with pytest.raises(Exception, match="checksum"):
        read_copy(tmp_path / "db")
    store = RocksState(tmp_path / "db")
    with pytest.raises(Exception, match="checksum"):
        read(store)
    store.close()
    again = RocksState(tmp_path / "db")
    assert (list(again.scan(b"k", b"l")), again.position) == ([], Position())
    again.close()
    assert len(list(tmp_path.glob("db.damaged-*"))) == 1
    RocksState(tmp_path / "db").close()
    assert len(list(tmp_path.glob("db.damaged-*"))) == 1


def test_a_mark_beside_a_database_that_was_removed_says_nothing_about_the_next_one(tmp_path: Path) -> None:
    (tmp_path / "db.damaged").write_text("Corruption")
    for _ in range(2):
        RocksState(tmp_path / "db").close()
    assert [path.name for path in tmp_path.iterdir()] == ["db"]


def test_a_copy_is_read_while_the_database_is_open(tmp_path: Path) -> None:
    store = RocksState(tmp_path / "db")
    position = Position(Marker(source=7), changelog=1)
    store.commit({b"a": b"1"}, position)
    assert read_copy(tmp_path / "db") == ({b"a": b"1"}, position)
    store.commit({b"b": b"2"}, Position(Marker(source=8), changelog=2))
    assert read_copy(tmp_path / "db")[0] == {b"a": b"1", b"b": b"2"}
    assert store.get(b"a") == b"1"
    store.close()
    with pytest.raises(FileNotFoundError):
        read_copy(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()
