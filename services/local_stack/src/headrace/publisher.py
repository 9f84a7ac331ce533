"""The demo's publisher, also a command: `headrace publish --mqtt host:port --seconds N`.

Everything goes out with QoS 1. *Published* means: the broker has acknowledged it (PUBACK). What was handed over and
when is remembered, so that the accounting can look for each message in Kafka, by topic and payload.
"""

from __future__ import annotations

import hashlib
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Annotated, Any

import paho.mqtt.client as paho
import typer
from paho.mqtt.enums import CallbackAPIVersion

from headrace import sensors
from headrace.schedule import Moment, Schedule
from headrace.telemetry import Gateway, Message
from headrace_core.errors import HeadraceError

IN_FLIGHT = 20  # mosquitto's Receive Maximum; paho does not keep to the broker's by itself
CONNECT_S = 30
ACKNOWLEDGE_S = 30
SHORTEST_STEP_S = 0.2
RATE = 40.0


class NoBroker(HeadraceError):
    """The MQTT broker does not answer, or does not let us in."""

    code = "no_broker"
    retry = True


class Client:
    """A connection to the broker that knows what it handed over. `protocol` is "5" or "3.1.1"."""

    def __init__(self, host: str, port: int, protocol: str = "5") -> None:
        version = paho.MQTTv5 if protocol == "5" else paho.MQTTv311
        self._client = paho.Client(CallbackAPIVersion.VERSION2, protocol=version)
        self._client.max_inflight_messages_set(IN_FLIGHT)
        self._client.max_queued_messages_set(0)
        self._client.on_publish = self._acknowledged
        self._client.on_connect = self._connected
        self._ready = threading.Event()
        self._refused = ""
        self._place = (host, port)
        self.sent = 0
        self.acknowledged = 0
        self.messages: Counter[bytes] = Counter()
        self.published_ms: dict[tuple[str, int], int] = {}

    def connect(self, within_s: float = CONNECT_S) -> Client:
        """Connect, trying again for `within_s`. Raises NoBroker."""
        deadline = time.monotonic() + within_s
        while True:
            try:
                self._client.connect(*self._place)
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise NoBroker(f"{self._place[0]}:{self._place[1]}: {error}") from error
                time.sleep(0.5)
        self._client.loop_start()
        if not self._ready.wait(max(1.0, deadline - time.monotonic())):
            self.close()
            raise NoBroker(f"{self._place[0]}:{self._place[1]}: {self._refused or 'no answer'}")
        return self

    def publish(self, message: Message) -> None:
        """Hand over one message; returns at once."""
        self.messages[digest(message.topic, message.payload)] += 1
        self.sent += 1
        if message.event_ms is not None and not message.held:
            self.published_ms.setdefault((message.topic, message.event_ms), time.time_ns() // 1_000_000)
        self._client.publish(message.topic, message.payload, qos=1, retain=message.retain)

    def wait(self, within_s: float = ACKNOWLEDGE_S, turn: Callable[[], None] = lambda: None) -> int:
        """Wait until all is acknowledged; returns how many are not. `turn` is called again and again."""
        deadline = time.monotonic() + within_s
        while self.acknowledged < self.sent and time.monotonic() < deadline:
            turn()
            time.sleep(0.02)
        return self.sent - self.acknowledged

    def close(self) -> None:
        """Disconnect."""
        self._client.disconnect()
        self._client.loop_stop()

    def _acknowledged(self, _client: Any, _data: Any, _id: int, reason: Any, _properties: Any) -> None:
        if not reason.is_failure:  # MQTT 5: the broker may answer that it did not take the message
            self.acknowledged += 1  # only paho's own thread calls this

    def _connected(self, _client: Any, _data: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        if reason.is_failure:
            self._refused = str(reason)
        else:
            self._ready.set()


def digest(topic: str, payload: bytes) -> bytes:
    """What a message is recognised by."""
    return hashlib.blake2b(topic.encode() + b"\0" + payload, digest_size=12).digest()


def new_run() -> str:
    """A topic segment that no run before had."""
    return f"{time.time_ns() // 1_000_000:x}"


def run(client: Client, seconds: float, *, rate: float = RATE, turn: Callable[[], None] = lambda: None) -> None:
    """Publish this computer's telemetry for `seconds`, at about `rate` messages per second beside the burst. `turn`
    is called between two messages or more often; what it raises ends the run."""
    schedule = Schedule(Gateway(new_run()), sensors.facts())
    sensors.read()  # the first processor shares are since boot
    began = time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        messages = schedule.step(passed / seconds, _moment())
        _publish(client, messages)
        _pause(began, min(seconds, passed + max(SHORTEST_STEP_S, _usual(messages) / rate)), turn)
    _publish(client, schedule.rest(_moment()))


def _usual(messages: list[Message]) -> int:
    return sum(not message.why for message in messages if "/recorder/" not in message.topic)


def _moment() -> Moment:
    return Moment(sensors.read(), sensors.own_process(), time.time_ns() // 1_000_000)


def _publish(client: Client, messages: list[Message]) -> None:
    for message in messages:
        client.publish(message)


def _pause(began: float, until_s: float, turn: Callable[[], None]) -> None:
    turn()
    while (left := began + until_s - time.monotonic()) > 0:
        time.sleep(min(left, 0.1))
        turn()


def publish(
    mqtt: Annotated[str, typer.Option(help="host:port of the MQTT broker")] = "127.0.0.1:1883",
    seconds: Annotated[float, typer.Option(min=1, help="how long")] = 30,
    rate: Annotated[float, typer.Option(min=1, help="messages per second, beside one burst")] = RATE,
    protocol: Annotated[str, typer.Option(help="MQTT version: 5 or 3.1.1")] = "5",
    patience: Annotated[float, typer.Option(min=0, help="seconds in which the broker must answer")] = CONNECT_S,
) -> None:
    """Publish this computer's telemetry, some of it early, late, twice, out of order. Exit 0 only if the broker
    acknowledged all of it."""
    host, _, port = mqtt.rpartition(":")
    if not host or not port.isdigit() or protocol not in ("5", "3.1.1"):
        raise typer.BadParameter("--mqtt is host:port, --protocol is 5 or 3.1.1")
    client = Client(host, int(port), protocol)
    shown = [time.monotonic()]

    def turn() -> None:
        if time.monotonic() - shown[0] >= 5:
            shown[0] = time.monotonic()
            print(f"published {client.acknowledged} of {client.sent}", file=sys.stderr, flush=True)

    client.connect(patience)
    try:
        run(client, seconds, rate=rate, turn=turn)
        missing = client.wait()
    finally:
        client.close()
    print(f"published {client.acknowledged} messages, {missing} without acknowledgement", flush=True)
    if missing:
        raise typer.Exit(1)
