"""The producer's side without a cluster: librdkafka's own mock of one answers."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Producer

from headrace_bridge import kafka
from headrace_bridge.kafka import KafkaNotReady, Outlet, Topics
from headrace_bridge.record import Record
from tests.support.streams_worker import until

LIMITS = {"p.raw": 1_000_000}
MINUTES_MS = 600_000


@pytest.fixture
def outlet(monkeypatch: pytest.MonkeyPatch) -> Outlet:
    """Its linger is far longer than a test lasts."""
    monkeypatch.setattr(kafka, "LINGER_MS", MINUTES_MS)
    base = {"bootstrap.servers": "mock", "test.mock.num.brokers": "1", "log_level": "0"}
    outlet = Outlet(base, limits=LIMITS, max_held_bytes=1_000_000)
    (broker,) = outlet._producer.list_topics(timeout=60).brokers.values()
    maker = Producer({"bootstrap.servers": f"{broker.host}:{broker.port}", "allow.auto.create.topics": True})
    maker.list_topics("p.raw", timeout=60)
    return outlet


def test_what_was_produced_leaves_when_reports_are_asked_for(outlet: Outlet) -> None:
    done: list[str | None] = []
    for number in range(100):
        outlet.send(Record("p.raw", b"te", b"%d" % number), lambda reason, _: done.append(reason))

    def all_there() -> bool:
        outlet.poll(0.05)
        return len(done) == 100

    until(all_there, "delivered long before the linger ends", 60)
    assert done == [None] * 100
    assert (outlet.produced, outlet.queued) == (100, 0)


def test_with_nothing_to_send_it_waits_for_what_is_to_be_tried_again(
    outlet: Outlet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No turn without a pause: the loop would take a whole core."""
    monkeypatch.setattr(kafka, "AGAIN_S", 0.3)
    again: list[int] = []
    outlet.later(lambda: again.append(1), "away")
    began, polls = time.monotonic(), 0
    while not again:
        outlet.poll(0.1)
        polls += 1
    assert time.monotonic() - began >= 0.3
    assert polls < 50
    assert outlet.retries == 1


def test_a_broker_that_is_slower_than_one_try_is_heard_by_the_next() -> None:
    """What a try has begun, the next one goes on with; each alone is over before the broker has answered."""
    slow = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": "1", "test.mock.broker.rtt": "200"})
    (broker,) = slow.list_topics(timeout=60).brokers.values()
    base = {"bootstrap.servers": f"{broker.host}:{broker.port}"}

    def given_up() -> bool:
        with pytest.raises(KafkaNotReady) as error:
            Topics(base).limits(["nowhere"], 0.3)
        return str(error.value) != "missing topics: nowhere"

    until(given_up, "one try is too short", 60)
    topics, said = Topics(base), [""]

    def answered() -> bool:
        with pytest.raises(KafkaNotReady) as error:
            topics.limits(["nowhere"], 0.3)
        said.append(str(error.value))
        return said[-1] == "missing topics: nowhere"

    until(answered, "the broker is heard", 60)
