"""An outbound record that a real mosquitto will not take is a dead letter, and the next one goes on (bridge.md 4)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from headrace.mqtt import MqttBroker, mosquitto
from tests.support.bridge_process import BridgeProcess, create_topics, read_topic, until
from tests.support.mqtt_fixture import Subscriber

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]
LARGEST = 2_000


def test_a_topic_that_cannot_take_dead_letters_ends_the_start(kafka: str, topic_prefix: str, tmp_path: Path) -> None:
    create_topics(kafka, topic_prefix, letters=70_000)
    bridge = BridgeProcess(kafka, topic_prefix, 1, tmp_path).start()
    try:
        assert bridge.running.wait(300) == 2
    finally:
        bridge.end()
    last = json.loads(bridge.log.read_text().splitlines()[-1])
    assert (last["event"], f"{topic_prefix}dead-letter: max.message.bytes" in last["error"]) == ("wrong setting", True)


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[MqttBroker]:
    """mosquitto that takes no larger packet: it tells MQTT 5 clients so, and closes the connection of others."""
    if mosquitto() is None:
        pytest.skip("mosquitto is not installed (apt-get install mosquitto)")
    broker = MqttBroker(tmp_path / "mqtt", use="mosquitto", options=(f"max_packet_size {LARGEST}",)).start()
    yield broker
    broker.kill()


@pytest.mark.parametrize(("version", "reason", "losses"), [("3.1.1", "outbound_refused", 3), ("5", "too_large", 0)])
def test_a_packet_that_is_too_large(
    narrow: MqttBroker, kafka: str, topic_prefix: str, tmp_path: Path, version: str, reason: str, losses: int
) -> None:
    create_topics(kafka, topic_prefix)
    settings = {"OUTBOUND": "true", "MQTT_VERSION": version, "FILTERS": '["nothing/#"]'}
    bridge = BridgeProcess(kafka, topic_prefix, narrow.port, tmp_path, settings)
    reader = Subscriber(narrow.port, "te/#")
    producer = Producer({"bootstrap.servers": kafka, "enable.idempotence": True})
    for number in range(50):
        producer.produce(topic_prefix + "outbound", b"%d" % number, "te/a", 0)
        if number == 20:
            producer.produce(topic_prefix + "outbound", b"x" * LARGEST, "te/a", 0)
    assert producer.flush(240) == 0
    try:
        bridge.start()
        until(lambda: {b"%d" % number for number in range(50)} <= {value for _, value, _ in reader.got}, "all others")
        until(lambda: bridge.metrics().get(f'dead_letters_total{{reason="{reason}"}}') == 1, f"one, see {bridge.log}")
        until(lambda: bridge.metrics()["publish_in_flight"] == 0, "nothing is left")
        assert losses <= bridge.metrics()["connection_losses_total"] <= 10 * losses
        assert bridge.terminate() == 0
    finally:
        bridge.end()
        reader.close()
    (letter,) = [json.loads(record.value) for record in read_topic(kafka, topic_prefix + "dead-letter")]
    assert (letter["reason"], letter["payload"]) == (reason, "x" * LARGEST)
