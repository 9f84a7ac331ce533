"""Whatever a network does between mosquitto and the bridge, it recovers and nothing is lost (bridge.md 7).

mosquitto 2.0 itself sends a QoS 2 message twice if two connections in a row end while it repeats PUBREL: the second
time it takes messages whose PUBREL is still to be repeated for ones that were never received. The bridge has answered
that PUBREL, so it must take the packet id for a new message's. mosquitto's log tells how often that was.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.mqtt import MqttBroker
from tests.support.bridge_process import BridgeProcess, In, create_topics, read_topic, until
from tests.support.mqtt_fixture import Publisher
from tests.support.tcp_proxy import Proxy

pytestmark = pytest.mark.kafka
KEEP_ALIVE_S = 2
TOPICS = {1: "te/once", 2: "te/twice"}  # by QoS


SENT = re.compile(r"Sending (PUBREL|PUBLISH) to \S+ \((?:d(\d), q2, r\d, )?m(\d+)")


@pytest.fixture
def mqtt(tmp_path: Path) -> Iterator[MqttBroker]:
    """mosquitto that logs each packet."""
    broker = MqttBroker(tmp_path / "mqtt", use="mosquitto", options=("log_type debug",)).start()
    yield broker
    broker.kill()


@pytest.fixture
def proxy(mqtt: MqttBroker) -> Iterator[Proxy]:
    proxy = Proxy(mqtt.port)
    yield proxy
    proxy.close()


@pytest.fixture
def bridge(proxy: Proxy, kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[BridgeProcess]:
    create_topics(kafka, topic_prefix)
    settings = {"KEEP_ALIVE_S": str(KEEP_ALIVE_S), "FILTERS": json.dumps({"te/#": 2})}
    process = BridgeProcess(kafka, topic_prefix, proxy.port, tmp_path, settings)
    yield process
    process.end()


def cut(proxy: Proxy, _dice: random.Random) -> None:
    proxy.cut()


def half_open(proxy: Proxy, _dice: random.Random) -> None:
    proxy.half_open()


def reset_inside_a_packet(proxy: Proxy, dice: random.Random) -> None:
    proxy.reset_after(dice.randrange(1, 400))


FAULTS = {"cut": cut, "half open": half_open, "reset inside a packet": reset_inside_a_packet}


@pytest.mark.parametrize("fault", FAULTS)
def test_it_recovers_and_nothing_is_lost(bridge: BridgeProcess, proxy: Proxy, mqtt: MqttBroker, fault: str) -> None:
    faults_lose_nothing(bridge, proxy, mqtt, FAULTS[fault], 3)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("fault", FAULTS)
def test_it_recovers_20_times(bridge: BridgeProcess, proxy: Proxy, mqtt: MqttBroker, fault: str) -> None:
    faults_lose_nothing(bridge, proxy, mqtt, FAULTS[fault], 20)


def faults_lose_nothing(
    bridge: BridgeProcess, proxy: Proxy, mqtt: MqttBroker, fault: Callable[[Proxy, random.Random], None], rounds: int
) -> None:
    """Messages of both QoS in turns, over a network that fails while they are on their way."""
    dice = random.Random(rounds)
    bridge.start().wait_ready()
    device, count = Publisher(mqtt.port), 0
    for round_ in range(rounds):
        for _ in range(2):
            for _ in range(dice.randrange(50, 300)):
                for qos, topic in TOPICS.items():
                    device.publish(topic, b"%d" % count, qos=qos)
                count += 1
            if proxy.connections == round_ + 1:
                fault(proxy, dice)
        until(lambda round_=round_: proxy.connections > round_ + 1, f"opened anew, see {bridge.log}")  # type: ignore[misc]
        bridge.wait_ready()
    device.confirm()
    all_arrive(bridge, count, mqtt)
    device.close()


def repeated_after_pubrel(mqtt: MqttBroker) -> int:
    """How many QoS 2 messages mosquitto sent again although it had sent their PUBREL."""
    released, found = set[str](), 0
    for kind, dup, packet_id in SENT.findall(mqtt.log_file.read_text(errors="replace")):
        if kind == "PUBREL":
            released.add(packet_id)
        elif packet_id in released:
            found += dup == "1"
            released.discard(packet_id)
    return found


def all_arrive(bridge: BridgeProcess, count: int, mqtt: MqttBroker) -> None:
    """`count` messages of each QoS, in order; QoS 2 comes once as long as the bridge lives and mosquitto means it."""

    def there() -> bool:
        return len({(record.topic, record.value) for record in raw(bridge)}) >= 2 * count

    until(there, f"all {count} in raw, see {bridge.log}", 90)
    until(lambda: bridge.metrics()["in_flight"] == 0, "all is acknowledged")
    counts = bridge.metrics()
    assert counts["received_total"] == counts["acknowledged_total"] >= 2 * count
    assert bridge.terminate() == 0
    records = raw(bridge)
    for qos, topic in TOPICS.items():
        values = [int(record.value) for record in records if record.topic == topic]
        assert list(dict.fromkeys(values)) == list(range(count))
        assert qos == 1 or len(values) <= count + repeated_after_pubrel(mqtt), "QoS 2 was produced twice"


def raw(bridge: BridgeProcess) -> list[In]:
    return read_topic(bridge.kafka, bridge.prefix + "raw")


def test_one_byte_at_a_time_and_late(bridge: BridgeProcess, proxy: Proxy, mqtt: MqttBroker) -> None:
    proxy.step = 1
    bridge.start(KEEP_ALIVE_S="4").wait_ready()  # what the machine takes from the bridge is not the network's
    device = Publisher(mqtt.port)
    for number in range(200):
        device.publish(TOPICS[1], b"%d" % number)
        device.publish(TOPICS[2], b"%d" % number, qos=2)
    device.confirm()
    until(lambda: bridge.metrics()["acknowledged_total"] >= 400, f"acknowledged, see {bridge.log}")
    proxy.step, proxy.delay_s = 65_536, 0.2
    for number in range(200, 400):
        device.publish(TOPICS[1], b"%d" % number)
        device.publish(TOPICS[2], b"%d" % number, qos=2)
    device.confirm()
    all_arrive(bridge, 400, mqtt)
    assert repeated_after_pubrel(mqtt) == 0
    assert proxy.connections == 1, "slow is not lost"
    device.close()
