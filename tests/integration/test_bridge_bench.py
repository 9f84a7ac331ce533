"""What the bench compares the bridge with does what it says: all messages, after Kafka, in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.bridge.candidates import Candidate, Places
from bench.bridge.run import Measured
from headrace.mqtt import MqttBroker
from tests.support.bridge_process import create_topics, read_topic
from tests.support.mqtt_fixture import mqtt

__all__ = ["mqtt"]
pytestmark = pytest.mark.kafka


@pytest.mark.parametrize("name", ["bridge", "floor", "eager", "paho"])
def test_each_candidate_takes_all_messages(
    mqtt: MqttBroker, kafka: str, topic_prefix: str, tmp_path: Path, name: str
) -> None:
    create_topics(kafka, topic_prefix)
    measured = Measured(Candidate(Places(tmp_path, mqtt, kafka, topic_prefix), name), 300).run()
    assert measured.live_rate > 0
    assert measured.memory_mib > 1
    records = read_topic(kafka, topic_prefix + "raw")
    assert len(records) == (0 if name == "floor" else 600)
    assert {(record.key, record.value) for record in records} <= {(b"te", b"x" * 150)}
