"""The parts of headrace against the brokers and the database of docker-compose.yml, as containers.

Images, settings and mounted files are those of the compose file; only the host ports are chosen freely.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from testcontainers.core.container import DockerContainer

from headrace.kafka import free_port
from headrace_spark.database import Database
from headrace_spark.ledger import Ledger
from headrace_spark.sinks.port import Batch, Outcome
from headrace_spark.sinks.postgres import PostgresSink
from headrace_spark.transforms.rows import Request, Row, request_id
from tests.support.bridge_process import BridgeProcess, create_topics, read_topic, until
from tests.support.docker import REPOSITORY, eventually, services
from tests.support.mqtt_fixture import Publisher
from tests.support.streams_worker import StreamsWorker

pytestmark = pytest.mark.docker
os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")  # each fixture ends its container


def container(name: str, inside: int, outside: int, **environment: Any) -> DockerContainer:
    """A container as the compose file describes it, its port `inside` at `outside` of the loopback address."""
    service = services()[name]
    made = DockerContainer(service["image"], user=service["user"], mem_limit=service["mem_limit"])
    made.ports[inside] = ("127.0.0.1", outside)  # type: ignore[assignment]  # goes to Docker as it is
    if "command" in service:
        made.with_command(service["command"])
    for variable, value in {**service.get("environment", {}), **environment}.items():
        made.with_env(variable, str(value))
    for source, where in (volume.split(":")[:2] for volume in service["volumes"]):
        if source.startswith("."):
            made.with_volume_mapping(str((REPOSITORY / source).resolve()), where, "ro")
    return made


@pytest.fixture(scope="module")
def kafka_container() -> Iterator[str]:
    port = free_port()
    advertised = f"INTERNAL://localhost:19092,HOST://127.0.0.1:{port}"
    with container("kafka", 9092, port, ADVERTISED_LISTENERS=advertised):
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0, "socket.timeout.ms": 1000})
        until(lambda: answers(admin), "Kafka answers")
        yield f"127.0.0.1:{port}"


def answers(admin: AdminClient) -> bool:
    try:
        return bool(admin.list_topics(timeout=1).brokers)
    except Exception:
        return False


@pytest.fixture(scope="module")
def mosquitto_container() -> Iterator[int]:
    port = free_port()
    with container("mosquitto", 1883, port):
        until(lambda: connects(port), "mosquitto answers")
        yield port


def connects(port: int) -> bool:
    try:
        Publisher(port).close()
    except OSError:
        return False
    return True


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    port = free_port()
    with container("postgres", 5432, port):
        url = f"postgresql://headrace:headrace@127.0.0.1:{port}/headrace"
        until(lambda: opens(url), "PostgreSQL answers")
        yield url


def opens(url: str) -> bool:
    try:
        psycopg.connect(url, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


@pytest.fixture
def device(mosquitto_container: int) -> Iterator[Publisher]:
    publisher = Publisher(mosquitto_container)
    yield publisher
    publisher.close()


def test_a_request_to_postgres_counts_once_however_often_it_is_sent(database: str) -> None:
    sink, batch = PostgresSink(database), Batch("query", 0)
    sink.prepare()
    rows = [Row("te/device/a//", "env.temperature", at, 1000, "b1", at / 10, False) for at in range(5)]
    request = Request(request_id(rows), rows, len(rows))
    assert sink.write(batch, request) == Outcome(5, 0, 0)
    assert PostgresSink(database).write(batch, request) == Outcome(5, 0, 0)
    assert PostgresSink(database).outcomes(batch) == {request.id: Outcome(5, 0, 0)}
    with psycopg.connect(database) as db:
        found = db.execute("SELECT source, metric, time_ms, value FROM measurements ORDER BY time_ms").fetchall()
    assert found == [("te/device/a//", "env.temperature", at, at / 10) for at in range(5)]


def test_the_ledger_lives_in_postgres(database: str) -> None:
    ledger = Ledger(Database(database), "job", 1000)
    ledger.prepare()
    ledger.remember("a-query", "/checkpoint")
    again = Ledger(Database(database), "job", 1000)
    again.prepare()
    assert again.query() == ("a-query", "/checkpoint")


def test_the_bridge_brings_all_from_mosquitto_to_kafka_in_order(
    kafka_container: str, mosquitto_container: int, device: Publisher, topic_prefix: str, tmp_path: Path
) -> None:
    create_topics(kafka_container, topic_prefix)
    bridge = BridgeProcess(kafka_container, topic_prefix, mosquitto_container, tmp_path)
    try:
        bridge.start().wait_ready()
        for number in range(200):
            device.publish("te/device/main///m/n", str(number).encode())
        device.confirm()
        until(lambda: bridge.metrics()["acknowledged_total"] >= 200, "200 acknowledged")
        records = read_topic(kafka_container, f"{topic_prefix}raw")
        assert [int(record.value) for record in records] == list(range(200))
        assert {record.topic for record in records} == {"te/device/main///m/n"}
        assert bridge.terminate() == 0
    finally:
        bridge.end()


def test_the_stream_processor_makes_batches_of_what_mosquitto_got(
    kafka_container: str, mosquitto_container: int, device: Publisher, topic_prefix: str, tmp_path: Path
) -> None:
    streams = StreamsWorker(
        kafka_container, topic_prefix, tmp_path / "streams", tmp_path / "streams.log", stages="registration,batching",
        settings={"BATCHING": '{"timeout": 1000}'},
    )  # fmt: skip
    bridge = BridgeProcess(kafka_container, topic_prefix, mosquitto_container, tmp_path)
    try:
        streams.start().wait_ready()
        bridge.start().wait_ready()
        now = time.time()
        device.publish("te/device/child///m/env", json.dumps({"t": 0, "time": now}).encode())
        device.publish("te/device/child//", json.dumps({"@type": "child-device"}).encode(), retain=True)
        for number in range(1, 20):
            payload = {"t": number, "time": now + number / 1000}
            device.publish("te/device/child///m/env", json.dumps(payload).encode())
        device.confirm()
        eventually(lambda: members(kafka_container, topic_prefix), lambda got: sorted(got) == list(range(20)))
    finally:
        bridge.end()
        streams.end()


def members(kafka: str, prefix: str) -> list[int]:
    """The values of all members of all batches."""
    batches = [json.loads(record.value) for record in read_topic(kafka, f"{prefix}batches")]
    return [member["value"]["t"] for batch in batches for member in batch["members"]]
