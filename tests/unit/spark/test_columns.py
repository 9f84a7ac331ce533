"""Column expressions: what they may say, what a row costs by them, and that no row makes one fail."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_core.errors import ConfigError
from headrace_spark.settings import check
from headrace_spark.transforms.columns import column
from headrace_spark.transforms.costs import cost
from headrace_spark.transforms.rows import Bounds, Row, requests
from tests.unit.spark.fakes import job

ROW = Row("te/ä", "m" * 130, 7, 9, "0" * 32, 2.25, True)
PG = "postgresql://a/b"


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("3", 3),
        ("1 + length(metric) // 64", 3),
        ("length(source)", 5),
        ("length(batch) % 5", 2),
        ("value", 3),
        ("boolean * 10 + time_ms", 17),
        ("(1 + 2) * 3 - 1", 8),
        ("min(closed_at, 4) + max(1, 2, time_ms)", 11),
        ("time_ms - closed_at", 0),
    ],
)
def test_a_row_costs_what_its_columns_say(text: str, units: int) -> None:
    found = cost(f"column({text}) + per_request(2)")
    assert [found.of([ROW] * count) for count in (1, 3)] == [units + 2, 3 * units + 2]
    assert cost(f"learned(column({text}))").column == found.column


@pytest.mark.parametrize(
    "text",
    [
        "", "metric", "length(value)", "length(metric, metric)", "topic", "1.5", "True", "-1", "1 / 2", "1 // 0",
        "1 % time_ms", "2 ** 9", "min(1)", "max(*source)", "print(1)", "value.real", "(1", "1) + (2", 
        "[1]", "1 + " * 120 + "1", "__import__('os')", "lambda: 1", "length(metric) // True and 1",
    ],
)  # fmt: skip
def test_nothing_else_is_taken_and_the_field_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^cost: "):
        cost(f"column({text})")


@given(value=st.floats(allow_nan=False, allow_infinity=False), time=st.integers(-(2**63), 2**63 - 1))
def test_no_row_makes_it_fail_and_none_is_below_nothing(value: float, time: int) -> None:
    row = Row("s", "m", time, time, "0", value, False)
    assert column("value*value*time_ms//3-min(time_ms,value)%7")(row) >= 0


def test_requests_are_cut_by_it_and_a_row_above_the_capacity_never_fits() -> None:
    price = cost("column(length(metric))")
    rows = [Row("s", "m" * length, time, 1, "0", 1.0, False) for time, length in enumerate((6, 6, 3, 3, 9))]
    assert [one.cost for one in requests(rows, price.of, Bounds(5, capacity=10))] == [6, 9, 3, 9]
    dearest = job(cost="column(length(metric))", capacity=8).dearest
    assert dearest is not None
    assert [dearest.fits(row) for row in rows] == [True, True, True, True, False]


@pytest.mark.parametrize(
    "changes",
    [
        {"path": "staged", "sink": PG, "state_dsn": PG},
        {"sink": "delta:/table"},
        {"sink": "call:json:dumps", "mode": "lanes"},
    ],
)
def test_where_rows_are_not_priced_one_by_one_it_is_refused(changes: dict[str, object]) -> None:
    check(job(cost="column(1)"))
    with pytest.raises(ConfigError, match=r"^cost: "):
        check(job(cost="column(1)", **changes))
