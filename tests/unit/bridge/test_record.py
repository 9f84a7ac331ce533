"""A message becomes its record or its dead letter; no topic name comes from a message."""

from __future__ import annotations

import base64

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_bridge.packets import Publish
from headrace_bridge.record import RESERVE_BYTES, SHOWN_BYTES, Refusal, Router, matches, root_of, shown

LIMITS = {"p.raw": 100_000, "p.special": 200_000, "p.dead-letter": 1_000_000}
ROUTER = Router("p.", LIMITS, routes={"s/+/#": "special"})


def message(topic: bytes, payload: bytes = b"x", **more: object) -> Publish:
    values: dict[str, object] = {"qos": 1, "retain": False, "dup": True, "packet_id": 1, **more}
    return Publish(topic, payload, **values)  # type: ignore[arg-type]


def test_a_record_has_root_payload_and_headers() -> None:
    got = ROUTER.record(message(b"te/device/a//m/t", b"\xff"), 42)
    assert (got.topic, got.key, got.value) == ("p.raw", b"te", b"\xff")
    assert got.headers == [
        ("topic", b"te/device/a//m/t"), ("qos", b"1"), ("retain", b"0"), ("dup", b"1"), ("received", b"42")
    ]  # fmt: skip


def test_a_flag_that_the_broker_does_not_pass_on_is_left_out() -> None:
    router = Router("p.", LIMITS, retain_as_published=False)
    flags = [dict(router.record(message(b"te", retain=retain), 1).headers).get("retain") for retain in (True, False)]
    assert flags == [b"1", None]


def test_properties_become_headers_and_cannot_take_our_names() -> None:
    properties = (
        (3, b"text"), (8, b"r"), (9, b"\xff"), (2, 60), (38, (b"topic", b"false")), (38, (b"kind", b"tick")),
        (38, (b"\xff", b"no text")), (38, (b"traceparent", b"00")),
    )  # fmt: skip
    got = ROUTER.record(message(b"te", properties=properties), 1).headers[5:]
    assert got == [
        ("content-type", b"text"), ("response-topic", b"r"), ("correlation-data", b"\xff"), ("mqtt-topic", b"false"),
        ("mqtt-kind", b"tick"), ("traceparent", b"00"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        (b"", "invalid_topic"), (b"a/+", "invalid_topic"), (b"#", "invalid_topic"), (b"te/\xff", "invalid_topic"),
        (b"te/\xed\xa0\x80", "invalid_topic"), (b"te/\x01\x7f\n", None), (b"/", None), (b"//", None), (b" ", None),
        (b"te/ \t", None), (b"t" * 65_535, None), ("té/中".encode(), None),
    ],
)  # fmt: skip
def test_odd_topics_are_records_if_they_are_utf_8_names(topic: bytes, reason: str | None) -> None:
    refusal = ROUTER.refusal(message(topic))
    assert (refusal.reason if refusal else None) == reason


def test_the_size_limit_is_the_topics_less_the_reserve() -> None:
    limit = 100_000 - RESERVE_BYTES
    assert ROUTER.refusal(message(b"te/a", b"a" * limit)) is None
    assert ROUTER.refusal(message(b"s/x/y", b"a" * (limit + 1))) is None
    too_large = ROUTER.refusal(message(b"te/a", b"a" * (limit + 1)))
    assert too_large == Refusal("too_large", f"payload of {limit + 1} bytes, at most {limit}")
    cut = ROUTER.refusal(message(b"te/a", b"a" * 10, missing=limit))
    assert cut == Refusal("too_large", f"payload of {limit + 10} bytes, at most {limit}")


def test_properties_that_cannot_be_read_are_a_dead_letter() -> None:
    refusal = ROUTER.refusal(message(b"te/a", malformed_properties=True))
    assert refusal is not None
    assert refusal.reason == "invalid_properties"


def test_routes_choose_among_configured_topics_only() -> None:
    assert ROUTER.topic_of(b"s/a/b") == "p.special"
    assert ROUTER.topic_of(b"s") == "p.raw"
    assert ROUTER.topic_of(b"special/x") == "p.raw"


@pytest.mark.parametrize(
    ("pattern", "topic", "root"),
    [
        ("{root}/#", b"te/a", b"te"), ("{root}/#", b"/a", b""), ("{root}/#", b"te", b"te"),
        ("gateways/{root}/te/#", b"gateways/g1/te/device", b"g1"), ("gateways/{root}/te/#", b"other/g1/te/x", b"other"),
        ("+/{root}/#", b"a/b", b"b"),
    ],
)  # fmt: skip
def test_the_key_is_the_root(pattern: str, topic: bytes, root: bytes) -> None:
    assert root_of(topic, pattern) == root


@pytest.mark.parametrize(
    ("filter_", "topic", "expected"),
    [
        ("#", b"a/b", True), ("#", b"$SYS/a", False), ("+/a", b"$SYS/a", False), ("$SYS/#", b"$SYS/a", True),
        ("a/#", b"a", True), ("a/+", b"a", False), ("a/+", b"a/", True), ("a/+/c", b"a/b/c", True),
        ("a", b"a/b", False), ("+/+", b"/a", True),
    ],
)  # fmt: skip
def test_filters_match_as_mqtt_says(filter_: str, topic: bytes, expected: bool) -> None:
    assert matches(filter_, topic) is expected


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300), st.integers(1, 400))
def test_a_dead_letter_shows_the_payload_or_its_start(start: bytes, times: int) -> None:
    payload = start * times
    members = shown(payload)
    assert members.get("truncated", False) == (len(payload) > SHOWN_BYTES)
    text = members.get("payload")
    got = text.encode() if isinstance(text, str) else base64.b64decode(str(members["payload_base64"]))
    assert payload.startswith(got)
    assert len(payload) - len(got) < 4 or SHOWN_BYTES - 4 < len(got) <= SHOWN_BYTES


def test_the_worst_dead_letter_fits_a_kafka_topic_by_default() -> None:
    worst = message(b"\x01" * 65_535, b"\x01" * 500_000)
    letter = ROUTER.dead_letter(worst, Refusal("too_large", "x"), 1)
    assert len(letter.value) + len(letter.key or b"") < 1_000_000


def test_a_repeat_of_a_dead_letter_has_the_same_id() -> None:
    refusal = Refusal("invalid_topic", "x")
    first, again = (ROUTER.dead_letter(message(b"te/\xff"), refusal, now) for now in (1, 2))
    other = ROUTER.dead_letter(message(b"te/", b"\xffx"), refusal, 1)
    assert first.headers == again.headers
    assert first.headers != other.headers
    document = msgspec.json.decode(first.value)
    assert document["topic"] == "te/\\xff"
    assert document["root"] == "te"
    assert first.key == b"te"
