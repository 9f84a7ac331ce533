"""What a message or a topic can look like, against a real mosquitto and a real Kafka (bridge.md 1.6, 2, 7)."""

from __future__ import annotations

import json
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.mqtt import MqttBroker
from headrace_bridge import packets
from tests.support.bridge_process import BridgeProcess, create_topics, read_topic, until
from tests.support.mqtt_fixture import Publisher, mqtt

__all__ = ["mqtt"]
pytestmark = pytest.mark.kafka
TOPIC_LIMIT, SMALL_TOPIC_LIMIT = 200_000, 70_000
RESERVE = 64 * 1024
LIMIT = TOPIC_LIMIT - RESERVE


@pytest.fixture
def bridge(
    request: pytest.FixtureRequest, mqtt: MqttBroker, kafka: str, topic_prefix: str, tmp_path: Path
) -> Iterator[BridgeProcess]:
    """Not started yet; the limit of its topics is the fixture's parameter."""
    create_topics(kafka, topic_prefix, max_message_bytes=getattr(request, "param", TOPIC_LIMIT))
    process = BridgeProcess(kafka, topic_prefix, mqtt.port, tmp_path, {"FILTERS": '["#"]'})
    yield process
    process.end()


@pytest.fixture
def device(mqtt: MqttBroker) -> Iterator[Publisher]:
    publisher = Publisher(mqtt.port)
    yield publisher
    publisher.close()


def wait_acknowledged(bridge: BridgeProcess, count: int) -> dict[str, float]:
    until(lambda: bridge.metrics()["acknowledged_total"] >= count, f"{count} acknowledged, see {bridge.log}", 120)
    counts = bridge.metrics()
    assert counts["received_total"] == counts["acknowledged_total"] + counts["in_flight"] == count
    assert counts["connection_losses_total"] == 0
    return counts


def letters(bridge: BridgeProcess) -> list[dict[str, object]]:
    return [json.loads(record.value) for record in read_topic(bridge.kafka, bridge.prefix + "dead-letter")]


@pytest.mark.parametrize("bridge", [SMALL_TOPIC_LIMIT], indirect=True)
def test_1000_bad_messages_among_good_ones(bridge: BridgeProcess, device: Publisher) -> None:
    """Bad is what no record can carry; here by size, by what mosquitto lets through."""
    bridge.start(MAX_IN_FLIGHT="100").wait_ready()
    bad = b"b" * (SMALL_TOPIC_LIMIT - RESERVE + 1)
    for number in range(1_000):
        device.publish("te/good", b"%d" % number)
        device.publish(f"te/bad/{number}", bad)
    device.confirm(120)
    counts = wait_acknowledged(bridge, 2_000)
    assert counts['dead_letters_total{reason="too_large"}'] == 1_000
    assert bridge.terminate() == 0
    assert [int(record.value) for record in read_topic(bridge.kafka, bridge.prefix + "raw")] == list(range(1_000))
    lost = Counter(str(letter["topic"]) for letter in letters(bridge))
    assert lost == Counter(f"te/bad/{number}" for number in range(1_000)), "each bad one once"


def test_payloads_around_the_limit(bridge: BridgeProcess, device: Publisher) -> None:
    bridge.start().wait_ready()
    sizes = [LIMIT - 1, LIMIT, LIMIT + 1, 10_000_000, 0, TOPIC_LIMIT]
    for size in sizes:
        device.publish(f"te/{size}", b"\x07" * size)
    device.confirm()
    counts = wait_acknowledged(bridge, len(sizes))
    assert counts['dead_letters_total{reason="too_large"}'] == 3
    assert bridge.terminate() == 0
    records = read_topic(bridge.kafka, bridge.prefix + "raw")
    assert sorted((record.topic, len(record.value)) for record in records) == sorted(
        (f"te/{size}", size) for size in (LIMIT - 1, LIMIT, 0)
    )
    lost = {str(letter["topic"]): letter for letter in letters(bridge)}
    assert set(lost) == {f"te/{LIMIT + 1}", "te/10000000", f"te/{TOPIC_LIMIT}"}
    for topic, letter in lost.items():
        assert letter["truncated"] is True
        assert str(letter["detail"]).startswith(f"payload of {topic[3:]} bytes")
        shown = str(letter.get("payload", letter.get("payload_base64")))
        assert len(shown) >= 64 * 1024


