"""A record that is not as its topic says is told apart from one that is."""

from __future__ import annotations

import json

import pytest

from headrace_bridge.packets import Publish
from headrace_bridge.record import Refusal, Router
from headrace_core.changelog import MARKER_KEY
from headrace_schemas import examples, validator
from headrace_schemas.records import message_of, violations
from headrace_spark.transforms.dead_letters import letter, of_report
from headrace_spark.transforms.records import Record, report

ID = ("id", b"registration:0:1:0")
BATCH = json.dumps(examples("batch")["valid"][0]).encode()
ENTITY = json.dumps(examples("entity")["valid"][1]).encode()
NAME = b"te/device/press//"
PLACE = (("kind", b"remove"), ("receipt_time", b"5"), ID, ("entity", NAME))
SOURCE = (("o", bytes(8)),)
MQTT = (("topic", b"te/device/a//"), ("qos", b"1"), ("retain", b"0"), ("dup", b"0"), ("received", b"5"))

GOOD = [
    ("raw", b"te", b"\xff", MQTT),
    ("raw", b"te", b"", (*MQTT, ("correlation-data", b"\xff"), ("mqtt-kind", b"tick"), ("traceparent", b"00"))),
    ("raw", b"te", b"x", tuple(pair for pair in MQTT if pair[0] != "retain")),
    ("raw", None, b"", (("kind", b"tick"),)),
    ("routed", b"te", b"{}", PLACE),
    ("batches", NAME, BATCH, (("id", b"batching:0:1:0"),)),
    ("entities", NAME, None, (ID,)),
    ("outbound", b"te/device/press//", b"", (ID,)),
    ("registration.changelog", MARKER_KEY, b'{"source":5,"clock":1,"epoch":0}', SOURCE),
    ("registration.changelog", b"Ete\0device/press//\0", b"\x97\xff", (("o", b"\xff" * 8),)),
]
BAD = [
    ("raw", b"te", b"x", MQTT[1:], "topic"),
    ("raw", b"te", b"x", (*MQTT[:1], ("qos", b"3"), *MQTT[2:]), "'3'"),
    ("raw", b"te", b"x", (*MQTT[:2], ("retain", b"yes"), *MQTT[3:]), "'yes'"),
    ("raw", b"te", b"x", (*MQTT, ("unknown", b"1")), "unknown"),
    ("raw", b"te", b"x", (("topic", b"te/+"), *MQTT[1:]), "te/+"),
    ("raw", b"te", b"", (("kind", b"tick"),), "key"),
    ("raw", None, b"x", (("kind", b"tick"),), "no message"),
    ("raw", None, b"{}", (("kind", b"request"),), "value: 'method'"),
    ("raw", None, b"{", (("kind", b"request"),), "no message"),
    ("routed", b"te", b"{}", PLACE[:3], "entity"),
    ("routed", b"te", b"{}", (*PLACE[:1], ("receipt_time", b"-1"), *PLACE[2:]), "-1"),
    ("routed", b"te", b"{}", (*PLACE[:2], ("id", b"batching:0:1:0"), *PLACE[3:]), "batching"),
    ("routed", b"te", b"{}", (*PLACE[:3], ("entity", b"te/device/press")), "te/device/press"),
    ("routed", None, b"{}", PLACE, "key"),
    ("routed", b"te/a", b"{}", PLACE, "key"),
    ("routed", b"te", b'{"a":1}', PLACE, "value"),
    ("routed", b"te", b"{}", (("kind", b"odd"), *PLACE[1:]), "no message"),
    ("batches", b"te", BATCH, (("id", b"batching:0:1:0"),), "key"),
    ("batches", NAME, None, (("id", b"batching:0:1:0"),), "no message"),
    ("batches", NAME, BATCH.replace(b"110", b'"110"'), (("id", b"batching:0:1:0"),), "value.opened_at"),
    ("entities", NAME, ENTITY.replace(b"child-device", b"thing"), (ID,), "value"),
    ("outbound", b"te/#", b"x", (ID,), "key"),
    ("dead-letter", None, b"{}", (("id", b"x"), ("stage", b"batching")), "'x'"),
    ("registration.changelog", b"Ete", b"x", (), "'o'"),
    ("registration.changelog", MARKER_KEY, b"{}", SOURCE, "value"),
]


@pytest.mark.parametrize(("topic", "key", "value", "headers"), GOOD)
def test_a_record_as_it_must_be(topic: str, key: bytes, value: bytes, headers: tuple[tuple[str, bytes], ...]) -> None:
    assert violations(topic, key, value, headers) == []


@pytest.mark.parametrize(("topic", "key", "value", "headers", "words"), BAD)
def test_a_record_that_is_wrong(
    topic: str, key: bytes, value: bytes, headers: tuple[tuple[str, bytes], ...], words: str
) -> None:
    found = violations(topic, key, value, headers)
    assert any(words in problem for problem in found), found


def test_a_topic_that_nobody_described() -> None:
    with pytest.raises(KeyError):
        message_of("nothing", None, None, ())


ROUTER = Router("p.", {"p.raw": 100_000})
PROPERTIES = ((3, b"text"), (8, b"r"), (9, b"\xff"), (38, (b"topic", b"false")), (38, (b"traceparent", b"00")))


@pytest.mark.parametrize("topic", [b"te/device/a///m/t", b"te", b"/a", "te/Öfen".encode(), b"te/a\x01 "])
@pytest.mark.parametrize("properties", [(), PROPERTIES])
def test_what_the_bridge_writes_to_raw(topic: bytes, properties: tuple[object, ...]) -> None:
    message = Publish(topic, b"\xff", qos=2, retain=True, dup=True, packet_id=1, properties=properties)
    for router in (ROUTER, Router("p.", ROUTER.limits, retain_as_published=False)):
        for retain in (True, False):
            record = router.record(message._replace(retain=retain), 1_760_000_000_000)
            assert violations("raw", record.key, record.value, record.headers) == []


@pytest.mark.parametrize("topic", [b"te/a", b"", b"\xff/a", b"te/+"])
@pytest.mark.parametrize("payload", [b"", b"text", b"\xff", b"x" * 100_000])
def test_the_dead_letters_of_the_bridge(topic: bytes, payload: bytes) -> None:
    message = Publish(topic, payload, qos=1, retain=False, dup=False, packet_id=1)
    record = ROUTER.dead_letter(message, Refusal("too_large", "why"), 5)
    assert violations("dead-letter", record.key, record.value, record.headers) == []


@pytest.mark.parametrize("value", [None, b"", b"{", b"\xff", BATCH.replace(b"21.5", b"null"), b"x" * 600_000])
@pytest.mark.parametrize("key", [None, NAME, b"\xff"])
def test_the_dead_letters_of_the_spark_writer(key: bytes | None, value: bytes | None) -> None:
    record = Record("headrace.batches", 1, 17, 5, key, value, [("id", b"batching:0:1:0"), ("x", None)])
    letters = list(of_report(report(record, 1_000_000), "meters")) or [letter(record, "meters", "sink_rejected", "")]
    assert letters
    for one in letters:
        assert violations("dead-letter", one.key, one.value, one.headers) == []
        assert validator("dead-letter").is_valid(json.loads(one.value))
