"""The bridge's memory stays where it is, however many messages go through (bridge.md 8).

A publisher at full speed, a real mosquitto, the real process, a real Kafka. More topics than the bridge remembers
routes for, so that what it keeps by topic is thrown away and made anew all the time. The peak is the kernel's
(`VmHWM`), begun anew for each tenth.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from bench.bridge import load
from bench.bridge.candidates import until
from headrace.mqtt import MqttBroker
from headrace_bridge.receive import MOST_ROUTES
from tests.support.bridge_process import BridgeProcess, create_topics
from tests.support.mqtt_fixture import mqtt

__all__ = ["mqtt"]
pytestmark = pytest.mark.kafka

TOPICS = [b"te/device/child%05d///m/temperature" % number for number in range(MOST_ROUTES + 500)]
PART = 50_000
LEAD = 100_000
"""Messages that may wait in mosquitto: it drops what is beyond its `max_queued_messages`."""
MORE_MIB = 8.0
MOST_MIB = 100.0
RETENTION = {"segment.bytes": str(64 * 2**20), "retention.bytes": str(128 * 2**20)}


@pytest.fixture
def bridge(mqtt: MqttBroker, kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[BridgeProcess]:
    """A bridge that is ready; its `raw` does not keep everything."""
    create_topics(kafka, topic_prefix)
    admin = AdminClient({"bootstrap.servers": kafka})
    change = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in RETENTION.items()
    ]
    for future in admin.incremental_alter_configs(
        [ConfigResource("topic", topic_prefix + "raw", incremental_configs=change)]
    ).values():
        future.result(240)
    process = BridgeProcess(kafka, topic_prefix, mqtt.port, tmp_path)
    process.start().wait_ready()
    yield process
    process.end()


def in_raw(bridge: BridgeProcess) -> int:
    """Records that were ever written to `raw`: the sum of its end offsets."""
    reader = Consumer({"bootstrap.servers": bridge.kafka, "group.id": "test-ends", "enable.auto.commit": False})
    try:
        places = [TopicPartition(bridge.prefix + "raw", partition) for partition in range(4)]
        return sum(reader.get_watermark_offsets(place, timeout=240)[1] for place in places)
    finally:
        reader.close()


def peak_mib(bridge: BridgeProcess) -> float:
    """The most resident memory since `begin_anew`."""
    status = Path(f"/proc/{bridge.running.pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) / 1024


def begin_anew(bridge: BridgeProcess) -> None:
    """The peak counts from what there is now."""
    Path(f"/proc/{bridge.running.pid}/clear_refs").write_text("5")


def publish(bridge: BridgeProcess, before: int, count: int) -> None:
    """`count` messages after the `before` that were; never further ahead of the bridge than LEAD."""
    for first in range(0, count, PART):
        part = min(PART, count - first)
        load.publish(bridge.mqtt_port, part, TOPICS)
        sent = before + first + part
        until(lambda sent=sent: in_raw(bridge) >= sent - LEAD, "the bridge follows")  # type: ignore[misc]


@pytest.mark.parametrize(
    "count", [100_000, pytest.param(10_000_000, marks=[pytest.mark.soak, pytest.mark.timeout(2 * 3600)])]
)
def test_memory_is_flat_and_everything_arrives(bridge: BridgeProcess, count: int) -> None:
    tenth = count // 10
    peaks = []
    for number in range(10):
        begin_anew(bridge)
        publish(bridge, number * tenth, tenth)
        peaks.append(peak_mib(bridge))
    until(lambda: bridge.metrics()["acknowledged_total"] >= count, "everything is acknowledged")
    print("MiB, a tenth each:", [round(peak, 1) for peak in peaks])
    counts = bridge.metrics()
    assert counts["connection_losses_total"] == 0
    assert counts["received_total"] == counts["acknowledged_total"] == in_raw(bridge) == count
    warm = peaks[1:]
    assert max(warm[-3:]) <= max(warm[:3]) + MORE_MIB, peaks
    assert max(peaks) <= MOST_MIB
    assert bridge.terminate() == 0
