"""A real Apache Kafka for the Spark tests: one KRaft node as a child process, jars by the Ivy that pyspark brings."""

from __future__ import annotations

import base64
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

VERSION = "4.4.0"
_PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={folder}/data
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
"""


@contextmanager
def broker() -> Iterator[str]:
    """Start a broker and yield its bootstrap address; it is ended and deleted afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-kafka-"))
    port, controller = _free_ports(2)
    config = folder / "server.properties"
    config.write_text(_PROPERTIES.format(port=port, controller=controller, folder=folder))
    path = f"{_jars()}/*"
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    format_storage = ["java", "-cp", path, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(config)]
    subprocess.run(format_storage, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            ["java", "-Xmx512m", "-cp", path, "kafka.Kafka", str(config)], stdout=log, stderr=log
        )
    try:
        _wait(f"127.0.0.1:{port}", process)
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


def _jars() -> Path:
    """The broker's jars, resolved once and kept in the user's cache folder."""
    folder = Path.home() / ".cache" / "headrace" / "test-kafka" / VERSION
    if not (folder / "done").exists():
        [ivy] = (Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar")
        pattern = f"{folder}/[artifact]-[revision](-[classifier]).[ext]"
        resolve = ["java", "-jar", str(ivy), "-dependency", "org.apache.kafka", "kafka_2.13", VERSION]
        subprocess.run([*resolve, "-retrieve", pattern], check=True, stdout=subprocess.DEVNULL)
        (folder / "done").touch()
    return folder


def _wait(bootstrap: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while True:
        assert process.poll() is None, "the broker ended"
        try:
            AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}).list_topics(timeout=2)
        except KafkaException:
            assert time.monotonic() < deadline, "the broker does not answer"
        else:
            return


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()
