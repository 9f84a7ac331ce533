"""The RocksDB store: the State port, the position that moves with the state, and damage."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_core.changelog import Marker
from headrace_core.state import MemoryState, Overlay
from headrace_streams.store import DatabaseError, Position, RocksState, read_copy

KEYS = st.binary(min_size=1, max_size=3).filter(lambda key: key[0] < 0xFF)
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
    assert start >= stop or list(store.sweep(start, stop)) == list(model.scan(start, stop))
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


def filled(path: Path) -> RocksState:
    """A database whose keys are in a file with many blocks, not in the log of the last writes."""
    store = RocksState(path)
    store.load({b"c%06d" % number: bytes([number % 251]) * 50 for number in range(20_000)})
    store.commit({}, Position(Marker(source=7), changelog=1))
    store.close()
    RocksState(path).close()  # opening it writes what is in the log to a file
    return RocksState(path)


def damage(path: Path, start: float = 0.25, stop: float = 0.5) -> None:
    """Flip bits in this part of each file."""
    for file in path.glob("*.sst"):
        raw = bytearray(file.read_bytes())
        for at in range(int(len(raw) * start), int(len(raw) * stop), 256):
            raw[at] ^= 0xFF
        file.write_bytes(raw)


def read_all(store: RocksState, how: str) -> list[object]:
    if how == "scan":
        return list(store.scan(b"c", b"d"))
    if how == "sweep":
        return list(store.sweep(b"c", b"d"))
    return [store.get(b"c%06d" % number) for number in range(20_000)]


@pytest.mark.parametrize("how", ["get", "scan", "sweep"])
def test_damage_that_is_met_later_is_an_error_and_the_next_start_moves_the_database_aside(
    tmp_path: Path, how: str
) -> None:
    filled(tmp_path / "db").close()
    damage(tmp_path / "db")
    with pytest.raises(Exception, match="checksum"):
        read_copy(tmp_path / "db")
    store = RocksState(tmp_path / "db")
    assert store.position.changelog == 1
    with pytest.raises(DatabaseError, match="Corruption"):
        read_all(store, how)
    store.close()
    again = RocksState(tmp_path / "db")
    assert (list(again.scan(b"c", b"d")), again.position) == ([], Position())
    again.close()
    assert len(list(tmp_path.glob("db.damaged-*"))) == 1
    RocksState(tmp_path / "db").close()
    assert len(list(tmp_path.glob("db.damaged-*"))) == 1


def test_what_is_not_the_databases_fault_leaves_it_where_it_is(tmp_path: Path) -> None:
    store = RocksState(tmp_path / "db")
    with pytest.raises(Exception, match="lock"):
        RocksState(tmp_path / "db")
    store.close()
    assert not list(tmp_path.glob("db.damaged-*"))


@pytest.mark.parametrize(("start", "stop"), [(0.0, 0.98), (0.8, 0.9), (0.0, 1.0)])
def test_damage_at_the_position_or_of_the_whole_file_is_met_at_start(tmp_path: Path, start: float, stop: float) -> None:
    filled(tmp_path / "db").close()
    damage(tmp_path / "db", start, stop)
    store = RocksState(tmp_path / "db")
    moved = len(list(tmp_path.glob("db.damaged-*")))
    assert (moved, store.position.changelog) in [(1, 0), (0, 1)]
    assert (start, stop) == (0.8, 0.9) or moved
    store.close()


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
