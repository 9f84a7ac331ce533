"""`python -m bench.bridge.peers floor|eager|paho MQTT_PORT KAFKA TOPIC COUNT_FILE`: what the bridge is compared with.

`floor` reads with the bridge's own decoder and acknowledges at once: no reader can do less. `eager` produces each
record besides, and acknowledges without waiting for Kafka: it would lose messages, but leaves Kafka the same work on
the same cores as the bridge does. `paho` is the plain way to the bridge's guarantee: paho-mqtt with manual
acknowledgement, confluent-kafka, PUBACK in order after Kafka's report. All write how many messages they have
acknowledged into COUNT_FILE, some times a second, and put a file with the suffix `.subscribed` beside it when the
broker has their session.
"""

from __future__ import annotations

import atexit
import signal
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import paho.mqtt.client as paho
from confluent_kafka import Producer
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from headrace_bridge import packets
from headrace_bridge.decoder import Decoder
from headrace_bridge.packets import PUBACK, Ack, Packet, Publish

RECEIVE_MAXIMUM, EXPIRY_S = 1000, 86_400
TELL_S = 0.1
Produce = Callable[[list[Packet]], None]


def client_id(name: str) -> str:
    """Of a candidate."""
    return f"bench-{name}"


class Counter:
    """Tells the count now and then."""

    def __init__(self, path: Path) -> None:
        self._path, self._told_at, self.count = path, 0.0, 0

    def subscribed(self) -> None:
        """The broker has the session."""
        self._path.with_suffix(".subscribed").touch()

    def tell(self) -> None:
        now = time.monotonic()
        if now - self._told_at >= TELL_S:
            self._told_at = now
            fresh = self._path.with_suffix(".new")
            fresh.write_text(str(self.count))
            fresh.replace(self._path)


def floor(port: int, counter: Counter, name: str, produce: Produce = lambda _: None) -> None:
    """Read and acknowledge."""
    sock = socket.create_connection(("127.0.0.1", port))
    hello = packets.connect(
        client_id(name), v5=True, keep_alive_s=600, session_expiry_s=EXPIRY_S, receive_maximum=RECEIVE_MAXIMUM
    )  # fmt: skip
    sock.sendall(hello + packets.subscribe(1, {"te/#": 1}, v5=True))
    decoder, space = Decoder(v5=True), memoryview(bytearray(512 * 1024))
    sock.settimeout(TELL_S)
    while True:
        try:
            got = sock.recv_into(space)
        except TimeoutError:
            counter.tell()
            continue
        decoder.feed(bytes(space[:got]))
        taken = decoder.take(1_000_000)
        if any(type(packet) is Ack for packet in taken):
            counter.subscribed()
        ids = [PUBACK << 28 | 2 << 16 | packet.packet_id for packet in taken if type(packet) is Publish]
        produce(taken)
        sock.sendall(struct.pack(f"!{len(ids)}I", *ids))
        counter.count += len(ids)
        counter.tell()
        if got < 64 * 1024:
            time.sleep(0.004)


def to_kafka(kafka: str, topic: str) -> Produce:
    """Produces messages with the bridge's headers, and hears of none what became of it; the rest goes out at exit."""
    producer = Producer(
        {"bootstrap.servers": kafka, "acks": "all", "enable.idempotence": True, "linger.ms": 5,
         "partitioner": "murmur2_random", "queue.buffering.max.messages": 1_000_000}
    )  # fmt: skip
    atexit.register(producer.flush, 20)

    def produce(taken: list[Packet]) -> None:
        received = ("received", b"%d" % (time.time_ns() // 1_000_000))
        for message in taken:
            if type(message) is Publish:
                headers = [("topic", message.topic), ("qos", b"1"), ("retain", b"0"), ("dup", b"0"), received]
                key = message.topic.partition(b"/")[0]
                producer.produce(topic, message.payload, key, -1, None, None, 0, headers)
        producer.poll(0)

    return produce


def paho_loop(port: int, kafka: str, topic: str, counter: Counter) -> None:
    """paho and confluent-kafka, acknowledged in order after Kafka."""
    producer = Producer(
        {"bootstrap.servers": kafka, "acks": "all", "enable.idempotence": True, "linger.ms": 3,
         "partitioner": "murmur2_random", "queue.buffering.max.messages": 1_000_000}
    )  # fmt: skip
    order: deque[list[object]] = deque()
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id("paho"), protocol=paho.MQTTv5, manual_ack=True)

    def on_message(_client: paho.Client, _data: object, message: paho.MQTTMessage) -> None:
        entry: list[object] = [message.mid, False]
        order.append(entry)
        headers = [
            ("topic", message.topic.encode()), ("qos", b"%d" % message.qos), ("retain", b"%d" % message.retain),
            ("dup", b"%d" % message.dup), ("received", b"%d" % (time.time_ns() // 1_000_000)),
        ]  # fmt: skip
        producer.produce(
            topic, message.payload, message.topic.partition("/")[0], headers=headers,
            on_delivery=lambda error, _: entry.__setitem__(1, error is None),
        )  # fmt: skip

    client.on_message = on_message
    client.on_subscribe = lambda *_: counter.subscribed()
    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.SessionExpiryInterval, properties.ReceiveMaximum = EXPIRY_S, RECEIVE_MAXIMUM
    client.connect("127.0.0.1", port, 600, clean_start=False, properties=properties)
    client.subscribe("te/#", 1)
    while True:
        client.loop(0.003)
        producer.poll(0)
        while order and order[0][1]:
            client.ack(int(str(order.popleft()[0])), 1)
            counter.count += 1
        counter.tell()


def main(which: str, port: str, kafka: str, topic: str, count_file: str) -> None:
    """Run until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    counter = Counter(Path(count_file))
    if which == "floor":
        floor(int(port), counter, which)
    elif which == "eager":
        floor(int(port), counter, which, to_kafka(kafka, topic))
    else:
        paho_loop(int(port), kafka, topic, counter)


if __name__ == "__main__":
    main(*sys.argv[1:])
