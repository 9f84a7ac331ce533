"""Traffic of a small fleet over MQTT, with everything that was acknowledged written down."""

from __future__ import annotations

import json
import random
import threading
import time
from dataclasses import dataclass, field

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from headrace.endpoints import Endpoints
from tests.support.patience import PATIENCE

Message = tuple[str, bytes]


def connect(endpoints: Endpoints) -> mqtt.Client:
    """A publisher. The window stays small: mosquitto swaps messages of a publisher that exceeds it."""
    version = mqtt.MQTTv5 if endpoints.mqtt_protocol == "5" else mqtt.MQTTv311
    client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=version)
    client.max_inflight_messages_set(20)
    client.connect(endpoints.mqtt_host, endpoints.mqtt_port)
    client.loop_start()
    return client


def publish(client: mqtt.Client, messages: list[Message], *, retain: bool = False) -> None:
    """Publish with QoS 1 and wait until the broker has all."""
    for sent in [client.publish(topic, payload, qos=1, retain=retain) for topic, payload in messages]:
        sent.wait_for_publish(30)
        assert sent.is_published()


@dataclass
class Fleet:
    """Devices that measure before they are registered; each value is published once. `rate` is messages a second."""

    endpoints: Endpoints
    devices: int = 12
    rate: float = 150
    acknowledged: list[Message] = field(default_factory=list)
    start_ms: int = field(default_factory=lambda: int(time.time() * 1000))
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _failed: BaseException | None = None

    def start(self) -> Fleet:
        self._thread = threading.Thread(target=self._guarded, daemon=True)
        self._thread.start()
        return self

    @property
    def running(self) -> bool:
        """Whether it publishes, and has met no error."""
        return self._thread is not None and self._thread.is_alive()

    def stop(self) -> None:
        """Stop after the last acknowledgement. Raises what went wrong while publishing."""
        self._stop.set()
        assert self._thread is not None
        self._thread.join(60 * PATIENCE)
        assert not self._thread.is_alive()
        if self._failed is not None:
            raise self._failed

    def _guarded(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self._failed = error

    def _run(self) -> None:
        client, dice, number = connect(self.endpoints), random.Random(3), 0
        while not self._stop.is_set():
            part: list[Message] = []
            for _ in range(15):
                part.append(self._message(number, dice))
                number += 1
            publish(client, part)
            self.acknowledged += part
            self._stop.wait(15 / self.rate)
        client.disconnect()
        client.loop_stop()

    def _message(self, number: int, dice: random.Random) -> Message:
        device = f"te/device/chaos{number % self.devices}//"
        if self.devices * 10 <= number < self.devices * 11:
            return device, json.dumps({"@type": "child-device", "model": "m1"}).encode()
        event_ms = self.start_ms + number * 6 - dice.choice((0, 0, 0, 403, 3002))  # never the same twice
        body = {"time": event_ms / 1000, "v": number, "deep": {"on": number % 2 == 0}, "note": "kept out"}
        return f"{device}/m/{dice.choice('abc')}", json.dumps(body).encode()
