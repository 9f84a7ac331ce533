"""A bridge as a child process, its topics, and what a test wants to know about them."""

from __future__ import annotations

import json
import re
import urllib.error
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.service_process import ServiceProcess, until

__all__ = ["BridgeProcess", "In", "create_topics", "read_topic", "until"]


@dataclass
class BridgeProcess(ServiceProcess):
    """One bridge; `start` it, end it, `start` it again."""

    MODULE: ClassVar[str] = "headrace_bridge"
    PREFIX: ClassVar[str] = "HEADRACE_BRIDGE_"

    kafka: str
    prefix: str
    mqtt_port: int
    directory: Path
    settings: dict[str, str] = field(default_factory=dict)

    def start(self, **settings: str) -> BridgeProcess:
        """Start; `settings` are those of this run only, by upper-case name."""
        values = {
            "KAFKA": self.kafka, "PREFIX": self.prefix, "MQTT_PORT": str(self.mqtt_port),
            "STATE_DIR": str(self.directory / "state"), "OUTBOUND": "false", **self.settings, **settings,
        }  # fmt: skip
        self.spawn(values)
        return self

    @property
    def log(self) -> Path:  # type: ignore[override]
        return self.directory / "bridge.log"

    def state(self) -> dict[str, bool]:
        """What /readyz says; empty if nobody answers."""
        try:
            return dict(json.loads(self.get("/readyz")))
        except urllib.error.HTTPError as error:
            return dict(json.loads(error.read()))
        except OSError:
            return {}

    def wait_ready(self, seconds: float = 40) -> BridgeProcess:
        until(lambda: self.state().get("ready", False), f"ready, see {self.log}", seconds)
        return self

    def metrics(self) -> dict[str, float]:
        """All samples by name and labels; the prefix left out."""
        lines = self.get("/metrics").splitlines()
        pairs = [re.fullmatch(r"headrace_bridge_(\S+) (\S+)", line) for line in lines]
        return {pair[1]: float(pair[2]) for pair in pairs if pair}


@dataclass(frozen=True)
class In:
    """A record of a topic."""

    partition: int
    key: bytes | None
    value: bytes
    headers: dict[str, bytes]

    @property
    def topic(self) -> str:
        return self.headers["topic"].decode()


def create_topics(kafka: str, prefix: str, *, max_message_bytes: int = 1_000_000, letters: int = 1_048_588) -> None:
    """raw, dead-letter and outbound, 4 partitions each."""
    config = {"message.timestamp.type": "LogAppendTime", "max.message.bytes": str(max_message_bytes)}
    wanted = [NewTopic(prefix + "raw", 4, 1, config=config)]
    wanted += [NewTopic(prefix + "dead-letter", 4, 1, config={"max.message.bytes": str(letters)})]
    wanted += [NewTopic(prefix + "outbound", 4, 1)]
    admin = AdminClient({"bootstrap.servers": kafka})  # must live until all is answered
    for future in admin.create_topics(wanted).values():
        future.result(240)


def read_topic(kafka: str, topic: str, partitions: int = 4) -> list[In]:
    """All records, per partition in order."""
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "test-reader", "enable.auto.commit": False})
    records = []
    try:
        for partition in range(partitions):
            first, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=240)
            consumer.assign([TopicPartition(topic, partition, first)])
            got = 0
            while got < end - first:
                for message in consumer.consume(1_000, timeout=0.2):
                    assert message.error() is None, message.error()
                    got += 1
                    headers = {name: value for name, value in message.headers() or [] if isinstance(value, bytes)}
                    records.append(In(partition, message.key(), message.value() or b"", headers))
    finally:
        consumer.close()
    return records
