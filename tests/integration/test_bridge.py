"""Between a real mosquitto and a real Kafka nothing is lost, and the order of a root is kept (bridge.md 7)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from headrace.kafka import KafkaServer
from headrace.mqtt import MqttBroker
from tests.support.bridge_process import BridgeProcess, In, create_topics, read_topic, until
from tests.support.mqtt_fixture import Publisher, Subscriber, mqtt

__all__ = ["mqtt"]
pytestmark = pytest.mark.kafka

ROOTS = ("te", "gw1", "gw2")
ALL = {"FILTERS": '["te/#", "gw1/#", "gw2/#"]'}


@pytest.fixture
def bridge(mqtt: MqttBroker, kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[BridgeProcess]:
    """A bridge that is not started yet; its topics are there."""
    create_topics(kafka, topic_prefix)
    process = BridgeProcess(kafka, topic_prefix, mqtt.port, tmp_path, dict(ALL))
    yield process
    process.end()


@pytest.fixture
def device(mqtt: MqttBroker) -> Iterator[Publisher]:
    publisher = Publisher(mqtt.port)
    yield publisher
    publisher.close()


def raw(bridge: BridgeProcess) -> list[In]:
    return read_topic(bridge.kafka, bridge.prefix + "raw")


def letters(bridge: BridgeProcess) -> list[dict[str, object]]:
    return [json.loads(record.value) for record in read_topic(bridge.kafka, bridge.prefix + "dead-letter")]


def wait_acknowledged(bridge: BridgeProcess, count: int, seconds: float = 60) -> dict[str, float]:
    until(lambda: bridge.metrics()["acknowledged_total"] >= count, f"{count} acknowledged, see {bridge.log}", seconds)
    return bridge.metrics()


def numbers(records: list[In], root: str) -> list[int]:
    """Payload numbers of a root as they stand in its partition."""
    assert len({record.partition for record in records if record.key == root.encode()}) <= 1
    return [int(record.value) for record in records if record.key == root.encode()]


def first_times(values: list[int]) -> list[int]:
    return list(dict.fromkeys(values))


def test_messages_arrive_with_headers_and_in_order(bridge: BridgeProcess, device: Publisher) -> None:
    bridge.start().wait_ready()
    properties = Properties(PacketTypes.PUBLISH)
    properties.ContentType = "application/json"
    properties.ResponseTopic = "te/answer"
    properties.CorrelationData = b"\x01\xff"
    properties.UserProperty = [("a b", "c"), ("traceparent", "00-1-2-01")]
    device.publish("te/device/main///m/a", b"\x00\xff", retain=True, properties=properties)
    for number in range(600):
        device.publish(f"{ROOTS[number % 3]}/x", str(number).encode())
    device.publish("other/x", b"not subscribed")
    device.publish("te/z", b"zero", qos=0)
    device.confirm()
    counts = wait_acknowledged(bridge, 602)
    assert counts["received_total"] == counts["acknowledged_total"] + counts["in_flight"] == 602
    assert counts['publishes_total{qos="0"}'] == 1
    assert bridge.terminate() == 0
    records = raw(bridge)
    (first,) = [record for record in records if record.value == b"\x00\xff"]
    received = int(first.headers.pop("received"))
    assert abs(received - time.time() * 1000) < 60_000
    assert first.key == b"te"
    assert first.headers == {
        "topic": b"te/device/main///m/a", "qos": b"1", "retain": b"1", "dup": b"0",
        "content-type": b"application/json", "response-topic": b"te/answer", "correlation-data": b"\x01\xff",
        "mqtt-a b": b"c", "traceparent": b"00-1-2-01",
    }  # fmt: skip
    counted = [record for record in records if record.topic.endswith("/x")]
    for place, root in enumerate(ROOTS):
        assert numbers(counted, root) == list(range(place, 600, 3))
    assert len(records) == 602


@pytest.mark.parametrize("how", [pytest.param("paused", marks=[pytest.mark.soak, pytest.mark.timeout(1800)]), "killed"])
def test_kafka_away_loses_nothing_and_stays_connected(mqtt: MqttBroker, tmp_path: Path, how: str) -> None:
    server = KafkaServer(tmp_path / "kafka", heap="384m").start()
    device = Publisher(mqtt.port)
    bridge = BridgeProcess(server.bootstrap, "p.", mqtt.port, tmp_path, {**ALL, "KEEP_ALIVE_S": "5"})
    try:
        create_topics(server.bootstrap, "p.")
        bridge.start(MAX_IN_FLIGHT="200").wait_ready()
        for number in range(100):
            device.publish("te/x", str(number).encode())
        device.confirm()
        wait_acknowledged(bridge, 100)
        assert server.process is not None
        if how == "paused":
            server.process.send_signal(19)
        else:
            server.kill()
        for number in range(100, 10_000):
            device.publish("te/x", str(number).encode())
        device.confirm()
        until(lambda: bridge.metrics()["in_flight"] >= 200, "the window is full")
        end = time.monotonic() + 9  # longer than the broker waits for a PINGREQ, which is keep-alive x 1.5
        while time.monotonic() < end:
            counts = bridge.metrics()
            assert counts["received_total"] == counts["acknowledged_total"] + counts["in_flight"]
            assert counts["in_flight"] <= 200
            time.sleep(0.2)
        if how == "paused":
            assert server.process is not None
            server.process.send_signal(18)
        else:
            server.start()
        counts = wait_acknowledged(bridge, 10_000, 90)
        assert counts["connection_losses_total"] == 0
        assert counts["received_total"] == 10_000
        assert bridge.terminate() == 0
        assert first_times(numbers(raw(bridge), "te")) == list(range(10_000))
    finally:
        bridge.end()
        device.close()
        server.kill()


def test_bad_messages_stop_nobody(bridge: BridgeProcess, device: Publisher) -> None:
    limit = 1_000_000 - 64 * 1024
    odd = ["te//", "te/ ", "te/ x /", "/te", "te/\u00e9\u4e2d", "te/" + "l" * 65_000, "te/" + "/" * 190]
    bridge.start(FILTERS='["#"]').wait_ready()
    good = 0
    for turn in range(50):
        device.publish("te/good", str(good).encode())
        good += 1
        if turn < len(odd):
            device.publish(odd[turn], b"odd")
        if turn % 10 == 0:
            device.publish("te/big", b"a" * limit)
            device.publish("te/big", bytes([turn]) * (limit + 1))
        device.publish("te/empty", b"")
        device.publish("te/broken", b'{"a": \xff')
    device.publish("te/huge", b"\xff" * 10_000_000)
    device.publish("te/good", str(good).encode())
    device.confirm()
    expected = 51 + len(odd) + 5 + 6 + 50 + 50
    counts = wait_acknowledged(bridge, expected, 90)
    assert counts['dead_letters_total{reason="too_large"}'] == 6
    assert counts["connection_losses_total"] == 0
    assert bridge.terminate() == 0
    records = raw(bridge)
    assert numbers([record for record in records if record.topic == "te/good"], "te") == list(range(51))
    assert sorted(record.topic for record in records if record.value == b"odd") == sorted(odd)
    assert sum(record.value == b"" for record in records) == 50
    assert sum(record.value == b'{"a": \xff' for record in records) == 50
    assert [len(record.value) for record in records if record.topic == "te/big"] == [limit] * 5
    lost = letters(bridge)
    assert len(lost) == 6
    assert all(letter["truncated"] and letter["reason"] == "too_large" for letter in lost)
    (huge,) = [letter for letter in lost if letter["topic"] == "te/huge"]
    assert huge["detail"] == f"payload of 10000000 bytes, at most {limit}"
    assert len(str(huge["payload_base64"])) == (64 * 1024 + 2) // 3 * 4


def test_the_mqtt_broker_may_restart(bridge: BridgeProcess, mqtt: MqttBroker) -> None:
    bridge.start().wait_ready()
    for round_ in range(3):
        device = Publisher(mqtt.port)
        for number in range(100):
            device.publish("te/x", str(100 * round_ + number).encode())
        device.confirm()
        wait_acknowledged(bridge, 100 * (round_ + 1))
        device.close()
        if round_ == 1:
            mqtt.kill()
            for state in Path(mqtt.log_file).parent.glob("*.db"):
                state.unlink()
        else:
            mqtt.stop()
        until(lambda: not bridge.state()["mqtt"], "the bridge has seen it")
        mqtt.start()
        bridge.wait_ready()
    assert bridge.terminate() == 0
    assert first_times(numbers(raw(bridge), "te")) == list(range(300))


def test_filters_may_change_between_starts(bridge: BridgeProcess, device: Publisher) -> None:
    bridge.start(FILTERS='["te/#", "gw1/#"]').wait_ready()
    assert bridge.terminate() == 0
    bridge.start(FILTERS='["te/#", "gw2/#"]').wait_ready()
    until(lambda: "gw1/#" not in (next((bridge.directory / "state").iterdir())).read_text(), "gw1 is unsubscribed")
    for root in ROOTS:
        device.publish(f"{root}/x", b"1")
    device.publish("te/last", b"2")
    device.confirm()
    wait_acknowledged(bridge, 3)
    assert bridge.terminate() == 0
    assert {record.topic for record in raw(bridge)} == {"te/x", "gw2/x", "te/last"}


def test_what_is_published_while_the_bridge_is_stopped_is_waiting(bridge: BridgeProcess, device: Publisher) -> None:
    bridge.start().wait_ready()
    assert bridge.terminate() == 0
    for number in range(5_000):
        device.publish("te/x", str(number).encode())
    device.confirm()
    bridge.start().wait_ready()
    wait_acknowledged(bridge, 5_000)
    assert bridge.terminate() == 0
    assert numbers(raw(bridge), "te") == list(range(5_000))


def test_mqtt_3_1_1_works_as_well(bridge: BridgeProcess, device: Publisher) -> None:
    bridge.settings["MQTT_VERSION"] = "3.1.1"
    bridge.start().wait_ready()
    bridge.kill()
    for number in range(100):
        device.publish("te/x", str(number).encode())
    device.confirm()
    bridge.start().wait_ready()
    wait_acknowledged(bridge, 100)
    assert bridge.terminate() == 0
    assert numbers(raw(bridge), "te") == list(range(100))


def test_outbound_is_published_retained_and_in_order(bridge: BridgeProcess, mqtt: MqttBroker) -> None:
    settings = {"partitioner": "murmur2_random", "enable.idempotence": True}  # without it, retries change the order
    producer = Producer({"bootstrap.servers": bridge.kafka, **settings})
    topic = bridge.prefix + "outbound"
    reader = Subscriber(mqtt.port, "te/#")
    bridge.start(OUTBOUND="true", FILTERS='["nothing/#"]')
    for number in range(1_000):
        producer.produce(topic, str(number).encode(), f"te/{number % 7}")
        if number == 400:
            producer.produce(topic, b"bad", "te/+/x")
            producer.flush(240)
            bridge.wait_ready()
            until(lambda: len(reader.got) >= 400, "the first are published")
            bridge.kill()
            bridge.start(OUTBOUND="true", FILTERS='["nothing/#"]')
    producer.produce(topic, b"", "te/0")
    assert producer.flush(240) == 0
    last_ones = {(f"te/{number % 7}", str(number).encode(), False) for number in range(993, 1_000)}
    last_ones.add(("te/0", b"", False))
    until(lambda: last_ones <= set(reader.got), f"all published, see {bridge.log}", 90)
    until(lambda: bridge.metrics()["publish_in_flight"] == 0, "all acknowledged")
    assert bridge.terminate() == 0
    for place in range(7):
        values = [int(value) for name, value, _ in reader.got if name == f"te/{place}" and value]
        assert first_times(values) == list(range(place, 1_000, 7))
    assert [letter["reason"] for letter in letters(bridge)][:1] == ["invalid_topic"]
    reader.close()
    late = Subscriber(mqtt.port, "te/#")
    until(lambda: len(late.got) >= 6, "retained messages come")
    last = {f"te/{place}": max(range(place, 1_000, 7)) for place in range(1, 7)}
    assert {name: int(value) for name, value, retain in late.got if retain} == last
    late.close()
    bridge.start(OUTBOUND="true", FILTERS='["nothing/#"]').wait_ready()
    time.sleep(1)
    assert bridge.metrics()["publish_sent_total"] == 0, "committed records are not published again"
    assert bridge.terminate() == 0


def test_a_wrong_setting_ends_the_start_with_its_name(bridge: BridgeProcess) -> None:
    bridge.start(FILTERS='["$SYS/#"]')
    assert bridge.running.wait(300) == 2
    last = json.loads(bridge.log.read_text().splitlines()[-1])
    assert "filters" in last["error"]
    assert "never taken" in last["error"]
