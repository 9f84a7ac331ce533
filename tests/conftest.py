"""What all tests share: one real Kafka broker for a session, a fresh prefix of topic names for each test."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from headrace.kafka import KafkaServer


@pytest.fixture(scope="session")
def kafka_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """A running Apache Kafka; tests that stop it must use a server of their own."""
    server = KafkaServer(tmp_path_factory.mktemp("kafka")).start()
    yield server
    server.stop()


@pytest.fixture
def kafka(kafka_server: KafkaServer) -> str:
    """Bootstrap address of the session's broker."""
    return kafka_server.bootstrap


@pytest.fixture
def topic_prefix() -> str:
    """A prefix that no other test uses."""
    return f"t{uuid.uuid4().hex[:10]}."
