"""A stream processor as a child process, and what a test wants to know about its topics."""

from __future__ import annotations

import json
import re
import shutil
import urllib.error
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from headrace_streams.store import POSITION_KEY, RocksState
from tests.support.service_process import REPOSITORY, ServiceProcess, until

__all__ = ["COUNTING", "REPOSITORY", "Output", "StreamsWorker", "produce", "read_all", "until"]

COUNTING = "tests.support.counting_stage:CountingStage"


@dataclass
class StreamsWorker(ServiceProcess):
    """One worker; `start` it, end it, `start` it again on the same data."""

    MODULE: ClassVar[str] = "headrace_streams"
    PREFIX: ClassVar[str] = "HEADRACE_STREAMS_"

    kafka: str
    prefix: str
    data_dir: Path
    log: Path
    stages: str = COUNTING
    settings: dict[str, str] = field(default_factory=dict)

    def at_once(self) -> StreamsWorker:
        """From now on a start after a kill has its partitions at once. Otherwise the group first waits for the one that
        was killed, for the session timeout of 6 s."""
        self.settings["INSTANCE"] = "one"
        return self

    def start(self, **settings: str) -> StreamsWorker:
        """Start; `settings` are those of this run only, by upper-case name."""
        values = {
            "KAFKA": self.kafka, "PREFIX": self.prefix, "DATA_DIR": str(self.data_dir), "STAGES": self.stages,
            "SESSION_TIMEOUT_S": "6", **self.settings, **settings,
        }  # fmt: skip
        self.spawn(values)
        return self

    def healthy(self) -> bool:
        """Whether `/healthz` says so; a worker that does not answer counts as healthy."""
        try:
            self.get("/healthz")
        except urllib.error.HTTPError as error:
            return error.code != 503
        except OSError:
            return True
        return True

    def ready(self) -> bool:
        """Whether all assigned partitions are restored."""
        try:
            return bool(json.loads(self.get("/readyz"))["ready"])
        except OSError:
            return False

    def wait_ready(self, seconds: float = 60) -> StreamsWorker:
        """Wait for `ready`."""
        until(self.ready, f"ready, see {self.log}", seconds)
        return self

    def metric(self, pattern: str) -> int:
        """Sum of all samples whose name and labels match; 0 if the worker does not answer."""
        try:
            lines = self.get("/metrics").splitlines()
        except OSError:
            return 0
        return sum(int(float(line.rsplit(" ", 1)[1])) for line in lines if re.match(pattern, line))

    def applied(self) -> int:
        """Sum of the next offsets of all partitions: how many records have been applied."""
        return self.metric("headrace_stage_offset")

    def wait_applied(self, records: int, seconds: float = 120) -> None:
        """Wait until that many records of the input are applied."""
        until(lambda: self.applied() >= records, f"{records} records, see {self.log}", seconds)

    def delete_databases(self) -> None:
        """As after a loss of the disk."""
        shutil.rmtree(self.data_dir)

    def snapshot(self, stage: str = "counting") -> dict[int, dict[bytes, bytes]]:
        """The databases of a worker that is not running, without their positions."""
        states = {}
        for path in sorted(path for path in (self.data_dir / stage).iterdir() if path.name.isdecimal()):
            state = RocksState(path)
            items = dict(state.scan(b"", b"\xff" * 32))
            items.pop(POSITION_KEY)
            states[int(path.name)] = items
            state.close()
        return states


def produce(kafka: str, topic: str, records: Iterable[tuple[int, bytes, bytes]]) -> int:
    """Write (partition, key, value) records and wait until all are there. Returns how many."""
    errors: list[str] = []
    producer = Producer({"bootstrap.servers": kafka, "acks": "all", "enable.idempotence": True, "linger.ms": 5})
    count = 0
    for partition, key, value in records:
        while True:
            try:
                producer.produce(
                    topic, key=key, value=value, partition=partition,
                    on_delivery=lambda error, _: errors.append(str(error)) if error else None,
                )  # fmt: skip
                break
            except BufferError:
                producer.poll(0.1)
        count += 1
    assert producer.flush(240) == 0
    assert not errors, errors[:3]
    return count


@dataclass(frozen=True)
class Output:
    """One record of an output topic; of an input topic the id is empty."""

    id: bytes
    partition: int
    key: bytes
    value: bytes
    append_ms: int


def read_all(kafka: str, topic: str, partitions: int = 4) -> list[Output]:
    """All records of a topic, per partition in order."""
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "test-reader", "enable.auto.commit": False})
    outputs = []
    try:
        for partition in range(partitions):
            tp = TopicPartition(topic, partition, OFFSET_BEGINNING)
            first, end = consumer.get_watermark_offsets(tp, timeout=240)
            consumer.assign([TopicPartition(topic, partition, first)])
            got = 0
            while got < end - first:
                for message in consumer.consume(1_000, timeout=0.2):
                    assert message.error() is None, message.error()
                    got += 1
                    ids = dict(message.headers() or [])
                    id_ = ids.get("id", b"")
                    outputs.append(Output(id_, partition, message.key(), message.value(), message.timestamp()[1]))
    finally:
        consumer.close()
    return outputs
