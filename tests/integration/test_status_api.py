"""The status API on a real Kafka behind a real stream processor tells what the pure stage knows after the same log."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from headrace.kafka import free_port
from headrace_core.partitioner import partition_of
from headrace_core.registration import queries
from headrace_core.registration.config import RegistrationConfig
from headrace_core.registration.routes import ABSENT, Request
from headrace_core.registration.stage import RegistrationStage
from headrace_core.registration.store import Store
from headrace_core.registration.work import Work
from headrace_core.stage import Record
from headrace_core.state import MemoryState, Overlay
from tests.support.api_process import StatusApi
from tests.support.streams_worker import StreamsWorker, until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(280)]

PARTITIONS = 4
ROOTS = {f"r{n}": f"main-{n}" for n in range(6)}
REGISTRATION = {"pending_ttl": 3_600_000, "telemetry_cache_size": 20, "status_history": 30}
CONFIG = RegistrationConfig(roots=ROOTS, **REGISTRATION)


@pytest.fixture
def worker(kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[StreamsWorker]:
    one = StreamsWorker(kafka, topic_prefix, tmp_path / "streams", tmp_path / "streams.log", stages="registration")
    one.settings |= {"ROOTS": json.dumps(ROOTS), "REGISTRATION": json.dumps(REGISTRATION), "CHUNK_RECORDS": "100"}
    yield one
    one.end()


@pytest.fixture
def api(kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[StatusApi]:
    one = StatusApi(kafka, topic_prefix, tmp_path / "api", tmp_path / "api.log")
    one.settings |= {"ROOTS": json.dumps(ROOTS), "REGISTRATION": json.dumps(REGISTRATION)}
    yield one
    one.end()


def send(kafka: str, prefix: str, messages: list[tuple[str, Any]], pause_s: float = 0) -> None:
    """MQTT messages as the bridge writes them; None is an empty payload."""
    producer = Producer({"bootstrap.servers": kafka, "acks": "all", "enable.idempotence": True, "linger.ms": 2})
    for count, (topic, payload) in enumerate(messages):
        root, value = topic.partition("/")[0].encode(), b"" if payload is None else json.dumps(payload).encode()
        headers = [("topic", topic.encode()), ("qos", b"1"), ("retain", b"1"), ("dup", b"0")]
        producer.produce(f"{prefix}raw", value, root, partition_of(root, PARTITIONS), headers=headers)
        if count % 50 == 49:
            assert producer.flush(240) == 0
            time.sleep(pause_s)
    assert producer.flush(240) == 0


def traffic(count: int, dice: random.Random) -> list[tuple[str, Any]]:
    """Registrations, late parents, changed parents, twin data, removals and early data of all roots."""
    found: list[tuple[str, Any]] = []
    for _ in range(count):
        root, device = dice.choice(list(ROOTS)), f"device/d{dice.randrange(12)}//"
        custom, hall = f"line/m{dice.randrange(12)}//", f"line/h{dice.randrange(4)}//"
        found.append(
            dice.choice([
                (f"{root}/{device}", {"@type": "child-device", "name": f"n{dice.randrange(3)}"}),
                (f"{root}/{device}", {"@type": "child-device", "@parent": f"device/d{dice.randrange(12)}//"}),
                (f"{root}/{device}", None),
                (f"{root}/{device}/twin/k{dice.randrange(3)}", {"value": dice.randrange(5)}),
                (f"{root}/{device}/config", {"interval": dice.randrange(9)}),
                (f"{root}/{custom}", {"@type": "child-device", "@parent": hall}),
                (f"{root}/{hall}", {"@type": "child-device"} if dice.random() < 0.5 else None),
                (f"{root}/{custom}/m/temperature", {"celsius": dice.random()}),
                (f"{root}/device/d{dice.randrange(12)}/service/s", {"@type": "service"}),
                (f"{root}/{device}", {"@type": "rocket"}),
            ])
        )  # fmt: skip
    return found


def read(kafka: str, topic: str) -> dict[int, list[Record]]:
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "reader", "enable.auto.commit": False})
    log: dict[int, list[Record]] = {}
    for partition in range(PARTITIONS):
        place = TopicPartition(topic, partition, 0)
        _, end = consumer.get_watermark_offsets(place, timeout=240)
        consumer.assign([place])
        records = log.setdefault(partition, [])
        while len(records) < end:
            for m in consumer.consume(1000, timeout=0.2):
                assert m.error() is None, m.error()
                stamp = m.timestamp()[1]
                records.append(Record(partition, m.offset(), stamp, m.key(), m.value(), tuple(m.headers() or [])))
    consumer.close()
    return log


def pure_states(kafka: str, prefix: str, sources: dict[int, int]) -> dict[int, MemoryState]:
    """The state of each partition after `raw` up to these offsets."""
    states = {}
    for partition, records in read(kafka, f"{prefix}raw").items():
        stage, state = RegistrationStage(CONFIG), MemoryState()
        for record in records:
            if record.offset <= sources[partition]:
                stage.apply(state, record, lambda _: None)
        states[partition] = state
    return states


def questions(root: str) -> list[str]:
    """Every read of a root."""
    base = f"/{root}/v1"
    found = [f"{base}/entities", f"{base}/entities?type=service", f"{base}/entities?root=device/d1&limit=3"]
    found += [f"{base}/registrations?state=unknown,pending,registered,expired,removed", f"{base}/registrations?limit=5"]
    for name in (*(f"device/d{n}//" for n in range(12)), "device/main//", *(f"line/m{n}//" for n in range(3))):
        found += [f"{base}/entities/{name}", f"{base}/entities/{name}/twin", f"{base}/entities/{name}/config"]
        found += [f"{base}/registrations/{name}", f"{base}/entities?parent={name}"]
    return found


def check_equal(api: StatusApi, states: dict[int, MemoryState]) -> None:
    """Everything that can be asked is answered as the pure queries answer on the pure states."""
    for root in ROOTS:
        state = states[partition_of(root.encode(), PARTITIONS)]
        for path in questions(root):
            answer, expected = api.ask(path), queries.answer(state, CONFIG, Request("GET", path))
            assert answer.status == expected.status, path
            assert answer.body == ("" if expected.body is ABSENT else expected.body), path
            assert answer.headers.get("etag") == expected.headers.get("ETag"), path
            assert answer.headers.get("link") == expected.headers.get("Link"), path
    status = api.ask("/v1/status").body
    for root in ROOTS:
        work = Work(Store(Overlay(states[partition_of(root.encode(), PARTITIONS)])), CONFIG)
        assert status["roots"][root] == queries.totals(work, root)
    gauges = [RegistrationStage(CONFIG).gauges(state) for state in states.values()]
    counters = status["counters"]["registration"]
    assert counters == {name: sum(g.get(name, 0) for g in gauges) for name in counters}
    assert set(counters) == {name for g in gauges for name in g}


def applied(worker: StreamsWorker, prefix: str, api: StatusApi) -> bool:
    consumer = Consumer({"bootstrap.servers": worker.kafka, "group.id": "reader"})
    try:
        ends = {n: consumer.get_watermark_offsets(TopicPartition(f"{prefix}raw", n), timeout=240)[1]
                for n in range(PARTITIONS)}  # fmt: skip
    finally:
        consumer.close()
    return all(api.sources().get(n, -1) + 1 >= end for n, end in ends.items())


def test_it_tells_who_is_registered(worker: StreamsWorker, api: StatusApi) -> None:
    worker.start()
    api.start()
    worker.wait_ready()
    api.wait_ready()
    send(worker.kafka, worker.prefix, [
        ("r0/device/press//", {"@type": "child-device", "name": "Press"}),
        ("r0/line/oven//", {"@type": "child-device", "@parent": "line/hall//"}),
        ("r0/device/press///twin/os", "linux"),
    ])  # fmt: skip
    until(lambda: api.ask("/r0/v1/entities/device/press///twin/os").body == "linux", f"the twin, see {api.log}")
    entity = api.ask("/r0/v1/entities/device/press").body
    assert entity == {
        "@topic-id": "device/press//", "@type": "child-device", "@id": "main-0:device:press",
        "@parent": "device/main//",
    }  # fmt: skip
    oven = api.ask("/r0/v1/registrations/line/oven").body
    assert (oven["state"], oven["missing"]) == ("pending", ["line/hall//"])
    assert api.ask("/r0/v1/registrations", "POST").body["reason"] == "method_not_allowed"
    assert 'headrace_api_replica_lag{partition="0"}' in api.ask("/metrics").body
    assert api.terminate() == 0
    assert worker.terminate() == 0


@pytest.mark.parametrize("rounds", [5, pytest.param(20, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])])
def test_answers_are_the_pure_ones_after_kills_and_after_a_loss_of_the_disk(
    worker: StreamsWorker, api: StatusApi, rounds: int
) -> None:
    dice = random.Random(5)
    worker.start().wait_ready()
    api.start().wait_ready()
    feeder = Thread(target=send, args=(worker.kafka, worker.prefix, traffic(rounds * 1_200, dice), 0.05))
    feeder.start()
    for _ in range(rounds):
        time.sleep(0.3 + dice.random())
        api.kill()
        api.start()
        if dice.random() < 0.7:
            api.wait_ready()
        else:
            until(api.answers, f"HTTP, see {api.log}")
    feeder.join()
    api.wait_ready()
    until(lambda: applied(worker, worker.prefix, api), f"all of raw, see {api.log}", 120)
    assert worker.terminate() == 0
    until(lambda: sum(api.ask("/readyz").body["lag"].values()) == 0, "no lag")
    states = pure_states(worker.kafka, worker.prefix, api.sources())
    check_equal(api, states)
    assert api.terminate() == 0
    api.delete_database()
    api.start().wait_ready()
    check_equal(api, states)
    assert "built from the start" in api.log.read_text()
    assert api.terminate() == 0


def test_it_starts_before_kafka_and_before_the_topics(kafka: str, topic_prefix: str, tmp_path: Path) -> None:
    nobody = StatusApi(f"127.0.0.1:{free_port()}", topic_prefix, tmp_path / "a", tmp_path / "a.log")
    early = StatusApi(kafka, topic_prefix, tmp_path / "b", tmp_path / "b.log")
    try:
        for api, words in ((nobody.start(), "does not answer"), (early.start(), "there is no topic")):
            until(lambda api=api, words=words: api.answers() and words in str(api.ask("/readyz").body), words)
            answer = api.ask("/readyz")
            assert (answer.status, answer.headers["content-type"]) == (503, "application/problem+json")
            assert api.ask("/healthz").status == 200
            assert api.ask("/te/v1/entities").status == 503
            assert api.ask("/v1/status").body["ready"] is False
            assert api.terminate() == 0
    finally:
        nobody.end()
        early.end()
