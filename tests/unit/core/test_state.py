"""The memory state and the overlay are ordered maps, whatever is written over whatever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace_core.state import MemoryState, Overlay, first, hold

KEY = st.binary(min_size=1, max_size=3)
WRITES = st.lists(st.tuples(KEY, st.none() | st.binary(max_size=2)), max_size=60)


def write(state: MemoryState | Overlay, writes: list[tuple[bytes, bytes | None]], model: dict[bytes, bytes]) -> None:
    for key, value in writes:
        if value is None:
            state.delete(key)
            model.pop(key, None)
        else:
            state.put(key, value)
            model[key] = value


@given(WRITES, WRITES, KEY, KEY)
def test_a_scan_of_an_overlay_is_the_sorted_union_with_the_overlay_winning(
    below: list[tuple[bytes, bytes | None]], above: list[tuple[bytes, bytes | None]], start: bytes, stop: bytes
) -> None:
    model: dict[bytes, bytes] = {}
    base = MemoryState()
    write(base, below, model)
    overlay = Overlay(base)
    write(overlay, above, model)
    assert list(overlay.scan(start, stop)) == [(k, model[k]) for k in sorted(model) if start <= k < stop]
    assert all(overlay.get(k) == model.get(k) for k, _ in below + above)
    assert first(overlay, start, stop) == next(overlay.scan(start, stop), None)
    assert first(base, start, stop) == next(base.scan(start, stop), None)
    base.commit(overlay.mutations)
    assert base.snapshot() == model
    assert list(base.scan(start, stop)) == [(k, model[k]) for k in sorted(model) if start <= k < stop]


@given(st.lists(st.tuples(KEY, st.none() | st.binary(max_size=2), st.booleans()), max_size=60))
def test_an_overlay_stays_in_order_when_it_is_read_between_its_writes(
    writes: list[tuple[bytes, bytes | None, bool]],
) -> None:
    model: dict[bytes, bytes] = {}
    base = MemoryState()
    write(base, [(key, value) for key, value, _ in writes[::2]], model)
    overlay = Overlay(base)
    for key, value, read in writes:
        write(overlay, [(key, value)], model)
        if read:
            assert list(overlay.scan(b"", b"\xff" * 4)) == sorted(model.items())
            assert first(overlay, key, key + b"\0") == ((key, value) if value is not None else None)


def test_what_is_held_back_is_written_before_the_mutations_are_read_and_nowhere_else_held() -> None:
    overlay = Overlay(MemoryState())
    assert hold(overlay, lambda: overlay.put(b"late", b"1"))
    assert overlay.get(b"late") is None
    assert overlay.mutations == {b"late": b"1"}
    assert not hold(MemoryState(), lambda: None)


def test_a_state_of_many_keys_stays_in_order_when_keys_come_and_go() -> None:
    state = MemoryState()
    keys = [(i * 7919 % 5000).to_bytes(4) for i in range(5000)]
    for key in keys:
        state.put(key, key)
    for key in keys[::3]:
        state.delete(key)
    left = sorted(set(keys) - set(keys[::3]))
    assert list(state.snapshot()) == left
    assert next(state.scan(b"", b"\xff")) == (left[0], left[0])
