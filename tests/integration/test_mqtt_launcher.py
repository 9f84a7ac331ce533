"""The launcher's MQTT broker is a real one; mosquitto keeps what it had over a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.mqtt import MqttBroker, MqttNotReady, NoMqttBroker, mosquitto
from tests.support.bridge_process import BridgeProcess, create_topics, read_topic, until
from tests.support.mqtt_fixture import Publisher, Subscriber

needs_mosquitto = pytest.mark.skipif(mosquitto() is None, reason="mosquitto is not installed")


@needs_mosquitto
def test_retained_messages_survive_a_stop(tmp_path: Path) -> None:
    broker = MqttBroker(tmp_path / "mqtt", use="mosquitto").start()
    try:
        assert broker.protocol == "5"
        device = Publisher(broker.port)
        device.publish("te/a", b"1", retain=True)
        device.confirm()
        device.close()
        broker.stop()
        broker.start()
        reader = Subscriber(broker.port, "te/#")
        until(lambda: reader.got == [("te/a", b"1", True)], "the retained message", 20)
        reader.close()
    finally:
        broker.kill()


@needs_mosquitto
def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    broker = MqttBroker(tmp_path / "mqtt", options=("no_such_option 1",), use="mosquitto")
    with pytest.raises(MqttNotReady, match="no_such_option"):
        broker.start()


def test_no_broker_is_said_with_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("headrace.mqtt.mosquitto", lambda: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(NoMqttBroker, match="mosquitto"):
        MqttBroker(tmp_path)


@pytest.mark.kafka
def test_the_bridge_runs_with_amqtt_where_mosquitto_is_missing(kafka: str, topic_prefix: str, tmp_path: Path) -> None:
    broker = MqttBroker(tmp_path / "mqtt", use="amqtt").start()
    create_topics(kafka, topic_prefix)
    bridge = BridgeProcess(kafka, topic_prefix, broker.port, tmp_path, {"MQTT_VERSION": broker.protocol})
    try:
        bridge.start().wait_ready()
        device = Publisher(broker.port, v5=False)
        for number in range(50):
            device.publish("te/a", str(number).encode())
        device.confirm()
        until(lambda: bridge.metrics()["acknowledged_total"] == 50, f"50 acknowledged, see {bridge.log}", 30)
        device.close()
        assert bridge.terminate() == 0
        assert [record.value for record in read_topic(kafka, topic_prefix + "raw")] == [b"%d" % n for n in range(50)]
    finally:
        bridge.end()
        broker.kill()
