"""Rows, versions, requests and costs are functions of the content alone."""

from __future__ import annotations

from collections.abc import Sequence

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


@settings(max_examples=100, deadline=None)
@given(st.lists(ROWS, max_size=30), st.integers(1, 9), st.integers(32, 200), st.integers(4, 40))
def test_requests_keep_to_every_bound_and_nothing_is_lost(
    found: list[Row], most: int, size: int, capacity: int
) -> None:
    price = cost("per_row(2) + per_request(1) + call(tests.unit.spark.test_rows:odd)")
    cut = requests(found, price.of, Bounds(most, size, capacity))
    assert [row for one in cut for row in one.rows] == found
    for one in cut:
        assert len(one.rows) <= most
        assert one.cost == price.of(one.rows) == 1 + 2 * len(one.rows) + odd(one.rows)
        assert len(one.rows) == 1 or one.cost <= capacity
        assert len(one.rows) == 1 or sum(row.size for row in one.rows) <= size


def odd(rows: Sequence[Row]) -> int:
    """A cost by a function: rows with an odd time cost one more."""
    return sum(row.time_ms % 2 for row in rows)


def wrong(rows: Sequence[Row]) -> float:
    return len(rows) / 2


def test_a_cost_by_kib_counts_begun_ones() -> None:
    row = Row("s" * 500, "m" * 499, 1, 1, "", 1.0, False)
    assert row.size == 1024
    assert [cost("per_kib(3)").of([row] * count) for count in (1, 2)] == [3, 6]
    assert cost("per_kib(3)").of([row, Row("", "", 1, 1, "", 1.0, False)]) == 6


def test_a_function_that_is_not_there_or_returns_no_cost_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be loaded"):
        cost("call(tests.unit.spark.test_rows:nobody)").function()
    with pytest.raises(ConfigError, match=r"returned 0\.5"):
        cost("call(tests.unit.spark.test_rows:wrong)").of([Row("s", "a", 1, 1, "x", 1.0, False)])


@pytest.mark.parametrize(
    ("text", "rows", "expected"),
    [("per_row(3)+per_request(2)", 4, 14), ("per_row(3)", 4, 12), ("per_request(7)", 4, 7), ("per_row( 1 )", 0, 0)],
)
def test_costs(text: str, rows: int, expected: int) -> None:
    assert cost(text)(rows) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "per_row(0)",
        "per_row(-1)",
        "per_row(1.5)",
        "per_byte(1)",
        "per_row(1) x",
        "per_row(1)+per_row(2)",
        "call(x)",
    ],
)
def test_a_cost_that_is_none_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^cost: "):
        cost(text)


def test_the_largest_request_within_a_capacity() -> None:
    assert Cost(per_row=3).largest(10) == 3
    assert Cost(per_row=11).largest(10) == 0
    assert Cost(per_request=10).largest(10) == -1
    assert Cost(per_request=11).largest(10) == 0