def test_topics_of_all_kinds(bridge: BridgeProcess, mqtt: MqttBroker) -> None:
    """mosquitto refuses some by closing the publisher's connection; whatever it lets through becomes a record."""
    bridge.start().wait_ready()
    topics = [
        b"te/" + b"t" * 65_000, b"x" * 65_535, b"te/\x01\x1f\x7f", b"te/a ", b" ", b"te/ / x ", b"//", b"te//", b"/",
        "te/\u00e9\u4e2d\U0001f600".encode(), b"te/\xff\xfe", b"te/\xed\xa0\x80", b"te/" + b"/" * 190, b"te/a\nb",
    ]  # fmt: skip
    taken = [topic for topic in topics if published(mqtt.port, topic, b"odd")]
    assert {b"te/a ", b" ", b"te/ / x ", b"//", b"te//", b"/", topics[9]} <= set(taken)
    published(mqtt.port, b"$SYS/broker/x", b"no")
    published(mqtt.port, b"$other/x", b"no")
    assert published(mqtt.port, b"te/last", b"last")
    until(lambda: b"last" in {r.value for r in read_topic(bridge.kafka, bridge.prefix + "raw")}, "the last is there")
    counts = bridge.metrics()
    assert counts["connection_losses_total"] == 0
    assert bridge.terminate() == 0
    records = read_topic(bridge.kafka, bridge.prefix + "raw")
    got = Counter(record.headers["topic"] for record in records if record.value == b"odd")
    refused = Counter(str(letter["topic"]) for letter in letters(bridge))
    readable = [topic for topic in taken if topic.decode(errors="replace").encode() == topic]
    fitting = [topic for topic in readable if 8 * len(topic) + 4096 + len(b"odd") <= TOPIC_LIMIT]
    assert len(readable) - len(fitting) == 2, "those of 64 KiB are too large for a topic of Kafka with this limit"
    assert got == Counter(fitting)
    assert refused.total() == len(taken) - len(fitting)
    assert not [record for record in records if record.value == b"no"], "$ topics are never taken"


def published(port: int, topic: bytes, payload: bytes) -> bool:
    """Publish by hand with QoS 1; whether the broker acknowledged it."""
    with socket.create_connection(("127.0.0.1", port), 10) as sock:
        sock.sendall(
            packets.connect("odd", v5=False, keep_alive_s=60, session_expiry_s=0, receive_maximum=10)
            + packets.publish(topic, payload, 1, retain=False, v5=False)
        )
        answer = b""
        try:
            while len(answer) < 8 and (more := sock.recv(64)):
                answer += more
        except ConnectionResetError:
            return False
        return answer[4:] == b"\x40\x02\x00\x01"


def test_shared_subscriptions_divide_the_messages(
    bridge: BridgeProcess, device: Publisher, mqtt: MqttBroker, kafka: str, tmp_path: Path
) -> None:
    shared = {"FILTERS": '["$share/g/te/#"]', "SHARED_SUBSCRIPTIONS": "true"}
    (tmp_path / "second").mkdir()
    second = BridgeProcess(kafka, bridge.prefix, mqtt.port, tmp_path / "second")
    try:
        bridge.start(CLIENT_ID="one", **shared).wait_ready()
        second.start(CLIENT_ID="two", **shared).wait_ready()
        for number in range(400):
            device.publish("te/x", b"%d" % number)
        device.confirm()

        def acknowledged() -> list[float]:
            return [one.metrics()["acknowledged_total"] for one in (bridge, second)]

        until(lambda: sum(acknowledged()) >= 400, "all are through")
        assert sum(acknowledged()) == 400, "each message goes to one"
        assert min(acknowledged()) > 0, "both have some"
        assert second.terminate() == 0
        assert bridge.terminate() == 0
    finally:
        second.end()
    values = [int(record.value) for record in read_topic(kafka, bridge.prefix + "raw")]
    assert sorted(values) == list(range(400))


def test_a_route_sends_to_another_existing_topic_and_a_pattern_finds_the_root(
    bridge: BridgeProcess, device: Publisher
) -> None:
    settings = {"ROUTES": '{"gateways/+/alarm/#": "outbound"}', "ROOT_PATTERN": "gateways/{root}/te/#"}
    bridge.start(**settings).wait_ready()
    device.publish("gateways/g1/te/x", b"1")
    device.publish("gateways/g1/alarm/x", b"2")
    device.confirm()
    wait_acknowledged(bridge, 2)
    assert bridge.terminate() == 0
    (one,) = read_topic(bridge.kafka, bridge.prefix + "raw")
    (two,) = read_topic(bridge.kafka, bridge.prefix + "outbound")
    assert (one.key, one.value, two.key, two.value) == (b"g1", b"1", b"gateways", b"2")
    bridge.start(ROUTES='{"a/#": "no-such-topic"}')
    until(lambda: "missing topics: " in bridge.log.read_text(), "it is said")
    assert "no-such-topic" in bridge.log.read_text()
    assert bridge.terminate() == 0
