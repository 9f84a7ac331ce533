"""A real MQTT broker for a test, and a publisher that knows what the broker has taken."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.properties import Properties

from headrace.mqtt import MqttBroker, mosquitto
from tests.support.patience import PATIENCE


@pytest.fixture
def mqtt(tmp_path: Path) -> Iterator[MqttBroker]:
    """mosquitto, one for each test: sessions and queues of tests do not meet."""
    if mosquitto() is None:
        pytest.skip("mosquitto is not installed (apt-get install mosquitto)")
    broker = MqttBroker(tmp_path / "mqtt", use="mosquitto").start()
    yield broker
    broker.kill()


class Publisher:
    """paho as a device. `publish` hands over, `confirm` waits until the broker has acknowledged everything.

    `window` is what the broker takes at once: paho does not keep the broker's Receive Maximum by itself, and mosquitto
    then drops QoS 2 messages without a word.
    """

    def __init__(self, port: int, window: int = 20, *, v5: bool = True) -> None:
        self._client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5 if v5 else paho.MQTTv311)
        self._client.max_inflight_messages_set(window)
        self._client.max_queued_messages_set(0)
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        self._open: list[paho.MQTTMessageInfo] = []

    def publish(
        self, topic: str, payload: bytes = b"", *, qos: int = 1, retain: bool = False,
        properties: Properties | None = None,
    ) -> None:  # fmt: skip
        self._open.append(self._client.publish(topic, payload, qos, retain, properties))

    def confirm(self, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds * PATIENCE
        for info in self._open:
            info.wait_for_publish(max(0.1, deadline - time.monotonic()))
            assert info.is_published()
        self._open.clear()

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


class Subscriber:
    """paho as a reader of everything under a filter; `got` is (topic, payload, retain) in order."""

    def __init__(self, port: int, filter_: str) -> None:
        self.got: list[tuple[str, bytes, bool]] = []
        subscribed = threading.Event()
        self._client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        self._client.on_message = lambda _c, _u, m: self.got.append((m.topic, m.payload, m.retain))
        self._client.on_subscribe = lambda *_: subscribed.set()
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        self._client.subscribe(filter_, qos=1)
        assert subscribed.wait(10 * PATIENCE)

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()
