"""The short way to measurements gives what the long way gives, or nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_spark.transforms import quick
from headrace_spark.transforms.decode import Rejected, decode
from headrace_spark.transforms.measurements import MAX_KEY_BYTES, Measurement, Taken, measurements
from tests.unit.spark.fakes import document, member

MOST = 100_000
_numbers = st.one_of(
    st.integers(), st.floats(), st.booleans(),
    st.sampled_from([2**63, -(2**63), 2**63 - 1, 10**300, -(10**300), 10**309, 1.0, -0.0, 1e308]),
)  # fmt: skip
_texts = st.one_of(st.sampled_from(["", "env", "a.b", "ä", "\x00", "x" * 2050, "\ud800", "time"]), st.text(max_size=4))
_leaves = st.one_of(_numbers, _texts, st.none())
_values = st.one_of(
    _leaves, st.dictionaries(_texts, _leaves, max_size=3), st.lists(_leaves, max_size=2),
    st.dictionaries(_texts, st.dictionaries(_texts, _leaves, max_size=2), max_size=2),
)  # fmt: skip
_times = st.one_of(st.just(5), st.integers(), _leaves)
_usual = st.builds(
    lambda kind, time, value: {"type": kind, "time": time, "received": time, "value": value},
    st.sampled_from(["", "env", "a.b"]), st.integers(-(2**63), 2**63 - 1),
    st.one_of(st.integers(-9, 9), st.dictionaries(st.sampled_from("abc"), st.one_of(st.integers(), st.text())))
)  # fmt: skip
_odd = st.fixed_dictionaries(
    {"type": st.one_of(_texts, _leaves), "time": _times, "received": _times},
    optional={"value": _values, "more": _leaves},
)
_members = st.lists(st.one_of(_usual, _usual, _odd, _leaves), max_size=3)


def long_way(value: bytes | None) -> Taken | Rejected:
    try:
        return measurements(decode(value, MOST))
    except Rejected as error:
        return error


def check(value: bytes | None) -> Taken | None:
    found, other = quick.taken(value, MOST), long_way(value)
    if found is not None:
        assert isinstance(other, Taken)
        assert repr(found) == repr(other), "as text, where -0.0 is not 0.0 and True is not 1.0"
    return found


@given(_members)
def test_a_document_of_any_members(members: list[Any]) -> None:
    for ascii_only in (True, False):
        check(json.dumps(json.loads(document(1, members)), ensure_ascii=ascii_only).encode("utf-8", "surrogatepass"))


_ODD = [
    None, True, 0, -1,
    2**63 - 1, 2**63, -(2**63) - 1, 10**300, 10**309, 1.0, 1e300, float("nan"), "", "x", "a\x00b", "ä",
    "ä" * 1020, "\ud800", "x" * 2040, "flush", [], [1], {}, {"a": 1}, {"a": "x"}, {"a": True}, {"a": None}, {"a": [1]},
    {"a": 10**309}, {"a": 2**63}, {"": 1}, {"ä" * 1015: 1}, {"a\x00": 1}, {"a": {"b": 1}},
]  # fmt: skip
_PLACES = [("id",), ("source",), ("time",), ("opened_at",), ("closed_at",), ("close",), ("members",), ("more",)]
_INSIDE = [("members", 1, name) for name in ("type", "time", "received", "value", "more")]


@pytest.mark.parametrize("place", [*_PLACES, ("members", 1), *_INSIDE], ids=str)
@pytest.mark.parametrize("others", [{"a": 1}, {"t": "only texts"}, 1, True], ids=str)
def test_one_odd_value_anywhere(place: tuple[Any, ...], others: object) -> None:
    for odd in _ODD:
        whole = json.loads(document(1, [member(1, 2.5), member(2, others), member(3, {"b": 4})]))
        *above, last = place
        at = whole
        for name in above:
            at = at[name]
        at[last] = odd
        check(json.dumps(whole).encode())


@given(st.lists(_usual, min_size=1, max_size=3), st.data())
def test_bytes_put_in_anywhere(members: list[Any], data: st.DataObject) -> None:
    value = json.dumps(json.loads(document(1, members)), separators=(",", ":")).encode()
    at = data.draw(st.integers(0, len(value)))
    more = data.draw(
        st.sampled_from([b" ", b'"', b":", b"{", b"}", b"1", b'"time":3,', b'"a":1,', b'"a" :1,', b"\xff", b"\\"])
    )
    check(value[:at] + more + value[at + data.draw(st.integers(0, 3)) :])


@given(st.binary(max_size=40))
def test_any_bytes(value: bytes) -> None:
    check(value)


@pytest.mark.parametrize("value", [None, b"", b"x" * (MOST + 1)])
def test_what_is_no_document(value: bytes | None) -> None:
    assert check(value) is None


@pytest.mark.parametrize(
    "twice", [b'"time":5,"time":5', b'"value":{"a":1,"a":2}', b'"value":{"a":1,"a" :2}', b'"value":{"a":1,"\\u0061":2}']
)
def test_a_key_that_comes_twice_goes_the_long_way(twice: bytes) -> None:
    value = document(1, [{"type": "env", "received": 1}])
    value = value.replace(b'"received": 1', b'"received":1,' + (b"" if b'"time"' in twice else b'"time":1,') + twice)
    assert check(value if b'"value"' in twice else value.replace(twice, twice + b',"value":1')) is None


def test_usual_documents_go_the_short_way() -> None:
    value = document(
        7, [member(5, {"a": 1, "b": 2.5, "on": True, "unit": "C"}), member(6, 3, ""), member(7, {"t": "x"})]
    )
    assert check(value) == Taken(
        f"{7:032x}", "te/device/a//", 50, 3,
        [Measurement("env.a", 5, 1.0, False), Measurement("env.b", 5, 2.5, False), Measurement("env.on", 5, 1.0, True),
         Measurement("", 6, 3.0, False)],
        [], 2, 1,
    )  # fmt: skip


@pytest.mark.parametrize("spare", [0, 1])
def test_a_metric_may_be_as_long_as_a_key_of_every_store(spare: int) -> None:
    kind = "k" * (MAX_KEY_BYTES - len("te/device/a//") + spare)
    assert (check(document(1, [member(1, 1, kind)])) is None) == bool(spare)
