"""From HTTP to the MQTT broker and back: API, stream processor and bridge on a real Kafka and a real mosquitto."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.mqtt import MqttBroker
from tests.support.api_process import StatusApi
from tests.support.bridge_process import BridgeProcess
from tests.support.mqtt_fixture import Publisher, Subscriber, mqtt
from tests.support.streams_worker import StreamsWorker, until

__all__ = ["mqtt"]
pytestmark = [pytest.mark.kafka, pytest.mark.timeout(280)]

ENTITIES = "/te/v1/entities"
PRESS = "te/device/press//"


@pytest.fixture
def api(kafka: str, topic_prefix: str, mqtt: MqttBroker, tmp_path: Path) -> Iterator[StatusApi]:
    """The API of a whole that runs: bridge, stream processor, API."""
    worker = StreamsWorker(kafka, topic_prefix, tmp_path / "streams", tmp_path / "streams.log", stages="registration")
    bridge = BridgeProcess(kafka, topic_prefix, mqtt.port, tmp_path, {"OUTBOUND": "true"})
    one = StatusApi(kafka, topic_prefix, tmp_path / "api", tmp_path / "api.log")
    try:
        worker.start().wait_ready()
        bridge.start().wait_ready()
        one.start().wait_ready()
        yield one
        assert [one.terminate(), bridge.terminate(), worker.terminate()] == [0, 0, 0]
    finally:
        for process in (one, bridge, worker):
            process.end()


def retained(mqtt: MqttBroker) -> dict[str, object]:
    """What a new subscriber gets from the broker: retained messages by topic."""
    reader, sign = Subscriber(mqtt.port, "#"), Publisher(mqtt.port)
    sign.publish("sign", b"all is there")
    sign.confirm()
    until(lambda: any(topic == "sign" for topic, _, _ in reader.got), "the sign")
    reader.close()
    sign.close()
    return {topic: json.loads(payload) for topic, payload, kept in reader.got if kept}


def test_http_registrations_and_removals_are_retained_and_cleared_at_the_broker(
    api: StatusApi, mqtt: MqttBroker
) -> None:
    press = {"@type": "child-device", "name": "Press 7"}
    assert api.ask(ENTITIES, "POST", {"@topic-id": "device/press"} | press).status == 201
    assert api.ask(f"{ENTITIES}/device/press///twin/os", "PUT", {"v": 6}).status == 200
    shown = press | {"@id": "main-dev:device:press", "@parent": "device/main//"}
    until(lambda: retained(mqtt) == {PRESS: shown, f"{PRESS}/twin/os": {"v": 6}}, "the registration at the broker")

    device = Publisher(mqtt.port)
    device.publish("te/device/press/service/monitor", b'{"@type": "service"}', retain=True)
    device.publish("te/device/press/service/monitor/config", b'{"level": 1}', retain=True)
    device.publish(f"{PRESS}/m/load", b'{"percent": 71}', retain=True)
    device.confirm()
    monitor = f"{ENTITIES}/device/press/service/monitor"
    until(lambda: api.ask(f"{monitor}/config").body == {"level": 1}, "the service, over MQTT")
    until(lambda: api.ask("/v1/status").body["counters"]["registration"]["in"] >= 5, "echoes and messages")
    assert api.ask(f"{ENTITIES}/device/press", "PATCH", {"@health": "device/press/service/monitor"}).status == 200
    health = shown | {"@health": "device/press/service/monitor"}
    until(lambda: retained(mqtt).get(PRESS) == health, "the new health service at the broker")
    assert f"{PRESS}/m/load" in retained(mqtt)
    assert api.ask(f"{ENTITIES}/device/press///twin/os", "PUT", None).status == 204
    until(lambda: f"{PRESS}/twin/os" not in retained(mqtt), "no twin value")

    removed = api.ask(f"{ENTITIES}/device/press", "DELETE")
    assert [one["@topic-id"] for one in removed.body] == ["device/press//", "device/press/service/monitor"]
    until(lambda: retained(mqtt) == {}, "nothing retained")
    device.publish("te/device/sign//", b'{"@type": "child-device"}')
    device.confirm()
    until(lambda: api.ask(f"{ENTITIES}/device/sign").status == 200, "all echoes are processed")
    device.close()
    assert api.ask(f"{ENTITIES}/device/press").status == 404
    assert api.ask("/te/v1/registrations/device/press").body["state"] == "removed"
    assert api.ask("/v1/status").body["roots"]["te"]["dropped"].keys() <= {"clear_of_unknown"}  # echoes of the clears
