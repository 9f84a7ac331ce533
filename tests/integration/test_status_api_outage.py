"""Kafka goes away and comes back: writes are refused by name, reads go on, and what was acknowledged is there."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.kafka import KafkaServer
from tests.support.api_process import StatusApi
from tests.support.streams_worker import StreamsWorker, until

pytestmark = [pytest.mark.kafka, pytest.mark.soak, pytest.mark.timeout(290)]

ENTITIES = "/te/v1/entities"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[KafkaServer]:
    server = KafkaServer(tmp_path / "kafka", heap="384m").start()
    yield server
    server.stop()


def test_writes_stop_and_go_on_with_kafka(server: KafkaServer, tmp_path: Path) -> None:
    worker = StreamsWorker(server.bootstrap, "a.", tmp_path / "s", tmp_path / "s.log", stages="registration")
    api = StatusApi(server.bootstrap, "a.", tmp_path / "api", tmp_path / "api.log", {"WRITE_WAIT_S": "3"})
    names, told = itertools.count(), {}

    def write() -> int:
        name = f"device/d{next(names)}"
        told[name] = api.ask(ENTITIES, "POST", {"@topic-id": name, "@type": "child-device"}).status
        return told[name]

    try:
        worker.start().wait_ready()
        api.start().wait_ready()
        until(lambda: write() == 201, "a write")
        server.kill()
        until(lambda: write() == 503, "refused")
        answer = api.ask(ENTITIES, "POST", {"@topic-id": "device/x", "@type": "child-device"})
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert "Kafka does not answer" in answer.body["detail"]
        assert api.ask("/readyz").body["writes"] is False
        assert [api.ask(path).status for path in (ENTITIES, "/", "/healthz", "/readyz")] == [200] * 4
        server.start()
        if worker.running.poll() is not None:
            worker.start()  # what it does then is tested elsewhere
        until(lambda: write() == 201, "a write", 120)
        there = {name for name in told if api.ask(f"{ENTITIES}/{name}").status == 200}
        assert {name for name, status in told.items() if status == 201} <= there
        assert not {name for name, status in told.items() if status == 503} & there
        assert api.ask(f"{ENTITIES}/device/x").status == 404
        replies_made_anew(server.bootstrap)
        until(lambda: write() == 201, "a write with another topic of replies", 120)
        assert api.terminate() == 0
    finally:
        api.end()
        worker.end()


def replies_made_anew(kafka: str) -> None:
    """The topic is deleted and created; nobody may hold on to offsets of the old one."""
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.delete_topics(["a.replies"])["a.replies"].result(240)
    until(lambda: "a.replies" not in admin.list_topics(timeout=240).topics, "no topic")

    def made() -> bool:
        try:
            admin.create_topics([NewTopic("a.replies", 4, 1)])["a.replies"].result(240)
        except Exception:
            return False
        return True

    until(made, "the topic")
