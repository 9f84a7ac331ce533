"""Strict decoding: one reason for each thing that can be wrong, and a flaw stays where it is."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_schemas import examples
from headrace_spark.transforms.decode import Flaw, Rejected, _believed, _searched, decode, depth, parse
from headrace_spark.transforms.measurements import measurements

_GOOD = {
    "id": "c92509efcd9d91af62ba2c57837c548f",
    "source": "te/device/a//",
    "time": 100,
    "opened_at": 110,
    "closed_at": 210,
    "close": "timeout",
    "members": [{"type": "a", "time": 100, "received": 110, "value": 1.5}],
}


def document(**changes: object) -> bytes:
    return json.dumps({**_GOOD, **changes}).encode()


def reason(value: bytes | None, limit: int = 10_000) -> str:
    with pytest.raises(Rejected) as caught:
        decode(value, limit)
    return caught.value.reason


def test_a_good_document_is_taken() -> None:
    taken = decode(document(), 10_000)
    assert (taken.id, taken.source, taken.closed_at) == (_GOOD["id"], _GOOD["source"], 210)
    assert taken.members == _GOOD["members"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "null_value"),
        (b"", "not_json"),
        (b"{", "not_json"),
        (b"\xff{}", "not_utf8"),
        (b"\xef\xbb\xbf{}", "not_json"),
        (b"{} {}", "not_json"),
        (b"[" * 65 + b"]" * 65, "too_deep"),
        (b"[" * 100_000, "too_large"),
        (b"[1]", "schema"),
        (b"NaN", "not_finite"),
        (b"1e400", "number_range"),
        (b'{"a": 1, "a": 1}', "duplicate_key"),
        (document(time=True), "schema"),
        (document(closed_at=1.0), "schema"),
        (document(closed_at=2**63), "number_range"),
        (document(source=""), "schema"),
        (document(source="a\x00b"), "schema"),
        (document(source="\ud800"), "schema"),
        (document(id=7), "schema"),
        (document(id="C92509EFCD9D91AF62BA2C57837C548F"), "schema"),
        (document(close="other"), "schema"),
        (document(more=1), "schema"),
        (document(members=[]), "schema"),
        (document(members={}), "schema"),
        (document(close=float("nan")), "not_finite"),
    ],
)
def test_each_fault_has_its_reason(value: bytes | None, expected: str) -> None:
    assert reason(value) == expected


def test_sixty_four_levels_are_not_too_deep() -> None:
    assert parse(b"[" * 64 + b"]" * 64)


def test_a_document_of_the_largest_size_is_taken() -> None:
    assert decode(document(), len(document())).members
    assert reason(document(), len(document()) - 1) == "too_large"


def test_brackets_in_strings_are_not_depth() -> None:
    assert depth(json.dumps(["[" * 200, '\\"' + "{" * 200]).encode()) == 1


def test_a_flaw_stays_at_its_place() -> None:
    tree = parse(b'{"a": [1, -Infinity, 1e999, {"k": 1, "k": 2}], "b": ' + b"9" * 5000 + b"}")
    reasons = [one.reason for one in [*tree["a"][1:], tree["b"]] if isinstance(one, Flaw)]
    assert reasons == ["not_finite", "number_range", "duplicate_key", "number_range"]
    assert tree["a"][0] == 1


@pytest.mark.parametrize("example", examples("batch")["valid"])
def test_valid_examples_of_the_schema_are_taken_whole(example: object) -> None:
    assert measurements(decode(json.dumps(example).encode(), 10_000)).refusals == []


@pytest.mark.parametrize("example", examples("batch")["invalid"])
def test_invalid_examples_of_the_schema_are_refused_whole_or_in_part(example: object) -> None:
    assert set(reasons(json.dumps(example).encode())) == {"schema"}


def reasons(value: bytes) -> list[str]:
    try:
        return [one.reason for one in measurements(decode(value, 10_000)).refusals]
    except Rejected as error:
        return [error.reason]


_SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from([":", '":', "a:b", "\\", '"', "\ud800"])
)
_TREES = st.recursive(
    _SCALARS | st.just(10**400),
    lambda below: (
        st.lists(below, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", ":", '"']), below, max_size=3)
    ),
    max_leaves=12,
)


@given(
    tree=_TREES,
    separators=st.sampled_from([(",", ":"), (", ", ": "), (" , ", " :\t"), ("\n,", "\r:")]),
    damage=st.data(),
)
def test_the_quick_reading_believes_nothing_that_the_slow_one_would_not(
    tree: object, separators: tuple[str, str], damage: st.DataObject
) -> None:
    value = json.dumps(tree, separators=separators).encode()
    keys = damage.draw(st.sampled_from([(b'"a"', b'"b"'), (b'"b"', b'"\\u0061"'), (b"1", b"01"), (b"", b"")]))
    value = value.replace(*keys)
    believed = _believed(value)
    assert believed is msgspec.UNSET or repr(believed) == repr(_searched(value))


def test_a_value_without_a_flaw_is_read_quickly() -> None:
    for value in (document(), json.dumps(_GOOD, separators=(",", ":")).encode(), document(source='a":b: c')):
        assert parse(value) == json.loads(value)
    assert _believed(document()) == _GOOD
