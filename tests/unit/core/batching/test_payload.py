"""What a payload says, and which payloads say nothing that all readers agree on (architecture.md, batching.md 6.3)."""

from __future__ import annotations

import contextlib
import json
import re
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_core.batching.event_time import encoded_event_ms, event_ms
from headrace_core.batching.messages import Message
from headrace_core.batching.payload import readable
from headrace_core.nesting import DEEPEST

NAMES = st.sampled_from(["a", "b", "time", "", ":", '"', "\\", "é", "a:b", '":'])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | NAMES


def read(payload: str | bytes) -> Message | None:
    return readable(payload if isinstance(payload, bytes) else payload.encode(), b"te/device/main//", b"t", 5)


def written(pairs: list[tuple[str, object]], escaped: bool) -> str:
    """An object with its pairs as they are, repeated keys too."""
    members = (f"{json.dumps(key, ensure_ascii=escaped)}: {value}" for key, value in pairs)
    return "{" + ", ".join(members) + "}"


@pytest.mark.parametrize(
    "payload",
    [
        '{"a":1,"a":1}',
        '{"a":1,"b":2,"a":3}',
        '{"a":1,"\\u0061":2}',
        '{"time":1,"time":1}',
        '{"time":"2026-01-01T00:00:00Z","a":1,"a":2}',
        '{"a":{"b":1,"b":2}}',
        '{"a":[{"b":[{"c":1,"c":2}]}]}',
        '{"a":"x:y","b":{"c":":","c":":"}}',
        '{"a" : 1 , "a" : 2}',
        '{"":1,"":2}',
        '{"n":' + "9" * 5000 + ',"a":{"b":1,"b":1}}',
    ],
)
def test_a_payload_with_a_key_given_twice_is_not_readable(payload: str) -> None:
    assert read(payload) is None


@pytest.mark.parametrize(
    ("payload", "value"),
    [
        ('{"a":{"a":{"a":1}}}', '{"a":{"a":{"a":1}}}'),
        ('{"a":[{"b":1},{"b":2}], "b":"a"}', '{"a":[{"b":1},{"b":2}],"b":"a"}'),
        ('{"a":"b\\":1,\\"a\\":2"}', '{"a":"b\\":1,\\"a\\":2"}'),
        ('{"a":"12:30:00","A":"::"}', '{"a":"12:30:00","A":"::"}'),
        ('{"time" : 0.005 , "a:a" : 1.50}', '{"a:a":1.50}'),
        ('{"n":' + "9" * 5000 + ',"a":{"b":1e999}}', '{"n":' + "9" * 5000 + ',"a":{"b":1e999}}'),
        ("{}", "{}"),
    ],
)
def test_the_same_key_at_two_places_and_what_only_looks_like_a_key_is_no_repeat(payload: str, value: str) -> None:
    assert read(payload) == Message("te/device/main//", "t", 5, value.encode())


@settings(max_examples=100, deadline=None)
@given(st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner), max_leaves=8),
       st.lists(st.tuples(NAMES, SCALARS.map(json.dumps)), max_size=5), st.booleans())  # fmt: skip
def test_it_is_readable_exactly_if_no_object_of_it_repeats_a_key(
    value: object, pairs: list[tuple[str, object]], escaped: bool
) -> None:
    names = [name for name, _ in pairs]
    inner = written(pairs, escaped)
    for payload in (written([("v", json.dumps(value)), ("w", inner)], escaped), written([("w", f"[{inner}]")], True)):
        assert (read(payload) is not None) is (len(set(names)) == len(names))


@pytest.mark.parametrize(("opened", "closed"), [('{"a":', "}"), ("[", "]")])
@pytest.mark.parametrize("more", [0, 1, 10, 100, 300, 5000])
def test_how_deep_a_readable_payload_goes_does_not_depend_on_who_asks(opened: str, closed: str, more: int) -> None:
    depth = DEEPEST - 1 + more
    payload = '{"v":' + opened * depth + '"[[{"' + closed * depth + "}"
    assert (read(payload) is not None) is (more == 0)
    assert (deeper(200, payload) is not None) is (more == 0)


def deeper(frames: int, payload: str) -> Message | None:
    return deeper(frames - 1, payload) if frames else read(payload)


def test_many_brackets_beside_each_other_or_within_strings_are_not_deep() -> None:
    payload = '{"v":[' + ",".join(["[]", "{}", '"[[\\"{{"'] * DEEPEST) + "]}"
    assert read(payload) is not None


def test_a_long_payload_that_ends_within_a_string_is_looked_at_once() -> None:
    assert read('{"v":"' + '\\"[' * 200_000) is None


@pytest.mark.parametrize("entity", [b"", b"\xff"])
def test_without_a_source_that_is_text_nothing_is_readable(entity: bytes) -> None:
    assert readable(b"{}", entity, b"t", 5) is None
    assert readable(b"{}", b"s", b"\xff", 5) is None
    assert readable(b"{}", b"s", b"", 5) == Message("s", "", 5, b"{}")


STAMP = st.tuples(
    st.sampled_from(["2026-01-01", "2026-02-30", "0000-01-01", "9999-12-31", "2026-1-01", "٢٠٢٦-01-01"]),
    st.sampled_from(["T", "t", " ", "_", ""]),
    st.sampled_from(["00:00:00", "23:59:59", "24:00:01", "12:00:60", "12:00"]),
    st.sampled_from(["", ".", ".1", ".12", ".123", ".9999", ".1234567891", ".12a", ",123", ".1 23"]),
    st.sampled_from(["Z", "z", "+00:00", "-23:59", "+24:00", "+1:00", "", "Z ", '\\"', "\\u005a"]),
)


@settings(max_examples=300, deadline=None)
@given(STAMP)
def test_a_time_is_read_the_same_from_its_bytes_and_from_its_text(parts: tuple[str, ...]) -> None:
    stamp = "".join(parts)
    text = json.loads(f'"{stamp}"')
    day, between, clock, fraction, offset = *parts[:4], text[len("".join(parts[:4])) :]
    expected = None
    if (
        between in ("T", "t", " ")
        and re.fullmatch(r"(\.[0-9]+)?", fraction)
        and re.fullmatch("[Zz]|.\\d\\d:\\d\\d", offset)
    ):
        with contextlib.suppress(ValueError):
            moment = datetime.strptime(f"{day} {clock} {offset.upper()}", "%Y-%m-%d %H:%M:%S %z")
            if day.isascii() and len(day) == 10 and len(clock) == 8:
                whole = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(seconds=1)
                expected = whole * 1000 + int((fraction[1:] + "000")[:3])
    assert event_ms(text) == encoded_event_ms(f'"{stamp}"'.encode()) == expected
