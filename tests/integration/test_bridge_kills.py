"""kill -9 of the bridge, at random and at the worst moment: nothing lost, QoS 2 not repeated (bridge.md 7, row 1)."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest
from confluent_kafka import Producer

from headrace.mqtt import MqttBroker
from headrace_bridge.doubts import resolve
from headrace_bridge.ledger import Ledger, identity_of
from headrace_bridge.packets import Publish
from headrace_bridge.record import Refusal, Router
from tests.integration.test_bridge_network import mqtt, repeated_after_pubrel
from tests.support.bridge_process import BridgeProcess, create_topics, read_topic, until
from tests.support.mqtt_fixture import Publisher

__all__ = ["mqtt"]
pytestmark = pytest.mark.kafka

ROOTS = ("te", "gw1", "gw2")


@pytest.fixture
def bridge(mqtt: MqttBroker, kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[BridgeProcess]:
    create_topics(kafka, topic_prefix)
    filters = json.dumps({f"{root}/#": 2 for root in ROOTS})
    process = BridgeProcess(kafka, topic_prefix, mqtt.port, tmp_path, {"FILTERS": filters})
    yield process
    process.end()


class Flood:
    """Numbered messages over three roots."""

    def __init__(self, device: Publisher, qos: int) -> None:
        self._device, self._qos, self.count = device, qos, 0

    def __call__(self, messages: int) -> None:
        for _ in range(messages):
            self._device.publish(f"{ROOTS[self.count % 3]}/x", str(self.count).encode(), qos=self._qos)
            self.count += 1


def kill_at_random(bridge: BridgeProcess, flood: Flood, rounds: int, dice: random.Random) -> None:
    for _ in range(rounds):
        until_s = time.monotonic() + dice.uniform(0.05, 0.6)
        while time.monotonic() < until_s:
            flood(20)
            time.sleep(0.002)
        bridge.kill()
        flood(300)
        bridge.start()
        until(lambda: bridge.state().get("subscribed", False), f"subscribed, see {bridge.log}")


def check(bridge: BridgeProcess, count: int, extras_allowed: int | None) -> None:
    """All `count` numbers are in `raw`, in order by root; so many repeats at most."""

    def settled() -> bool:
        return len({record.value for record in read_topic(bridge.kafka, bridge.prefix + "raw")}) >= count

    until(settled, f"all {count} in raw, see {bridge.log}", 120)
    assert bridge.terminate() == 0
    records = read_topic(bridge.kafka, bridge.prefix + "raw")
    for place, root in enumerate(ROOTS):
        values = [int(record.value) for record in records if record.key == root.encode()]
        assert list(dict.fromkeys(values)) == list(range(place, count, 3))
    extras = {number: times - 1 for number, times in Counter(r.value for r in records).items() if times > 1}
    assert extras_allowed is None or sum(extras.values()) <= extras_allowed, f"repeated: {extras}"


@pytest.mark.parametrize("qos", [1, 2])
def test_kill_9_at_random(bridge: BridgeProcess, mqtt: MqttBroker, qos: int) -> None:
    kills_lose_nothing(bridge, mqtt, qos, 3)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("qos", [1, 2])
def test_kill_9_at_random_20_times(bridge: BridgeProcess, mqtt: MqttBroker, qos: int) -> None:
    kills_lose_nothing(bridge, mqtt, qos, 20)


def kills_lose_nothing(bridge: BridgeProcess, mqtt: MqttBroker, qos: int, rounds: int) -> None:
    bridge.start().wait_ready()
    device = Publisher(mqtt.port)
    flood = Flood(device, qos)
    kill_at_random(bridge, flood, rounds, random.Random(7 + qos))
    device.confirm()
    check(bridge, flood.count, rounds + repeated_after_pubrel(mqtt) if qos == 2 else None)
    device.close()


def test_kafka_itself_tells_what_became_of_messages_in_doubt(kafka: str, topic_prefix: str, tmp_path: Path) -> None:
    create_topics(kafka, topic_prefix)
    raw, letters = topic_prefix + "raw", topic_prefix + "dead-letter"
    router = Router(topic_prefix, {raw: 1_000_000, letters: 1_000_000})
    producer = Producer({"bootstrap.servers": kafka, "partitioner": "murmur2_random", "enable.idempotence": True})
    ledger = Ledger(tmp_path, "c")
    now = time.time_ns() // 1_000_000
    for packet_id in range(1, 13):
        topic = b"%s/x" % ROOTS[packet_id % 3].encode()
        message = Publish(topic, b"same", 2, retain=False, dup=False, packet_id=packet_id)
        ledger.begin(packet_id, identity_of(topic, b"same"), now + packet_id // 4, raw)
        if packet_id in (3, 4, 5, 10):
            record = router.record(message, now + packet_id // 4)
        elif packet_id == 11:
            record = router.dead_letter(message, Refusal("invalid_record", "x"), now + 2)
        else:
            record = router.record(message, now - 1000)  # the same content at another time is another message
        producer.produce(record.topic, record.value, record.key, headers=record.headers)
    assert producer.flush(240) == 0
    resolve(Ledger(tmp_path, "other"), {"bootstrap.servers": kafka}, letters, Event())
    again = Ledger(tmp_path, "c")
    resolve(again, {"bootstrap.servers": kafka}, letters, Event())
    assert sorted(again.kept) == [3, 4, 5, 8, 10]  # 8 and 11 are twins
    assert again.in_doubt == {}
    assert sorted(Ledger(tmp_path, "c").kept) == [3, 4, 5, 8, 10]
