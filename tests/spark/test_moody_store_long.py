"""An HTTP bulk store that misbehaves in every way at once while drivers are killed: only by `make soak`.

Mishaps are counted and come to an end, so a run always ends: each way to end badly comes `EACH` times, while the
driver dies `KILLS` times; then the store behaves, and everything must have its end. The writer pauses after each
mishap, half a minute in the end, so there are few of them.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.bulk_server import BulkServer, behave, cut, cut_before, cut_within, items, status
from tests.support.spark_job import Job, check_metrics, documents, largest_window, produce, until, written

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.soak, pytest.mark.timeout(3600)]
DOCUMENTS, KILLS, EACH, CAPACITY = 100, 3, 2, 400
ROWS = DOCUMENTS * 10


@pytest.fixture
def store() -> Iterator[BulkServer]:
    server = BulkServer()
    yield server
    server.stop()


def retry_topics(one: Job) -> None:
    names = [f"{one.prefix}writer.{name}" for name in ("retry", "again")]
    admin = AdminClient({"bootstrap.servers": one.kafka})
    for future in admin.create_topics([NewTopic(name, 2, 1) for name in names]).values():
        future.result(240)


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
        producer = Producer({"bootstrap.servers": self._one.kafka, "enable.idempotence": True})
        consumer = Consumer(
            {"bootstrap.servers": self._one.kafka, "group.id": "mover", "auto.offset.reset": "earliest"}
        )
        consumer.subscribe([f"{self._one.prefix}writer.retry"])
        while not self._over.is_set():
            found = consumer.poll(0.2)
            if found is not None and found.error() is None:
                topic = f"{self._one.prefix}writer.again"
                producer.produce(topic, key=found.key(), value=found.value(), headers=found.headers())
                producer.flush(240)
                self.moved += 1
        consumer.close()


class Moods:
    """Every second request ends badly, until each way had its turns; `seen` counts what was answered."""

    def __init__(self, dice: random.Random) -> None:
        self._dice, self.seen = dice, Counter[str]()
        self._ways: dict[str, Callable[..., None]] = {
            "429": status(429, {"Retry-After": "0"}), "503": status(503), "500": status(500), "items": self._some,
            "cut after": cut, "cut before": cut_before, "cut within": cut_within,
        }  # fmt: skip
        self.left = [*self._ways] * EACH
        dice.shuffle(self.left)

    def __call__(self, handler: Any, pairs: list[Any]) -> None:
        """A step of the server."""
        if len(pairs) > handler.store.most or not self.left or self._dice.random() < 0.5:
            self.seen["413" if len(pairs) > handler.store.most else "well"] += 1
            behave(handler, pairs)
            return
        name = self.left.pop()
        self.seen[name] += 1
        self._ways[name](handler, pairs)

    def _some(self, handler: Any, pairs: list[Any]) -> None:
        chosen = [at for at in range(len(pairs)) if self._dice.random() < 0.3] or [0]
        items({at: self._dice.choice([429, 503]) for at in chosen})(handler, pairs)


def test_whatever_a_store_answers_and_however_often_the_driver_dies_every_row_is_there_once(
    job: Callable[..., Job], store: BulkServer
) -> None:
    one = job(sink=store.url, capacity=CAPACITY, max_attempts=2, max_rounds=200, expected_cost_per_record=4.0)
    retry_topics(one)
    dice = random.Random(11)
    moods = Moods(dice)
    store.most, store.always = 25, moods
    produce(one, documents(DOCUMENTS))
    with Mover(one) as mover:
        for _ in range(KILLS):
            before = len(store.requests)
            one.start()
            until(lambda before=before: len(store.requests) > before + 5, one)
            time.sleep(dice.uniform(0, 2))
            one.send(signal.SIGKILL)
            assert one.wait() == -signal.SIGKILL, one.log()[-4000:]
        one.start()
        until(lambda: len(store.rows()) == ROWS, one, 1800)
        moods.left.clear()
        until(lambda: settled(one), one)
    print("answers:", dict(moods.seen), "moved:", mover.moved, "requests:", len(store.requests))
    numbers = one.metrics()
    check_metrics(numbers)
    assert len(moods.seen) == 9, "all ways, and the good one"
    assert mover.moved > 0, "something had to go the long way"
    assert written(one, "dead-letter") == 0
    # a document is taken once for each time it stands in a topic, but only once without anything of it postponed
    postponed = numbers["headrace_spark_records_postponed_total"]
    assert 0 < postponed <= mover.moved
    assert numbers["headrace_spark_documents_total"] - postponed == DOCUMENTS
    expected = sum(n + i / 10 for n in range(DOCUMENTS) for i in range(10))
    assert sum(row[3] for row in store.rows()) == pytest.approx(expected)
    assert 0 < largest_window(one) <= CAPACITY

    # a store that is gone is waited for, and after `sink_down_max_ms` the job ends; nothing is lost or postponed
    assert one.terminate() == 0, one.log()[-4000:]
    one.change(sink_down_max_ms=2_000)
    store.stop()
    before = written(one, "writer.retry")
    produce(one, documents(1, 500))
    assert one.run() == 6, one.log()[-4000:]
    assert (written(one, "writer.retry"), written(one, "dead-letter")) == (before, 0)


def settled(one: Job) -> bool:
    """Everything that the topics have got was read and committed, and nothing is on its way through the retry topic."""
    retried = written(one, "writer.retry")
    again = written(one, "writer.again")
    return retried == again and one.metrics().get("headrace_spark_records_total") == DOCUMENTS + again
