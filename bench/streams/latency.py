"""Latency: from produce to `raw` until the batch document is readable, without its timeout, at 5,000 messages/s.

The bridge is left out: a message carries the wall time at which it was handed to a Kafka producer (`sent`). A batch is
due `timeout` after its first member was received; what its document comes later than `sent` of that member + timeout
is the time of both stages, of four topics' writes and reads, and of waiting for the next record that moves the clock.

A broker that has just been started takes its first seconds of many small requests slowly (its code is interpreted until
it is compiled): at 5,000/s they piled up in front of `raw` for seconds, and it took six seconds until that was gone. So
the same load goes to a topic that nobody reads before; and how much of the time passes before `raw` is told apart.

A batch that is due after the load has ended waits for a tick (`tick_interval`, 500 ms), as no record moves the clock
any more. Those are not of this load, so it goes on for `AFTER_S` beyond what is measured; they are told apart, too.
"""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer

from bench.streams import traffic
from bench.streams.process import Streams
from bench.streams.stages import worker
from bench.streams.trail import Seen, Trail, shares, trails

RATE = 5_000
TURN_S = 0.005
WARM_S = 5.0
BROKER_S = 10.0
AFTER_S = 3.0
TIMEOUT_MS = 1_000
ENTITIES = 1_000


@dataclass
class Reader:
    """Reads `batches` in a thread."""

    kafka: str
    topic: str
    seen: list[Seen] = field(default_factory=list)
    members: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Until stopped."""
        consumer = Consumer({
            "bootstrap.servers": self.kafka, "group.id": "latency", "enable.auto.commit": False, "fetch.wait.max.ms": 5,
            "fetch.queue.backoff.ms": 1, "auto.offset.reset": "earliest",
        })  # fmt: skip
        consumer.assign(traffic.partitions(self.topic))
        while not self._stop.is_set():
            for message in consumer.consume(1_000, timeout=0.01):
                if message.error() is None:
                    self._take(message, time.time() * 1000)
        consumer.close()

    def _take(self, message: Any, now_ms: float) -> None:
        document = json.loads(message.value())
        sent_ms = min(member["value"]["sent"] for member in document["members"])
        self.members += len(document["members"])
        id_, appended_ms = dict(message.headers())["id"], message.timestamp()[1]
        times = document["opened_at"], document["closed_at"], appended_ms, now_ms
        self.seen.append(Seen(message.partition(), id_, sent_ms, *times))

    def stop(self) -> None:
        """Let `run` return."""
        self._stop.set()


def latency(kafka: str, folder: Path, seconds: float) -> dict[str, float]:
    """Quantiles in ms, the load that was reached, and the worker's CPU."""
    prefix = "latency."
    with worker(kafka, prefix, folder, "registration,batching") as ours:
        known = traffic.prefill(kafka, prefix + "raw", traffic.registrations(ENTITIES))
        ours.until(lambda: ours.applied("batching") >= known, "registrations", 60)
        reader = Reader(kafka, prefix + "batches")
        thread = threading.Thread(target=reader.run)
        traffic.create(kafka, [prefix + "warm"])
        _publish(ours, kafka, prefix + "warm", BROKER_S)
        thread.start()
        try:
            started = time.time()
            cpu, sent = _publish(ours, kafka, prefix + "raw", WARM_S + seconds + AFTER_S)
            ours.until(lambda: reader.members >= sent, "all batches", 60, every_s=0.2)
        finally:
            reader.stop()
            thread.join()
    return summary(trails(kafka, prefix, reader.seen), started + WARM_S, started + WARM_S + seconds) | {
        "messages": sent, "rate": round(sent / (WARM_S + seconds + AFTER_S)), "worker_cores": round(cpu, 2),
    }  # fmt: skip


def summary(found: list[Trail], since: float, until: float) -> dict[str, float]:
    """Quantiles in ms of the batches whose first member was sent in `[since, until)` (Unix s), and their legs."""
    inside = [trail for trail in found if since <= trail.seen.sent_ms / 1000 < until]
    last = [trail.beyond for trail in found if trail.seen.sent_ms / 1000 >= until]
    cut = statistics.quantiles((trail.beyond for trail in inside), n=1000)
    return {
        "batches": len(inside),
        "p50_ms": round(cut[499], 1), "p90_ms": round(cut[899], 1), "p99_ms": round(cut[989], 1),
        "p999_ms": round(cut[998], 1), "max_ms": round(max(trail.beyond for trail in inside), 1),
        "end_of_load_max_ms": round(max(last), 1), **shares(inside),
    }  # fmt: skip


def _publish(ours: Streams, kafka: str, topic: str, seconds: float) -> tuple[float, int]:
    """Publish at the rate. Returns the worker's use of cores meanwhile, and how many messages there were."""
    producer = Producer({"bootstrap.servers": kafka, "acks": "all", "linger.ms": 0, "log_level": 2})
    messages, sent = _messages(), 0
    started, cpu = time.monotonic(), ours.cpu_s
    while (passed := time.monotonic() - started) < seconds:
        while sent < passed * RATE:
            partition, root, name = next(messages)
            now_ms = time.time() * 1000
            at = datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds").encode()
            value = b'{"time":"%s","sent":%.3f,"value":%d}' % (at, now_ms, sent % 997)
            headers: list[tuple[str, str | bytes | None]] = [
                ("topic", name), ("qos", b"1"), ("retain", b"0"), ("dup", b"0"), ("received", b"%d" % now_ms),
            ]  # fmt: skip
            producer.produce(topic, value, root, partition=partition, headers=headers)
            sent += 1
        producer.poll(0)
        time.sleep(TURN_S)
    cores = (ours.cpu_s - cpu) / (time.monotonic() - started)
    producer.flush(30)
    return cores, sent


def _messages() -> Iterator[tuple[int, bytes, bytes]]:
    """Partition, root and topic, without end: each device its four types, one after the other."""
    known = traffic.devices(ENTITIES)
    while True:
        for partition, root, entity in known:
            for type_ in traffic.TYPES:
                yield partition, root, b"%s/m/%s" % (entity, type_)
