"""A moody HTTP bulk store for a long time, with a driver that dies again and again: only by `make soak`."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from tests.spark.test_sinks import retry_topics
from tests.support.bulk_server import BulkServer, behave, cut, cut_before, cut_within, items, status
from tests.support.spark_job import Job, check_metrics, documents, largest_window, produce, until, written

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.soak, pytest.mark.timeout(3600)]


@pytest.fixture
def store() -> Iterator[BulkServer]:
    server = BulkServer()
    yield server
    server.stop()


class Mover:
    """What a time buffer does, but at once and for as long as it lives: from the retry topic to `<job>.again`."""

    def __init__(self, one: Job) -> None:
        self._one, self._over = one, threading.Event()
        self.moved = 0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Mover:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(60)

    def _run(self) -> None:
        producer = Producer({"bootstrap.servers": self._one.kafka})
        consumer = Consumer(
            {"bootstrap.servers": self._one.kafka, "group.id": "mover", "auto.offset.reset": "earliest"}
        )
        consumer.subscribe([f"{self._one.prefix}writer.retry"])
        while not self._over.is_set():
            found = consumer.poll(0.2)
            if found is not None and found.error() is None:
                topic = f"{self._one.prefix}writer.again"
                producer.produce(topic, key=found.key(), value=found.value(), headers=found.headers())
                producer.flush(30)
                self.moved += 1
        consumer.close()


def moody(dice: random.Random) -> Callable[..., None]:
    """Every fourth request ends badly, each time in another way."""

    def step(handler: Any, pairs: list[Any]) -> None:
        ways = [status(429, {"Retry-After": "0"}), status(503), status(500), cut, cut_before, cut_within]
        some = items({index: dice.choice([429, 503]) for index in range(len(pairs)) if dice.random() < 0.3})
        chosen = dice.choice([*ways, some, some]) if dice.random() < 0.25 else behave
        chosen(handler, pairs)

    return step


def test_whatever_a_store_answers_and_however_often_the_driver_dies_every_row_is_there_once(
    job: Callable[..., Job], store: BulkServer
) -> None:
    one = job(sink=store.url, max_attempts=2, max_rounds=200, expected_cost_per_record=20.0)
    retry_topics(one)
    dice = random.Random(11)
    store.most, store.always = 25, moody(dice)
    values = documents(200)
    produce(one, values)
    with Mover(one) as mover:
        for _ in range(4):
            before = len(store.requests)
            one.start()
            until(lambda before=before: len(store.requests) > before + 5, one)
            time.sleep(dice.uniform(0, 3))
            one.send(signal.SIGKILL)
            assert one.wait() == -signal.SIGKILL, one.log()[-4000:]
        one.start()
        until(lambda: len(store.rows()) == 2000, one)
        until(lambda: one.metrics().get("headrace_spark_records_total", 0) >= 200 + mover.moved, one)
        store.always = None
        until(lambda: one.metrics()["headrace_spark_records_total"] == 200 + written(one, "writer.again"), one)
    numbers = one.metrics()
    check_metrics(numbers)
    assert mover.moved > 0, "something had to go the long way"
    assert written(one, "dead-letter") == 0
    # every record has its end: taken, or a repeat of one that was; what was postponed came back
    assert numbers["headrace_spark_records_postponed_total"] <= mover.moved
    documents_done = numbers["headrace_spark_documents_total"] - numbers["headrace_spark_records_postponed_total"]
    assert documents_done == 200
    assert sum(row[3] for row in store.rows()) == pytest.approx(sum(n + i / 10 for n in range(200) for i in range(10)))
    assert 0 < largest_window(one) <= 400

    # a store that is gone is waited for, and after `sink_down_max_ms` the job ends; nothing is lost or postponed
    assert one.terminate() == 0, one.log()[-4000:]
    one.change(sink_down_max_ms=2_000)
    store.stop()
    postponed = written(one, "writer.retry")
    produce(one, documents(1, 500))
    assert one.run() == 6, one.log()[-4000:]
    assert (written(one, "writer.retry"), written(one, "dead-letter")) == (postponed, 0)
