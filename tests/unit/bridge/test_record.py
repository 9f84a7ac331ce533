"""A message becomes its record or its dead letter; no topic name comes from a message."""

from __future__ import annotations

import base64

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_bridge.packets import Publish
from headrace_bridge.record import RESERVE_BYTES, SHOWN_BYTES, Refusal, Router, matches, root_of, shown
from headrace_core.batching.config import BatchingConfig
from headrace_core.batching.stage import BatchingStage
from headrace_core.registration.config import RegistrationConfig
from headrace_core.registration.stage import RegistrationStage
from headrace_core.stage import Emission, Record
from headrace_core.state import MemoryState

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
    refusal = Router("p.", {"p.raw": 1_000_000}).refusal(message(topic))
    assert (refusal.reason if refusal else None) == reason


def test_the_size_limit_is_the_topics_less_the_reserve() -> None:
    limit = 100_000 - RESERVE_BYTES
    assert ROUTER.refusal(message(b"te/a", b"a" * limit)) is None
    assert ROUTER.refusal(message(b"s/x/y", b"a" * (limit + 1))) is None
    too_large = ROUTER.refusal(message(b"te/a", b"a" * (limit + 1)))
    assert too_large == Refusal("too_large", f"payload of {limit + 1} bytes, at most {limit}")
    cut = ROUTER.refusal(message(b"te/a", b"a" * 10, missing=limit))
    assert cut == Refusal("too_large", f"payload of {limit + 10} bytes, at most {limit}")


def test_a_long_topic_takes_room_from_the_payload_so_that_later_records_hold_both() -> None:
    router = Router("p.", {"p.raw": 1_000_000})
    topic = b"te/device/" + b"\1" * 40_000 + b"///m/t"
    most = 1_000_000 - 4096 - 8 * len(topic)
    assert router.refusal(message(topic, b"a" * most)) is None
    assert router.refusal(message(topic, b"a" * (most + 1))) == Refusal(
        "too_large", f"payload of {most + 1} bytes, at most {most}"
    )
    short = b"t" * 7680
    assert router.refusal(message(short, b"a" * (1_000_000 - RESERVE_BYTES))) is None


def test_the_largest_measurement_that_is_taken_fits_every_record_that_is_made_of_it() -> None:
    topic = b"te/device/" + b"\1" * 40_000 + b"///m/t"
    limit = 1_000_000
    payload = b'{"v": "' + b"a" * (limit - 4096 - 8 * len(topic) - 9) + b'"}'
    assert Router("p.", {"p.raw": limit}).refusal(message(topic, payload)) is None
    raw = Record(0, 0, 1, b"te", payload, (("topic", topic), ("retain", b"0")))
    routed: list[Emission] = []
    RegistrationStage(RegistrationConfig({"te": "main"})).apply(MemoryState(), raw, routed.append)
    batching, state, batches = BatchingStage(BatchingConfig()), MemoryState(), list[Emission]()
    for place, one in enumerate(e for e in routed if e.topic == "routed"):
        batching.apply(state, Record(0, place, 1, one.key, one.value, one.headers), batches.append)
    batching.apply(state, Record(0, 99, 10**12, None, b"", (("kind", b"tick"),)), batches.append)
    assert [e.topic for e in batches] == ["batches"]
    assert max(map(size, routed + batches)) > limit / 2
    assert max(map(size, routed + batches)) <= limit


def size(emission: Emission) -> int:
    headers = sum(len(name) + len(value) + 8 for name, value in emission.headers)
    return len(emission.key or b"") + len(emission.value or b"") + headers + 200


def test_a_payload_whose_end_was_dropped_is_never_a_record() -> None:
    roomy = Router("p.", {"p.raw": 64 * 1024 * 1024, "p.dead-letter": 100_000})
    cut = message(b"te/a", b"a" * 10, missing=1)
    assert roomy.refusal(cut) == Refusal("too_large", "payload of 11 bytes, more than the bridge holds")


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
        ("+/{root}/#", b"a/b", b"b"), ("{site}/{line_2}/{root}/te/#", b"s/l/g/te/x", b"g"),
        ("{site}/{root}/te/#", b"s/g/no", b"s"),
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
