"""The status API on changelogs as they may be: transactions, aborted ones, late writers, a topic made anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.kafka import KafkaServer
from headrace_core.registration.config import RegistrationConfig
from tests.support.api_process import StatusApi
from tests.support.changelog import Owner, message
from tests.support.streams_worker import until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(200)]

Group = list[tuple[bytes, bytes | None, int]]


class Log:
    """A changelog of one partition, and who writes to it."""

    def __init__(self, kafka: str, prefix: str) -> None:
        self.kafka, self.topic = kafka, f"{prefix}registration.changelog"
        self.admin = AdminClient({"bootstrap.servers": kafka})
        self.plain = Producer({"bootstrap.servers": kafka, "enable.idempotence": True})

    def create(self) -> None:
        self.admin.create_topics([NewTopic(self.topic, 1, 1, config={"cleanup.policy": "compact"})])[self.topic].result(
            20
        )

    def delete(self) -> None:
        self.admin.delete_topics([self.topic])[self.topic].result(240)

    def put(self, producer: Producer, group: Group) -> None:
        for key, value, source in group:
            headers: Any = [("o", source.to_bytes(8, "big", signed=True))]
            producer.produce(self.topic, value, key, 0, headers=headers)
        assert producer.flush(240) == 0

    def transactional(self) -> Producer:
        producer = Producer({"bootstrap.servers": self.kafka, "transactional.id": self.topic})
        producer.init_transactions(20)
        producer.begin_transaction()
        return producer


@pytest.fixture
def log(kafka: str, topic_prefix: str) -> Log:
    return Log(kafka, topic_prefix)


@pytest.fixture
def api(kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[StatusApi]:
    one = StatusApi(kafka, topic_prefix, tmp_path / "api", tmp_path / "api.log")
    yield one
    one.end()


def registered(api: StatusApi) -> list[str]:
    answer = api.ask("/te/v1/entities?parent=device/main")
    return [entity["@topic-id"].split("/")[1] for entity in answer.body] if answer.status == 200 else []


def groups(names: str) -> list[Group]:
    """One group for each name: that child is registered, with a twin value."""
    owner = Owner(RegistrationConfig())
    child = {"@type": "child-device", "v": 1}
    return [owner.chunk([message(n, n, f"te/device/{name}//", child)]) for n, name in enumerate(names)]


def test_a_transaction_counts_when_committed_and_never_in_part(log: Log, api: StatusApi) -> None:
    log.create()
    a, b, c, d = groups("abcd")
    log.put(log.plain, a)
    api.start().wait_ready()
    assert registered(api) == ["a"]

    first = log.transactional()
    log.put(first, b[:2])
    log.put(log.plain, a)  # a late writer, between the batches of the transaction
    log.put(first, b[2:])
    assert registered(api) == ["a"]
    first.commit_transaction(20)
    until(lambda: registered(api) == ["a", "b"], f"b, see {api.log}")

    second = log.transactional()
    log.put(second, [(key, b"\xc1" * 8, 9) for key, _, _ in a])
    second.abort_transaction(20)
    log.put(log.plain, c)
    until(lambda: registered(api) == ["a", "b", "c"], f"c, see {api.log}")
    log.put(log.plain, a)
    log.put(log.plain, b)
    log.put(log.plain, d)
    until(lambda: registered(api) == ["a", "b", "c", "d"], f"d, see {api.log}")
    until(lambda: api.ask("/readyz").body["lag"] == {"0": 0}, "no lag behind a transaction")
    assert api.terminate() == 0
    api.start().wait_ready()
    assert registered(api) == ["a", "b", "c", "d"]
    api.kill()
    api.delete_database()
    api.start().wait_ready()
    assert registered(api) == ["a", "b", "c", "d"]


def test_the_end_may_be_the_end_of_a_transaction(log: Log, api: StatusApi) -> None:
    log.create()
    only = log.transactional()
    log.put(only, groups("a")[0])
    only.commit_transaction(20)
    api.start().wait_ready()
    assert registered(api) == ["a"]


def test_a_topic_made_anew_empties_the_replica(log: Log, api: StatusApi) -> None:
    log.create()
    a, b = groups("ab")
    log.put(log.plain, a)
    log.put(log.plain, b)
    api.start().wait_ready()
    assert registered(api) == ["a", "b"]
    log.delete()
    until(lambda: log.topic not in log.admin.list_topics(timeout=240).topics, "the topic is gone")
    until(lambda: not api.ready(), f"not ready without the topic, see {api.log}")
    log.create()
    log.put(Producer({"bootstrap.servers": log.kafka, "enable.idempotence": True}), groups("z")[0])
    api.wait_ready()
    assert registered(api) == ["z"]


def test_without_the_broker_the_last_state_is_told_and_then_it_goes_on(topic_prefix: str, tmp_path: Path) -> None:
    server = KafkaServer(tmp_path / "kafka", heap="384m").start()
    log = Log(server.bootstrap, topic_prefix)
    api = StatusApi(server.bootstrap, topic_prefix, tmp_path / "api", tmp_path / "api.log")
    try:
        log.create()
        a, b = groups("ab")
        log.put(log.plain, a)
        api.start().wait_ready()
        server.kill()
        until(lambda: api.ask("/v1/status").body["replica"]["kafka_up"] is False, "it sees that the broker is gone")
        assert registered(api) == ["a"]
        assert api.ask("/healthz").status == 200
        assert api.ready()
        server.start()
        log.put(log.plain, b)
        until(lambda: registered(api) == ["a", "b"], f"b, see {api.log}")
        until(lambda: api.ask("/v1/status").body["replica"]["kafka_up"] is True, "it sees that the broker is back")
        assert api.terminate() == 0
    finally:
        api.end()
        server.stop()


def test_a_database_that_is_deleted_under_it_ends_the_process(log: Log, api: StatusApi) -> None:
    log.create()
    (a,) = groups("a")
    log.put(log.plain, a)
    api.start().wait_ready()
    api.delete_database()
    assert api.running.wait(300) == 70
    api.start().wait_ready()
    assert registered(api) == ["a"]
