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
def version() -> str:
    """Of MQTT, between bridge and broker."""
    return "5"


@pytest.fixture
def api(kafka: str, topic_prefix: str, mqtt: MqttBroker, tmp_path: Path, version: str) -> Iterator[StatusApi]:
    """The API of a whole that runs: bridge, stream processor, API."""
    worker = StreamsWorker(kafka, topic_prefix, tmp_path / "streams", tmp_path / "streams.log", stages="registration")
    bridge = BridgeProcess(kafka, topic_prefix, mqtt.port, tmp_path, {"OUTBOUND": "true", "MQTT_VERSION": version})
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


@pytest.mark.parametrize(("version", "in_all"), [("5", 4), ("3.1.1", 4 + 7)])
def test_http_registrations_and_removals_are_retained_and_cleared_at_the_broker(
    api: StatusApi, mqtt: MqttBroker, version: str, in_all: int
) -> None:
    """With 3.1.1 what the bridge publishes comes back, each clear once, and no retain flag of what devices publish."""
    seen = 3 if version == "5" else 5
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
    until(lambda: api.ask("/v1/status").body["counters"]["registration"]["in"] >= seen, "messages, echoes")
    assert api.ask(f"{ENTITIES}/device/press", "PATCH", {"@health": "device/press/service/monitor"}).status == 200
    health = shown | {"@health": "device/press/service/monitor"}
    until(lambda: retained(mqtt).get(PRESS) == health, "the new health service at the broker")
    assert f"{PRESS}/m/load" in retained(mqtt)
    assert api.ask(f"{ENTITIES}/device/press///twin/os", "PUT", None).status == 204
    until(lambda: f"{PRESS}/twin/os" not in retained(mqtt), "no twin value")

    removed = api.ask(f"{ENTITIES}/device/press", "DELETE")
    assert [one["@topic-id"] for one in removed.body] == ["device/press//", "device/press/service/monitor"]
    left = {} if version == "5" else {f"{PRESS}/m/load": {"percent": 71}}  # nobody could know that it is retained
    until(lambda: retained(mqtt) == left, "nothing retained")
    device.publish("te/device/sign//", b'{"@type": "child-device"}')
    device.confirm()
    until(lambda: api.ask(f"{ENTITIES}/device/sign").status == 200, "all echoes are processed")
    device.close()
    assert api.ask(f"{ENTITIES}/device/press").status == 404
    assert api.ask("/te/v1/registrations/device/press").body["state"] == "removed"
    status = api.ask("/v1/status").body
    assert status["roots"]["te"]["dropped"].keys() <= {"clear_of_unknown"}  # echoes of the clears
    assert status["counters"]["registration"]["in"] == in_all


def kept_type(mqtt: MqttBroker) -> object:
    """What the broker's retained registration says; None without one."""
    kept = retained(mqtt).get(PRESS)
    return kept.get("@type") if isinstance(kept, dict) else None


def test_an_entity_that_is_removed_and_made_anew_at_once_stays(api: StatusApi, mqtt: MqttBroker) -> None:
    """If the bridge got back what it publishes, the late echo of the removal would remove the new one."""
    for kind in ("child-device", "service", "child-device"):
        assert api.ask(ENTITIES, "POST", {"@topic-id": "device/press", "@type": kind}).status == 201
        if kind == "service":
            until(lambda: kept_type(mqtt) == "service", "published")
        assert api.ask(f"{ENTITIES}/device/press", "DELETE").status == 200
    assert api.ask(ENTITIES, "POST", {"@topic-id": "device/press", "@type": "service"}).status == 201
    until(lambda: kept_type(mqtt) == "service", "the last one is published")
    device = Publisher(mqtt.port)
    for sign in ("one", "two"):  # each has all before it behind it, at the broker and in the log
        device.publish(f"te/device/{sign}//", b'{"@type": "child-device"}')
        device.confirm()
        until(lambda sign=sign: api.ask(f"{ENTITIES}/device/{sign}").status == 200, "what came before")  # type: ignore[misc]
    device.close()
    assert api.ask(f"{ENTITIES}/device/press").body["@type"] == "service"
    assert kept_type(mqtt) == "service"
