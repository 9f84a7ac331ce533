"""From members to measurements: leaves, metrics, and a bad member that leaves its neighbours alone."""

from __future__ import annotations

import json

from headrace_spark.transforms.decode import decode
from headrace_spark.transforms.measurements import Taken, measurements


def take(*members: object) -> Taken:
    raw = json.dumps(
        {"id": "0" * 32, "source": "s", "time": 1, "opened_at": 1, "closed_at": 9, "close": "flush", "members": members}
    )
    return measurements(decode(raw.replace('"TWICE"', '{"k": 1, "k": 2}').encode(), 100_000))


def member(value: object, **changes: object) -> dict[str, object]:
    return {"type": "env", "time": 7, "received": 8, "value": value, **changes}


def found(*members: object) -> list[tuple[str, float, bool]]:
    return [(one.metric, one.value, one.boolean) for one in take(*members).measurements]


def test_a_plain_number_has_the_type_as_metric() -> None:
    assert found(member(21.5)) == [("env", 21.5, False)]


def test_each_leaf_has_its_path() -> None:
    value = {"temp": 21, "fan": {"on": True, "speeds": [1, 2.5]}}
    assert found(member(value)) == [
        ("env.temp", 21.0, False),
        ("env.fan.on", 1.0, True),
        ("env.fan.speeds.0", 1.0, False),
        ("env.fan.speeds.1", 2.5, False),
    ]


def test_a_type_may_be_empty() -> None:
    assert found(member({"t": 1}, type=""), member(2, type="", time=8)) == [(".t", 1.0, False), ("", 2.0, False)]


def test_text_leaves_are_dropped_and_counted() -> None:
    taken = take(member({"unit": "C", "t": 1, "more": ["x", "y"]}))
    assert len(taken.measurements) == 1
    assert taken.texts == 3


def test_a_member_without_measurements_is_taken_and_counted_as_empty() -> None:
    taken = take(member({}), member("text"), member([]))
    assert (taken.members, taken.empty, taken.texts, taken.refusals) == (3, 3, 1, [])


def test_a_bad_member_is_refused_alone() -> None:
    taken = take(
        member(1),
        member({"a": 1, "b": None}),
        member({"a": float("inf")}),
        member("TWICE"),
        {"type": "env", "time": 7, "received": 7},
        "no object",
        member(1, time="7"),
        member(1, type=3),
        member(1, more=1),
        member(1, received=None),
        member({"a.b": 1, "a": {"b": 2}}),
        member(2, time=8),
    )
    assert [(one.element, one.reason) for one in taken.refusals] == [
        (1, "null_value"),
        (2, "not_finite"),
        (3, "duplicate_key"),
        (4, "schema"),
        (5, "schema"),
        (6, "schema"),
        (7, "schema"),
        (8, "schema"),
        (9, "schema"),
        (10, "duplicate_key"),
    ]
    assert [(one.metric, one.time_ms, one.value) for one in taken.measurements] == [("env", 7, 1.0), ("env", 8, 2.0)]
