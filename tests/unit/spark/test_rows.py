"""Rows, versions, requests and costs are functions of the content alone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_core.errors import ConfigError
from headrace_spark.transforms.costs import Cost, cost
from headrace_spark.transforms.rows import Bounds, Row, highest, requests

ROWS = st.builds(
    Row,
    st.sampled_from(["s", "t"]),
    st.sampled_from(["a", "b"]),
    st.integers(0, 2),
    st.integers(0, 2),
    st.sampled_from(["x", "y"]),
    st.just(0.0),
    st.just(False),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(ROWS, max_size=30), st.integers(1, 7), st.randoms())
def test_any_order_of_arrival_gives_the_same_requests(found: list[Row], size: int, dice) -> None:
    shuffled = list(found)
    dice.shuffle(shuffled)
    one, two = (requests(highest(rows), Cost(per_row=2).of, Bounds(size)) for rows in (found, shuffled))
    assert one == two
    kept = [row for request in one for row in request.rows]
    assert {row.id for row in kept} == {row.id for row in found}
    assert len({row.id for row in kept}) == len(kept)
    for row in kept:
        assert row.version == max(other.version for other in found if other.id == row.id)
    assert all(1 <= len(request.rows) <= size and request.cost == 2 * len(request.rows) for request in one)


def test_a_request_id_depends_on_the_rows_only_and_on_each_of_them() -> None:
    first, second = Row("s", "a", 1, 1, "x", 1.0, False), Row("s", "b", 1, 1, "x", 1.0, False)
    ids = [
        request.id for rows in ([first], [second], [first, second]) for request in requests(rows, Cost(1).of, Bounds(5))
    ]
    assert len(set(ids)) == 3
    assert requests([first], Cost(per_request=9).of, Bounds(1))[0].id == ids[0]


@pytest.mark.parametrize(
    ("text", "rows", "expected"), [("per_row(3)", 4, 12), ("per_request(7)", 4, 7), ("per_row( 1 )", 0, 0)]
)
def test_costs(text: str, rows: int, expected: int) -> None:
    assert cost(text)(rows) == expected


@pytest.mark.parametrize("text", ["", "per_row(0)", "per_row(-1)", "per_row(1.5)", "per_byte(1)", "per_row(1) x"])
def test_a_cost_that_is_none_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^cost: "):
        cost(text)


def test_the_largest_request_within_a_capacity() -> None:
    assert Cost(per_row=3).largest(10) == 3
    assert Cost(per_row=11).largest(10) == 0
    assert Cost(per_request=10).largest(10) == -1
    assert Cost(per_request=11).largest(10) == 0
