"""A real stream processor exposes every metric that batching.md 9 and registration.md name, and the bridge's collector
those of bridge.md 6. After some of everything the numbers are right, too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from headrace.evidence import samples
from headrace_core.registration.reasons import DISCARDED, LOST
from tests.support import metric_names
from tests.support.streams_worker import StreamsWorker, until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(200)]

BATCHING = {
    "accepted", "invalid", "duplicate", "future", "late",  # messages by result
    "opened.new", "opened.conflict", "opened.full", "closed.timeout", "closed.flush", "members",
    "raised", "ahead", "ticks",  # receipt times raised, t > clock, ticks read
    "open_batches", "open_members", "history", "clock",  # gauges
    "in", "not_measurement", "repeat",
}  # fmt: skip
REFUSED = {  # registration.md 11, class R, of what can come over MQTT
    "invalid_topic", "unknown_channel", "invalid_topic_id", "invalid_payload", "invalid_type", "invalid_id",
    "invalid_twin_key", "missing_type", "invalid_parent", "no_parent", "type_change", "id_change", "main_protected",
    "id_in_use",
}  # fmt: skip
REGISTRATION = {
    "in", "passed", "replayed", "applied", "no_effect", "replaced", "pending",
    "warnings.unknown_member",  # 4: unknown members are ignored, with a warning
    "automatic_refused.id_in_use", "automatic_refused.invalid_parent",  # 7: the reason is counted
    "damaged",  # 10: reported and skipped
    *(f"refused.{reason}" for reason in REFUSED), *(f"lost.{reason}" for reason in LOST),
    *(f"discarded.{reason}" for reason in DISCARDED),
}  # fmt: skip
ROOT = {  # 11: counted per root; 13: totals of a root
    "entities.device", "entities.child-device", "entities.service", "automatic", "pending", "telemetry",
    "telemetry_bytes", "metadata", "metadata_bytes", "dropped.id_in_use", "dropped.unknown_channel",
}  # fmt: skip
BRIDGE = {
    "received_total", "publishes_total", "produced_total", "acknowledged_total", "in_flight", "in_flight_bytes",
    "oldest_in_flight_seconds", "retries_total", "dead_letters_total", "connects_total", "reconnects_total",
    "connection_losses_total", "sessions_lost_total", "session_expiry_seconds", "decode_errors_total",
    "publish_sent_total", "publish_acked_total", "kafka_queue", "kafka_latency_seconds_bucket", "mqtt_up", "kafka_up",
    "subscribed",
}  # fmt: skip
MESSAGES = [
    ("device/a//", {"@type": "child-device", "@new": 1}),
    ("device/a/service/s", {"@type": "service"}),
    ("device/b//", {"@type": "child-device", "@id": "main-dev:device:a"}),
    ("device/a///m/t", {"time": 1.0, "v": 1}),
    ("device/a///m/t", {"time": 1.0, "v": 1}),
    ("device/a///m/t", {"time": "yesterday"}),
    ("device/a///nothing", {}),
    ("line/c///m/t", {"v": 1}),
    ("line/c///twin/os", {"v": 1}),
    ("line/d//", {"@type": "child-device", "@parent": "line/nobody//"}),
]


@pytest.fixture
def worker(kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[StreamsWorker]:
    settings = {"ROOTS": json.dumps({"te": "main-dev"}), "PARTITIONS": "1", "BATCHING": json.dumps({"timeout": 1000})}
    stages = "registration,batching"
    one = StreamsWorker(kafka, topic_prefix, tmp_path / "data", tmp_path / "worker.log", stages, settings)
    yield one
    one.end()


def publish(worker: StreamsWorker) -> None:
    producer = Producer({"bootstrap.servers": worker.kafka, "acks": "all", "enable.idempotence": True})
    for topic, value in MESSAGES:
        headers = [("topic", f"te/{topic}".encode()), ("qos", b"1"), ("retain", b"0")]
        producer.produce(f"{worker.prefix}raw", json.dumps(value), b"te", 0, headers=headers)
    assert producer.flush(240) == 0


def test_a_real_worker_exposes_all_that_the_specifications_name(worker: StreamsWorker) -> None:
    worker.start().wait_ready()
    publish(worker)
    closed = r'headrace_stage\{name="closed.timeout"'
    until(lambda: worker.metric(closed) == 1, f"the batch is closed by ticks, see {worker.log}")
    assert metric_names.streams() <= metric_names.series(worker.get("/metrics"))

    found = list(samples(f"http://127.0.0.1:{worker.port}"))
    stages = {
        stage: {at["name"]: value for name, at, value in found if name == "headrace_stage" and at["stage"] == stage}
        for stage in ("registration", "batching")
    }
    assert set(stages["batching"]) >= BATCHING
    assert set(stages["registration"]) >= REGISTRATION
    assert {at["name"] for name, at, _ in found if name == "headrace_stage_root" and at["root"] == "te"} >= ROOT
    assert (stages["registration"]["in"], stages["registration"]["refused.id_in_use"]) == (len(MESSAGES), 1)
    assert stages["registration"]["warnings.unknown_member"] == 1
    assert (stages["batching"]["accepted"], stages["batching"]["duplicate"], stages["batching"]["invalid"]) == (1, 1, 1)

    ages = {(at["stage"], at["name"]): value for name, at, value in found if name == "headrace_stage_age_seconds"}
    assert ages["batching", "oldest_open"] == 0
    assert ages["registration", "oldest_pending"] >= 1
    for name in ("headrace_stage_lag", "headrace_stage_offset", "headrace_stage_overdue_seconds"):
        assert {at["stage"] for found_name, at, _ in found if found_name == name} == {"registration", "batching"}
    assert sum(value for name, _, value in found if name == "headrace_ticks_written_total") >= 1


def test_the_bridge_exposes_all_that_its_specification_names() -> None:
    assert metric_names.bridge() >= {f"headrace_bridge_{name}" for name in BRIDGE}
