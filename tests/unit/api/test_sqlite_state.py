"""The replica's state is an ordered map for each partition."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace_api.sqlite_state import SqliteState, connect

KEY = st.binary(min_size=1, max_size=3)


@settings(
    max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)
@given(st.lists(st.tuples(KEY, st.none() | st.binary(max_size=2)), max_size=30), KEY, KEY)
def test_a_scan_is_in_byte_order_and_sees_one_partition_only(
    tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[bytes, bytes | None]], start: bytes, stop: bytes
) -> None:
    connection = connect(tmp_path_factory.mktemp("state") / "replica.db")
    state, other, model = SqliteState(connection, 0), SqliteState(connection, 1), dict[bytes, bytes]()
    for key, value in writes:
        other.put(key, b"other")
        if value is None:
            state.delete(key)
            model.pop(key, None)
        else:
            state.put(key, value)
            model[key] = value
    assert list(state.scan(start, stop)) == [(k, model[k]) for k in sorted(model) if start <= k < stop]
    assert all(state.get(k) == model.get(k) for k, _ in writes)
    connection.close()


def test_what_is_committed_is_there_after_opening_again(tmp_path: Path) -> None:
    connection = connect(tmp_path / "replica.db")
    SqliteState(connection, 3).put(b"k", b"v")
    connection.close()
    assert SqliteState(connect(tmp_path / "replica.db"), 3).get(b"k") == b"v"
