"""The RocksDB store: the State port, the position that moves with the state, and damage."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_core.state import MemoryState, Overlay
from headrace_streams.store import Marker, Position, RocksState

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
